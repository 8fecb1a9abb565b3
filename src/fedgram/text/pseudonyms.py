"""Pseudonyms of users: keyed hashes of their names, so that a population tells nobody who wrote what.

One key gives one name the same pseudonym in every import, so merged populations agree on who is who. Without the key,
nobody can compute the pseudonym of a name. The key is a file that only its owner can read.
"""

import hashlib
import os
from pathlib import Path

from fedgram.core.errors import FedgramError, InputError
from fedgram.text.normalize import nfc


def normal_form(name: str) -> str:
    """The name without surrounding spaces and in one Unicode form."""
    return nfc(name).strip()


def pseudonym(name: str, key: bytes) -> str:
    """A keyed hash of a user's name.

    >>> pseudonym("Ann", b"0123456789abcdef") == pseudonym(" Ann ", b"0123456789abcdef")
    True
    """
    return "u" + hashlib.blake2b(normal_form(name).encode(), key=key, digest_size=10).hexdigest()


def default_key_file() -> Path:
    """Where this user's key is kept."""
    try:
        folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    except RuntimeError:
        raise FedgramError("there is no home folder for the key of pseudonyms; set --key-file") from None
    return Path(folder) / "fedgram" / "names.key"


def read_key(path: Path) -> bytes:
    """The key in a file. If there is no such file, a random key is made, which only its owner can read."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(32))
    with path.open("rb") as file:
        key = file.read(65)
    if not 16 <= len(key) <= 64:
        raise InputError(path, "is not a key: a key has 16 to 64 bytes", remedy="name another file; a new one is made")
    return key
