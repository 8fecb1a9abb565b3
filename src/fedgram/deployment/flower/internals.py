"""The only module, with `internals_http.py`, that uses Flower's private modules. They may change with any release.

It was written for one version (`VERSION`). With another version, or with FEDGRAM_FLOWER_INTERNALS=off in the
environment, everything here is switched off with one line in the log, and Flower's public interfaces are used instead:
its programs (`flower-superlink`, `flower-supernode`, `flwr`) and the Grid. Results are the same. The public way loses:

- other machines. One port serves devices and the commands that start runs, and starting a run means running code. Only
  private modules can close the latter to other machines (`superlink.py`), and only they let a device refuse an app
  that is not its own (`supernode.py`). Without them, the server and all devices must be on one machine;
- speed. Requests pass all layers of Flower (`fast_path.py`), every message starts a new Python process on the device
  (`worker.py`), and a reply that stops half-way holds up others for minutes (`grid_transport.py`);
- settings. Devices poll every 3 s and send a heartbeat every 30 s, whatever the federation's configuration says, and
  the server keeps its state in a database on disk.
"""

import hashlib
import os
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fedgram.core.errors import FedgramError

VERSION = "1.41.0"
SWITCH = "FEDGRAM_FLOWER_INTERNALS"
TOKEN_HEADER = "x-fedgram-token"


class Node(NamedTuple):
    """A registered SuperNode; its key is None where Flower does not say it."""

    id: int
    name: str
    status: str
    key: bytes | None


def is_written_for(installed: str) -> bool:
    """Whether this module fits an installed version of Flower."""
    return installed == VERSION


def are_enabled() -> bool:
    """Whether private modules may be used; the first time they may not, one line on standard error says why."""
    installed = version("flwr")
    off = os.environ.get(SWITCH) == "off"
    if is_written_for(installed) and not off:
        return True
    _say(f"{SWITCH}=off" if off else f"Flower {installed} is installed, fast paths are for Flower {VERSION}")
    return False


@cache
def _say(why: str) -> None:
    print(f"fedgram: using Flower's public interfaces ({why})", file=sys.stderr, flush=True)


def require(what: str) -> None:
    """Refuse what has no safe public way."""
    if not are_enabled():
        remedy = f"install it with: pip install flwr=={VERSION}"
        raise FedgramError(f"{what} needs Flower {VERSION} without {SWITCH}=off; {remedy}")


class _Token:
    """Adds the secret of a server's local interface to every request (`gate.py`)."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Send a request with the secret."""
        context.request.headers[TOKEN_HEADER] = self._token
        return call_next(context)


# The SuperLink's control interface.


class ControlClient:
    """A client of a SuperLink's control interface; its methods raise `httpx.HTTPError`."""

    def __init__(self, address: str, authority: bytes | None, token: str) -> None:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="flwr CLI"), _Token(token)]
        self._client = ControlHttpClient.from_server_address(address, authority is None, authority, interceptors)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def nodes(self) -> list[Node]:
        """All nodes that were ever registered."""
        from flwr.proto.control_pb2 import ListNodesRequest

        found = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [Node(int(n.node_id), n.name, n.status, n.public_key) for n in found]

    def register(self, public_key: bytes, name: str) -> int | None:
        """Register a node; None if its key is registered already."""
        import httpx
        from flwr.proto.control_pb2 import RegisterNodeRequest

        try:
            return int(self._client.RegisterNode(RegisterNodeRequest(public_key=public_key, name=name)).node_id)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in (400, 409, 412) and "in use" in error.response.text.lower():
                return None
            raise

    def unregister(self, node: int) -> None:
        """Refuse a node from now on; nothing happens if it was not registered."""
        import httpx
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        try:
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 404:
                raise

    def start_run(self, app: Path, config: Mapping[str, str]) -> int:
        """Start a run of an app with this configuration; returns the run's number."""
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        content = _bundle(app)
        fab = fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))
        reply = self._client.StartRun(
            StartRunRequest(fab=fab, override_config=user_config_to_proto(dict(config)), federation="")
        )
        if not reply.HasField("run_id"):
            raise FedgramError("the server did not start the run")
        return int(reply.run_id)

    def run_status(self, run: int) -> str:
        """The status of a run, or how it ended; "unknown" to a server that was started after it."""
        import httpx
        from flwr.proto.control_pb2 import ListRunsRequest

        try:
            found = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 404:
                return "unknown"
            raise
        if run not in found:
            return "unknown"
        status = found[run].status
        return str(status.sub_status or status.status)

    def stop_run(self, run: int) -> None:
        """End a run."""
        from flwr.proto.control_pb2 import StopRunRequest

        self._client.StopRun(StopRunRequest(run_id=run))


def _bundle(app: Path) -> bytes:
    """The app as Flower sends it to nodes; the same folder always gives the same bytes."""
    from flwr.cli.build import build_fab_from_disk

    return build_fab_from_disk(app)


def app_digest(app: Path) -> str:
    """The digest by which Flower knows an app."""
    return hashlib.sha256(_bundle(app)).hexdigest()


def load_server_app() -> None:
    """Load what `run_server_app` needs, so that it begins at once."""
    for name in ("flwr.superlink.runtime", "fedgram.deployment.flower.server_app"):
        import_module(name)


def run_server_app(address: str, token: str, authority: str) -> None:
    """Run the ServerApp of a token with Flower's own process function; `authority` is a path, or ""."""
    from queue import Queue

    from flwr.supercore.logger import mirror_output_to_queue, restore_output
    from flwr.superlink.runtime import run_serverapp

    lines: Queue[str | None] = Queue()
    mirror_output_to_queue(lines)
    certificates = Path(authority).read_bytes() if authority else None
    run_serverapp(address, lines, token, not authority, certificates, os.getppid(), False)
    restore_output()


# The ServerApp's Grid.


class Announcement(NamedTuple):
    """A reply that a device has announced: its message ID, and the tree of the objects it consists of."""

    message_id: str
    tree: Any


def announced_replies(grid: Any, requests: Iterable[str]) -> dict[str, Announcement]:
    """The replies that were announced to some requests, by request."""
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest

    found = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=requests))
    return {
        message.metadata.reply_to_message_id: Announcement(message.metadata.message_id, tree)
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True)
    }


def fetch_reply(grid: Any, announced: Announcement, *, seconds: float) -> Any:
    """The message of an announced reply, as `HttpGrid.pull_messages` makes it, within so many seconds."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects

    client, node, run = grid._runtime_client, grid.node, grid.run.run_id
    pull = make_pull_object_fn_protobuf(pull_object_protobuf=client.PullObject, node=node, run_id=run)
    parts = [part.object_id for part in iterate_object_tree(announced.tree)]
    contents = pull_objects(parts, pull, max_time=seconds, initial_backoff=0.2)
    client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=announced.message_id)
    )
    return inflate_object_from_contents(announced.message_id, contents)


# The SuperNode, and the process that computes for it.

_IDLE, _WAITING = 3.0, 0.1  # Flower's sleep between questions to the server, and ours while a reply is computed


class _Time:
    """The module `time` with other sleeps."""

    def __init__(self, poll: float) -> None:
        self._poll = poll

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Sleep for the polling interval where Flower would wait for messages, and briefly while one is computed."""
        time.sleep(self._poll if seconds >= _IDLE else min(seconds, _WAITING))


def restrict_supernode(app: Path, *, poll: float, heartbeat: float) -> None:
    """Let the SuperNode of this process run this app and no other; set its polling and heartbeat intervals."""
    from flwr.supercore.run import RunNotRunningException

    loop: Any = import_module("flwr.supernode.start_client_internal")
    own, read_config = app_digest(app), loop.get_fused_config_from_fab

    def checked(content: Any, run: Any) -> Any:
        if hashlib.sha256(content).hexdigest() != own:
            raise RunNotRunningException  # Flower then drops the message
        return read_config(content, run)

    loop.get_fused_config_from_fab = checked
    loop.time = _Time(poll)
    for name in ("flwr.supernode.fleet_http_connection", "flwr.supercore.heartbeat"):
        setattr(import_module(name), "HEARTBEAT_DEFAULT_INTERVAL", heartbeat)  # noqa: B010


def prepare_connections(prepare: Callable[[ssl.SSLContext], None]) -> None:
    """Change the TLS context of the SuperNode of this process before it connects to its server."""
    module: Any = import_module("flwr.supernode.fleet_http_connection")

    class Client(module.FleetHttpClient):  # type: ignore[misc]
        def __init__(self, *arguments: Any, verify: Any = True, **options: Any) -> None:
            if isinstance(verify, ssl.SSLContext):
                prepare(verify)
            super().__init__(*arguments, verify=verify, **options)

    module.FleetHttpClient = Client


class ClientTasks:
    """The messages of a SuperNode that wait for a process to answer them."""

    def __init__(self, address: str, token: str) -> None:
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient

        interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperExec"), _Token(token)]
        self._client = RuntimeHttpClient.from_server_address(address, True, None, interceptors)
        self._request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])

    def next(self) -> str:
        """The token of the next message; "" if there is none. Raises if the SuperNode is away."""
        found = self._client.AcquireTask(self._request)
        return str(found.token) if found.HasField("task") else ""


def run_client_app(address: str, token: str) -> None:
    """Answer a message with Flower's own ClientApp process function."""
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    run_clientapp(address, token, insecure=True, parent_pid=os.getppid())
