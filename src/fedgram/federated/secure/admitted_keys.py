"""The long-term keys that were admitted to a federation: the only devices that count in a secure round.

The list has a version that only goes up. Its bytes are signed by whoever admits devices, not by the server that runs
the rounds (`deployment/key_list.py`); here it is assumed to be right. A device is named by its place in the list.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fedgram.core.errors import InvariantError
from fedgram.federated.secure.identity import PUBLIC_BYTES, Identity, is_public_key

MAX_KEYS = 1 << 24
_HEAD = struct.Struct("<QI")


@dataclass(frozen=True, slots=True)
class AdmittedKeys:
    """A version of the list; its keys are in ascending order, so each is there once."""

    version: int
    keys: tuple[bytes, ...] = field(repr=False)
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.version < 1 << 63 or len(self.keys) > MAX_KEYS:
            raise InvariantError("a list of admitted keys needs a version from 1, and has at most 2^24 keys")
        if list(self.keys) != sorted(set(self.keys)) or any(len(key) != PUBLIC_BYTES for key in self.keys):
            raise InvariantError("admitted keys must be compressed points in ascending order, each once")
        object.__setattr__(self, "digest", hashlib.sha256(self.to_bytes()).digest())

    def to_bytes(self) -> bytes:
        """The version, the number of keys, and the keys."""
        return _HEAD.pack(self.version, len(self.keys)) + b"".join(self.keys)

    def with_keys(self, more: Iterable[bytes]) -> "AdmittedKeys":
        """The next version, with further keys; the same list if it has them all."""
        keys = {*self.keys, *more}
        if wrong := [key for key in keys if not is_public_key(key)]:
            raise InvariantError(f"{len(wrong)} of the keys to admit are not public keys")
        return self if len(keys) == len(self.keys) else AdmittedKeys(self.version + 1, tuple(sorted(keys)))

    def without_keys(self, gone: Iterable[bytes]) -> "AdmittedKeys":
        """The next version, without some keys; the same list if it has none of them."""
        keys = {*self.keys}.difference(gone)
        return self if len(keys) == len(self.keys) else AdmittedKeys(self.version + 1, tuple(sorted(keys)))


def admitted_from_bytes(content: bytes) -> AdmittedKeys:
    """The list of some bytes; raises `InvariantError` if they are none."""
    if len(content) < _HEAD.size:
        raise InvariantError("a list of admitted keys is truncated")
    version, count = _HEAD.unpack(content[: _HEAD.size])
    body = content[_HEAD.size :]
    if len(body) != count * PUBLIC_BYTES:
        raise InvariantError("a list of admitted keys has the wrong length")
    return AdmittedKeys(version, tuple(body[a : a + PUBLIC_BYTES] for a in range(0, len(body), PUBLIC_BYTES)))


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a device brings to a round: its long-term key, and the list of admitted keys that it holds."""

    identity: Identity
    admitted: AdmittedKeys

    @property
    def index(self) -> int | None:
        """The device's own place in the list; None if it is not there."""
        own = self.identity.public
        return self.admitted.keys.index(own) if own in self.admitted.keys else None


def new_credentials(devices: Iterable[int], entropy: Callable[[int], bytes]) -> dict[int, Credentials]:
    """Fresh keys for the devices of a simulation, all of them admitted."""
    identities = {device: Identity.from_entropy(entropy(40)) for device in devices}
    admitted = AdmittedKeys(1, tuple(sorted(identity.public for identity in identities.values())))
    return {device: Credentials(identity, admitted) for device, identity in identities.items()}
