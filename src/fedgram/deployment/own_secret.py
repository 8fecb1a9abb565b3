"""A device's own secret, and what it decides by it: shares, arms and buckets that the server cannot compute.

The secret is 32 random bytes in the device's folder, and never leaves it. A decision is a keyed hash of what it is
about, so it is the same each time, is independent of every other decision, and cannot be foreseen or chosen by the
server.
"""

import hmac
import os
import secrets
from pathlib import Path

from fedgram.deployment.keys import write_secret

SECRET = "secret"
_BYTES = 32


def read_own_secret(folder: Path) -> bytes:
    """The secret of the device with this folder; the first time, it is made. A damaged one is replaced."""
    path = folder / SECRET
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        secret = b""
    if len(secret) == _BYTES:
        return secret
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = folder / f".{SECRET}.{os.getpid()}"
    write_secret(made, secrets.token_bytes(_BYTES))
    made.replace(path)
    return path.read_bytes()


def keyed_number(secret: bytes, *about: str) -> float:
    """A number in [0, 1) that depends on the secret and on what it is about.

    >>> round(keyed_number(bytes(32), "share", "x"), 3), keyed_number(bytes(32), "share", "y") < 1
    (0.209, True)
    """
    digest = hmac.digest(secret, "\0".join(("fedgram", *about)).encode(), "sha256")
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53
