"""The messages of a secure round as bytes; everything else is refused.

    FGSA  version  kind  context (32 bytes)  body  SHA-256 of all before it

Numbers are little-endian. The context is a digest of what the round computes (its job, its number and the broadcast),
its nonce, the settings, the vector's length and the list of admitted keys; once the ring is formed, of the ring too. A
message from another round, or from a party with another context, is refused. Keys are derived from the context, so
devices that were given different jobs or rings cannot read each other's shares. The checksum detects accidental damage;
the transport must protect messages from outsiders (TLS), and signatures protect what devices say from the server.
"""

import hashlib
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

from fedgram.federated.secure.admitted_keys import AdmittedKeys
from fedgram.federated.secure.identity import SIGNATURE_BYTES
from fedgram.federated.secure.primitives import KEY_BYTES, TAG_BYTES
from fedgram.federated.secure.ring import ROW_BYTES, Ring, places_from_bits, places_to_bits, ring_from_bytes
from fedgram.federated.secure.settings import MAX_DEVICES, OtherKeysError, RefusedMessageError, SecureSettings
from fedgram.federated.secure.shamir import SHARE_BYTES

MAGIC, VERSION = b"FGSA", 4
_HEAD, _SUM = 4 + 2 + 32, 32
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
SIGNED_KEYS_BYTES = 2 * KEY_BYTES + SIGNATURE_BYTES
_INVITATION = struct.Struct("<32sQIIdBQ32s")
_SETTINGS = struct.calcsize("<32sQIIdB")
_PLACE = struct.Struct("<II")
_COUNT = struct.Struct("<I")


class Kind(IntEnum):
    """The kinds of messages. The server sends the odd ones; a device answers each with the next."""

    INVITATION, KEYS, NEIGHBOURS, SHARES, DELIVERY, MASKED, SURVIVORS, CONFIRMATION, CONFIRMED, UNMASKING = range(1, 11)


@dataclass(frozen=True, slots=True)
class Terms:
    """What both sides of a round must agree on; `about` is a digest of what the round computes."""

    settings: SecureSettings
    length: int
    admitted: AdmittedKeys
    about: bytes = b""


def round_context(nonce: bytes, terms: Terms) -> bytes:
    """The digest that binds keys and messages to one round."""
    invited, about = _invitation(nonce, terms), terms.about
    return hashlib.sha256(MAGIC + bytes([VERSION]) + invited + hashlib.sha256(about).digest()).digest()


def frame(kind: Kind, context: bytes, *body: bytes | memoryview) -> bytes:
    """A complete message."""
    parts = (MAGIC, bytes([VERSION, kind]), context, *body)
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return b"".join((*parts, sha.digest()))


def kind_of(data: bytes) -> Kind:
    """The kind of a message, from its first bytes."""
    if len(data) < _HEAD + _SUM or data[:4] != MAGIC:
        raise RefusedMessageError("a message is truncated, or does not belong to a secure round")
    if data[4] != VERSION:
        raise RefusedMessageError(f"a message has version {data[4]}, not {VERSION}; upgrade one of the two sides")
    if not 1 <= data[5] <= len(Kind):
        raise RefusedMessageError("a message has an unknown kind")
    return Kind(data[5])


def body_of(data: bytes, kind: Kind, context: bytes | None) -> memoryview:
    """The body of a message of this kind and round; `context` is None if it is not known yet."""
    found = kind_of(data)
    if found != kind:
        raise RefusedMessageError(f"a message is out of turn: {found.name.lower()} instead of {kind.name.lower()}")
    if context is not None and data[6:_HEAD] != context:
        raise RefusedMessageError("a message belongs to another round, job or broadcast, or to other settings")
    view = memoryview(data)
    if hashlib.sha256(view[:-_SUM]).digest() != data[-_SUM:]:
        raise RefusedMessageError("a message is damaged: it does not match its checksum")
    return view[_HEAD:-_SUM]


def _invitation(nonce: bytes, terms: Terms) -> bytes:
    settings, admitted = terms.settings, terms.admitted
    return _INVITATION.pack(
        nonce, terms.length, settings.min_devices, settings.neighbours or 0, settings.majority, settings.value_bits,
        admitted.version, admitted.digest,
    )  # fmt: skip


def invitation(nonce: bytes, terms: Terms) -> bytes:
    """Server: a round begins."""
    return frame(Kind.INVITATION, round_context(nonce, terms), _invitation(nonce, terms))


def read_invitation(data: bytes, terms: Terms) -> bytes:
    """The round's nonce; refused unless the server's terms are those of this device."""
    body = body_of(data, Kind.INVITATION, None)
    nonce = bytes(body[:32])
    own = _invitation(nonce, terms)
    if len(body) != len(own) or body[:_SETTINGS] != own[:_SETTINGS]:
        raise RefusedMessageError("the server's settings or vector length differ from this device's")
    if body[_SETTINGS:] != own[_SETTINGS:]:
        raise OtherKeysError("the server's list of admitted keys is not the one that this device holds")
    body_of(data, Kind.INVITATION, round_context(nonce, terms))
    return nonce


def keys(context: bytes, index: int, signed: bytes) -> bytes:
    """Device: its place in the list of admitted keys, and its two public keys with their signature."""
    return frame(Kind.KEYS, context, _COUNT.pack(index), signed)


def read_keys(data: bytes, context: bytes) -> tuple[int, bytes]:
    """The place in the list, and the keys for sealing and for masking with their signature, concatenated."""
    body = body_of(data, Kind.KEYS, context)
    if len(body) != 4 + SIGNED_KEYS_BYTES:
        raise RefusedMessageError("a device's keys have the wrong length")
    return _COUNT.unpack(body[:4])[0], bytes(body[4:])


def _table(rows: Mapping[int, bytes]) -> bytes:
    return _COUNT.pack(len(rows)) + b"".join(_COUNT.pack(number) + row for number, row in rows.items())


def _read_table(body: memoryview, row_bytes: int) -> dict[int, bytes]:
    """Rows by number; the numbers must increase, so none appears twice."""
    (count,) = _COUNT.unpack(body[:4]) if len(body) >= 4 else (0,)
    step = 4 + row_bytes
    if count > MAX_DEVICES or len(body) != 4 + count * step:
        raise RefusedMessageError("a table in a message has the wrong length")
    numbers = [_COUNT.unpack(body[a : a + 4])[0] for a in range(4, len(body), step)]
    if any(b <= a for a, b in pairwise(numbers)):
        raise RefusedMessageError("a message lists a device twice or out of order")
    return {n: bytes(body[4 + i * step + 4 : 4 + (i + 1) * step]) for i, n in enumerate(numbers)}


def neighbours(context: bytes, number: int, ring: Ring, signed: Mapping[int, bytes]) -> bytes:
    """Server: a device's place, the ring, and the signed keys of its neighbours."""
    return frame(Kind.NEIGHBOURS, context, _PLACE.pack(number, len(ring)), ring.to_bytes(), _table(signed))


def read_neighbours(data: bytes, context: bytes) -> tuple[int, Ring, dict[int, bytes]]:
    """The device's place, the ring, and both keys of each neighbour with their signature, concatenated."""
    body = body_of(data, Kind.NEIGHBOURS, context)
    if len(body) < _PLACE.size:
        raise RefusedMessageError("a message about neighbours is truncated")
    number, devices = _PLACE.unpack(body[: _PLACE.size])
    end = _PLACE.size + devices * ROW_BYTES
    if not 2 <= devices <= MAX_DEVICES or number >= devices or len(body) < end:
        raise RefusedMessageError("a device's place is not on the ring")
    return number, ring_from_bytes(bytes(body[_PLACE.size : end])), _read_table(body[end:], SIGNED_KEYS_BYTES)


def shares(context: bytes, commitment: bytes, sealed: Mapping[int, bytes]) -> bytes:
    """Device: the commitment to its seed, and sealed shares by neighbour."""
    return frame(Kind.SHARES, context, commitment, _table(sealed))


def read_shares(data: bytes, context: bytes) -> tuple[bytes, dict[int, bytes]]:
    """The commitment, and the sealed shares by neighbour."""
    body = body_of(data, Kind.SHARES, context)
    return bytes(body[:32]), _read_table(body[32:], SEALED_BYTES)


def delivery(context: bytes, sharing: bytes, sealed: Mapping[int, bytes]) -> bytes:
    """Server: which devices shared their secrets, as bits, and the shares that a device's neighbours sealed for it."""
    return frame(Kind.DELIVERY, context, sharing, _table(sealed))


def read_delivery(data: bytes, context: bytes, devices: int) -> tuple[frozenset[int], dict[int, bytes]]:
    """The devices that shared their secrets, and sealed shares by sender."""
    body, end = body_of(data, Kind.DELIVERY, context), (devices + 7) // 8
    return places_from_bits(bytes(body[:end]), devices), _read_table(body[end:], SEALED_BYTES)


def masked(context: bytes, signature: bytes, packed: memoryview) -> bytes:
    """Device: its signature of the list of devices that shared, and its masked vector."""
    return frame(Kind.MASKED, context, signature, packed)


def read_masked(data: bytes, context: bytes, length: int) -> tuple[bytes, memoryview]:
    """The signature, and the bytes of the masked vector."""
    body = body_of(data, Kind.MASKED, context)
    if len(body) != SIGNATURE_BYTES + length:
        raise RefusedMessageError(f"a masked vector has {len(body) - SIGNATURE_BYTES} bytes, not {length}")
    return bytes(body[:SIGNATURE_BYTES]), body[SIGNATURE_BYTES:]


def survivors(context: bytes, reported: Collection[int], devices: int, signatures: Mapping[int, bytes]) -> bytes:
    """Server: whose vectors arrived, and what the device's neighbours among them signed with theirs."""
    return frame(Kind.SURVIVORS, context, places_to_bits(reported, devices), _table(signatures))


def read_survivors(data: bytes, context: bytes, devices: int) -> tuple[frozenset[int], dict[int, bytes]]:
    """The devices whose vectors arrived, and signatures by neighbour."""
    body, end = body_of(data, Kind.SURVIVORS, context), (devices + 7) // 8
    return places_from_bits(bytes(body[:end]), devices), _read_table(body[end:], SIGNATURE_BYTES)


def confirmation(context: bytes, signature: bytes) -> bytes:
    """Device: its signature of the list of survivors."""
    return frame(Kind.CONFIRMATION, context, signature)


def read_confirmation(data: bytes, context: bytes) -> bytes:
    """The signature."""
    body = body_of(data, Kind.CONFIRMATION, context)
    if len(body) != SIGNATURE_BYTES:
        raise RefusedMessageError("a signature has the wrong length")
    return bytes(body)


def confirmed(context: bytes, signatures: Mapping[int, bytes]) -> bytes:
    """Server: enough devices have signed the list of survivors."""
    return frame(Kind.CONFIRMED, context, _table(signatures))


def read_confirmed(data: bytes, context: bytes) -> dict[int, bytes]:
    """Signatures by place."""
    return _read_table(body_of(data, Kind.CONFIRMED, context), SIGNATURE_BYTES)


def unmasking(context: bytes, opened: Mapping[int, bytes]) -> bytes:
    """Device: one share per neighbour, of its seed if it reported and of its key otherwise."""
    return frame(Kind.UNMASKING, context, _table(opened))


def read_unmasking(data: bytes, context: bytes) -> dict[int, bytes]:
    """One share per neighbour."""
    return _read_table(body_of(data, Kind.UNMASKING, context), SHARE_BYTES)
