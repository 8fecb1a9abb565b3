"""The server of a secure round: it forwards sealed shares, adds masked vectors, and removes the masks from their sum.

    U1 ⊇ U2 ⊇ U3 ⊇ U4 ⊇ U5    devices that sent keys, shares, a masked vector, a confirmation, and what unmasks the sum

    Σ_{i∈U3} x_i = Σ_{i∈U3} y_i − Σ_{i∈U3} PRG(b_i) − Σ_{i∈U3, j∈U2∖U3} ±PRG(s_ij)

The seeds b_i of devices that reported, and the keys s_j of devices that left after sharing, are recovered from t shares
each and checked against the devices' commitments and public keys: the sum is correct, or the round is abandoned. The
transport calls `begin`, then `receive` and `advance` five times, then `total`.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.federated.secure import messages
from fedgram.federated.secure.admitted_keys import AdmittedKeys
from fedgram.federated.secure.checks import CONFIRMS, SHARED, check_keys
from fedgram.federated.secure.identity import is_signed_by, statement
from fedgram.federated.secure.messages import Kind, Terms
from fedgram.federated.secure.primitives import (
    KEY_BYTES,
    KeyPair,
    Words,
    add_mask,
    commitment,
    derive,
    pair_mask_key,
    signed,
    unpack,
)
from fedgram.federated.secure.ring import Ring, drawn_order, keys_digest, places_to_bits
from fedgram.federated.secure.settings import MAX_DEVICES, AbandonedRoundError, RefusedMessageError, SecureSettings
from fedgram.federated.secure.shamir import recover


@dataclass(frozen=True, slots=True, eq=False)
class SecureSum:
    """The sum of the vectors of these devices."""

    vector: LongArray
    devices: tuple[int, ...]


class SecureServer:
    """The server in one round. Devices are identified by the numbers that the transport uses.

    `admitted` is the list of keys that devices hold, `about` a digest of what the round computes. With fewer than
    `minimum` vectors nothing is unmasked.
    """

    def __init__(
        self, settings: SecureSettings, length: int, admitted: AdmittedKeys, *, about: bytes = b"", minimum: int = 0,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:  # fmt: skip
        self.settings, self.length, self._terms = settings, length, Terms(settings, length, admitted, about)
        self._minimum = max(minimum, settings.min_devices)
        self._nonce, self._probe = entropy(32), KeyPair(entropy(32))
        self._context = messages.round_context(self._nonce, self._terms)  # from the ring on, the ring's
        self._due: Kind | None = None
        self._waiting: set[int] = set()
        self._invited: set[int] = set()
        self._number: dict[int, int] = {}  # device -> place on the ring
        self._device: list[int] = []  # place on the ring -> device
        self._indices: dict[int, int] = {}  # place in the list of admitted keys -> device
        self._signed: dict[
            int, bytes
        ] = {}  # keys with their signature, by device until the ring is formed, then by place
        self._keys: dict[int, bytes] = {}  # by place
        self._known: set[bytes] = set()
        self._ring_list = Ring((), ())
        self._commitments: dict[int, bytes] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._sharing: set[int] = set()  # U2
        self._reported: set[int] = set()  # U3
        self._sum: Words = np.zeros(0, np.uint64)
        self._seen: dict[int, bytes] = {}  # signatures of the list of those that shared
        self._confirmed: dict[int, bytes] = {}
        self._shares: dict[int, dict[int, int]] = {}
        self._secrets: dict[int, bytes] = {}  # that were recovered
        self._tried: dict[int, int] = {}  # the number of shares with which a secret was tried last
        self._abandoned: str | None = None

    @property
    def waiting(self) -> frozenset[int]:
        """The devices that have not answered in this step yet."""
        return frozenset(self._waiting)

    def begin(self, devices: Iterable[int]) -> dict[int, bytes]:
        """Invite these devices; returns the request for each."""
        if self._due is not None:
            raise RefusedMessageError("this round has already begun")
        self._invited = set(devices)
        if len(self._invited) > MAX_DEVICES:
            raise AbandonedRoundError(f"a secure round has at most {MAX_DEVICES} devices, not {len(self._invited)}")
        self._due, self._waiting = Kind.KEYS, set(self._invited)
        invitation = messages.invitation(self._nonce, self._terms)
        return dict.fromkeys(sorted(self._invited), invitation)

    def receive(self, device: int, answer: bytes) -> None:
        """Take a device's answer to the current step; each device answers once."""
        self._refuse_if_abandoned()
        if device not in self._waiting:
            known = device in self._invited
            raise RefusedMessageError("a device answered twice, or too late" if known else "a device was not invited")
        if self._due == Kind.KEYS:
            self._take_keys(device, answer)
        else:
            take = {
                Kind.SHARES: self._take_shares, Kind.MASKED: self._take_masked,
                Kind.CONFIRMATION: self._take_confirmation, Kind.UNMASKING: self._take_unmasking,
            }  # fmt: skip
            assert self._due is not None
            take[self._due](self._number[device], answer)
        self._waiting.discard(device)

    def advance(self) -> dict[int, bytes]:
        """End the step and continue with the devices that answered.

        Returns the next request for each of them; none after the last step. Raises `AbandonedRoundError` as soon as too
        few devices are left for a sum.
        """
        self._refuse_if_abandoned()
        step = {
            Kind.KEYS: self._form_ring, Kind.SHARES: self._deliver, Kind.MASKED: self._name_survivors,
            Kind.CONFIRMATION: self._ask_to_unmask,
        }  # fmt: skip
        if self._due not in step:
            self._waiting = set()
            return {}
        requests = step[self._due]()
        self._due, self._waiting = Kind(self._due + 2), set(requests)
        return requests

    def _refuse_if_abandoned(self) -> None:
        if self._abandoned is not None:
            raise AbandonedRoundError(self._abandoned)

    def _abandon(self, reason: str) -> AbandonedRoundError:
        self._abandoned, self._sum = reason, np.zeros(0, np.uint64)
        return AbandonedRoundError(reason)

    def _demand(self, devices: int, did: str) -> None:
        if devices < self._minimum:
            raise self._abandon(f"{devices} devices {did}, {self._minimum} are needed")

    def _demand_neighbours(self, devices: set[int], left: set[int], did: str) -> None:
        """Abandon the round if a device has fewer neighbours left than it takes to recover its secrets."""
        least = min(sum(j in left for j in self._ring(i)) for i in devices)
        if least < self._threshold:
            raise self._abandon(f"{least} neighbours of a device {did}, {self._threshold} are needed to unmask")

    def _demand_quorum(self, devices: int, did: str) -> None:
        """Abandon the round if fewer devices are left than must sign the list of survivors."""
        quorum = self.settings.quorum(len(self._device))
        if devices < quorum:
            raise self._abandon(f"{devices} devices {did}, {quorum} of {len(self._device)} are needed to agree")

    def _take_keys(self, device: int, answer: bytes) -> None:
        index, signed = messages.read_keys(answer, self._context)
        keys, signature = signed[: 2 * KEY_BYTES], signed[2 * KEY_BYTES :]
        sealing, masking = keys[:KEY_BYTES], keys[KEY_BYTES:]
        if index >= len(self._terms.admitted.keys):
            raise RefusedMessageError("a device is not admitted")
        check_keys(self._terms.admitted.keys[index], keys, signature, self._context)
        for key in (sealing, masking):
            self._probe.agree(key)  # refuses an invalid key
        if sealing == masking or not self._known.isdisjoint((sealing, masking)) or index in self._indices:
            raise RefusedMessageError("a device sent a key twice, or the key of another device")
        self._known |= {sealing, masking}
        self._signed[device], self._indices[index] = signed, device

    def _form_ring(self) -> dict[int, bytes]:
        self._demand(len(self._signed), "sent keys")
        order = drawn_order(self._context, self._indices)
        self._device = [self._indices[index] for index in order]
        self._number = {device: number for number, device in enumerate(self._device)}
        self._signed = {number: self._signed[device] for number, device in enumerate(self._device)}
        self._keys = {number: signed[: 2 * KEY_BYTES] for number, signed in self._signed.items()}
        n = len(self._device)
        self.settings.width(n)  # refuses too many devices
        ring = Ring(tuple(order), tuple(keys_digest(self._keys[i]) for i in range(n)))
        requests = {
            self._device[i]: messages.neighbours(self._context, i, ring, {j: self._signed[j] for j in self._ring(i)})
            for i in range(n)
        }
        self._ring_list, self._context = ring, ring.context(self._context)
        return requests

    def _ring(self, number: int) -> tuple[int, ...]:
        return self.settings.ring(number, len(self._device))

    def _bits(self, places: set[int]) -> bytes:
        return places_to_bits(places, len(self._device))

    @property
    def _threshold(self) -> int:
        return self.settings.threshold(len(self._device))

    def _take_shares(self, number: int, answer: bytes) -> None:
        committed, sealed = messages.read_shares(answer, self._context)
        if tuple(sealed) != self._ring(number):
            raise RefusedMessageError("a device's shares are not for its neighbours")
        self._commitments[number], self._sealed[number] = committed, sealed

    def _deliver(self) -> dict[int, bytes]:
        left = set(self._sealed)
        self._demand(len(left), "shared their secrets")
        self._demand_quorum(len(left), "shared their secrets")
        self._demand_neighbours(left, left, "shared their secrets")
        self._sharing, self._sum = left, np.zeros(self.length, np.uint64)
        bits = self._bits(left)
        return {
            self._device[i]: messages.delivery(
                self._context, bits, {j: self._sealed[j][i] for j in self._ring(i) if j in left}
            )
            for i in sorted(left)
        }

    def _take_masked(self, number: int, answer: bytes) -> None:
        width = self.settings.width(len(self._device))
        signature, packed = messages.read_masked(answer, self._context, width * self.length)
        self._check(number, statement(SHARED, self._context, self._bits(self._sharing)), signature)
        self._sum += unpack(packed, width)
        self._reported.add(number)
        self._seen[number] = signature

    def _check(self, number: int, content: bytes, signature: bytes) -> None:
        if not is_signed_by(self._terms.admitted.keys[self._ring_list.indices[number]], content, signature):
            raise RefusedMessageError("a device's signature is not valid")

    def _name_survivors(self) -> dict[int, bytes]:
        self._sealed = {}
        self._demand(len(self._reported), "sent their vectors")
        self._demand_quorum(len(self._reported), "sent their vectors")
        self._demand_neighbours(self._sharing, self._reported, "sent their vectors")
        return {
            self._device[i]: messages.survivors(
                self._context, self._reported, len(self._device),
                {j: self._seen[j] for j in self._ring(i) if j in self._reported},
            )
            for i in sorted(self._reported)
        }  # fmt: skip

    def _take_confirmation(self, number: int, answer: bytes) -> None:
        signature = messages.read_confirmation(answer, self._context)
        lists = self._bits(self._sharing), self._bits(self._reported)
        self._check(number, statement(CONFIRMS, self._context, *lists), signature)
        self._confirmed[number] = signature

    def _ask_to_unmask(self) -> dict[int, bytes]:
        left = set(self._confirmed)
        self._demand_quorum(len(left), "confirmed the list of survivors")
        self._demand_neighbours(self._sharing, left, "confirmed the list of survivors")
        self._shares = {i: {} for i in self._sharing}
        enough = sorted(left)[: self.settings.quorum(len(self._device))]
        request = messages.confirmed(self._context, {i: self._confirmed[i] for i in enough})
        return {self._device[i]: request for i in sorted(left)}

    def _take_unmasking(self, number: int, answer: bytes) -> None:
        opened = messages.read_unmasking(answer, self._context)
        if not opened.keys() <= {j for j in self._ring(number) if j in self._sharing}:
            raise RefusedMessageError("a device revealed shares that it does not hold")
        for j, share in opened.items():
            self._shares[j][number + 1] = int.from_bytes(share, "big")

    @property
    def opened(self) -> frozenset[int]:
        """The devices whose vectors may be in a sum that the server knows: none before it requests shares."""
        return frozenset(self._device[i] for i in self._reported) if self._shares else frozenset()

    @property
    def can_unmask(self) -> bool:
        """Whether the shares that have arrived recover every secret, so that the server need not wait for more."""
        are_many = bool(self._shares) and all(len(shares) >= self._threshold for shares in self._shares.values())
        return are_many and all(self._recovered(i) is not None for i in sorted(self._sharing))

    def total(self) -> SecureSum:
        """The sum of the vectors that arrived."""
        self._refuse_if_abandoned()
        if self._due != Kind.UNMASKING:
            raise RefusedMessageError("the round has no sum yet")
        secrets = {i: self._secret(i) for i in self._sharing}  # recover all of them before removing any mask
        words = self._sum
        for i, secret in secrets.items():
            if i in self._reported:
                add_mask(words, derive(secret, self._context, b"self mask"), -1)
                continue
            left = KeyPair(secret)
            for j in self._ring(i):
                if j in self._reported:
                    agreed = left.agree(self._keys[j][KEY_BYTES:])
                    add_mask(words, pair_mask_key(agreed, self._context, i, j), -1 if j < i else 1)
        vector = signed(words, self.settings.width(len(self._device)))
        self._abandoned = "its sum was already returned"
        return SecureSum(vector, tuple(sorted(self._device[i] for i in self._reported)))

    def _recovered(self, number: int) -> bytes | None:
        """A device's secret, if its shares recover it; they are tried again only when more of them have arrived."""
        count = len(self._shares[number])
        if number not in self._secrets and self._tried.get(number) != count:
            self._tried[number] = count
            secret = recover(self._shares[number], self._threshold, lambda secret: self._is_right(number, secret))
            if secret is not None:
                self._secrets[number] = secret
        return self._secrets.get(number)

    def _is_right(self, number: int, secret: bytes) -> bool:
        """Whether this is the seed of a device that reported, or the masking key of a device that left."""
        if number in self._reported:
            return commitment(secret, self._context) == self._commitments[number]
        return KeyPair(secret).public == self._keys[number][KEY_BYTES:]

    def _secret(self, number: int) -> bytes:
        """The seed of a device that reported, or the masking key of a device that left."""
        secret = self._recovered(number)
        if secret is None:
            count = len(self._shares[number])
            need = f"{self._threshold} correct ones are needed"
            raise self._abandon(f"a device's secret cannot be recovered from {count} shares; {need}")
        return secret

    def __repr__(self) -> str:
        return f"SecureServer({self.length} entries, {len(self._invited)} devices invited)"
