"""The messages of a secure round as bytes; everything else is refused.

    FGSA  version  kind  context (32 bytes)  body  SHA-256 of all before it

Numbers are little-endian. The context is a digest of what the round computes (its job, its number and the broadcast),
its nonce, the settings and the vector's length. A message from another round, or from a party with another context, is
refused. Keys are derived from the context, so devices that were given different jobs cannot read each other's shares.
The checksum detects accidental damage; the transport must protect messages from deliberate changes (TLS).
"""

import hashlib
import struct
from collections.abc import Mapping
from enum import IntEnum
from itertools import pairwise

from fedgram.federated.secure.primitives import KEY_BYTES, TAG_BYTES
from fedgram.federated.secure.settings import MAX_DEVICES, RefusedMessageError, SecureSettings
from fedgram.federated.secure.shamir import SHARE_BYTES

MAGIC, VERSION = b"FGSA", 2
_HEAD, _SUM = 4 + 2 + 32, 32
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
_INVITATION = struct.Struct("<32sQIIdB")
_PLACE = struct.Struct("<II")
_COUNT = struct.Struct("<I")


class Kind(IntEnum):
    """The kinds of messages. The server sends the odd ones; a device answers each with the next."""

    INVITATION, KEYS, NEIGHBOURS, SHARES, DELIVERY, MASKED, SURVIVORS, UNMASKING = range(1, 9)


def round_context(nonce: bytes, settings: SecureSettings, length: int, about: bytes) -> bytes:
    """The digest that binds keys and messages to one round; `about` is a digest of what the round computes."""
    invited = _invitation(nonce, settings, length)
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


def _invitation(nonce: bytes, settings: SecureSettings, length: int) -> bytes:
    return _INVITATION.pack(
        nonce, length, settings.min_devices, settings.neighbours or 0, settings.majority, settings.value_bits
    )


def invitation(nonce: bytes, settings: SecureSettings, length: int, about: bytes) -> bytes:
    """Server: a round begins."""
    context = round_context(nonce, settings, length, about)
    return frame(Kind.INVITATION, context, _invitation(nonce, settings, length))


def read_invitation(data: bytes, settings: SecureSettings, length: int, about: bytes) -> bytes:
    """The round's nonce; refused unless the server's settings are those of this device."""
    body = body_of(data, Kind.INVITATION, None)
    nonce = bytes(body[:32])
    if len(body) != _INVITATION.size or body != _invitation(nonce, settings, length):
        raise RefusedMessageError("the server's settings or vector length differ from this device's")
    body_of(data, Kind.INVITATION, round_context(nonce, settings, length, about))
    return nonce


def keys(context: bytes, sealing: bytes, masking: bytes) -> bytes:
    """Device: its two public keys."""
    return frame(Kind.KEYS, context, sealing, masking)


def read_keys(data: bytes, context: bytes) -> tuple[bytes, bytes]:
    """The public keys for sealing and for masking."""
    body = body_of(data, Kind.KEYS, context)
    if len(body) != 2 * KEY_BYTES:
        raise RefusedMessageError("a device's keys have the wrong length")
    return bytes(body[:KEY_BYTES]), bytes(body[KEY_BYTES:])


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


def neighbours(context: bytes, number: int, devices: int, public: Mapping[int, bytes]) -> bytes:
    """Server: a device's place on the ring, and the keys of its neighbours."""
    return frame(Kind.NEIGHBOURS, context, _PLACE.pack(number, devices), _table(public))


def read_neighbours(data: bytes, context: bytes) -> tuple[int, int, dict[int, bytes]]:
    """The device's place, the number of devices, and both keys of each neighbour, concatenated."""
    body = body_of(data, Kind.NEIGHBOURS, context)
    if len(body) < _PLACE.size:
        raise RefusedMessageError("a message about neighbours is truncated")
    number, devices = _PLACE.unpack(body[: _PLACE.size])
    if not 2 <= devices <= MAX_DEVICES or number >= devices:
        raise RefusedMessageError("a device's place is not on the ring")
    return number, devices, _read_table(body[_PLACE.size :], 2 * KEY_BYTES)


def shares(context: bytes, commitment: bytes, sealed: Mapping[int, bytes]) -> bytes:
    """Device: the commitment to its seed, and sealed shares by neighbour."""
    return frame(Kind.SHARES, context, commitment, _table(sealed))


def read_shares(data: bytes, context: bytes) -> tuple[bytes, dict[int, bytes]]:
    """The commitment, and the sealed shares by neighbour."""
    body = body_of(data, Kind.SHARES, context)
    return bytes(body[:32]), _read_table(body[32:], SEALED_BYTES)


def delivery(context: bytes, sealed: Mapping[int, bytes]) -> bytes:
    """Server: the shares that a device's neighbours sealed for it."""
    return frame(Kind.DELIVERY, context, _table(sealed))


def read_delivery(data: bytes, context: bytes) -> dict[int, bytes]:
    """Sealed shares by sender."""
    return _read_table(body_of(data, Kind.DELIVERY, context), SEALED_BYTES)


def masked(context: bytes, packed: memoryview) -> bytes:
    """Device: its masked vector."""
    return frame(Kind.MASKED, context, packed)


def read_masked(data: bytes, context: bytes, length: int) -> memoryview:
    """The bytes of the masked vector."""
    body = body_of(data, Kind.MASKED, context)
    if len(body) != length:
        raise RefusedMessageError(f"a masked vector has {len(body)} bytes, not {length}")
    return body


def survivors(context: bytes, total: int, reported: Mapping[int, bool]) -> bytes:
    """Server: how many vectors arrived, and which of the device's neighbours sent theirs."""
    return frame(Kind.SURVIVORS, context, _COUNT.pack(total), _flags(reported))


def read_survivors(data: bytes, context: bytes) -> tuple[int, dict[int, bool]]:
    """How many vectors arrived, and for each neighbour whether it sent one."""
    body = body_of(data, Kind.SURVIVORS, context)
    if len(body) < 4:
        raise RefusedMessageError("a message about survivors is truncated")
    (total,) = _COUNT.unpack(body[:4])
    rows = _read_table(body[4:], 1)
    if any(row not in (b"\0", b"\1") for row in rows.values()):
        raise RefusedMessageError("the flag of a survivor must be 0 or 1")
    return total, {number: row == b"\1" for number, row in rows.items()}


def _flags(reported: Mapping[int, bool]) -> bytes:
    return _table({number: bytes([there]) for number, there in reported.items()})


def unmasking(context: bytes, opened: Mapping[int, bytes]) -> bytes:
    """Device: one share per neighbour, of its seed if it reported and of its key otherwise."""
    return frame(Kind.UNMASKING, context, _table(opened))


def read_unmasking(data: bytes, context: bytes) -> dict[int, bytes]:
    """One share per neighbour."""
    return _read_table(body_of(data, Kind.UNMASKING, context), SHARE_BYTES)
