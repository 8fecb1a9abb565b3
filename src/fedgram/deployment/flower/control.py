"""Talking to the SuperLink from the server's machine: registering devices, starting runs, seeing how they go."""

import hashlib
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedgram.core.errors import FedgramError, InputError
from fedgram.deployment.flower.admitted import is_remembered, remember
from fedgram.deployment.folder import Folder
from fedgram.deployment.supervision import not_a_certificate


class Unreachable(FedgramError):
    """No SuperLink answers."""


@contextmanager
def control(folder: Folder) -> Iterator[Any]:
    """A client of the SuperLink's control interface, which answers on its own machine alone."""
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    tls = folder.config.tls
    try:
        client = ControlHttpClient.from_server_address(
            folder.local_address, not tls, folder.authority.read_bytes() if tls else None,
            [RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )  # fmt: skip
    except (ssl.SSLError, ValueError):
        raise not_a_certificate(folder) from None
    try:
        yield client
    except httpx.RequestError as error:
        raise Unreachable(f"no server answers at {folder.local_address} ({type(error).__name__})") from None
    except httpx.HTTPStatusError as error:
        raise FedgramError(f"the server refused: HTTP {error.response.status_code}") from None
    finally:
        client.close()


def is_up(folder: Folder) -> bool:
    """Whether the SuperLink answers."""
    from flwr.proto.control_pb2 import ListNodesRequest

    try:
        with control(folder) as client:
            client.ListNodes(ListNodesRequest())
    except Unreachable:
        return False
    return True


def admit(folder: Folder, public_key: bytes, name: str) -> bool:
    """Register a device's key under a name; False if it was registered before. A name has one key."""
    import httpx
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest

    if not folder.server.is_dir():
        raise InputError(folder.path, "is a device's folder, not the server's", remedy="admit it where the server is")
    with control(folder) as client:
        for node in client.ListNodes(ListNodesRequest()).nodes_info:
            if node.name == name and node.public_key != public_key and node.status != "unregistered":
                raise FedgramError(f"{name} is admitted with another key; give the new device another number")
        try:
            made = client.RegisterNode(RegisterNodeRequest(public_key=public_key, name=name))
        except httpx.HTTPStatusError as error:
            if error.response.status_code in (400, 409, 412) and "in use" in error.response.text.lower():
                if not is_remembered(folder.server, public_key):
                    remember(folder.server, public_key, name, None)
                return False
            raise
    remember(folder.server, public_key, name, int(made.node_id))
    return True


def nodes(folder: Folder) -> list[dict[str, Any]]:
    """The registered nodes: name, status, and since when."""
    from flwr.proto.control_pb2 import ListNodesRequest

    with control(folder) as client:
        found = client.ListNodes(ListNodesRequest()).nodes_info
    return [{"node": str(n.node_id), "name": n.name, "status": n.status} for n in found if n.status != "unregistered"]


def start_run(folder: Folder, config: Mapping[str, str]) -> int:
    """Hand the app to the SuperLink with this configuration; returns the run's number."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    content = build_fab_from_disk(folder.app)
    fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
    with control(folder) as client:
        reply = client.StartRun(
            StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(config)), federation="")
        )
    if not reply.HasField("run_id"):
        raise FedgramError("the server did not start the run")
    return int(reply.run_id)


def run_status(folder: Folder, run: int) -> str:
    """A run's status: pending, starting, running, or how it ended: completed, failed, stopped.

    It is unknown to a server that was started after it.
    """
    import httpx
    from flwr.proto.control_pb2 import ListRunsRequest

    with control(folder) as client:
        try:
            found = client.ListRuns(ListRunsRequest(run_id=run)).run_dict
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 404:
                return "unknown"
            raise
    if run not in found:
        return "unknown"
    status = found[run].status
    return str(status.sub_status or status.status)


def stop_run(folder: Folder, run: int) -> None:
    """End a run that nobody works on any more."""
    from flwr.proto.control_pb2 import StopRunRequest

    try:
        with control(folder) as client:
            client.StopRun(StopRunRequest(run_id=run))
    except Unreachable:
        raise
    except FedgramError:
        return  # it has ended already
