"""Flower's SuperLink. Other machines reach its interface for devices, and nothing else.

Since Flower 1.41 one port serves everything: devices (`/v1/fleet`), the commands that start runs (`/v1/control`), and
the processes that execute runs (`/v1/runtime`). Starting a run means running code, so the latter two answer only to
this machine. Without Flower's private modules (`internals.py`) the server listens on this machine only.
"""

import ipaddress
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from fedgram.core.parent import end_with
from fedgram.deployment.flower import internals
from fedgram.deployment.flower.admitted import restore
from fedgram.deployment.flower.fast_path import FastPath
from fedgram.deployment.flower.programs import run_program

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_SWITCH_SECONDS = 0.001  # after which the thread that answers lets the thread that listens run
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
    """ASGI middleware that refuses other machines everything but the interface for devices."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] in ("http", "websocket"):
            peer = scope.get("client")
            if not may_enter(scope["path"], peer[0] if peer else None):
                await send({"type": "http.response.start", "status": 403, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)


def main() -> None:
    """Run `flower-superlink` with its usual arguments, until the parent process ends."""
    end_with(os.getppid())
    if internals.are_enabled():
        sys.setswitchinterval(_SWITCH_SECONDS)
        admitted = os.environ.get("FEDGRAM_ADMITTED")
        internals.extend_superlink((DevicesOnly, FastPath), _restoring(Path(admitted)) if admitted else None)
    run_program("flower-superlink")


def _restoring(server: Path) -> Callable[[Any], object]:
    """What registers the admitted devices in the SuperLink's state."""
    return lambda state: restore(server, state, float(os.environ["FEDGRAM_HEARTBEAT"]))


if __name__ == "__main__":
    main()
