"""Flower's SuperLink, which answers other machines on the interface for devices alone.

One port serves everything since Flower 1.41: devices (`/v1/fleet`), but also whoever starts runs (`/v1/control`) and
the processes that execute them (`/v1/runtime`), and to start a run is to run code. The latter two are for this machine.
"""

import ipaddress
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from fedgram.deployment.flower.admitted import restore

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_SWITCH = 0.001  # seconds after which the thread that answers lets the one that listens in
OPEN = ("/v1/fleet/", "/health")


def may_enter(path: str, peer: str | None) -> bool:
    """Whether a request for a path may come from this address."""
    if path.startswith(OPEN):
        return True
    try:
        return peer is not None and ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False


class DevicesOnly:
    """ASGI middleware that refuses what is not for devices, unless it comes from this machine."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] in ("http", "websocket"):
            peer = scope.get("client")
            if not may_enter(scope["path"], peer[0] if peer else None):
                await send({"type": "http.response.start", "status": 403, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)


def main() -> None:
    """Run `flower-superlink` with its usual arguments."""
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    from fedgram.deployment.flower.fast_path import ShortWay

    sys.setswitchinterval(_SWITCH)
    start_parent_process_monitor(os.getppid())  # end with whoever started this
    extensions.get_middleware = lambda: (Middleware(DevicesOnly), Middleware(ShortWay))
    if admitted := os.environ.get("FEDGRAM_ADMITTED"):
        extensions.get_lifespan_contexts = lambda: (_restoring(Path(admitted)),)
    flower_superlink()


def _restoring(server: Path) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """What the SuperLink enters before it answers the first request."""

    @asynccontextmanager
    async def context(app: Any) -> AsyncIterator[None]:
        restore(server, app.state.linkstate_factory.state(), float(os.environ["FEDGRAM_HEARTBEAT"]))
        yield

    return context


if __name__ == "__main__":
    main()
