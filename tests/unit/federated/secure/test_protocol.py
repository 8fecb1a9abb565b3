"""What a device refuses, what a server refuses, and that a masked vector says nothing."""

import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.reference import secure_aggregation as reference

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError, MissingDependencyError
from fedgram.federated.secure import messages, primitives
from fedgram.federated.secure.client import SecureClient
from fedgram.federated.secure.primitives import KEY_BYTES, add_mask, derive, pack, signed, unpack
from fedgram.federated.secure.server import SecureServer
from fedgram.federated.secure.settings import AbandonedRoundError, RefusedMessageError, SecureSettings
from fedgram.federated.secure.vectors import round_digest, total_from_sum, vector_length
from fedgram.federated.unigram_collection import COUNT, UnigramTask
from fedgram.federated.validation import Reason, RefusedUpdateError
from fedgram.text.vocabulary import Vocabulary

SETTINGS = SecureSettings(min_devices=3)
ABOUT = round_digest("job", 7, "broadcast")
STEPS = 4


class Round:
    """Five devices with the vectors (d, −d), step by step."""

    def __init__(self, settings: SecureSettings = SETTINGS, devices: int = 5, length: int = 2, seed: int = 0) -> None:
        self.entropy = np.random.default_rng(seed).bytes
        self.server = SecureServer(settings, length, about=ABOUT, entropy=self.entropy)
        self.vectors = {d: np.resize(np.array([d, -d], np.int64), length) for d in range(devices)}
        self.clients = {
            d: SecureClient(settings, length, v.copy, about=ABOUT, entropy=self.entropy)
            for d, v in self.vectors.items()
        }
        self.requests = self.server.begin(self.clients)

    def answers(self) -> dict[int, bytes]:
        return {d: self.clients[d].answer(request) for d, request in self.requests.items()}

    def step(self) -> None:
        for device, answer in self.answers().items():
            self.server.receive(device, answer)
        self.requests = self.server.advance()

    def before(self, step: int) -> "Round":
        for _ in range(step):
            self.step()
        return self


def reframed(message: bytes, body: Callable[[bytearray], object]) -> bytes:
    """The message with another body and a checksum that fits."""
    content = bytearray(message[38:-32])
    body(content)
    return messages.frame(messages.Kind(message[5]), message[6:38], bytes(content))


def _refuses_damage(take: Callable[[bytes], Any], message: bytes, rng: np.random.Generator) -> Any:
    """Offer it damaged and cut short, then whole."""
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
    with pytest.raises(RefusedMessageError, match="was not asked"):
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
    rows = [*sorted(reported.items()), (max(reported), False)]  # of the last neighbour both
    table = b"".join(struct.pack("<IB", j, there) for j, there in rows)
    both = messages.frame(messages.Kind.SURVIVORS, context, struct.pack("<II", total, len(rows)), table)
    with pytest.raises(RefusedMessageError, match="twice"):
        client.answer(both)
    for wrong, match in (
        (messages.survivors(context, total, dict(list(reported.items())[:-1])), "exactly the neighbours"),
        (messages.survivors(context, total, {**reported, 4096: True}), "exactly the neighbours"),
        (messages.survivors(context, 2, reported), "too few"),
        (messages.survivors(context, total, dict.fromkeys(reported, False)), "too few"),
        (reframed(request, lambda b: b.__setitem__(-1, 2)), "reported or not"),
    ):
        with pytest.raises(RefusedMessageError, match=match):
            client.answer(wrong)
    client.answer(request)
    flipped = messages.survivors(context, total, {**reported, one: not reported[one]})
    with pytest.raises(RefusedMessageError, match="over for this device"):
        client.answer(flipped)


def test_no_two_sets_of_neighbours_hold_both_secrets() -> None:
    """A server that tells half of them that a device reported and the other half that it left gets neither or one."""
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
        (messages.neighbours(context, number, devices, no_key), "no key"),
    ):
        with pytest.raises(RefusedMessageError, match=match):
            going.clients[0].answer(wrong)
    going.step()
    sealed = messages.read_delivery(going.requests[0], context)
    with pytest.raises(RefusedMessageError, match="are needed"):
        going.clients[0].answer(messages.delivery(context, dict(list(sealed.items())[:2])))
    with pytest.raises(RefusedMessageError, match="no neighbour"):
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
        with pytest.raises(RefusedMessageError, match="that of another"):
            going.server.receive(1, wrong)
    with pytest.raises(RefusedMessageError, match="no key"):
        going.server.receive(1, reframed(answers[1], lambda b: b.__setitem__(slice(32, 64), bytes(32))))


@pytest.mark.parametrize(("liars", "fine"), [(0, True), (1, True), (2, True), (5, False)])
def test_a_few_wrong_shares_do_no_harm_and_many_end_the_round(liars: int, fine: bool) -> None:
    going = Round(devices=9).before(3)
    for device, answer in going.answers().items():
        going.server.receive(device, reframed(answer, _change_every_share) if device < liars else answer)
    if fine:
        assert going.server.total().vector.tolist() == [36, -36]
    else:
        with pytest.raises(AbandonedRoundError, match="right ones"):
            going.server.total()


def _change_every_share(body: bytearray) -> None:
    for last in range(40, len(body), 37):
        body[last] ^= 1


def test_shares_changed_on_the_way_are_not_used() -> None:
    """Sealed shares are authenticated: a device keeps nothing of what was changed, and others recover the secret."""
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
    """One device sends far more than it may; the server learns the sum alone, and that it cannot be one."""
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
    """Such as one to a victim, and to the others one whose updates it knows.

    It writes the messages to and from the victim anew, so that each side finds its own context there. But shares are
    sealed with it, so that nobody holds a share of the victim's secrets.
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
    """The plan may need more than the masking does; with fewer nobody is asked for a share, and no vector is known."""
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


def test_masked_vectors_are_those_of_the_algebra() -> None:
    going = Round(devices=6, length=11).before(2)
    context, width = going.requests[0][6:38], SETTINGS.width(6)
    for device, answer in going.answers().items():
        client = going.clients[device]
        pairs = {
            j: derive(client._masking.agree(keys[KEY_BYTES:]), context, b"pair mask")
            for j, keys in client._neighbours.items()
        }
        own = derive(client._seed, context, b"self mask")
        assert {len(key) for key in (own, *pairs.values())} == {32}
        expected = reference.masked(going.vectors[device].tolist(), client._number, own, pairs, 8 * width)
        sent = messages.read_masked(answer, context, 11 * width)
        assert [int.from_bytes(sent[k : k + width], "little") for k in range(0, len(sent), width)] == expected


def test_every_bit_of_a_key_changes_the_whole_mask() -> None:
    key, length = bytes(range(32)), 20_000  # several blocks
    whole = mask_of(key, length)
    assert whole[:40].tolist() == reference.chacha20_words(key, 40)
    assert whole[16384:16390].tolist() == reference.chacha20_words(key, 16390)[16384:]
    for bit in range(256):
        other = bytearray(key)
        other[bit // 8] ^= 1 << bit % 8
        assert not (mask_of(bytes(other), 50) == whole[:50]).any()


def mask_of(key: bytes, length: int) -> Any:
    words = np.zeros(length, np.uint64)
    add_mask(words, key, 1)
    return words


def looks_uniform(octets: Any) -> bool:
    """Chi-square over byte values, and correlation between a byte and those that follow, at one in a million."""
    counts = np.bincount(octets, minlength=256)
    chance = float(stats.chisquare(counts).pvalue)
    centred = (octets - 127.5) / 73.9
    lags = (1, 2, 6, 7, 8, 14, 64)
    correlation = max(abs(float(np.mean(centred[lag:] * centred[:-lag]))) for lag in lags) * np.sqrt(len(octets))
    return 1e-6 < chance < 1 - 1e-6 and bool(correlation < 5.5)


def masked_bytes(vector: LongArray, seed: int) -> Any:
    """What the server sees of device 0 when everybody else sends zeros."""
    going = Round(length=len(vector), seed=seed)
    going.vectors[0][:] = vector
    going.before(2)
    return np.frombuffer(going.answers()[0][38:-32], np.uint8)


def test_a_masked_vector_looks_like_noise() -> None:
    rng = np.random.default_rng(0)
    for vector in (
        np.zeros(40_000, np.int64), np.full(40_000, 2**44), np.arange(40_000), rng.integers(-(2**44), 2**44, 40_000)
    ):  # fmt: skip
        seen = masked_bytes(vector, seed=3)
        assert looks_uniform(seen)
        assert all(looks_uniform(seen[k::7]) for k in range(7))
        again = masked_bytes(vector, seed=4)
        assert looks_uniform(seen ^ again)
        assert not looks_uniform(np.frombuffer(pack(vector.view(np.uint64), 7), np.uint8))  # the fault it would find


@given(st.integers(1, 8), st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_packing_keeps_the_low_bytes(width: int, numbers: list[int]) -> None:
    half = 1 << 8 * width - 1
    values = np.array([n % (2 * half) - half for n in numbers], np.int64)
    assert signed(unpack(pack(values.view(np.uint64), width), width), width).tolist() == values.tolist()


def test_nothing_secret_shows() -> None:
    going = Round().before(1)
    for thing in (going.clients[0], going.clients[0]._masking, going.server):
        assert going.clients[0]._seed.hex() not in repr(thing)
        assert len(repr(thing)) < 60


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    primitives._package.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(MissingDependencyError, match=r"fedgram\[secure\]"):
        SecureServer(SETTINGS, 1)


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
