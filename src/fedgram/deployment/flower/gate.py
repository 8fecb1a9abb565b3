"""The gate before Flower's HTTP servers: who may ask what is decided by a request's first lines, before its body.

    /health            everybody
    /v1/fleet/…        a device that has signed the request and is registered, within its quota (`quotas.py`)
    /v1/control/…      a process of this machine that can read the server's token; runs of the federation's app only
    /v1/runtime/…      a process of this machine with the token of a task, or of the worker that asks for tasks
    anything else      nobody

So a stranger's body is never read, whatever its size, and nobody on the server's or the device's machine can run code
as another user. A node pushes messages as itself only, and only in reply to one that it was sent. Refusals are counted,
and logged in one line per minute: a log does not grow with refused requests.
"""

import asyncio
import hmac
import ipaddress
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from fedgram.core.errors import FedgramError
from fedgram.deployment.flower import internals_http
from fedgram.deployment.flower.fast_path import App, Event, Receive, Send, replay
from fedgram.deployment.flower.internals import TOKEN_HEADER
from fedgram.deployment.flower.internals_http import NODE, Scope
from fedgram.deployment.flower.quotas import Quotas

FLEET, CONTROL, RUNTIME = "/v1/fleet/", "/v1/control/", "/v1/runtime/"
SMALL, TREE, OBJECT, LARGE = 1 << 16, 1 << 20, 1 << 23, 1 << 26  # bytes; Flower cuts objects into parts of 5 MiB
FLEET_BYTES = {
    "register-node": SMALL, "activate-node": SMALL, "deactivate-node": SMALL, "unregister-node": SMALL,
    "send-node-heartbeat": SMALL, "pull-messages": SMALL, "get-run": SMALL, "get-fab": SMALL, "pull-object": SMALL,
    "confirm-message-received": SMALL, "push-messages": TREE, "push-object": OBJECT,
}  # fmt: skip
CONTROL_PATHS = {"list-nodes", "register-node", "unregister-node", "start-run", "list-runs", "stop-run"}
_BODY_SECONDS, _SAY_SECONDS = 300.0, 60.0


class RefusedRequestError(FedgramError):
    """A request that is answered with this status and content, and otherwise forgotten."""

    def __init__(self, status: int, reason: str, content: bytes = b"") -> None:
        super().__init__(reason)
        self.status, self.reason, self.content = status, reason, content


def _accept(_: bytes) -> None:
    """Nothing to check in the body."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that may enter: how much of it is read, what its body must be, and the node that signed it."""

    most: int
    check: Callable[[bytes], None] = _accept
    node: int | None = None


class LocalDoor:
    """Admits the processes of this machine that know a secret: `token`, or the token of a task."""

    def __init__(self, token: str) -> None:
        self._token, self._task_header = token.encode(), internals_http.task_header()

    async def admit(self, scope: Scope) -> Entry:
        """The entry for a request, by its first lines; raises `RefusedRequestError`."""
        path = scope["path"]
        if path == "/health":
            return Entry(0)
        if not _is_local(scope):
            raise RefusedRequestError(403, "from another machine")
        if path.startswith(RUNTIME):
            return self._task(scope, path)
        raise RefusedRequestError(404, "no such path")

    def _task(self, scope: Scope, path: str) -> Entry:
        if path == f"{RUNTIME}acquire-task":
            self.check_token(scope)
            return Entry(SMALL)
        tokens = _header(scope, self._task_header)
        if len(tokens) != 1 or not internals_http.has_task(scope, tokens[0].decode("latin-1")):
            raise RefusedRequestError(401, "no task")
        return Entry(LARGE)

    def check_token(self, scope: Scope) -> None:
        """Refuse a request without this door's token."""
        tokens = _header(scope, TOKEN_HEADER.encode())
        if len(tokens) != 1 or not hmac.compare_digest(tokens[0], self._token):
            raise RefusedRequestError(401, "no token")


class ServerDoor(LocalDoor):
    """Admits devices as well, and those who start runs; `app_digest` is that of the only app that may be run."""

    def __init__(self, token: str, app_digest: str, *, blocking: bool = False) -> None:
        super().__init__(token)
        self._app_digest, self._blocking = app_digest, blocking

    async def admit(self, scope: Scope) -> Entry:
        """The entry for a request, by its first lines; raises `RefusedRequestError`."""
        path = scope["path"]
        if path.startswith(FLEET):
            return await self._device(scope, path.removeprefix(FLEET))
        if path == f"{RUNTIME}acquire-task":
            raise RefusedRequestError(404, "no such path")  # ServerApps are started by the SuperLink itself
        if path.startswith(CONTROL) and _is_local(scope):
            return self._command(scope, path.removeprefix(CONTROL))
        return await super().admit(scope)

    def _command(self, scope: Scope, name: str) -> Entry:
        self.check_token(scope)
        if name not in CONTROL_PATHS:
            raise RefusedRequestError(404, "no such path")
        return Entry(TREE, self._check_run if name == "start-run" else _accept)

    def _check_run(self, body: bytes) -> None:
        if not internals_http.is_run_of(body, self._app_digest):
            raise RefusedRequestError(403, "another app")

    async def _device(self, scope: Scope, name: str) -> Entry:
        most = FLEET_BYTES.get(name)
        if most is None or scope["method"] != "POST":
            raise RefusedRequestError(404, "no such path")
        key = internals_http.signing_key(scope)
        if key is None:
            raise RefusedRequestError(401, "no signature")
        if self._blocking:  # a database on disk must not hold up other requests
            node = await asyncio.to_thread(internals_http.node_of, scope, key)
        else:
            node = internals_http.node_of(scope, key)
        if node is None:
            return _stranger(scope, name)
        return Entry(most, _replies_of(node) if name == "push-messages" else _accept, node)


def _stranger(scope: Scope, name: str) -> Entry:
    """A node that is not registered may register itself, where that is allowed."""
    if name == "activate-node":
        raise RefusedRequestError(*_not_admitted())
    if name != "register-node" or internals_http.must_be_admitted(scope):
        raise RefusedRequestError(401, "not registered")
    return Entry(SMALL)


def _not_admitted() -> tuple[int, str, bytes]:
    status, content = internals_http.not_admitted()
    return status, "not registered", content


def _replies_of(node: int) -> Callable[[bytes], None]:
    def check(body: bytes) -> None:
        if not internals_http.is_own_reply(body, node):
            raise RefusedRequestError(403, "not a reply of this node")

    return check


class Gate:
    """ASGI middleware: reads a request that its door admits, and passes it on whole."""

    def __init__(self, app: App, door: LocalDoor, quotas: Quotas | None = None) -> None:
        self._app, self._door, self._quotas = app, door, quotas or Quotas(LARGE)
        self.refused: Counter[str] = Counter()
        self._said = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with a refusal, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            if scope["type"] != "http":
                raise RefusedRequestError(404, "no such path")
            entry = await self._door.admit(scope)
            if entry.node is None:
                await self._pass_on(scope, entry, receive, send)
                return
            await self._pass_on_node({**scope, NODE: entry.node}, entry, entry.node, receive, send)
        except RefusedRequestError as refusal:
            self._note(refusal.reason)
            await _refuse(scope, send, refusal)

    async def _pass_on_node(self, scope: Scope, entry: Entry, node: int, receive: Receive, send: Send) -> None:
        if not self._quotas.enter(node):
            raise RefusedRequestError(503, "too many requests of a node")
        try:
            if scope["path"].endswith("/pull-messages"):
                send = self._noting(node, send)
            await self._pass_on(scope, entry, receive, send)
        finally:
            self._quotas.leave(node)

    def _noting(self, node: int, send: Send) -> Send:
        """Sends an answer, and notes if it holds a message to the node; an empty answer has no bytes."""
        status = 0

        async def noting(event: Event) -> None:
            nonlocal status
            status = event.get("status", status)
            if status == 200 and event.get("body"):
                self._quotas.asked(node)
            await send(event)

        return noting

    async def _pass_on(self, scope: Scope, entry: Entry, receive: Receive, send: Send) -> None:
        body = await _read(scope, receive, entry.most)
        entry.check(body)
        node = entry.node if scope["path"].endswith("/push-object") else None
        if node is not None and not self._quotas.spend(node, len(body)):
            raise RefusedRequestError(413, "more than a node was asked for")
        await self._app(scope, replay({"type": "http.request", "body": body, "more_body": False}, receive), send)

    def _note(self, reason: str) -> None:
        self.refused[reason] += 1
        if time.monotonic() - self._said < _SAY_SECONDS:
            return
        told = ", ".join(f"{count} {why}" for why, count in self.refused.most_common())
        print(f"fedgram: refused requests: {told}", file=sys.stderr, flush=True)
        self.refused.clear()
        self._said = time.monotonic()


def _header(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _is_local(scope: Scope) -> bool:
    """Whether a request comes from this machine; headers about other addresses are not believed."""
    peer = scope.get("client")
    try:
        return peer is not None and ipaddress.ip_address(peer[0]).is_loopback
    except ValueError:
        return False


async def _read(scope: Scope, receive: Receive, most: int) -> bytes:
    """The body of a request, if it has at most so many bytes and comes in time."""
    announced = _header(scope, b"content-length")
    if announced and not (announced[0].isdigit() and int(announced[0]) <= most):
        raise RefusedRequestError(413, "too large")
    parts, size, more = [], 0, True
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while more:
                event = await receive()
                if event["type"] != "http.request":
                    raise RefusedRequestError(400, "cut off")
                parts.append(event.get("body", b""))
                size, more = size + len(parts[-1]), bool(event.get("more_body", False))
                if size > most:
                    raise RefusedRequestError(413, "too large")
    except TimeoutError:
        raise RefusedRequestError(408, "too slow") from None
    return b"".join(parts)


async def _refuse(scope: Scope, send: Send, refusal: RefusedRequestError) -> None:
    """Answer with a status and close the connection, whatever else is sent on it."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"connection", b"close"), (b"content-length", b"%d" % len(refusal.content))]
    if refusal.content:
        headers.append((b"content-type", b"application/json"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": refusal.content})
