"""Talking to the SuperLink from the server's machine: registering devices, starting runs, asking how they go.

Each verb goes through Flower's private client, or through its command line where private modules may not be used.
"""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from fedgram.core.errors import FedgramError, InputError
from fedgram.deployment.checks import UnreachableError, is_up, not_a_certificate
from fedgram.deployment.flower import internals
from fedgram.deployment.flower.admitted import forget, is_remembered, read_admitted, read_revoked, remember
from fedgram.deployment.flower.command_line import CommandLine
from fedgram.deployment.flower.internals import Node
from fedgram.deployment.folder import Folder
from fedgram.deployment.key_list import admit_keys, read_key_list, revoke_keys
from fedgram.deployment.keys import compressed_key


class Control(Protocol):
    """The control interface of a SuperLink."""

    def close(self) -> None:
        """Close the connection."""

    def nodes(self) -> list[Node]:
        """All nodes that were ever registered."""

    def register(self, public_key: bytes, name: str) -> int | None:
        """Register a node and return its ID; None if its key is registered already."""

    def unregister(self, node: int) -> None:
        """Refuse a node from now on; nothing happens if it was not registered."""

    def start_run(self, app: Path, config: Mapping[str, str]) -> int:
        """Start a run of an app with this configuration; returns the run's number."""

    def run_status(self, run: int) -> str:
        """The status of a run, or how it ended; "unknown" to a server that was started after it."""

    def stop_run(self, run: int) -> None:
        """End a run."""


@contextmanager
def control(folder: Folder) -> Iterator[Control]:
    """The control interface of a federation's SuperLink, which answers only on its own machine."""
    import httpx

    client = _open(folder)
    try:
        yield client
    except httpx.RequestError as error:
        raise _unreachable(folder, type(error).__name__) from None
    except httpx.HTTPStatusError as error:
        raise FedgramError(f"the server refused the request: HTTP {error.response.status_code}") from None
    finally:
        client.close()


def _open(folder: Folder) -> Control:
    if not internals.are_enabled():
        if not is_up(folder):
            raise _unreachable(folder, "health check failed")
        return CommandLine(folder)
    try:
        authority = folder.authority.read_bytes() if folder.config.tls else None
        return internals.ControlClient(folder.local_address, authority, _token(folder))
    except (ssl.SSLError, ValueError):
        raise not_a_certificate(folder) from None


def _token(folder: Folder) -> str:
    """The server's secret, which is there while it runs, for its own user."""
    try:
        return folder.token.read_text("ascii")
    except FileNotFoundError:
        raise _unreachable(folder, "it has not been started") from None
    except PermissionError:
        remedy = "run this command as the user that runs `fedgram federation serve`"
        raise InputError(folder.token, "cannot be read", remedy=remedy) from None


def _unreachable(folder: Folder, why: str) -> UnreachableError:
    return UnreachableError(f"no server answers at {folder.local_address} ({why})")


def admit(folder: Folder, public_key: bytes, name: str) -> bool:
    """Register a device's key under a name, and sign it into the list of admitted keys.

    Returns False if it was registered before. A name has one key.
    """
    if not folder.server.is_dir():
        raise InputError(folder.path, "is a device's folder", remedy="admit the device on the server's machine")
    with control(folder) as client:
        for node in client.nodes():
            if node.name == name and node.key != public_key and node.status != "unregistered":
                raise FedgramError(f"{name} is admitted with another key; give the new device another number")
        earlier = [] if read_key_list(folder.server) else [device.key for device in read_admitted(folder.server)]
        admit_keys(folder.server, map(compressed_key, [public_key, *earlier]))
        made = client.register(public_key, name)
    if made is None:
        if not is_remembered(folder.server, public_key):
            remember(folder.server, public_key, name, None)
        return False
    remember(folder.server, public_key, name, made)
    return True


def revoke(folder: Folder, name: str) -> bool:
    """Refuse a device from now on, and sign the list of admitted keys without its key; False if it is not admitted.

    The device is cut off first: if the signing key is kept elsewhere, the error says so, and the same command signs the
    list once the key is back. A server with its state in memory need not run.
    """
    if not folder.server.is_dir():
        raise InputError(folder.path, "is a device's folder", remedy="revoke the device on the server's machine")
    keys = {device.key for device in read_admitted(folder.server) if device.name == name}
    try:
        with control(folder) as client:
            for node in client.nodes():
                if node.name == name and node.status != "unregistered":
                    keys |= {node.key} if node.key else set()
                    client.unregister(node.id)
    except UnreachableError:
        if not (folder.config.in_memory and internals.are_enabled()):
            raise
    for key in keys:
        forget(folder.server, key)
    earlier = {device.key for device in read_revoked(folder.server) if device.name == name}
    return _sign_without(folder.server, keys | earlier) or bool(keys)


def _sign_without(server: Path, keys: set[bytes]) -> bool:
    """Sign the list of admitted keys without some keys; False if it had none of them."""
    found = read_key_list(server)
    return found is not None and revoke_keys(server, map(compressed_key, keys)).version > found.admitted.version


def nodes(folder: Folder) -> list[dict[str, Any]]:
    """The registered nodes: ID, name and status."""
    with control(folder) as client:
        found = client.nodes()
    return [{"node": str(n.id), "name": n.name, "status": n.status} for n in found if n.status != "unregistered"]


def start_run(folder: Folder, config: Mapping[str, str]) -> int:
    """Start a run of the federation's app with this configuration; returns the run's number."""
    with control(folder) as client:
        return client.start_run(folder.app, config)


def run_status(folder: Folder, run: int) -> str:
    """A run's status: pending, starting, running, or how it ended: completed, failed, stopped.

    It is unknown to a server that was started after it.
    """
    with control(folder) as client:
        return client.run_status(run)


def stop_run(folder: Folder, run: int) -> None:
    """End a run, if it has not ended already."""
    try:
        with control(folder) as client:
            client.stop_run(run)
    except UnreachableError:
        raise
    except FedgramError:
        return  # it has ended already
