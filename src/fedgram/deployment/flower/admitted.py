"""The devices that were let in, on the server's disk: a file a device, with its key, its name, and Flower's number.

A SuperLink that keeps its state in memory answers in a seventh of the time, and what it forgets with a crash is made
again anyway: runs go on from the last committed round. Who was admitted is all that must outlive it. A device is
restored under the number it had, so that those which are up go on as if nothing had been.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from fedgram.core.errors import InputError
from fedgram.core.storage import atomic_write

FOLDER = "admitted"


def remember(server: Path, key: bytes, name: str, node: int | None) -> None:
    """Write down that a key was admitted; without the node's number, it is given another one after a crash."""
    (server / FOLDER).mkdir(mode=0o700, exist_ok=True)
    with atomic_write(_path(server, key)) as file:
        file.write(json.dumps({"name": name, "node": node, "key": key.decode("ascii")}).encode())


def is_remembered(server: Path, key: bytes) -> bool:
    """Whether a key was written down."""
    return _path(server, key).is_file()


def restore(server: Path, state: Any, heartbeat: float) -> int:
    """Register in Flower's `InMemoryLinkState` all that were admitted; returns how many.

    They count as being there until they have had the time to say so.
    """
    from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID

    paths = sorted((server / FOLDER).glob("*.json"))
    for path in paths:
        try:
            fields = json.loads(path.read_bytes())
            key, name, node = fields["key"].encode("ascii"), str(fields["name"]), fields["node"]
            made = state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, heartbeat, name=name)
            if isinstance(node, int) and node not in state.nodes:
                info = state.nodes.pop(made)
                info.node_id = node
                state.nodes[node] = info
                state.node_public_key_to_node_id[key] = node
                state.owner_to_node_ids[NOOP_FLWR_AID] ^= {made, node}
                made = node
            state.activate_node(made, heartbeat)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(path, f"does not hold an admitted device: {type(error).__name__}") from None
    return len(paths)


def _path(server: Path, key: bytes) -> Path:
    return server / FOLDER / f"{hashlib.sha256(key).hexdigest()[:32]}.json"
