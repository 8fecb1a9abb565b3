"""What a device refuses, what a server refuses, and when a round has no sum."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.unit.federated.secure.stepped_round import ABOUT, SETTINGS, STEPS, Round, reframed

from fedgram.core.errors import FedgramError
from fedgram.federated.secure import messages
from fedgram.federated.secure.checks import KEYS_OF_ROUND
from fedgram.federated.secure.client import SecureClient
from fedgram.federated.secure.identity import statement
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
    with pytest.raises(RefusedMessageError, match="no sum yet") if step < 4 else pytest.raises(AbandonedRoundError):
        going.server.total()
    if step == 4:
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
    reported, signatures = messages.read_survivors(request, context, 5)
    client.answer(request)
    going.clients[0] = client
    one = max(reported - {client._number})
    other = messages.survivors(context, reported - {one}, 5, {j: s for j, s in signatures.items() if j != one})
    with pytest.raises(RefusedMessageError, match="expected confirmed"):  # a second list after the first
        client.answer(other)
    for device in range(1, 5):
        going.server.receive(device, going.clients[device].answer(going.requests[device]))
    confirmed = going.server.advance()[1]
    shares = messages.read_unmasking(client.answer(confirmed), context)
    assert len(shares) == 4
    for again in (confirmed, other, request):
        with pytest.raises(RefusedMessageError, match="over for this device"):
            client.answer(again)


def test_no_two_sets_of_neighbours_hold_both_secrets() -> None:
    """A server that tells half of them that a device reported, and half that it left, gets at most one secret."""
    for devices in range(2, 200):
        k, t = SETTINGS.degree(devices), SETTINGS.threshold(devices)
        assert 2 * t > k


def test_devices_refuse_other_settings() -> None:
    going = Round()
    for changed in ({"settings": SecureSettings(min_devices=4)}, {"length": 3}):
        with pytest.raises(RefusedMessageError, match="settings"):
            going.client(0, **changed).answer(going.requests[0])


def test_servers_refuse_keys_that_are_none_or_somebody_elses() -> None:
    going = Round()
    context = going.requests[0][6:38]
    answers = going.answers()
    going.server.receive(0, answers[0])
    index, other = messages.read_keys(answers[1], context)
    _, taken = messages.read_keys(answers[0], context)

    def signed(keys: bytes, device: int = 1, name: int = index) -> bytes:
        signature = going.credentials[device].identity.sign(statement(KEYS_OF_ROUND, context, keys))
        return messages.keys(context, name, keys + signature)

    for wrong, match in (
        (answers[0], "key of another device"),
        (signed(other[:32] + taken[32:64]), "key of another device"),
        (signed(other[:32] * 2), "key of another device"),
        (signed(other[:64], 0), "not signed by it"),
        (signed(other[:64], name=99), "not admitted"),
        (signed(other[:32] + bytes(32)), "not valid"),
    ):
        with pytest.raises(RefusedMessageError, match=match):
            going.server.receive(1, wrong)
    going.server.receive(1, answers[1])


def test_servers_refuse_signatures_of_other_lists() -> None:
    going = Round().before(2)
    context = going.requests[0][6:38]
    answers = going.answers()
    wrong = reframed(answers[0], lambda b: b.__setitem__(slice(0, 64), answers[1][38:102]))
    with pytest.raises(RefusedMessageError, match="signature is not valid"):
        going.server.receive(0, wrong)
    for device, answer in answers.items():
        going.server.receive(device, answer)
    going.requests = going.server.advance()
    other = going.answers()[1]
    with pytest.raises(RefusedMessageError, match="signature is not valid"):
        going.server.receive(0, other)
    with pytest.raises(RefusedMessageError, match="wrong length"):
        going.server.receive(0, messages.frame(messages.Kind.CONFIRMATION, context, bytes(63)))


@pytest.mark.parametrize(("liars", "fine"), [(0, True), (1, True), (2, True), (5, False)])
def test_a_few_wrong_shares_do_no_harm_and_many_end_the_round(liars: int, fine: bool) -> None:
    going = Round(devices=9).before(4)
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
    whole = len(messages.read_delivery(request, request[6:38], 9)[1])
    for device, other in going.requests.items():
        going.server.receive(device, going.clients[device].answer(changed if device == 0 else other))
    going.requests = going.server.advance()
    going.step()
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
        found = going.before(STEPS).server.total()
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
    client = going.client(0, about=about)
    with pytest.raises(RefusedMessageError, match="another round, job or broadcast"):
        client.answer(going.requests[0])
    nonce = messages.read_invitation(going.requests[0], going.terms)
    keys = client.answer(messages.invitation(nonce, replace(going.terms, about=about)))
    with pytest.raises(RefusedMessageError, match="another round, job or broadcast"):
        going.server.receive(0, keys)


@pytest.mark.parametrize("other", OTHERS)
def test_a_server_cannot_sum_devices_that_were_given_different_jobs(other: tuple[str, int, str]) -> None:
    """For example, one job for a victim, and for the others a job whose updates the server knows.

    The server rewrites the messages to and from the victim, so that each side finds its own context in them. But the
    victim's keys are signed for its own job, so nobody else accepts them.
    """
    going, about = Round(), round_digest(*other)
    nonce = messages.read_invitation(going.requests[0], going.terms)
    victims = messages.invitation(nonce, replace(going.terms, about=about))
    going.clients[0] = going.client(0, about=about)
    answers = {d: client.answer(going.requests[d] if d else victims) for d, client in going.clients.items()}
    answers[0] = messages.frame(messages.Kind.KEYS, going.requests[0][6:38], answers[0][38:-32])
    for device in range(1, 5):
        going.server.receive(device, answers[device])
    with pytest.raises(RefusedMessageError, match="not signed by it"):  # nor would the others
        going.server.receive(0, answers[0])


def test_fewer_than_the_rounds_minimum_are_not_unmasked() -> None:
    """The plan's minimum may exceed that of the masking; below it the server requests no shares."""
    for minimum, fine in ((4, True), (5, False)):
        going = Round()
        going.server = SecureServer(SETTINGS, 2, going.admitted, about=ABOUT, minimum=minimum, entropy=going.entropy)
        going.requests = going.server.begin(going.clients)
        for step in range(4):
            assert going.server.opened == frozenset()
            for device, request in going.requests.items():
                if step != 2 or device < 4:
                    going.server.receive(device, going.clients[device].answer(request))
            if step == 2 and not fine:
                with pytest.raises(AbandonedRoundError, match="4 devices sent their vectors, 5 are needed"):
                    going.server.advance()
                assert going.server.opened == frozenset()
                break
            going.requests = going.server.advance()
        else:
            assert going.server.opened == {0, 1, 2, 3}


def test_a_sum_is_given_once() -> None:
    going = Round().before(STEPS)
    assert going.server.can_unmask
    assert going.server.waiting == frozenset()
    assert going.server.total().devices == (0, 1, 2, 3, 4)
    with pytest.raises(AbandonedRoundError, match="already"):
        going.server.total()


def test_the_server_waits_for_more_shares_while_a_wrong_one_is_among_as_many_as_are_needed() -> None:
    """Ending the step at a number of shares would lose a round that the next honest device completes."""
    going = Round(devices=9).before(STEPS - 1)
    answers, need = going.answers(), SETTINGS.threshold(9)
    for device in range(need + 1):
        assert not going.server.can_unmask
        going.server.receive(device, answers[device] if device else reframed(answers[device], _change_every_share))
    while not going.server.can_unmask:
        device += 1
        going.server.receive(device, answers[device])
    assert need < device < 8  # sooner than all
    assert going.server.total().vector.tolist() == [36, -36]


def test_a_device_outlives_its_process() -> None:
    going = Round()
    for _ in range(STEPS):
        going.step()
        going.clients = {
            d: SecureClient.restore(c.save(), SETTINGS, 2, going.vectors[d].copy, going.credentials[d], about=ABOUT)
            for d, c in going.clients.items()
        }
    assert going.server.total().vector.tolist() == [10, -10]


def test_any_bytes_are_refused() -> None:
    going, rng = Round(), np.random.default_rng(0)
    for length in range(0, 300, 3):
        for head in (b"", b"FGSA\1", b"FGSA\2", b"FGSA\2\1", b"FGSA\4", b"FGSA\4\1"):
            data = head + rng.bytes(length)
            for take in (going.clients[0].answer, lambda d: going.server.receive(0, d)):
                with pytest.raises(FedgramError):
                    take(data)


def test_another_version_is_refused_with_the_remedy() -> None:
    going = Round()
    old = bytearray(going.requests[0])
    old[4] = 1
    with pytest.raises(RefusedMessageError, match="version 1, not 4; upgrade"):
        going.clients[0].answer(bytes(old))
