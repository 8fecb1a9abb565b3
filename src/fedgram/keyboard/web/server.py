"""Serving the keyboard's page until the process is told to stop."""

import socket
from collections.abc import Callable
from typing import Any

from fedgram.core.errors import FedgramError, MissingDependencyError


def serve(app: Any, host: str, port: int, announce: Callable[[int], None]) -> None:
    """Serve an application until SIGINT or SIGTERM; `announce` is told its port once it answers.

    From the announcement on, both signals end the server in order. Before it they end the process as they always do.
    """
    try:
        import uvicorn
    except ImportError:
        raise MissingDependencyError("the web keyboard", "keyboard") from None

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce(listening.getsockname()[1])

    config = uvicorn.Config(app, log_level="critical", access_log=False, ws="none")
    with _listen(host, port) as listening:
        Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError:
        raise FedgramError(f"cannot listen on {host}:{port}; choose another --host or --port") from None
