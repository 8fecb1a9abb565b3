"""A device in a secure round: it receives five requests, and answers each at most once.

    invitation   → keys          fresh public keys, one for sealing and one for masking, signed
    neighbours   → shares        of its seed b and its private masking key s, sealed for each neighbour
    delivery     → masked        x + PRG(b) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij), over neighbours j that shared;
                                 with its signature of the list of those that shared
    survivors    → confirmation  its signature of the list of those whose vectors arrived
    confirmed    → unmasking     per neighbour, a share of b if its vector arrived and of s otherwise, never of both

A device refuses a server that deviates from the settings, the list of admitted keys or the ring, that shows its
neighbours another list, or that cannot show enough signatures of the list of survivors (`checks.py`). Bonawitz et al.
2017, figure 4, in its active form, on the graph of Bell et al. 2020.
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Self

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.federated.secure import checks, messages
from fedgram.federated.secure.admitted_keys import Credentials
from fedgram.federated.secure.checks import CONFIRMS, KEYS_OF_ROUND, SHARED
from fedgram.federated.secure.identity import statement
from fedgram.federated.secure.messages import Kind, Terms
from fedgram.federated.secure.primitives import (
    KEY_BYTES,
    KeyPair,
    add_mask,
    commitment,
    derive,
    pack,
    pair_mask_key,
    seal,
    unseal,
)
from fedgram.federated.secure.ring import Ring, places_from_bits, places_to_bits, ring_from_bytes
from fedgram.federated.secure.settings import RefusedMessageError, SecureSettings
from fedgram.federated.secure.shamir import SHARE_BYTES, split
from fedgram.federated.validation import Reason, RefusedUpdateError


class SecureClient:
    """One device in one round. `about` is a digest of what the round computes; `vector` is called once, when needed."""

    def __init__(
        self, settings: SecureSettings, length: int, vector: Callable[[], LongArray], credentials: Credentials, *,
        about: bytes = b"", entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:  # fmt: skip
        self.settings, self.length, self._vector, self._entropy = settings, length, vector, entropy
        self._credentials, self._terms = credentials, Terms(settings, length, credentials.admitted, about)
        self._next = Kind.INVITATION
        self._nonce = self._seed = self._context = b""
        self._sealing = self._masking = KeyPair(bytes(KEY_BYTES))  # placeholders until the round begins
        self._number, self._ring = 0, Ring((), ())
        self._sharing = self._reported = frozenset[int]()
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
        nonce = messages.read_invitation(request, self._terms)
        index = checks.own_index(self._credentials, self.settings)
        self._begin(nonce, *(self._entropy(KEY_BYTES) for _ in range(3)))
        own = self._sealing.public + self._masking.public
        signature = self._credentials.identity.sign(statement(KEYS_OF_ROUND, self._context, own))
        return messages.keys(self._context, index, own + signature)

    def _begin(self, nonce: bytes, sealing: bytes, masking: bytes, seed: bytes) -> None:
        self._nonce, self._context = nonce, messages.round_context(nonce, self._terms)
        self._sealing, self._masking, self._seed = KeyPair(sealing), KeyPair(masking), seed

    def _share(self, request: bytes) -> bytes:
        number, ring, signed = messages.read_neighbours(request, self._context)
        own = self._sealing.public + self._masking.public
        checks.check_ring(number, ring, own, self._terms, self._credentials, self._context)
        checks.check_neighbours(number, ring, signed, own, self._terms, self._context)
        public = {j: keys[: 2 * KEY_BYTES] for j, keys in signed.items()}
        threshold, places = self.settings.threshold(len(ring)), [j + 1 for j in public]
        seed, key = (split(s, places, threshold, self._entropy) for s in (self._seed, self._masking.secret))
        context = ring.context(self._context)
        sealed = {
            j: seal(
                derive(self._sealing.agree(keys[:KEY_BYTES]), context, _way(number, j)),
                _share_bytes(seed[j + 1]) + _share_bytes(key[j + 1]), context,
            )
            for j, keys in public.items()
        }  # fmt: skip
        self._context, self._number, self._ring, self._neighbours = context, number, ring, public
        return messages.shares(context, commitment(self._seed, context), sealed)

    def _mask(self, request: bytes) -> bytes:
        sharing, sealed = messages.read_delivery(request, self._context, len(self._ring))
        checks.check_sharing(self._number, sharing, sealed.keys(), self.settings, len(self._ring))
        held = {j: self._unsealed(j, content) for j, content in sealed.items()}
        checks.check_opened(sum(map(bool, held.values())), self.settings.threshold(len(self._ring)))
        words = self._checked(self._vector()).astype(np.int64).view(np.uint64)
        add_mask(words, derive(self._seed, self._context, b"self mask"), 1)
        for j in sealed:
            secret = self._masking.agree(self._neighbours[j][KEY_BYTES:])
            key = pair_mask_key(secret, self._context, self._number, j)
            add_mask(words, key, 1 if self._number < j else -1)
        self._held, self._sharing = held, sharing
        signature = self._credentials.identity.sign(statement(SHARED, self._context, self._bits(sharing)))
        return messages.masked(self._context, signature, pack(words, self.settings.width(len(self._ring))))

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

    def _confirm(self, request: bytes) -> bytes:
        reported, signatures = messages.read_survivors(request, self._context, len(self._ring))
        checks.check_survivors(self._number, reported, self._sharing, self.settings, len(self._ring))
        seen = statement(SHARED, self._context, self._bits(self._sharing))
        alive = reported & self._neighbours.keys()
        checks.check_signatures(signatures, alive, seen, self._terms.admitted, self._ring, "who shared")
        self._reported = reported
        return messages.confirmation(self._context, self._credentials.identity.sign(self._survivor_list()))

    def _survivor_list(self) -> bytes:
        return statement(CONFIRMS, self._context, self._bits(self._sharing), self._bits(self._reported))

    def _unmask(self, request: bytes) -> bytes:
        signatures = messages.read_confirmed(request, self._context)
        checks.check_quorum(signatures.keys(), self._reported, self.settings.quorum(len(self._ring)))
        checks.check_signatures(
            signatures, signatures.keys(), self._survivor_list(), self._terms.admitted, self._ring, "who survived"
        )
        held, self._held = self._held, {}
        return messages.unmasking(
            self._context,
            {j: own[:SHARE_BYTES] if j in self._reported else own[SHARE_BYTES:] for j, own in held.items() if own},
        )

    def _bits(self, places: frozenset[int]) -> bytes:
        return places_to_bits(places, len(self._ring))

    def save(self) -> bytes:
        """The device's state, including its secrets, for a process that may end during a round; never send it."""
        secrets = [s.hex() for s in (self._nonce, self._sealing.secret, self._masking.secret, self._seed)]
        tables = [{j: row.hex() for j, row in table.items()} for table in (self._neighbours, self._held)]
        lists = [part.hex() for part in (self._ring.to_bytes(), self._bits(self._sharing), self._bits(self._reported))]
        return json.dumps([self._next, self._number, secrets, tables, lists]).encode()

    @classmethod
    def restore(
        cls, saved: bytes, settings: SecureSettings, length: int, vector: Callable[[], LongArray],
        credentials: Credentials, *, about: bytes = b"",
    ) -> Self:  # fmt: skip
        """The device as it was saved; the caller must never restore an outdated state."""
        client = cls(settings, length, vector, credentials, about=about)
        due, client._number, secrets, tables, lists = json.loads(saved)
        client._next = Kind(due)
        client._begin(*map(bytes.fromhex, secrets))
        client._neighbours, client._held = ({int(j): bytes.fromhex(r) for j, r in t.items()} for t in tables)
        ring, sharing, reported = map(bytes.fromhex, lists)
        client._ring = ring_from_bytes(ring)
        client._sharing, client._reported = (places_from_bits(bits, len(client._ring)) for bits in (sharing, reported))
        if ring:
            client._context = client._ring.context(client._context)
        return client

    def __repr__(self) -> str:
        return f"SecureClient({self.length} entries, awaits {self._next.name.lower()})"


_STEPS: Mapping[Kind, Callable[[SecureClient, bytes], bytes]] = {
    Kind.INVITATION: SecureClient._advertise,
    Kind.NEIGHBOURS: SecureClient._share,
    Kind.DELIVERY: SecureClient._mask,
    Kind.SURVIVORS: SecureClient._confirm,
    Kind.CONFIRMED: SecureClient._unmask,
}


def _share_bytes(share: int) -> bytes:
    return share.to_bytes(SHARE_BYTES, "big")


def _way(sender: int, recipient: int) -> bytes:
    return b"shares" + sender.to_bytes(4, "little") + recipient.to_bytes(4, "little")
