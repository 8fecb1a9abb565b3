"""Every refusal of a device on its own: a message that breaks one rule alone, and one at the edge that keeps it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedgram.core.errors import FedgramError
from fedgram.federated.secure import checks
from fedgram.federated.secure.admitted_keys import AdmittedKeys, Credentials, new_credentials
from fedgram.federated.secure.checks import KEYS_OF_ROUND
from fedgram.federated.secure.identity import Identity, statement
from fedgram.federated.secure.messages import Terms
from fedgram.federated.secure.primitives import KeyPair, add_mask, commitment, derive
from fedgram.federated.secure.ring import (
    Ring,
    drawn_order,
    keys_digest,
    places_from_bits,
    places_to_bits,
    ring_from_bytes,
)
from fedgram.federated.secure.server import SecureSum
from fedgram.federated.secure.settings import RefusedMessageError, SecureSettings
from fedgram.federated.secure.vectors import round_digest, total_from_sum, update_to_vector
from fedgram.federated.task import Update
from fedgram.federated.unigram_collection import COUNT, UnigramTask
from fedgram.federated.validation import RefusedUpdateError
from fedgram.text.vocabulary import Vocabulary

DEVICES, CONTEXT = 9, b"c" * 32
SETTINGS = SecureSettings(min_devices=4, neighbours=4)  # threshold 3, quorum 7 of 9


class Told:
    """What an honest server tells a device: the ring, its place, and its neighbours' keys."""

    def __init__(self) -> None:
        self.entropy = np.random.default_rng(2).bytes
        own = new_credentials(range(DEVICES), self.entropy)
        self.admitted = own[0].admitted
        by_index = {each.index: each for each in own.values()}
        order = drawn_order(CONTEXT, range(DEVICES))
        self.credentials = [by_index[index] for index in order]
        self.keys = [self.new_keys() for _ in order]
        self.ring = Ring(tuple(order), tuple(keys_digest(keys) for keys in self.keys))
        self.terms = Terms(SETTINGS, 5, self.admitted)

    def new_keys(self) -> bytes:
        return KeyPair(self.entropy(32)).public + KeyPair(self.entropy(32)).public

    def signed(self, place: int, keys: bytes | None = None, context: bytes = CONTEXT) -> bytes:
        keys = self.keys[place] if keys is None else keys
        return keys + self.credentials[place].identity.sign(statement(KEYS_OF_ROUND, context, keys))

    def neighbours(self, place: int) -> dict[int, bytes]:
        return {j: self.signed(j) for j in SETTINGS.ring(place, DEVICES)}

    def check_ring(self, ring: Ring | None = None, *, place: int = 2, **changed: Any) -> None:
        told = {"own_keys": self.keys[2], "terms": self.terms, "credentials": self.credentials[2], **changed}
        checks.check_ring(place, ring or self.ring, context=CONTEXT, **told)

    def check_neighbours(self, signed: dict[int, bytes], ring: Ring | None = None) -> None:
        checks.check_neighbours(2, ring or self.ring, signed, self.keys[2], self.terms, CONTEXT)


@pytest.fixture(scope="module")
def told() -> Told:
    return Told()


def refused(problem: str) -> Any:
    return pytest.raises(RefusedMessageError, match=problem)


def test_a_device_takes_part_if_it_is_on_a_list_that_is_long_enough(told: Told) -> None:
    for least in (4, DEVICES):
        own = checks.own_index(told.credentials[0], replace(SETTINGS, min_devices=least))
        assert own == told.ring.indices[0]
    with refused("9 keys are admitted; at least 10 are needed"):
        checks.own_index(told.credentials[0], replace(SETTINGS, min_devices=DEVICES + 1))
    stranger = Credentials(Identity.from_entropy(told.entropy(40)), told.admitted)
    with refused("this device is not on the list"):
        checks.own_index(stranger, SETTINGS)


def test_the_ring_must_be_large_enough(told: Told) -> None:
    told.check_ring()
    told.check_ring(terms=replace(told.terms, settings=replace(SETTINGS, min_devices=DEVICES)))
    with refused("9 devices take part; at least 10 are needed"):
        told.check_ring(terms=replace(told.terms, settings=replace(SETTINGS, min_devices=DEVICES + 1)))


def test_only_admitted_devices_are_on_the_ring(told: Told) -> None:
    """The first index that is not admitted, in the place where the round draws it."""
    order = drawn_order(CONTEXT, [*told.ring.indices, DEVICES])
    own = order.index(told.ring.indices[2])
    digests = [keys_digest(told.keys[2]) if place == own else b"x" * 16 for place in range(len(order))]
    with refused("a device on the ring is not admitted"):
        told.check_ring(Ring(tuple(order), tuple(digests)), place=own)


def test_no_device_is_on_the_ring_twice(told: Told) -> None:
    order = drawn_order(CONTEXT, [*told.ring.indices, told.ring.indices[5]])
    own = order.index(told.ring.indices[2])
    digests = [keys_digest(told.keys[2]) if place == own else b"x" * 16 for place in range(len(order))]
    with refused("a device is on the ring twice"):
        told.check_ring(Ring(tuple(order), tuple(digests)), place=own)


def test_the_ring_has_this_devices_own_keys_at_its_own_place(told: Told) -> None:
    with refused("does not have this device's keys at its place"):
        told.check_ring(own_keys=told.new_keys())
    swapped = list(told.ring.digests)
    swapped[3] = keys_digest(told.keys[2])  # its keys, at the place of another device
    with refused("does not have this device's keys at its place"):
        told.check_ring(Ring(told.ring.indices, tuple(swapped)), place=3)


def test_nobody_chooses_the_order_of_the_ring(told: Told) -> None:
    turned = [*told.ring.indices[1:], told.ring.indices[0]]
    digests = [*told.ring.digests[1:], told.ring.digests[0]]
    with refused("not in the order that the round draws"):
        told.check_ring(Ring(tuple(turned), tuple(digests)), place=1)
    assert drawn_order(CONTEXT, range(DEVICES)) != drawn_order(b"d" * 32, range(DEVICES)) != list(range(DEVICES))


def test_the_neighbours_are_those_of_the_ring(told: Told) -> None:
    fine = told.neighbours(2)
    told.check_neighbours(fine)
    for other in ({**dict(list(fine.items())[:-1]), 7: told.signed(7)}, dict(list(fine.items())[:-1])):
        with refused("the neighbours are not those of the ring"):
            told.check_neighbours(other)


def test_no_two_devices_have_the_same_key(told: Told) -> None:
    """Half of a neighbour's keys is half of another's, and is on the ring and signed."""
    for half in (told.keys[2][:32], told.keys[0][32:]):
        keys = half + told.new_keys()[32:]
        digests = list(told.ring.digests)
        digests[1] = keys_digest(keys)
        with refused("two devices have the same key"):
            told.check_neighbours(
                {**told.neighbours(2), 1: told.signed(1, keys)}, Ring(told.ring.indices, tuple(digests))
            )


def test_a_neighbours_keys_are_those_on_the_ring(told: Told) -> None:
    with refused("a neighbour's keys are not those on the ring"):
        told.check_neighbours({**told.neighbours(2), 1: told.signed(1, told.new_keys())})


@pytest.mark.parametrize("lie", ["another signer", "another round", "a damaged signature"])
def test_a_neighbour_signed_its_keys_for_this_round(told: Told, lie: str) -> None:
    fine = told.signed(1)
    forged = {
        "another signer": told.keys[1] + told.signed(3, told.keys[1])[64:],
        "another round": told.signed(1, context=b"d" * 32),
        "a damaged signature": fine[:-1] + bytes([fine[-1] ^ 1]),
    }[lie]
    with refused("not signed by it"):
        told.check_neighbours({**told.neighbours(2), 1: forged})


ALL = frozenset(range(DEVICES))
AROUND = {0, 1, 3, 4}  # the neighbours of place 2


def sharing(sharing: frozenset[int], senders: set[int]) -> Callable[[], None]:
    return lambda: checks.check_sharing(2, sharing, senders, SETTINGS, DEVICES)


def test_enough_devices_shared_and_all_shares_of_neighbours_are_delivered() -> None:
    for fine, senders in ((ALL, AROUND), (ALL - {1}, AROUND - {1}), (frozenset({0, 1, 2, 3}), {0, 1, 3})):
        sharing(fine, senders)()
    for wrong, senders, problem in (
        (ALL - {2}, AROUND, "leaves this device out"),
        (frozenset({0, 1, 2}), {0, 1}, "3 devices shared their secrets; at least 4 are needed"),
        (ALL, AROUND - {1}, "not those of the neighbours that shared"),
        (ALL - {1}, AROUND, "not those of the neighbours that shared"),
        (ALL, AROUND | {7}, "not those of the neighbours that shared"),
    ):
        with refused(problem):
            sharing(wrong, senders)()


def test_as_many_shares_as_the_threshold_are_opened() -> None:
    checks.check_opened(3, 3)
    with refused("2 neighbours shared their secrets; at least 3 are needed"):
        checks.check_opened(2, 3)


def test_a_list_of_survivors_is_complete_enough_and_has_this_device() -> None:
    few = SecureSettings(min_devices=8, neighbours=4)
    for fine, settings in ((ALL, SETTINGS), (ALL - {0, 7}, SETTINGS), (ALL - {7}, few)):
        checks.check_survivors(2, fine, ALL, settings, DEVICES)
    for wrong, shared, settings, problem in (
        (ALL - {2}, ALL, SETTINGS, "leaves this device out"),
        (ALL, ALL - {7}, SETTINGS, "did not share their secrets"),
        (ALL - {5, 6, 7}, ALL, SETTINGS, "too few devices reported"),  # 6 of 9, and the quorum is 7
        (ALL - {6, 7}, ALL, few, "too few devices reported"),  # 7 of 9, and at least 8 are demanded
        (ALL - {0, 1}, ALL, SETTINGS, "too few neighbours reported"),  # 2 of 4
    ):
        with refused(problem):
            checks.check_survivors(2, wrong, shared, settings, DEVICES)


def test_a_quorum_of_survivors_signed() -> None:
    checks.check_quorum(range(7), ALL, 7)
    with refused("6 devices signed the list of survivors; 7 are needed"):
        checks.check_quorum(range(6), ALL, 7)
    with refused("a device that did not report signed"):
        checks.check_quorum(range(7), ALL - {0}, 7)


def test_exactly_the_signatures_that_are_due_are_valid(told: Told) -> None:
    content = statement(b"what", CONTEXT, b"list")
    fine = {place: told.credentials[place].identity.sign(content) for place in (0, 1, 3)}

    def check(signatures: dict[int, bytes], signers: set[int]) -> None:
        checks.check_signatures(signatures, signers, content, told.admitted, told.ring, "who shared")

    check(fine, {0, 1, 3})
    for signers in ({0, 1}, {0, 1, 3, 4}):
        with refused("signatures of the list of who shared are missing"):
            check(fine, signers)
    for forged in (fine[0], told.credentials[1].identity.sign(statement(b"what", CONTEXT, b"other")), bytes(64)):
        with refused("was sent another list of who shared, or did not sign it"):
            check({**fine, 1: forged}, {0, 1, 3})


def test_a_statement_is_for_one_purpose_one_round_and_its_own_parts() -> None:
    said = [statement(b"a", CONTEXT, *parts) for parts in ((b"x", b"y"), (b"xy", b""), (b"", b"xy"), (b"xy",))]
    said += [statement(b"b", CONTEXT, b"x", b"y"), statement(b"a", b"d" * 32, b"x", b"y")]
    assert len(set(said)) == len(said)


def test_the_context_of_a_ring_is_of_its_devices_and_its_round(told: Told) -> None:
    other = Ring(told.ring.indices, (*told.ring.digests[:-1], b"x" * 16))
    assert len({told.ring.context(CONTEXT), other.context(CONTEXT), told.ring.context(b"d" * 32)}) == 3
    assert ring_from_bytes(told.ring.to_bytes()) == told.ring


@pytest.mark.parametrize(("bits", "devices"), [(b"\x00\x04", 10), (b"\x00", 10), (bytes(3), 10), (b"\x80", 7)])
def test_bits_beyond_the_ring_are_refused(bits: bytes, devices: int) -> None:
    assert places_from_bits(places_to_bits({0, 9}, 10), 10) == {0, 9}
    with refused("does not fit the ring"):
        places_from_bits(bits, devices)


def test_more_than_half_of_the_neighbours_and_more_than_the_majority_of_devices() -> None:
    for devices in range(2, 60):
        for neighbours in (1, 2, 3, 4, 7, None):
            settings = SecureSettings(neighbours=neighbours)
            assert 2 * settings.threshold(devices) > settings.degree(devices)
        for majority in (0.5, 2 / 3, 0.9):
            quorum = SecureSettings(majority=majority).quorum(devices)
            assert majority * devices + 1e-9 < quorum <= majority * devices + 1 + 1e-9


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_devices": 1}, {"min_devices": (1 << 16) + 1}, {"neighbours": 0}, {"neighbours": 1 << 16},
        {"majority": 0.49}, {"majority": 1.0}, {"value_bits": 0}, {"value_bits": 63},
    ],
)  # fmt: skip
def test_each_setting_outside_its_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FedgramError, match="not"):
        SecureSettings(**wrong)
    SecureSettings(2, 1, 0.5, 62)


def test_sums_of_the_largest_entries_fit() -> None:
    """A sign, the bits of an entry, and those of the number of devices."""
    for bits, devices, width in (
        (45, 2, 6),
        (46, 2, 6),
        (47, 2, 7),
        (62, 2, 8),
        (45, 1 << 16, 8),
        (7, 2, 2),
        (6, 2, 1),
    ):
        assert SecureSettings(value_bits=bits).width(devices) == width
    for bits, devices in ((62, 3), (45, 1), (45, (1 << 16) + 1)):
        with pytest.raises(FedgramError, match="does not fit into 64 bits"):
            SecureSettings(value_bits=bits).width(devices)


TASK = UnigramTask(Vocabulary.of(["x", "y"]), clip=10.0)


def counted(count: float) -> Update:
    return Update(TASK.size, {COUNT: np.array([3])}, {COUNT: np.array([count])}, 1.0)


def test_a_device_checks_its_own_update_and_the_server_the_sum() -> None:
    vector = update_to_vector(TASK, counted(10.0))
    assert vector.tolist() == [0, 0, 0, 10 << TASK.bits, 0, 1 << TASK.bits]
    with pytest.raises(RefusedUpdateError):
        update_to_vector(TASK, counted(10.1))
    total = total_from_sum(TASK, SecureSum(2 * vector, (1, 2)))
    assert (total.devices, total.weight, total.array(COUNT)[3]) == (2, 2 << TASK.bits, 20.0)
    with pytest.raises(RefusedUpdateError):
        total_from_sum(TASK, SecureSum(3 * vector, (1, 2)))


def test_a_round_is_named_by_its_job_number_and_broadcast() -> None:
    names = {round_digest(job, n, b) for job in ("a", "b") for n in (1, 2) for b in ("x", "y")}
    assert len(names) == 8


def test_keys_masks_and_commitments_are_for_one_round_and_purpose() -> None:
    keys = {derive(secret, context, purpose) for secret in (bytes(32), b"s" * 32) for context in (b"a", b"b")
            for purpose in (b"p", b"q")}  # fmt: skip
    assert len(keys) == 8
    assert len({commitment(seed, context) for seed in (bytes(32), b"s" * 32) for context in (b"a", b"b")}) == 4
    words = np.arange(5, dtype=np.uint64)
    add_mask(words, b"k" * 32, 1)
    assert words.tolist() != list(range(5))
    add_mask(words, b"k" * 32, -1)
    assert words.tolist() == list(range(5))


def test_an_empty_list_of_keys_admits_nobody() -> None:
    nobody = Credentials(Identity.from_entropy(bytes(40)), AdmittedKeys(1, ()))
    with refused("not on the list"):
        checks.own_index(nobody, SETTINGS)
