"""The certificate that a running server shows: that of a file which may be replaced at any time.

A TLS context that loads a new certificate has it for a moment without its key, and handshakes in that moment fail. So a
replaced file is loaded into a context of its own, and each handshake takes the context of that moment, whole.
"""

import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

_POLL_SECONDS = 2.0  # between looks whether the file has changed


class CurrentCertificate:
    """Lets a server's context show the certificate in a file, `pair`, which also has its key."""

    def __init__(self, context: ssl.SSLContext, pair: Path, *, seconds: float = _POLL_SECONDS) -> None:
        self._pair, self._seconds = pair, seconds
        self._current = context
        self._loaded: tuple[int, int] | None = None  # the file may have changed since the context read it
        context.sni_callback = self._choose

    def watch(self) -> None:
        """Load the file again whenever it changes, in a thread, for ever."""
        threading.Thread(target=self._keep_loading, daemon=True, name="certificate").start()

    def load(self) -> None:
        """Load the file, unless it is loaded; one that does not hold a key and its certificate is left alone."""
        now = self._version()
        if now is None or now == self._loaded:
            return
        fresh = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with suppress(OSError):  # ssl.SSLError is one
            fresh.load_cert_chain(self._pair)
            self._loaded, self._current = now, fresh

    def _choose(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called at the beginning of every handshake, whether or not the caller names the server."""
        connection.context = self._current

    def _version(self) -> tuple[int, int] | None:
        with suppress(OSError):
            found = self._pair.stat()
            return found.st_mtime_ns, found.st_ino
        return None

    def _keep_loading(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._seconds):
            self.load()
