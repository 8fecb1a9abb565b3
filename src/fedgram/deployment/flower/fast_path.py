"""The fast path of the requests that make up a round: straight to Flower's own handlers, one after the other.

A SuperLink passes a request through nine layers of middleware, most with tasks and queues of their own. It answers many
requests in threads at once, which then wait for each other at one database and one interpreter. For the few requests
that are made again and again, this is most of the work. Here a request that has passed the gate (`gate.py`) is answered
by Flower's handlers in one thread, and sent. Anything unusual falls back to Flower's normal path with the same
bytes: errors are reported there, and nothing is accepted here that would be refused there.

There is one exception. A device may speak of a run from before a crash, which a server with its state in memory does
not know. It is told to drop the run, as for any run that has ended.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fedgram.deployment.flower import internals_http
from fedgram.deployment.flower.internals_http import ForgottenRunError, Handler, Scope

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class FastPath:
    """ASGI middleware that answers the requests of `handlers`, by path, and passes on all others."""

    def __init__(self, app: App, handlers: Mapping[str, Handler] | None = None) -> None:
        self._app = app
        self._handlers = (
            internals_http.fleet_handlers() | internals_http.runtime_handlers() if handlers is None else dict(handlers)
        )
        self._worker = ThreadPoolExecutor(1, "fast-path")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        handler = self._handlers.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if handler is None:
            await self._app(scope, receive, send)
            return
        event = await receive()  # all of it: the gate has read it (`gate.py`)
        answer = None
        if event["type"] == "http.request" and not event.get("more_body", False):
            body = event.get("body", b"")
            answer = await asyncio.get_running_loop().run_in_executor(self._worker, _answer, handler, scope, body)
        if answer is None:
            await self._app(scope, replay(event, receive), send)
            return
        status, content = answer
        headers = [(b"content-type", _MEDIA_TYPE), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def close(self) -> None:
        """End the thread that answers."""
        self._worker.shutdown()


_MEDIA_TYPE = b"application/protobuf"
_ENDED = 403  # the status by which Flower tells a device that a run is over


def _answer(handler: Handler, scope: Scope, body: bytes) -> tuple[int, bytes] | None:
    """The status and the bytes of an answer; None where Flower's normal path must report an error."""
    if [value for name, value in scope["headers"] if name == b"content-type"] != [_MEDIA_TYPE]:
        return None
    try:
        return 200, internals_http.call_handler(handler, scope, body)
    except ForgottenRunError:
        return _ENDED, b""
    except Exception:
        return None


def replay(event: Event, receive: Receive) -> Receive:
    """Receives what was read already, and then the rest."""
    events = iter([event])

    async def again() -> Event:
        event = next(events, None)
        return await receive() if event is None else event

    return again
