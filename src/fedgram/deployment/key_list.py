"""The list of admitted keys of a federation, signed with the federation's own key (`release.key`).

    signature (64 bytes) · version, number of keys, keys (`federated/secure/admitted_keys.py`)

`federation admit` and `revoke` sign a new version (`server/admitted.keys`). The server sends it with every job. A
device checks the signature, keeps the list, and never goes back to an earlier version or to another list of the same
version. So a server without the signing key cannot invent devices. The key is needed to admit and revoke devices and to
publish models only, and may be kept elsewhere at other times.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fedgram.core.errors import FedgramError, InputError, InvariantError
from fedgram.core.locks import locked
from fedgram.core.storage import atomic_write, flush
from fedgram.deployment.keys import is_signed, sign
from fedgram.federated.secure.admitted_keys import AdmittedKeys, admitted_from_bytes

KEY_LIST, SIGNING_KEY = "admitted.keys", "release.key"
MAX_LIST_BYTES = 1 << 26
_SIGNATURE_BYTES = 64
_PURPOSE = b"fedgram admitted keys 1\n"  # so that a signature of a list is one of nothing else
_LOCK_SECONDS = 60.0


class RefusedKeyListError(FedgramError):
    """A list of admitted keys that a device does not accept. The server knows this error by its name."""


@dataclass(frozen=True, slots=True)
class SignedKeys:
    """A list of admitted keys, and its bytes with their signature."""

    admitted: AdmittedKeys
    signed: bytes


def sign_keys(admitted: AdmittedKeys, signing_key: Path) -> bytes:
    """The bytes of a list with their signature."""
    if not signing_key.is_file():
        remedy = "put it back to admit or revoke devices; it may be kept elsewhere at other times"
        raise InputError(signing_key, "is missing", remedy=remedy)
    body = admitted.to_bytes()
    return sign(signing_key, _PURPOSE + body) + body


def admit_keys(server: Path, keys: Iterable[bytes]) -> AdmittedKeys:
    """Add keys to the server's list, and sign its next version if some are new."""
    return _change(server, lambda before: before.with_keys(keys))


def revoke_keys(server: Path, keys: Iterable[bytes]) -> AdmittedKeys:
    """Remove keys from the server's list, and sign its next version if it had some of them."""
    return _change(server, lambda before: before.without_keys(keys))


def _change(server: Path, change: Callable[[AdmittedKeys], AdmittedKeys]) -> AdmittedKeys:
    with locked(server, seconds=_LOCK_SECONDS, taken="another command is admitting devices", name=".admitting"):
        found = read_key_list(server)
        before = found.admitted if found else AdmittedKeys(1, ())
        after = change(before)
        if found is None or after is not before:
            _write(server / KEY_LIST, sign_keys(after, server / SIGNING_KEY))
        return after


def read_key_list(server: Path) -> SignedKeys | None:
    """The server's list; None if no device was admitted yet."""
    path = server / KEY_LIST
    if not path.is_file():
        return None
    signed = path.read_bytes()
    try:
        return SignedKeys(admitted_from_bytes(signed[_SIGNATURE_BYTES:]), signed)
    except InvariantError:
        raise InputError(path, "is damaged", remedy="restore it from a backup; its version must not go back") from None


def open_keys(signed: bytes, public_key: Path | None) -> AdmittedKeys:
    """The list of some bytes; they must be signed by the federation."""
    if public_key is None or not public_key.is_file():
        raise RefusedKeyListError("release.pub is missing; copy it from the server's folder")
    if len(signed) > MAX_LIST_BYTES:
        raise RefusedKeyListError("the list of admitted keys is too large")
    body = signed[_SIGNATURE_BYTES:]
    if not is_signed(public_key, _PURPOSE + body, signed[:_SIGNATURE_BYTES]):
        raise RefusedKeyListError("the list of admitted keys is not signed by the federation")
    try:
        return admitted_from_bytes(body)
    except InvariantError:
        raise RefusedKeyListError("the list of admitted keys cannot be read; a newer fedgram may be needed") from None


def hold_keys(folder: Path, signed: bytes, public_key: Path | None) -> AdmittedKeys:
    """Keep a list in a device's folder, unless it is older than the one there."""
    new, old = open_keys(signed, public_key), held_keys(folder, public_key)
    if old is not None and new.version < old.version:
        raise RefusedKeyListError(f"version {new.version} of the admitted keys is older than {old.version}")
    if old is not None and new.version == old.version and new.digest != old.digest:
        raise RefusedKeyListError(f"there are two lists of admitted keys with version {new.version}")
    if old is None or new.version > old.version:
        _write(folder / KEY_LIST, signed)
    return new


def held_keys(folder: Path, public_key: Path | None) -> AdmittedKeys | None:
    """The list that a device holds; None if it was sent none yet."""
    path = folder / KEY_LIST
    return open_keys(path.read_bytes(), public_key) if path.is_file() else None


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)
    flush(path.parent)
