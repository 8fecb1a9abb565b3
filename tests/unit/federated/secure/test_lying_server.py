"""A server that lies. Each lie alone is refused, each by one check; no lie gives the server a single device's vector.

The first test is an attack that worked when devices took the server's word for who had left: it read one chosen vector.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow
from tests.unit.federated.secure.stepped_round import ABOUT, SETTINGS, STEPS, Round

from fedgram.federated.secure import checks, messages
from fedgram.federated.secure.admitted_keys import AdmittedKeys, Credentials
from fedgram.federated.secure.checks import CONFIRMS, KEYS_OF_ROUND
from fedgram.federated.secure.identity import Identity, is_signed_by, statement
from fedgram.federated.secure.primitives import KeyPair
from fedgram.federated.secure.ring import Ring, drawn_order, keys_digest, places_to_bits
from fedgram.federated.secure.server import SecureServer
from fedgram.federated.secure.settings import OtherKeysError, RefusedMessageError, SecureSettings


def the_only_check(monkeypatch: pytest.MonkeyPatch, name: str, refused: Callable[[], object]) -> None:
    """The lie is refused, and would not be if this one check were left out."""
    with pytest.raises(RefusedMessageError):
        refused()
    monkeypatch.setattr(checks, name, lambda *_, **__: None)
    refused()


def lies_to_tell(settings: SecureSettings, devices: int) -> dict[int, frozenset[int]]:
    """Which neighbours of place 0 each place is told have left: k − t at most, and each neighbour to t places."""
    k, t, target = settings.degree(devices), settings.threshold(devices), settings.ring(0, devices)
    source, sink = 2 * devices, 2 * devices + 1
    edges = [(i, devices + j, 1) for i in range(devices) for j in settings.ring(i, devices) if j in target]
    edges += [(source, i, k - t) for i in range(devices)] + [(devices + j, sink, t) for j in target]
    rows, columns, capacity = (np.array(column, np.int32) for column in zip(*edges, strict=True))
    found = maximum_flow(csr_matrix((capacity, (rows, columns)), (2 * devices + 2, 2 * devices + 2)), source, sink)
    assert found.flow_value == t * len(target)
    flow = found.flow.toarray()
    return {i: frozenset(j for j in target if flow[i, devices + j] > 0) for i in range(devices)}


@pytest.mark.parametrize("devices", [45, 64, 100, pytest.param(500, marks=pytest.mark.slow)])
def test_lists_of_survivors_of_each_devices_own_give_nothing(devices: int) -> None:
    """Each device is told that some neighbours of the target have left, so few that it accepts its list.

    When devices took the server's word, it had t shares of the target's seed and of the masking key of each of the
    target's neighbours then, which is the target's vector. Now it has shares for one list at most.
    """
    settings = SecureSettings(min_devices=min(devices, 50) // 2)
    going = Round(settings, devices).before(3)
    context, everybody = going.requests[0][6:38], frozenset(range(devices))
    told = {place: everybody - lies for place, lies in lies_to_tell(settings, devices).items()}
    signed: dict[frozenset[int], dict[int, bytes]] = {}
    for place, device in enumerate(going.server._device):
        seen = {j: going.server._seen[j] for j in settings.ring(place, devices) if j in told[place]}
        with suppress(RefusedMessageError):  # of 45 devices, some miss more than a third on their lists already
            answer = going.clients[device].answer(messages.survivors(context, told[place], devices, seen))
            signed.setdefault(told[place], {})[place] = messages.read_confirmation(answer, context)
    every = {place: signature for table in signed.values() for place, signature in table.items()}
    assert len(every) == devices or devices == 45
    gave = set()
    for place in every:
        device = going.server._device[place]
        mixed = {p: s for p, s in every.items() if p in told[place]}
        with pytest.raises(RefusedMessageError, match=r"another list of who survived|devices signed"):
            going.clients[device].answer(messages.confirmed(context, dict(sorted(mixed.items()))))
        with suppress(RefusedMessageError):
            going.clients[device].answer(messages.confirmed(context, dict(sorted(signed[told[place]].items()))))
            gave.add(told[place])
    assert len(gave) <= 1  # all of them agree on who left, so nobody's two secrets come out


@pytest.mark.parametrize("devices", [9, 12, 31])
def test_at_most_one_of_two_lists_is_confirmed(devices: int) -> None:
    """However the server divides the devices between two lists, and even if almost a third of them sign both."""
    settings = SecureSettings(min_devices=3)
    going = Round(settings, devices).before(3)
    context, everybody = going.requests[0][6:38], frozenset(range(devices))
    lists = everybody, everybody - {devices - 1}
    both = (devices - 1) // 3
    content = [statement(CONFIRMS, context, *(places_to_bits(s, devices) for s in (everybody, one))) for one in lists]

    def signature(place: int, which: int) -> bytes:
        return going.credentials[going.server._device[place]].identity.sign(content[which])

    for cut in range(both, devices):
        signers = range(cut), [*range(both), *range(cut, devices - 1)]
        confirmed = [len(places) >= settings.quorum(devices) for places in signers]
        assert not all(confirmed)
        for which, places in enumerate(signers):
            table = {place: signature(place, which) for place in places}
            accepted = True
            try:
                checks.check_quorum(table.keys(), lists[which], settings.quorum(devices))
            except RefusedMessageError:
                accepted = False
            assert accepted == confirmed[which]


def neighbours_request(going: Round, device: int, change: Callable[[int, Ring, dict[int, bytes]], bytes]) -> bytes:
    request = going.requests[device]
    return change(*messages.read_neighbours(request, request[6:38]))


def test_an_invented_device_is_not_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server puts a device of its own on the ring, with keys that it signs itself."""
    going = Round().before(1)
    context, invented = going.requests[0][6:38], Identity.from_entropy(bytes(range(40)))
    own = KeyPair(b"\1" * 32).public + KeyPair(b"\2" * 32).public
    signed = own + invented.sign(statement(KEYS_OF_ROUND, context, own))
    number, ring, rows = messages.read_neighbours(going.requests[0], context)
    other = min(rows)
    for index, match in ((len(going.admitted.keys), "not admitted"), (ring.indices[other], "not signed by it")):
        indices = tuple(index if place == other else at for place, at in enumerate(ring.indices))
        digests = tuple(keys_digest(own) if place == other else at for place, at in enumerate(ring.digests))
        lie = messages.neighbours(context, number, Ring(indices, digests), {**rows, other: signed})
        with pytest.raises(RefusedMessageError, match=match):
            going.clients[0].answer(lie)
    the_only_check(monkeypatch, "check_keys", lambda: going.clients[0].answer(lie))


def test_a_swapped_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A man in the middle: the keys of a neighbour are replaced, its signature is not."""
    going = Round().before(1)
    context = going.requests[0][6:38]
    number, ring, rows = messages.read_neighbours(going.requests[0], context)
    other, own = min(rows), KeyPair(b"\1" * 32).public + KeyPair(b"\2" * 32).public
    swapped = {**rows, other: own + rows[other][64:]}
    with pytest.raises(RefusedMessageError, match="not those on the ring"):
        going.clients[0].answer(messages.neighbours(context, number, ring, swapped))
    digests = tuple(keys_digest(own) if place == other else at for place, at in enumerate(ring.digests))
    lie = messages.neighbours(context, number, Ring(ring.indices, digests), swapped)
    with pytest.raises(RefusedMessageError, match="not signed by it"):
        going.clients[0].answer(lie)
    the_only_check(monkeypatch, "check_keys", lambda: going.clients[0].answer(lie))


def test_keys_of_an_earlier_round_are_refused() -> None:
    """They are signed, but for another nonce; and a ring with the device's old keys is not its ring."""
    earlier, going = Round(seed=1).before(1), Round(seed=1).before(1)
    fresh = SecureServer(SETTINGS, 2, going.admitted, about=ABOUT)
    going.clients = {d: going.client(d) for d in going.vectors}
    going.server, going.requests = fresh, fresh.begin(going.clients)
    going.step()
    context = going.requests[0][6:38]
    number, ring, rows = messages.read_neighbours(going.requests[0], context)
    old = earlier.server._signed[earlier.server._number[going.server._device[min(rows)]]]
    digests = tuple(keys_digest(old[:64]) if place == min(rows) else at for place, at in enumerate(ring.digests))
    lie = messages.neighbours(context, number, Ring(ring.indices, digests), {**rows, min(rows): old})
    with pytest.raises(RefusedMessageError, match="not signed by it"):
        going.clients[0].answer(lie)
    digests = tuple(bytes(16) if place == number else at for place, at in enumerate(ring.digests))
    with pytest.raises(RefusedMessageError, match="this device's keys"):
        going.clients[0].answer(messages.neighbours(context, number, Ring(ring.indices, digests), rows))


def test_neighbours_that_the_server_chose_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SecureSettings(min_devices=3, neighbours=4)
    going = Round(settings, 9).before(1)
    context = going.requests[0][6:38]
    number, ring, rows = messages.read_neighbours(going.requests[0], context)
    assert list(ring.indices) == drawn_order(context, ring.indices)
    stranger = next(place for place in range(9) if place not in rows and place != number)
    chosen = {**dict(list(rows.items())[:-1]), stranger: going.server._signed[stranger]}
    lie = messages.neighbours(context, number, ring, dict(sorted(chosen.items())))
    with pytest.raises(RefusedMessageError, match="not those of the ring"):
        going.clients[0].answer(lie)
    with pytest.raises(RefusedMessageError, match="not those of the ring"):
        going.clients[0].answer(messages.neighbours(context, number, ring, dict(list(rows.items())[1:])))
    places = [stranger if p == min(rows) else min(rows) if p == stranger else p for p in range(9)]  # two are swapped
    moved = Ring(tuple(ring.indices[p] for p in places), tuple(ring.digests[p] for p in places))
    signed = {**rows, min(rows): going.server._signed[stranger]}
    with pytest.raises(RefusedMessageError, match="order that the round draws"):
        going.clients[0].answer(messages.neighbours(context, number, moved, signed))
    the_only_check(
        monkeypatch, "check_ring", lambda: going.clients[0].answer(messages.neighbours(context, number, moved, signed))
    )


def test_a_ring_of_too_few_admitted_devices_is_refused() -> None:
    """One device cannot stand for two, and two are fewer than three."""
    going = Round().before(1)
    context = going.requests[0][6:38]
    number, ring, _ = messages.read_neighbours(going.requests[0], context)
    other = (number + 1) % 5
    pair = sorted([number, other])
    two = Ring(tuple(ring.indices[p] for p in pair), tuple(ring.digests[p] for p in pair))
    rows = {1 - pair.index(number): going.server._signed[other]}
    with pytest.raises(RefusedMessageError, match="2 devices take part; at least 3"):
        going.clients[0].answer(messages.neighbours(context, pair.index(number), two, rows))
    twice = Ring((*ring.indices[:4], ring.indices[0]), ring.digests)
    with pytest.raises(RefusedMessageError, match=r"on the ring twice|this device's keys"):
        going.clients[0].answer(messages.neighbours(context, number, twice, {}))


def test_a_list_with_fewer_keys_than_the_minimum_is_refused() -> None:
    going = Round()
    own = going.credentials[0].identity
    keys = sorted((own.public, going.credentials[1].identity.public))
    short = Credentials(own, AdmittedKeys(9, tuple(keys)))
    server = SecureServer(SETTINGS, 2, short.admitted, about=ABOUT)
    with pytest.raises(RefusedMessageError, match="2 keys are admitted; at least 3"):
        going.client(0, credentials=short).answer(server.begin([0])[0])
    absent = Credentials(own, AdmittedKeys(9, tuple(k for k in going.admitted.keys if k != own.public)))
    server = SecureServer(SETTINGS, 2, absent.admitted, about=ABOUT)
    with pytest.raises(RefusedMessageError, match="not on the list"):
        going.client(0, credentials=absent).answer(server.begin([0])[0])


def test_another_list_of_admitted_keys_is_refused() -> None:
    """An older one, or one with a device of the server's own."""
    going = Round()
    invented = Identity.from_entropy(bytes(range(40))).public
    for other in (
        AdmittedKeys(going.admitted.version + 1, going.admitted.keys),
        going.admitted.with_keys([invented]),
        AdmittedKeys(going.admitted.version, tuple(sorted((*going.admitted.keys[1:], invented)))),
    ):
        server = SecureServer(SETTINGS, 2, other, about=ABOUT)
        with pytest.raises(OtherKeysError, match="not the one that this device holds"):
            going.clients[0].answer(server.begin([0])[0])


def test_different_lists_of_those_that_shared_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that tells one device that a neighbour did not share would get a vector with fewer masks."""
    going = Round(devices=9).before(2)
    context = going.requests[0][6:38]
    sharing, sealed = messages.read_delivery(going.requests[0], context, 9)
    number = going.server._number[0]
    left_out = min(sealed)
    lie = messages.delivery(
        context, places_to_bits(sharing - {left_out}, 9), {j: s for j, s in sealed.items() if j != left_out}
    )
    signature, _ = messages.read_masked(going.clients[0].answer(lie), context, 14)  # nothing looks wrong to it yet
    for device in range(1, 9):
        going.server.receive(device, going.clients[device].answer(going.requests[device]))
    seen = {**going.server._seen, number: signature}
    for device in range(1, 9):
        place = going.server._number[device]
        near = {j: seen[j] for j in SETTINGS.ring(place, 9)}
        with pytest.raises(RefusedMessageError, match="another list of who shared"):
            going.clients[device].answer(messages.survivors(context, frozenset(range(9)), 9, near))
    last = messages.survivors(context, frozenset(range(9)), 9, near)
    the_only_check(monkeypatch, "check_signatures", lambda: going.clients[8].answer(last))


def test_lists_of_those_that_shared_must_fit_the_shares() -> None:
    going = Round(devices=9).before(2)
    context = going.requests[0][6:38]
    sharing, sealed = messages.read_delivery(going.requests[0], context, 9)
    number, one = going.server._number[0], min(sealed)
    fewer = {j: s for j, s in sealed.items() if j != one}
    few = dict(list(sealed.items())[:3])
    torn = {j: bytes(len(s)) for j, s in sealed.items()}
    for places, shares, match in (
        (sharing, fewer, "not those of the neighbours that shared"),
        (sharing - {one}, sealed, "not those of the neighbours that shared"),
        (sharing - {number}, sealed, "leaves this device out"),
        ({number, one}, {one: sealed[one]}, "2 devices shared their secrets; at least 3"),
        ({number, *few}, few, "3 neighbours shared their secrets; at least 5"),
        (sharing, torn, "0 neighbours shared their secrets; at least 5"),  # a server that makes them up
    ):
        with pytest.raises(RefusedMessageError, match=match):
            going.clients[0].answer(messages.delivery(context, places_to_bits(places, 9), shares))
    with pytest.raises(RefusedMessageError, match="does not fit the ring"):
        going.clients[0].answer(messages.delivery(context, b"\xff\xff", sealed))
    for _ in range(2, STEPS):
        going.step()
    assert going.server.total().vector.tolist() == [36, -36]


def test_lists_of_survivors_that_a_device_does_not_sign() -> None:
    going = Round(SecureSettings(min_devices=6), 9).before(2)
    gone = going.server._device[0]
    del going.requests[gone]
    going.step()
    device = next(iter(going.requests))
    context, number = going.requests[device][6:38], going.server._number[device]
    reported, signatures = messages.read_survivors(going.requests[device], context, 9)
    others = sorted(reported - {number})
    for places, match in (
        (reported - {number}, "leaves this device out"),
        (frozenset([number, *others[:4]]), "too few devices"),  # fewer than its minimum
        (frozenset([number, *others[:5]]), "too few devices"),  # fewer than must sign
    ):
        near = {j: s for j, s in signatures.items() if j in places}
        with pytest.raises(RefusedMessageError, match=match):
            going.clients[device].answer(messages.survivors(context, places, 9, near))
    fewer = dict(list(signatures.items())[1:])
    with pytest.raises(RefusedMessageError, match="signatures of the list of who shared are missing"):
        going.clients[device].answer(messages.survivors(context, reported, 9, fewer))
    assert going.clients[device].answer(going.requests[device])


def test_a_survivor_that_never_shared_is_refused() -> None:
    going = Round(devices=9).before(1)
    gone = going.server._device[0]
    del going.requests[gone]
    going.step()
    going.step()
    device = next(iter(going.requests))
    context = going.requests[device][6:38]
    reported, signatures = messages.read_survivors(going.requests[device], context, 9)
    with pytest.raises(RefusedMessageError, match="did not share their secrets"):
        going.clients[device].answer(messages.survivors(context, reported | {0}, 9, signatures))
    assert going.clients[device].answer(going.requests[device])


def test_confirmations_must_be_enough_and_of_survivors() -> None:
    going = Round(devices=9).before(2)
    gone = going.server._device[8]
    del going.requests[gone]
    going.step()
    going.step()
    context = going.requests[0 if gone else 1][6:38]
    device = 0 if gone else 1
    confirmed = messages.read_confirmed(going.requests[device], context)
    assert len(confirmed) == SETTINGS.quorum(9) == 7
    fewer = dict(list(confirmed.items())[1:])
    absent = {**fewer, 8: next(iter(confirmed.values()))}
    swapped = dict(zip(confirmed, [*list(confirmed.values())[1:], next(iter(confirmed.values()))], strict=True))
    for table, match in (
        (fewer, "6 devices signed the list of survivors; 7 are needed"),
        (absent, "did not report signed"),
        (swapped, "another list of who survived"),
    ):
        with pytest.raises(RefusedMessageError, match=match):
            going.clients[device].answer(messages.confirmed(context, table))
    going.step()
    assert len(going.server.total().devices) == 8


def test_signatures_are_for_one_purpose_and_one_round() -> None:
    identity = Identity.from_entropy(bytes(40))
    content = statement(b"one", b"context", b"ab", b"c")
    signature = identity.sign(content)
    assert is_signed_by(identity.public, content, signature)
    for other in (
        statement(b"other", b"context", b"ab", b"c"), statement(b"one", b"contexts", b"ab", b"c"),
        statement(b"one", b"context", b"a", b"bc"), statement(b"one", b"context", b"abc"),
    ):  # fmt: skip
        assert not is_signed_by(identity.public, other, signature)
    assert not is_signed_by(Identity.from_entropy(b"\1" * 40).public, content, signature)
    assert not is_signed_by(identity.public, content, bytes(64))
    assert not is_signed_by(identity.public[:-1], content, signature)
    assert repr(identity) == "Identity()"


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("neighbours", [None, 8])
def test_a_device_that_drops_out_at_any_step_leaves_the_right_sum(step: int, neighbours: int | None) -> None:
    going = Round(replace(SETTINGS, neighbours=neighbours), 12).before(step)
    del going.requests[5]
    for _ in range(step, STEPS):
        going.step()
    found = going.server.total()
    assert found.devices == tuple(d for d in range(12) if d != 5 or step > 2)
    assert found.vector.tolist() == [66, -66] if step > 2 else [61, -61]
