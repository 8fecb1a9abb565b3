"""An HTTP protocol for uvicorn that limits what a request has beside its body: how many bytes, and how long they take.

These are the first lines, and in a body of chunks also the sizes of the chunks and the lines after the last one.
uvicorn's own protocol keeps all lines whatever their size; the first ones before any middleware (`gate.py`) sees the
request, and the last ones although the body that it has read is still empty.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES, HEAD_SECONDS = 1 << 16, 30.0


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection whose request has too many or too slow first lines."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_begun, self._beside, self._body_bytes = False, 0, 0
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
        self._body_bytes = 0
        super().data_received(data)
        self._beside = self._beside + len(data) - self._body_bytes if self._is_begun else 0
        if self._beside > HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_begun, self._beside = True, 0
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The first lines have come."""
        self._forget_deadline()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body has come."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has come as a whole."""
        self._is_begun = False
        super().on_message_complete()

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
