"""An HTTP protocol for uvicorn that limits the first lines of a request: how many bytes, and how long they may take.

uvicorn's own protocol reads them whatever their size, before any middleware (`gate.py`) sees the request.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES, HEAD_SECONDS = 1 << 16, 30.0


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection whose request has too many or too slow first lines."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_in_head, self._head_bytes = False, 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A connection: its first request must come in time."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._is_in_head else 0
        if self._head_bytes > HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_in_head = True
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The first lines have come."""
        self._is_in_head = False
        self._forget_deadline()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
