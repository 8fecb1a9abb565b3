"""The short way of the requests that make up a round: straight to Flower's own handlers, one after the other.

A SuperLink passes a request through nine layers of middleware, most with tasks and queues of its own, and answers many
in threads at once, which then wait for each other at one database and one interpreter. For the few requests that are
made again and again, this is most of the work. Here they are read, authenticated by Flower's functions, answered
by Flower's handlers in one thread, and sent. Whatever is not plainly right goes Flower's long way instead, with the
same bytes: an error is said there, and nothing is let in here that would be refused there. Only one is said here: a
device may speak of a run from before a crash, of which a server with its state in memory knows nothing; it is told, as
of any run that has ended, to drop it.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Handle = Callable[[Any, Any], Any]
"""A request with its message in, the message of the answer out; raises if anything is amiss."""


class ShortWay:
    """ASGI middleware that answers the requests of `handlers`, by path, and passes on all others."""

    def __init__(self, app: App, handlers: MutableMapping[str, Handle] | None = None) -> None:
        self._app = app
        self._handlers = fleet_handlers() | runtime_handlers() if handlers is None else handlers
        self._worker = ThreadPoolExecutor(1, "short-way")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        handle = self._handlers.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if handle is None:
            await self._app(scope, receive, send)
            return
        read = [await receive()]
        size = len(read[0].get("body", b""))
        while _goes_on(read[-1]) and size <= _MOST_BYTES:
            read.append(await receive())
            size += len(read[-1].get("body", b""))
        answer = None
        if read[-1]["type"] == "http.request" and not _goes_on(read[-1]):
            body = b"".join(event.get("body", b"") for event in read)
            answer = await asyncio.get_running_loop().run_in_executor(self._worker, _answer, handle, scope, body)
        if answer is None:
            await self._app(scope, _again(read, receive), send)
            return
        status, content = answer
        headers = [(b"content-type", _MEDIA_TYPE), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def close(self) -> None:
        """End the thread that answers."""
        self._worker.shutdown()


_MEDIA_TYPE = b"application/protobuf"
_MOST_BYTES = 1 << 26  # that are gathered of a request; Flower cuts objects into smaller ones
_ENDED = 403  # by which Flower tells a device that a run is over


class _ForgottenRun(Exception):
    """A run that this server never knew, or has forgotten."""


def _answer(handle: Handle, scope: Scope, body: bytes) -> tuple[int, bytes] | None:
    """The status and the bytes of an answer; None where Flower is to say what is wrong."""
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
    from starlette.requests import Request

    if [value for name, value in scope["headers"] if name == b"content-type"] != [_MEDIA_TYPE]:
        return None
    request = Request({**scope, "state": dict(scope.get("state", {}))})
    try:
        message = PROTOBUF_REQUEST_TYPES["POST", scope["path"]]()
        message.ParseFromString(body)
        request.state.protobuf_request = message
        return 200, handle(request, message).SerializeToString()
    except _ForgottenRun:
        return _ENDED, b""
    except Exception:
        return None


def _goes_on(event: Event) -> bool:
    return event["type"] == "http.request" and bool(event.get("more_body", False))


def _again(read: list[Event], receive: Receive) -> Receive:
    """What was received, and then what is."""
    events = iter(read)

    async def again() -> Event:
        event = next(events, None)
        return await receive() if event is None else event

    return again


def fleet_handlers() -> dict[str, Handle]:
    """What devices ask for in a round."""
    from flwr.superlink.dependencies.linkstate import get_linkstate
    from flwr.superlink.routers.fleet.node_auth import authenticate_node
    from flwr.superlink.servicer.fleet import fleet_handlers as flower

    def way(act: Callable[..., Any], *, with_store: bool = False) -> Handle:
        def handle(request: Any, message: Any) -> Any:
            authenticate_node(request)
            state = get_linkstate(request)
            try:
                return act(message, state, state.object_store) if with_store else act(message, state)
            except Exception:
                if not all(state.get_run_status({run}) for run in _runs(message)):
                    raise _ForgottenRun from None
                raise

        return handle

    return {
        "/v1/fleet/send-node-heartbeat": way(flower.send_node_heartbeat),
        "/v1/fleet/pull-messages": way(flower.pull_messages, with_store=True),
        "/v1/fleet/pull-object": way(flower.pull_object),
        "/v1/fleet/confirm-message-received": way(flower.confirm_message_received, with_store=True),
        "/v1/fleet/push-messages": way(flower.push_messages),
        "/v1/fleet/push-object": way(flower.push_object),
        "/v1/fleet/get-run": way(flower.get_run),
        "/v1/fleet/get-fab": way(flower.get_fab),
    }


def _runs(message: Any) -> set[int]:
    """The runs that a device's request is about."""
    own = {int(message.run_id)} if "run_id" in message.DESCRIPTOR.fields_by_name else set()
    return own | {int(m.metadata.run_id) for m in getattr(message, "messages_list", ())}


def runtime_handlers() -> dict[str, Handle]:
    """What the ServerApp asks for in a round."""
    from flwr.supercore.constant import TASK_TOKEN_HEADER
    from flwr.supercore.dependencies.runtime import get_runtime_handlers, get_runtime_state
    from flwr.supercore.dependencies.task import authenticate_task

    def way(name: str) -> Handle:
        def handle(request: Any, message: Any) -> Any:
            state = get_runtime_state(request)
            task = authenticate_task(request, request.headers.get(TASK_TOKEN_HEADER), state)
            return getattr(get_runtime_handlers(request), name)(message, state, task)

        return handle

    names = ("push_messages", "push_object", "pull_messages", "pull_object", "confirm_message_received", "get_nodes")
    return {f"/v1/runtime/{name.replace('_', '-')}": way(name) for name in names}
