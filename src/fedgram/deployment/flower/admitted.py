"""The devices that the operator has admitted, on the server's disk: one file per device with its key, name and node ID.

A SuperLink that keeps its state in memory needs a seventh of the time per request. A crash loses the state, but runs
resume from the last committed round anyway; only the list of admitted devices must survive. A device is restored under
the node ID it had, so that running devices do not notice the restart.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from fedgram.core.errors import InputError
from fedgram.core.storage import atomic_write
from fedgram.deployment.flower.internals_http import register_in_memory

FOLDER, REVOKED = "admitted", ".revoked"


class Admitted(NamedTuple):
    """A device's public key, its name, and Flower's ID of its node, where it is known."""

    key: bytes
    name: str
    node: int | None


def remember(server: Path, key: bytes, name: str, node: int | None) -> None:
    """Write down that a key was admitted; without a node ID it gets a new one after a crash."""
    (server / FOLDER).mkdir(mode=0o700, exist_ok=True)
    with atomic_write(_path(server, key)) as file:
        file.write(json.dumps({"name": name, "node": node, "key": key.decode("ascii")}).encode())


def forget(server: Path, key: bytes) -> None:
    """Note that a key is no longer admitted; its file is kept under another name."""
    if (path := _path(server, key)).is_file():
        path.replace(path.with_suffix(REVOKED))


def read_revoked(server: Path) -> list[Admitted]:
    """All devices that were admitted once, and are no longer."""
    return [_read(path) for path in sorted((server / FOLDER).glob(f"*{REVOKED}"))]


def is_remembered(server: Path, key: bytes) -> bool:
    """Whether a key was written down."""
    return _path(server, key).is_file()


def read_admitted(server: Path) -> list[Admitted]:
    """All devices that were written down."""
    return [_read(path) for path in sorted((server / FOLDER).glob("*.json"))]


def restore(server: Path, state: Any, heartbeat: float) -> int:
    """Register all admitted devices in Flower's `InMemoryLinkState`; returns how many."""
    found = read_admitted(server)
    for key, name, node in found:
        register_in_memory(state, key, name, node, heartbeat)
    return len(found)


def _read(path: Path) -> Admitted:
    try:
        fields = json.loads(path.read_bytes())
        node = fields["node"]
        return Admitted(fields["key"].encode("ascii"), str(fields["name"]), node if isinstance(node, int) else None)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(path, f"does not hold an admitted device: {type(error).__name__}") from None


def _path(server: Path, key: bytes) -> Path:
    return server / FOLDER / f"{hashlib.sha256(key).hexdigest()[:32]}.json"
