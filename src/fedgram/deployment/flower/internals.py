"""The only module that uses Flower's private modules. They may change with any release of Flower.

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
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fedgram.core.errors import FedgramError

VERSION = "1.41.0"
SWITCH = "FEDGRAM_FLOWER_INTERNALS"
Scope = MutableMapping[str, Any]
Handler = Callable[[Any, Any], Any]
"""Takes a request and its message, and returns the message of the answer; raises if anything is wrong."""


class Node(NamedTuple):
    """A registered SuperNode; its key is None where Flower does not say it."""

    id: int
    name: str
    status: str
    key: bytes | None


class ForgottenRunError(FedgramError):
    """A run that this server never knew, or has forgotten."""


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


# The SuperLink: its control interface, its handlers, its state.


class ControlClient:
    """A client of a SuperLink's control interface; its methods raise `httpx.HTTPError`."""

    def __init__(self, address: str, authority: bytes | None) -> None:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
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


def extend_superlink(middleware: Sequence[Any], restore: Callable[[Any], object] | None) -> None:
    """Put ASGI middleware before Flower's; call `restore` with the SuperLink's state before the first request."""
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    extensions.get_middleware = lambda: tuple(Middleware(kind) for kind in middleware)
    if restore is None:
        return
    restore_state = restore

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        restore_state(app.state.linkstate_factory.state())
        yield

    extensions.get_lifespan_contexts = lambda: (lifespan,)


def register_in_memory(state: Any, key: bytes, name: str, node: int | None, heartbeat: float) -> None:
    """Register a node in a SuperLink's in-memory state under the number it had, if that is known and free.

    It counts as online until it has had the time for a heartbeat.
    """
    from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID

    made = state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, heartbeat, name=name)
    if isinstance(node, int) and node not in state.nodes:
        info = state.nodes.pop(made)
        info.node_id = node
        state.nodes[node] = info
        state.node_public_key_to_node_id[key] = node
        state.owner_to_node_ids[NOOP_FLWR_AID] ^= {made, node}
        made = node
    state.activate_node(made, heartbeat)


def call_handler(handler: Handler, scope: Scope, body: bytes) -> bytes:
    """The bytes of Flower's answer to a request; raises whatever Flower raises."""
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
    from starlette.requests import Request

    request = Request({**scope, "state": dict(scope.get("state", {}))})
    message: Any = PROTOBUF_REQUEST_TYPES["POST", scope["path"]]()
    message.ParseFromString(body)
    request.state.protobuf_request = message
    return bytes(handler(request, message).SerializeToString())


def fleet_handlers() -> dict[str, Handler]:
    """Flower's handlers of the requests that devices make in a round, by path."""
    from flwr.superlink.dependencies.linkstate import get_linkstate
    from flwr.superlink.routers.fleet.node_auth import authenticate_node
    from flwr.superlink.servicer.fleet import fleet_handlers as flower

    def handler(act: Callable[..., Any], *, with_store: bool = False) -> Handler:
        def handle(request: Any, message: Any) -> Any:
            authenticate_node(request)
            state = get_linkstate(request)
            try:
                return act(message, state, state.object_store) if with_store else act(message, state)
            except Exception:
                if not all(state.get_run_status({run}) for run in _runs(message)):
                    raise ForgottenRunError from None
                raise

        return handle

    return {
        "/v1/fleet/send-node-heartbeat": handler(flower.send_node_heartbeat),
        "/v1/fleet/pull-messages": handler(flower.pull_messages, with_store=True),
        "/v1/fleet/pull-object": handler(flower.pull_object),
        "/v1/fleet/confirm-message-received": handler(flower.confirm_message_received, with_store=True),
        "/v1/fleet/push-messages": handler(flower.push_messages),
        "/v1/fleet/push-object": handler(flower.push_object),
        "/v1/fleet/get-run": handler(flower.get_run),
        "/v1/fleet/get-fab": handler(flower.get_fab),
    }


def _runs(message: Any) -> set[int]:
    """The runs that a device's request is about."""
    own = {int(message.run_id)} if "run_id" in message.DESCRIPTOR.fields_by_name else set()
    return own | {int(m.metadata.run_id) for m in getattr(message, "messages_list", ())}


def runtime_handlers() -> dict[str, Handler]:
    """Flower's handlers of the requests that the ServerApp makes in a round, by path."""
    from flwr.supercore.constant import TASK_TOKEN_HEADER
    from flwr.supercore.dependencies.runtime import get_runtime_handlers, get_runtime_state
    from flwr.supercore.dependencies.task import authenticate_task

    def handler(name: str) -> Handler:
        def handle(request: Any, message: Any) -> Any:
            state = get_runtime_state(request)
            task = authenticate_task(request, request.headers.get(TASK_TOKEN_HEADER), state)
            return getattr(get_runtime_handlers(request), name)(message, state, task)

        return handle

    names = ("push_messages", "push_object", "pull_messages", "pull_object", "confirm_message_received", "get_nodes")
    return {f"/v1/runtime/{name.replace('_', '-')}": handler(name) for name in names}


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
    own, read_config = hashlib.sha256(_bundle(app)).digest(), loop.get_fused_config_from_fab

    def checked(content: Any, run: Any) -> Any:
        if hashlib.sha256(content).digest() != own:
            raise RunNotRunningException  # Flower then drops the message
        return read_config(content, run)

    loop.get_fused_config_from_fab = checked
    loop.time = _Time(poll)
    for name in ("flwr.supernode.fleet_http_connection", "flwr.supercore.heartbeat"):
        setattr(import_module(name), "HEARTBEAT_DEFAULT_INTERVAL", heartbeat)  # noqa: B010


class ClientTasks:
    """The messages of a SuperNode that wait for a process to answer them."""

    def __init__(self, address: str) -> None:
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient

        interceptors = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
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
