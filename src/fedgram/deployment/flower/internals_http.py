"""Flower's private modules behind its two HTTP servers, of the SuperLink and of the SuperNode (see `internals.py`).

Both are FastAPI apps over Flower's state. Here they get middleware of ours, and the functions that it needs: who signed
a request, which node or task that is, and Flower's own handlers.
"""

import base64
import binascii
import hashlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError

Scope = MutableMapping[str, Any]
Handler = Callable[[Any, Any], Any]
"""Takes a request and its message, and returns the message of the answer; raises if anything is wrong."""
NODE = "fedgram.node"  # the key of a request's scope under which the gate puts the node that signed it
_KEYS = 1 << 16  # public keys that are kept as they were read


class ForgottenRunError(FedgramError):
    """A run that this server never knew, or has forgotten."""


# The two servers.


def extend_superlink(middleware: Sequence[Callable[..., Any]], started: Callable[[Any], object]) -> None:
    """Put ASGI middleware before Flower's; call `started` with the SuperLink's state before the first request."""
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    extensions.get_middleware = lambda: tuple(Middleware(kind) for kind in middleware)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        started(app.state.linkstate_factory.state())
        yield

    extensions.get_lifespan_contexts = lambda: (lifespan,)
    setattr(import_module("uvicorn"), "run", _serve)  # noqa: B010
    remember_keys()


def remember_keys() -> None:
    """Let Flower's check of signatures read each device's key once, which takes longer than the check itself."""
    checking: Any = import_module("flwr.superlink.routers.fleet.node_auth")
    checking.bytes_to_public_key = lru_cache(_KEYS)(checking.bytes_to_public_key)


def extend_supernode(middleware: Callable[..., Any], listening: socket.socket) -> None:
    """Put ASGI middleware before that of a SuperNode's local server, which listens on this socket."""
    from fedgram.deployment.flower.bounded_http import BoundedProtocol

    module: Any = import_module("flwr.supernode.main")
    create = module.create_app

    def create_app(*arguments: Any, **options: Any) -> Any:
        app = create(*arguments, **options)
        app.add_middleware(middleware)  # the last one that is added is the first to see a request
        return app

    module.create_app = create_app
    uvicorn: Any = import_module("uvicorn")
    uvicorn.Config = partial(uvicorn.Config, http=BoundedProtocol, proxy_headers=False, ws="none")

    class Server(uvicorn.Server):  # type: ignore[misc]
        def run(self, sockets: object = None) -> None:  # noqa: ARG002
            super().run([listening.dup()])  # it closes its own when it ends

    uvicorn.Server = Server


def _serve(*, ssl_certfile: str | None = None, ssl_keyfile: str | None = None, **options: Any) -> None:
    """What `uvicorn.run` does, without trust in headers about other addresses and without a log of requests.

    A certificate that is replaced on disk, with its key, is used from then on, for new connections.
    """
    import uvicorn

    from fedgram.deployment.flower.bounded_http import BoundedProtocol
    from fedgram.deployment.flower.current_certificate import CurrentCertificate

    safe = {"proxy_headers": False, "access_log": False, "server_header": False, "http": BoundedProtocol, "ws": "none"}
    config = uvicorn.Config(**{**options, **safe, "ssl_certfile": ssl_certfile, "ssl_keyfile": ssl_keyfile})
    config.load()
    logging.getLogger("uvicorn.error").addFilter(_is_not_of_a_stranger)
    if ssl_certfile and config.ssl is not None:
        CurrentCertificate(config.ssl, Path(ssl_certfile)).watch()
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run()


def _is_not_of_a_stranger(record: logging.LogRecord) -> bool:
    """Whether a line is not one of those that anybody can cause, one per request."""
    return not str(record.msg).startswith(("Invalid HTTP request", "Unsupported upgrade", "No supported WebSocket"))


# Who asks.


def signing_key(scope: Scope) -> bytes | None:
    """The public key whose owner signed a request of a device just now, by Flower's own check; None if none did."""
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
    from flwr.superlink.routers.fleet.node_auth import authenticate_node
    from starlette.exceptions import HTTPException
    from starlette.requests import Request

    request = Request({**scope, "state": {}})
    try:
        key = base64.b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        request.state.protobuf_request = ActivateNodeRequest(public_key=key)  # the check then compares the keys alone
        authenticate_node(request)
    except (KeyError, ValueError, binascii.Error, HTTPException):
        return None
    return key


def node_of(scope: Scope, key: bytes) -> int | None:
    """The registered node that has a key; None if there is none, or if it was revoked."""
    found: int | None = scope["app"].state.linkstate_factory.state().get_node_id_by_public_key(key)
    return found


def must_be_admitted(scope: Scope) -> bool:
    """Whether nodes must have been registered by the operator; otherwise they may register themselves."""
    return bool(scope["app"].state.enable_supernode_auth)


def not_admitted() -> tuple[int, bytes]:
    """Status and content of Flower's own answer to a device that is not registered."""
    from flwr.supercore.error import ApiErrorCode, FlowerError
    from flwr.supercore.error.catalog import API_ERROR_MAP

    code = ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED
    about = API_ERROR_MAP[code]
    return int(about.http_status_code), json.dumps(FlowerError(code, "").to_json(about.public_message)).encode()


def has_task(scope: Scope, token: str) -> bool:
    """Whether a token is that of a task which the server has given to a process."""
    return scope["app"].state.runtime_state_factory.state().get_task_by_token(token) is not None


def task_header() -> bytes:
    """The name of the header with a task's token."""
    from flwr.supercore.constant import TASK_TOKEN_HEADER

    return str(TASK_TOKEN_HEADER).lower().encode()


# What they ask.


def is_own_reply(body: bytes, node: int) -> bool:
    """Whether a node pushes one message, as itself, in reply to one that it was sent."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest

    try:
        request = PushMessagesRequest.FromString(body)
    except Exception:  # not such a message at all
        return False
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return False
    about = request.messages_list[0].metadata
    return bool(about.src_node_id == node == request.node.node_id and about.reply_to_message_id)


def is_run_of(body: bytes, app_digest: str) -> bool:
    """Whether a request to start a run has the app of this digest, and names none from elsewhere."""
    from flwr.proto.control_pb2 import StartRunRequest

    try:
        request = StartRunRequest.FromString(body)
    except Exception:  # not such a message at all
        return False
    own = hashlib.sha256(request.fab.content).hexdigest() == request.fab.hash_str == app_digest
    return own and not request.app_spec and not request.connector_refs and not request.connector_ids


# What Flower answers.


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


def _waiting_server_apps(state: Any) -> list[Any]:
    """The tasks of ServerApps that wait for a process, in the order in which they came."""
    from flwr.common.constant import Status
    from flwr.supercore.constant import TaskType

    tasks = state.get_tasks(statuses=[Status.PENDING], order_by="pending_at", ascending=True)
    return [task for task in tasks if task.type == TaskType.SERVER_APP]


def server_app_waits(state: Any) -> bool:
    """Whether a ServerApp waits for a process."""
    return bool(_waiting_server_apps(state))


def fail_server_app(state: Any, why: str) -> None:
    """Let the next ServerApp that waits for a process fail."""
    from flwr.common.constant import SubStatus

    for task in _waiting_server_apps(state)[:1]:
        state.finish_task(task.task_id, SubStatus.FAILED, why)


def next_server_app(state: Any) -> str:
    """The token of the next ServerApp that waits for a process; "" if there is none."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.superlink.servicer.runtime import runtime_handlers

    found = runtime_handlers.acquire_task(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]), state)
    return str(found.token) if found.HasField("task") else ""


def call_handler(handler: Handler, scope: Scope, body: bytes) -> bytes:
    """The bytes of Flower's answer to a request; raises whatever Flower raises."""
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
    from starlette.requests import Request

    request = Request({**scope, "state": dict(scope.get("state", {}))})
    message: Any = PROTOBUF_REQUEST_TYPES["POST", scope["path"]]()
    message.ParseFromString(body)
    request.state.protobuf_request = message
    return bytes(handler(request, message).SerializeToString())


def _authenticate(request: Any, message: Any) -> None:
    """Refuse a request that speaks for another node than the one that signed it."""
    from flwr.superlink.routers.fleet.node_auth import authenticate_node

    signer = request.scope.get(NODE)
    if signer is None:
        authenticate_node(request)
    elif message.node.node_id != signer:
        raise PermissionError


def fleet_handlers() -> dict[str, Handler]:
    """Flower's handlers of the requests that devices make in a round, by path."""
    from flwr.superlink.dependencies.linkstate import get_linkstate
    from flwr.superlink.servicer.fleet import fleet_handlers as flower

    def handler(act: Callable[..., Any], *, with_store: bool = False) -> Handler:
        def handle(request: Any, message: Any) -> Any:
            _authenticate(request, message)
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
