"""Random rounds with devices that drop out and a server that lies, replays and keeps everything it is sent.

In no round is a sum wrong, and in none could the server compute the sum of fewer devices than they demand, or two
different sums: `Learned` works out what follows from all shares and masked vectors that the devices gave away.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import pytest
from tests.unit.federated.secure.stepped_round import STEPS, Round, reframed

from fedgram.federated.secure import checks, messages
from fedgram.federated.secure.identity import Identity, statement
from fedgram.federated.secure.primitives import KeyPair
from fedgram.federated.secure.ring import Ring, keys_digest, places_to_bits
from fedgram.federated.secure.settings import AbandonedRoundError, RefusedMessageError, SecureSettings

LIES = ("none", "keys", "sharing", "survivors", "target", "mixed", "replay", "damage")
Past = list[list[bytes]]
"""Requests of earlier rounds, by step."""


class Learned:
    """What devices gave away: which masks are in their vectors, and shares of seeds and of masking keys."""

    def __init__(self) -> None:
        self.threshold = 1  # shares that recover a secret, once the ring is known
        self.masks: dict[int, frozenset[int]] = {}
        self.seeds: dict[int, set[int]] = defaultdict(set)
        self.keys: dict[int, set[int]] = defaultdict(set)

    def _knows(self, shares: dict[int, set[int]], place: int) -> bool:
        return len(shares.get(place, ())) >= self.threshold

    def _sum_with(self, place: int) -> frozenset[int] | None:
        """The fewest places with which a place's vector can be summed without masks; None if there are none."""
        together, left = set[int](), [place]
        while left:
            i = left.pop()
            if i not in self.masks or not self._knows(self.seeds, i):
                return None
            together.add(i)
            for j in self.masks[i]:
                if self._knows(self.keys, i) or self._knows(self.keys, j) or j in together:
                    continue
                if i not in self.masks.get(j, ()):  # the mask is in one vector, and cancels nowhere
                    return None
                left.append(j)
        return frozenset(together)

    def sums(self) -> set[frozenset[int]]:
        """The sums that can be computed, by who is in them."""
        return {found for place in self.masks if (found := self._sum_with(place)) is not None}


class Liar:
    """The server of one random round: honest state machines, and lies on top of what they say."""

    def __init__(self, rng: np.random.Generator, lie: str, past: Past) -> None:
        self._rng, self._lie, self._past = rng, lie, past
        devices = int(rng.integers(4, 15))
        settings = SecureSettings(
            min_devices=int(rng.integers(3, max(4, devices // 2 + 1))),
            neighbours=[None, None, 4, 6, 8][int(rng.integers(5))], majority=(0.5, 2 / 3, 0.75)[int(rng.integers(3))],
        )  # fmt: skip
        self._settings = settings
        self.round = Round(settings, devices, seed=int(rng.integers(1 << 30)))
        self.learned = Learned()
        self._leaves = float(rng.choice([0.0, 0.02, 0.1]))
        self._told: dict[int, frozenset[int]] = {}
        self._signed: dict[int, bytes] = {}
        self._shown: dict[int, bytes] = {}
        self._target = int(rng.integers(devices))

    @property
    def _devices(self) -> int:
        """How many are on the ring."""
        return len(self.round.server._device)

    def run(self) -> None:
        """The round, up to its sum, which must be right."""
        going = self.round
        for step in range(STEPS):
            for device, honest in sorted(going.requests.items()):
                if self._rng.random() < self._leaves:
                    continue
                request = self._request(step, device, honest)
                self._past[step].append(request)
                try:
                    answer = going.clients[device].answer(request)
                except RefusedMessageError:
                    continue
                self._keep(step, device, request, answer)
                try:
                    going.server.receive(device, answer)
                    if self._lie == "replay":
                        going.server.receive(device, answer)
                except RefusedMessageError:
                    continue
            del self._past[step][:-40]
            try:
                going.requests = going.server.advance()
            except AbandonedRoundError:
                if step != 3:
                    raise
                self._ask_for_shares()  # a server that is after more than the sum does not stop here
                raise
            self.learned.threshold = self._settings.threshold(self._devices)
        found = going.server.total()
        right = np.sum([going.vectors[device] for device in found.devices], axis=0)
        assert found.vector.tolist() == right.tolist()
        assert len(found.devices) >= self._settings.min_devices

    def _ask_for_shares(self) -> None:
        """Ask every device that has signed a list for its shares, with the signatures that there are."""
        context = self.round.server._context
        for place in self._told:
            device = self.round.server._device[place]
            request = self._confirm(device, messages.confirmed(context, {}))
            with suppress(RefusedMessageError):
                self._keep(4, device, request, self.round.clients[device].answer(request))

    def _place(self, device: int) -> int:
        return self.round.server._number[device]

    def _keep(self, step: int, device: int, request: bytes, answer: bytes) -> None:
        context, place = request[6:38], self._place(device) if step else -1
        if step == 2:
            self.learned.masks[place] = frozenset(messages.read_delivery(request, context, self._devices)[1])
            self._shown[place] = answer[38:102]  # its signature of the list of those that shared
        if step == 3:
            self._told[place] = messages.read_survivors(request, context, self._devices)[0]
            self._signed[place] = messages.read_confirmation(answer, context)
        if step == 4:
            for j in messages.read_unmasking(answer, context):
                (self.learned.seeds if j in self._told[place] else self.learned.keys)[j].add(place)

    def _request(self, step: int, device: int, honest: bytes) -> bytes:
        if self._lie == "replay" and self._past[step] and self._rng.random() < 0.2:
            return self._past[int(self._rng.integers(step + 1))][-1]
        if self._lie == "damage" and self._rng.random() < 0.1:
            return reframed(honest, self._damage)
        change = _CHANGES.get((self._lie, step))
        return change(self, device, honest) if change else honest

    def _damage(self, body: bytearray) -> None:
        for _ in range(int(self._rng.integers(1, 4))):
            body[int(self._rng.integers(len(body)))] ^= int(self._rng.integers(1, 256))

    def _swap_keys(self, _: int, honest: bytes) -> bytes:
        """Put keys of the server's own in place of a neighbour's, signed by nobody or by an invented device."""
        context = honest[6:38]
        number, ring, rows = messages.read_neighbours(honest, context)
        if self._rng.random() < 0.5 or not rows:
            return honest
        other = int(self._rng.choice(list(rows)))
        own = KeyPair(self._rng.bytes(32)).public + KeyPair(self._rng.bytes(32)).public
        forged = Identity.from_entropy(self._rng.bytes(40)).sign(statement(checks.KEYS_OF_ROUND, context, own))
        digests = tuple(keys_digest(own) if place == other else at for place, at in enumerate(ring.digests))
        signature = forged if self._rng.random() < 0.5 else rows[other][64:]
        return messages.neighbours(context, number, Ring(ring.indices, digests), {**rows, other: own + signature})

    def _share_less(self, device: int, honest: bytes) -> bytes:
        """Tell a device that some neighbours did not share, so that its vector has fewer masks."""
        context, place = honest[6:38], self._place(device)
        sharing, sealed = messages.read_delivery(honest, context, self._devices)
        if self._lie == "target" and place != self._target:
            return honest
        least = self.learned.threshold
        spare = max(0, len(sealed) - least)
        out = {int(j) for j in self._rng.permutation(list(sealed))[: int(self._rng.integers(spare + 1))]}
        if self._lie == "target":
            out = set(sorted(sealed)[least:])
        kept = {j: s for j, s in sealed.items() if j not in out}
        return messages.delivery(context, places_to_bits(sharing - out, self._devices), kept)

    def _survive_less(self, device: int, honest: bytes) -> bytes:
        """Tell devices that others left: at random, or those whose masks are in the target's vector."""
        context, place = honest[6:38], self._place(device)
        reported, seen = messages.read_survivors(honest, context, self._devices)
        if self._lie == "target" and self._target in self._shown:
            reported, seen = reported | {self._target}, {**seen, self._target: self._shown[self._target]}
        most = len(reported) - max(self._settings.min_devices, self._settings.quorum(self._devices))
        near = self.learned.masks.get(self._target, frozenset()) if self._lie == "target" else reported
        choice = [int(j) for j in self._rng.permutation(sorted(near & reported)) if j not in (place, self._target)]
        around = self._settings.ring(place, self._devices)
        spare = sum(j in reported for j in around) - self.learned.threshold
        told = reported - set(choice[: max(0, min(most, spare))])
        return messages.survivors(context, told, self._devices, {j: s for j, s in sorted(seen.items()) if j in told})

    def _confirm(self, device: int, honest: bytes) -> bytes:
        """Show a device the signatures of those who were told the same, or of everybody."""
        context, place = honest[6:38], self._place(device)
        told = self._told.get(place, frozenset())
        same = {p: s for p, s in self._signed.items() if p in told and (self._lie == "mixed" or self._told[p] == told)}
        return messages.confirmed(context, dict(sorted(same.items())))


_CHANGES: dict[tuple[str, int], Callable[[Liar, int, bytes], bytes]] = {
    ("keys", 1): Liar._swap_keys,
    ("sharing", 2): Liar._share_less,
    ("target", 2): Liar._share_less,
    ("survivors", 3): Liar._survive_less,
    ("mixed", 3): Liar._survive_less,
    ("target", 3): Liar._survive_less,
    ("survivors", 4): Liar._confirm,
    ("mixed", 4): Liar._confirm,
    ("target", 4): Liar._confirm,
}


def play(seed: int, rounds: int, lies: Sequence[str] = LIES) -> tuple[int, int, int]:
    """Random rounds; returns how many had a sum, in how many one could be computed, and how many broke a rule."""
    rng, past = np.random.default_rng(seed), [list[bytes]() for _ in range(STEPS)]
    summed = computed = broken = 0
    for number in range(rounds):
        liar = Liar(rng, lies[number % len(lies)], past)
        try:
            liar.run()
            summed += 1
        except AbandonedRoundError:
            pass
        sums = liar.learned.sums()
        computed += bool(sums)
        broken += len(sums) > 1 or any(len(members) < liar._settings.min_devices for members in sums)
    return summed, computed, broken


@pytest.mark.parametrize("rounds", [160, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
def test_a_sum_is_right_and_of_enough_devices_whatever_the_server_says(rounds: int) -> None:
    summed, computed, broken = play(1, rounds)
    assert broken == 0
    assert summed > rounds / 8  # the rounds are not all lost to lies
    assert computed >= summed


def test_such_rounds_give_single_vectors_away_without_the_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the liar is able enough, and what it has learned is worked out correctly."""
    monkeypatch.setattr(checks, "check_signatures", lambda *_: None)
    monkeypatch.setattr(checks, "check_quorum", lambda *_: None)
    _, _, broken = play(1, 200, ["target"])
    assert broken >= 3
