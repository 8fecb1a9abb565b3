"""The ring of a round: its devices in an order that nobody chooses, and sets of its places as bits.

A device is listed by its place in the list of admitted keys and a digest of the keys it made for the round. The order
is that of a hash of the round's context and the device, so devices can check it. The digest of the whole list becomes
part of the context: devices that were sent different lists do not understand each other, and because the list has their
own fresh keys, nothing of an earlier round fits into it.
"""

import hashlib
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from fedgram.federated.secure.settings import RefusedMessageError

KEYS_DIGEST_BYTES = 16
ROW_BYTES = 4 + KEYS_DIGEST_BYTES
_INDEX = struct.Struct("<I")


def keys_digest(keys: bytes) -> bytes:
    """A digest of a device's two public keys of a round."""
    return hashlib.sha256(b"fedgram round keys" + keys).digest()[:KEYS_DIGEST_BYTES]


def drawn_order(context: bytes, indices: Iterable[int]) -> list[int]:
    """The order of devices on the ring, as the round's context draws it."""
    return sorted(indices, key=lambda index: hashlib.sha256(b"place" + context + _INDEX.pack(index)).digest())


@dataclass(frozen=True, slots=True)
class Ring:
    """The devices of a round by place: where they are in the list of admitted keys, and the digests of their keys."""

    indices: tuple[int, ...]
    digests: tuple[bytes, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.indices)

    def to_bytes(self) -> bytes:
        """A row per place."""
        return b"".join(_INDEX.pack(i) + digest for i, digest in zip(self.indices, self.digests, strict=True))

    def context(self, round_context: bytes) -> bytes:
        """The digest that binds everything after the keys to this ring."""
        return hashlib.sha256(b"fedgram ring" + round_context + self.to_bytes()).digest()


def ring_from_bytes(rows: bytes) -> Ring:
    """The ring of some rows."""
    parts = [rows[a : a + ROW_BYTES] for a in range(0, len(rows), ROW_BYTES)]
    return Ring(tuple(_INDEX.unpack(part[:4])[0] for part in parts), tuple(part[4:] for part in parts))


def places_to_bits(places: Collection[int], devices: int) -> bytes:
    """A set of places as one bit per place.

    >>> places_to_bits({0, 9}, 10).hex()
    '0102'
    """
    return sum(1 << place for place in places).to_bytes((devices + 7) // 8, "little")


def places_from_bits(bits: bytes, devices: int) -> frozenset[int]:
    """The set of places of some bits; bits beyond the last place are refused."""
    number = int.from_bytes(bits, "little")
    if len(bits) != (devices + 7) // 8 or number >> devices:
        raise RefusedMessageError("a list of places does not fit the ring")
    return frozenset(place for place in range(devices) if bits[place // 8] >> place % 8 & 1)
