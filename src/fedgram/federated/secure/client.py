"""A device in a secure round: it receives four requests, and answers each at most once.

    invitation   → keys        fresh public keys, one for sealing and one for masking
    neighbours   → shares      of its seed b and its private masking key s, sealed for each neighbour
    delivery     → masked      x + PRG(b) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij), over neighbours j that shared
    survivors    → unmasking   per neighbour, a share of b if its vector arrived and of s otherwise, never of both

A device refuses a server that deviates from the settings or from the ring, and refuses to unmask if too few devices
have reported. Bonawitz et al. 2017, figure 4, in its semi-honest form.
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Self

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.federated.secure import messages
from fedgram.federated.secure.messages import Kind
from fedgram.federated.secure.primitives import (
    KEY_BYTES,
    KeyPair,
    add_mask,
    commitment,
    derive,
    pack,
    seal,
    unseal,
)
from fedgram.federated.secure.settings import RefusedMessageError, SecureSettings
from fedgram.federated.secure.shamir import SHARE_BYTES, split
from fedgram.federated.validation import Reason, RefusedUpdateError


class SecureClient:
    """One device in one round. `about` is a digest of what the round computes; `vector` is called once, when needed."""

    def __init__(
        self, settings: SecureSettings, length: int, vector: Callable[[], LongArray], *, about: bytes = b"",
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:  # fmt: skip
        self.settings, self.length, self._vector, self._entropy = settings, length, vector, entropy
        self._about = about
        self._next = Kind.INVITATION
        self._nonce = self._seed = self._context = b""
        self._sealing = self._masking = KeyPair(bytes(KEY_BYTES))  # placeholders until the round begins
        self._number = self._devices = 0
        self._neighbours: dict[int, bytes] = {}
        self._held: dict[int, bytes] = {}

    def answer(self, request: bytes) -> bytes:
        """The answer to the server's next request; a request that is out of turn or wrong is refused."""
        found = messages.kind_of(request)
        if found != self._next:
            due = f"expected {self._next.name.lower()}" if self._next in _STEPS else "the round is over for this device"
            raise RefusedMessageError(f"a request is out of turn: {found.name.lower()}; {due}")
        reply = _STEPS[found](self, request)
        self._next = Kind(found + 2) if found + 2 in _STEPS else Kind.UNMASKING  # which the server never sends
        return reply

    def _advertise(self, request: bytes) -> bytes:
        nonce = messages.read_invitation(request, self.settings, self.length, self._about)
        self._begin(nonce, *(self._entropy(KEY_BYTES) for _ in range(3)))
        return messages.keys(self._context, self._sealing.public, self._masking.public)

    def _begin(self, nonce: bytes, sealing: bytes, masking: bytes, seed: bytes) -> None:
        self._nonce = nonce
        self._context = messages.round_context(nonce, self.settings, self.length, self._about)
        self._sealing, self._masking, self._seed = KeyPair(sealing), KeyPair(masking), seed

    def _share(self, request: bytes) -> bytes:
        number, devices, public = messages.read_neighbours(request, self._context)
        if devices < self.settings.min_devices:
            raise RefusedMessageError(f"{devices} devices take part; at least {self.settings.min_devices} are needed")
        if tuple(public) != self.settings.ring(number, devices):
            raise RefusedMessageError("the neighbours are not those of the ring")
        others = [key for pair in public.values() for key in (pair[:KEY_BYTES], pair[KEY_BYTES:])]
        if len({self._sealing.public, self._masking.public, *others}) != len(others) + 2:
            raise RefusedMessageError("two devices have the same key")
        threshold, places = self.settings.threshold(devices), [j + 1 for j in public]
        seed, key = (split(s, places, threshold, self._entropy) for s in (self._seed, self._masking.secret))
        sealed = {
            j: self._sealed(number, j, keys, _share_bytes(seed[j + 1]) + _share_bytes(key[j + 1]))
            for j, keys in public.items()
        }
        self._number, self._devices, self._neighbours = number, devices, public
        return messages.shares(self._context, commitment(self._seed, self._context), sealed)

    def _sealed(self, number: int, other: int, keys: bytes, content: bytes) -> bytes:
        secret = self._sealing.agree(keys[:KEY_BYTES])
        return seal(derive(secret, self._context, _way(number, other)), content, self._context)

    def _mask(self, request: bytes) -> bytes:
        sealed = messages.read_delivery(request, self._context)
        if not sealed.keys() <= self._neighbours.keys():
            raise RefusedMessageError("shares come from a device that is not a neighbour")
        threshold = self.settings.threshold(self._devices)
        if len(sealed) < threshold:
            raise RefusedMessageError(f"{len(sealed)} neighbours shared their secrets; at least {threshold} are needed")
        held = {j: self._unsealed(j, content) for j, content in sealed.items()}
        words = self._checked(self._vector()).astype(np.int64).view(np.uint64)
        add_mask(words, derive(self._seed, self._context, b"self mask"), 1)
        for j in sealed:
            secret = self._masking.agree(self._neighbours[j][KEY_BYTES:])
            add_mask(words, derive(secret, self._context, b"pair mask"), 1 if self._number < j else -1)
        self._held = held
        return messages.masked(self._context, pack(words, self.settings.width(self._devices)))

    def _unsealed(self, other: int, content: bytes) -> bytes:
        """A neighbour's two shares; empty if damaged, since other devices may still recover its secrets."""
        secret = self._sealing.agree(self._neighbours[other][:KEY_BYTES])
        key = derive(secret, self._context, _way(other, self._number))
        return unseal(key, content, self._context) or b""

    def _checked(self, vector: LongArray) -> LongArray:
        if vector.shape != (self.length,) or vector.dtype != np.int64:
            raise RefusedUpdateError(Reason.SHAPE, f"the device's vector must hold {self.length} whole numbers")
        limit = 1 << self.settings.value_bits
        if len(vector) and not (int(vector.max()) < limit and int(vector.min()) > -limit):
            raise RefusedUpdateError(Reason.TOO_LARGE, "the update has an entry that is too large to be masked")
        return vector

    def _unmask(self, request: bytes) -> bytes:
        total, reported = messages.read_survivors(request, self._context)
        if reported.keys() != self._held.keys():
            raise RefusedMessageError("the list of survivors does not match the neighbours that shared")
        threshold = self.settings.threshold(self._devices)
        alive = sum(reported.values())
        if total < self.settings.min_devices or alive < threshold or total <= alive:
            raise RefusedMessageError("too few devices reported for their sum to be unmasked")
        held, self._held = self._held, {}
        return messages.unmasking(
            self._context,
            {j: held[j][:SHARE_BYTES] if there else held[j][SHARE_BYTES:] for j, there in reported.items() if held[j]},
        )

    def save(self) -> bytes:
        """The device's state, including its secrets, for a process that may end during a round; never send it."""
        secrets = [s.hex() for s in (self._nonce, self._sealing.secret, self._masking.secret, self._seed)]
        tables = [{j: row.hex() for j, row in table.items()} for table in (self._neighbours, self._held)]
        return json.dumps([self._next, self._number, self._devices, secrets, tables]).encode()

    @classmethod
    def restore(
        cls, saved: bytes, settings: SecureSettings, length: int, vector: Callable[[], LongArray], *, about: bytes = b""
    ) -> Self:
        """The device as it was saved; the caller must never restore an outdated state."""
        client = cls(settings, length, vector, about=about)
        due, client._number, client._devices, secrets, tables = json.loads(saved)
        client._next = Kind(due)
        client._begin(*map(bytes.fromhex, secrets))
        client._neighbours, client._held = ({int(j): bytes.fromhex(r) for j, r in t.items()} for t in tables)
        return client

    def __repr__(self) -> str:
        return f"SecureClient({self.length} entries, awaits {self._next.name.lower()})"


_STEPS: Mapping[Kind, Callable[[SecureClient, bytes], bytes]] = {
    Kind.INVITATION: SecureClient._advertise,
    Kind.NEIGHBOURS: SecureClient._share,
    Kind.DELIVERY: SecureClient._mask,
    Kind.SURVIVORS: SecureClient._unmask,
}


def _share_bytes(share: int) -> bytes:
    return share.to_bytes(SHARE_BYTES, "big")


def _way(sender: int, recipient: int) -> bytes:
    return b"shares" + sender.to_bytes(4, "little") + recipient.to_bytes(4, "little")
