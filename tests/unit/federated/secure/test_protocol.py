"""What a device refuses, what a server refuses, and when a round has no sum."""

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.unit.federated.secure.stepped_round import ABOUT, SETTINGS, STEPS, Round, reframed

from fedgram.core.errors import FedgramError
from fedgram.federated.secure import messages
from fedgram.federated.secure.client import SecureClient
from fedgram.federated.secure.server import SecureServer
from fedgram.federated.secure.settings import AbandonedRoundError, RefusedMessageError, SecureSettings
from fedgram.federated.secure.vectors import round_digest, total_from_sum, vector_length
from fedgram.federated.unigram_collection import COUNT, UnigramTask
from fedgram.federated.validation import Reason, RefusedUpdateError
from fedgram.text.vocabulary import Vocabulary


def _refuses_damage(take: Callable[[bytes], Any], message: bytes, rng: np.random.Generator) -> Any:
    """Offer the message damaged, then truncated, then intact."""
    for _ in range(15):
        damaged = bytearray(message)
        damaged[int(rng.integers(len(damaged)))] ^= 1 << int(rng.integers(8))
        with pytest.raises(RefusedMessageError):
            take(bytes(damaged))
    for length in rng.integers(0, len(message), 10):
        with pytest.raises(RefusedMessageError):
            take(message[:length])
    return take(message)


@pytest.mark.parametrize("step", range(STEPS))
def test_damage_is_refused_by_both_sides_and_does_no_harm(step: int) -> None:
    rng = np.random.default_rng(step)
    going = Round().before(step)
    for device, request in going.requests.items():
        answer = _refuses_damage(going.clients[device].answer, request, rng)
        _refuses_damage(partial(going.server.receive, device), answer, rng)
    going.requests = going.server.advance()
    for _ in range(step + 1, STEPS):
        going.step()
    assert going.server.total().vector.tolist() == [10, -10]


@pytest.mark.parametrize("step", range(STEPS))
def test_everything_happens_once_and_in_turn(step: int) -> None:
    going = Round().before(step)
    earlier = dict(going.requests)
    answers = going.answers()
    with pytest.raises(RefusedMessageError, match="out of turn"):
        going.clients[0].answer(earlier[0])
    with pytest.raises(RefusedMessageError, match="was not invited"):
        going.server.receive(99, answers[0])
    with pytest.raises(RefusedMessageError, match="no sum yet") if step < 3 else pytest.raises(AbandonedRoundError):
        going.server.total()
    if step == 3:
        return
    going.server.receive(0, answers[0])
    with pytest.raises(RefusedMessageError, match="twice"):
        going.server.receive(0, answers[0])
    with pytest.raises(RefusedMessageError, match="another round"):
        going.server.receive(1, Round(seed=7).before(step).answers()[1])


def test_a_server_gets_one_share_of_each_neighbour_and_never_both() -> None:
    going = Round().before(3)
    client, request = going.clients[0], going.requests[0]
    context = request[6:38]
    total, reported = messages.read_survivors(request, context)
    one = max(reported)
    rows = [*sorted(reported.items()), (max(reported), False)]  # both shares of the last neighbour
    table = b"".join(struct.pack("<IB", j, there) for j, there in rows)
    both = messages.frame(messages.Kind.SURVIVORS, context, struct.pack("<II", total, len(rows)), table)
    with pytest.raises(RefusedMessageError, match="twice"):
        client.answer(both)
    for wrong, match in (
        (messages.survivors(context, total, dict(list(reported.items())[:-1])), "does not match the neighbours"),
        (messages.survivors(context, total, {**reported, 4096: True}), "does not match the neighbours"),
        (messages.survivors(context, 2, reported), "too few"),
        (messages.survivors(context, total, dict.fromkeys(reported, False)), "too few"),
        (reframed(request, lambda b: b.__setitem__(-1, 2)), "must be 0 or 1"),
    ):
        with pytest.raises(RefusedMessageError, match=match):
            client.answer(wrong)
    client.answer(request)
    flipped = messages.survivors(context, total, {**reported, one: not reported[one]})
    with pytest.raises(RefusedMessageError, match="over for this device"):
        client.answer(flipped)


def test_no_two_sets_of_neighbours_hold_both_secrets() -> None:
    """A server that tells half of them that a device reported, and half that it left, gets at most one secret."""
    for devices in range(2, 200):
        k, t = SETTINGS.degree(devices), SETTINGS.threshold(devices)
        assert 2 * t > k


def test_devices_refuse_other_settings_and_other_rings() -> None:
    going = Round()
    other = SecureClient(SecureSettings(min_devices=4), 2, lambda: np.zeros(2, np.int64), about=ABOUT)
    shorter = SecureClient(SETTINGS, 3, lambda: np.zeros(3, np.int64), about=ABOUT)
    for client in (other, shorter):
        with pytest.raises(RefusedMessageError, match="settings"):
            client.answer(going.requests[0])
    going.step()
    context = going.requests[0][6:38]
    number, devices, public = messages.read_neighbours(going.requests[0], context)
    same = dict.fromkeys(public, next(iter(public.values())))
    no_key = {**public, min(public): bytes(32) + b"\7" * 32}
    for wrong, match in (
        (messages.neighbours(context, number, devices, dict(list(public.items())[1:])), "of the ring"),
        (messages.neighbours(context, number, 2, {1 - min(number, 1): bytes(64)}), "needed|on the ring"),
        (messages.neighbours(context, devices, devices, public), "on the ring"),
        (messages.neighbours(context, number, devices, same), "same key"),
        (messages.neighbours(context, number, devices, no_key), "not valid"),
    ):
        with pytest.raises(RefusedMessageError, match=match):
            going.clients[0].answer(wrong)
    going.step()
    sealed = messages.read_delivery(going.requests[0], context)
    with pytest.raises(RefusedMessageError, match="are needed"):
        going.clients[0].answer(messages.delivery(context, dict(list(sealed.items())[:2])))
    with pytest.raises(RefusedMessageError, match="not a neighbour"):
        going.clients[0].answer(messages.delivery(context, {**sealed, 77: bytes(82)}))
    going.step()
    going.step()
    assert going.server.total().vector.tolist() == [10, -10]


def test_servers_refuse_keys_that_are_none_or_somebody_elses() -> None:
    going = Round()
    answers = going.answers()
    going.server.receive(0, answers[0])
    for wrong in (
        answers[0],
        reframed(answers[1], lambda b: b.__setitem__(slice(32, 64), answers[0][70:102])),
        reframed(answers[1], lambda b: b.__setitem__(slice(32, 64), b[:32])),
    ):
        with pytest.raises(RefusedMessageError, match="key of another device"):
            going.server.receive(1, wrong)
    with pytest.raises(RefusedMessageError, match="not valid"):
        going.server.receive(1, reframed(answers[1], lambda b: b.__setitem__(slice(32, 64), bytes(32))))


@pytest.mark.parametrize(("liars", "fine"), [(0, True), (1, True), (2, True), (5, False)])
def test_a_few_wrong_shares_do_no_harm_and_many_end_the_round(liars: int, fine: bool) -> None:
    going = Round(devices=9).before(3)
    for device, answer in going.answers().items():
        going.server.receive(device, reframed(answer, _change_every_share) if device < liars else answer)
    if fine:
        assert going.server.total().vector.tolist() == [36, -36]
    else:
        with pytest.raises(AbandonedRoundError, match="correct ones"):
            going.server.total()


def _change_every_share(body: bytearray) -> None:
    for last in range(40, len(body), 37):
        body[last] ^= 1


def test_shares_changed_on_the_way_are_not_used() -> None:
    """Sealed shares are authenticated: a device drops a changed share, and other devices recover the secret."""
    going = Round(devices=9).before(2)
    request = going.requests[0]
    changed = reframed(request, lambda b: b.__setitem__(30, b[30] ^ 1))
    whole = len(messages.read_delivery(request, request[6:38]))
    for device, other in going.requests.items():
        going.server.receive(device, going.clients[device].answer(changed if device == 0 else other))
    going.requests = going.server.advance()
    answers = going.answers()
    assert len(messages.read_unmasking(answers[0], request[6:38])) == whole - 1
    for device, answer in answers.items():
        going.server.receive(device, answer)
    assert going.server.total().vector.tolist() == [36, -36]


def test_a_sum_out_of_bounds_is_not_used() -> None:
    """One device sends far more than it may; the server sees only the sum, and refuses it."""
    task = UnigramTask(Vocabulary.of(["a", "b"]), clip=2.0)
    words = task.size[COUNT]
    length = vector_length(task.size)
    for excess, reason in ((0, None), (1 << 28, Reason.NORM), (-(1 << 28), Reason.NEGATIVE)):
        going = Round(length=length)
        for vector in going.vectors.values():
            vector[:] = 0
            vector[3], vector[words] = 2 << task.bits, 1 << task.bits
        going.vectors[0][3] += excess
        found = going.before(4).server.total()
        if reason is None:
            total = total_from_sum(task, found)
            assert (total.array(COUNT)[3], total.devices, total.weight >> task.bits) == (10.0, 5, 5)
            continue
        with pytest.raises(RefusedUpdateError) as error:
            total_from_sum(task, found)
        assert error.value.reason == reason


OTHERS = [("other job", 7, "broadcast"), ("job", 8, "broadcast"), ("job", 7, "other broadcast")]


@pytest.mark.parametrize("other", OTHERS)
def test_a_device_refuses_another_job_round_or_broadcast(other: tuple[str, int, str]) -> None:
    going, about = Round(), round_digest(*other)
    client = SecureClient(SETTINGS, 2, lambda: np.zeros(2, np.int64), about=about)
    with pytest.raises(RefusedMessageError, match="another round, job or broadcast"):
        client.answer(going.requests[0])
    nonce = messages.read_invitation(going.requests[0], SETTINGS, 2, ABOUT)
    keys = client.answer(messages.invitation(nonce, SETTINGS, 2, about))
    with pytest.raises(RefusedMessageError, match="another round, job or broadcast"):
        going.server.receive(0, keys)


@pytest.mark.parametrize("other", OTHERS)
def test_a_server_cannot_sum_devices_that_were_given_different_jobs(other: tuple[str, int, str]) -> None:
    """For example, one job for a victim, and for the others a job whose updates the server knows.

    The server rewrites the messages to and from the victim, so that each side finds its own context in them. But shares
    are sealed with the context, so no other device holds a share of the victim's secrets.
    """
    going, about = Round(), round_digest(*other)
    nonce = messages.read_invitation(going.requests[0], SETTINGS, 2, ABOUT)
    contexts = {a: messages.round_context(nonce, SETTINGS, 2, a) for a in (ABOUT, about)}
    going.clients[0] = SecureClient(SETTINGS, 2, lambda: np.array([5, 5]), about=about)

    def anew(message: bytes, said: bytes) -> bytes:
        return messages.frame(messages.Kind(message[5]), contexts[said], message[38:-32])

    for _ in range(STEPS):
        for device, request in going.requests.items():
            answer = going.clients[device].answer(request if device else anew(request, about))
            going.server.receive(device, answer if device else anew(answer, ABOUT))
        going.requests = going.server.advance()
    assert going.server._shares[going.server._number[0]] == {}
    with pytest.raises(AbandonedRoundError, match="cannot be recovered from 0 shares"):
        going.server.total()


def test_fewer_than_the_rounds_minimum_are_not_unmasked() -> None:
    """The plan's minimum may exceed that of the masking; below it the server requests no shares."""
    for minimum, fine in ((4, True), (5, False)):
        entropy = np.random.default_rng(0).bytes
        server = SecureServer(SETTINGS, 1, minimum=minimum, entropy=entropy)
        clients = {d: SecureClient(SETTINGS, 1, lambda: np.ones(1, np.int64), entropy=entropy) for d in range(5)}
        requests = server.begin(clients)
        for step in range(3):
            assert server.opened == frozenset()
            for device, request in requests.items():
                if step < 2 or device < 4:
                    server.receive(device, clients[device].answer(request))
            if step == 2 and not fine:
                with pytest.raises(AbandonedRoundError, match="4 devices sent their vectors, 5 are needed"):
                    server.advance()
                assert server.opened == frozenset()
                break
            requests = server.advance()
        else:
            assert server.opened == {0, 1, 2, 3}


def test_a_sum_is_given_once() -> None:
    going = Round().before(4)
    assert going.server.can_unmask
    assert going.server.waiting == frozenset()
    assert going.server.total().devices == (0, 1, 2, 3, 4)
    with pytest.raises(AbandonedRoundError, match="already"):
        going.server.total()


def test_a_device_outlives_its_process() -> None:
    going = Round()
    for _ in range(STEPS):
        going.step()
        going.clients = {
            d: SecureClient.restore(c.save(), SETTINGS, 2, lambda d=d: going.vectors[d], about=ABOUT)  # type: ignore[misc]
            for d, c in going.clients.items()
        }
    assert going.server.total().vector.tolist() == [10, -10]


def test_any_bytes_are_refused() -> None:
    going, rng = Round(), np.random.default_rng(0)
    for length in range(0, 300, 3):
        for head in (b"", b"FGSA\1", b"FGSA\2", b"FGSA\2\1", b"FGSA\3\1"):
            data = head + rng.bytes(length)
            for take in (going.clients[0].answer, lambda d: going.server.receive(0, d)):
                with pytest.raises(FedgramError):
                    take(data)


def test_another_version_is_refused_with_the_remedy() -> None:
    going = Round()
    old = bytearray(going.requests[0])
    old[4] = 1
    with pytest.raises(RefusedMessageError, match="version 1, not 2; upgrade"):
        going.clients[0].answer(bytes(old))
