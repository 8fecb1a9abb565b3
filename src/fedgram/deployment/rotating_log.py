"""A log of limited size that several processes write to: they write into a pipe, and a thread here writes the file.

When the file is full it becomes FILE.1, and the one before it FILE.2, up to a number of files. Programs that know
nothing of this, such as Flower's, need no changes, and whatever somebody makes them say, the disk does not fill up.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

MAX_BYTES, KEPT = 10 << 20, 3
_END_SECONDS = 2.0


class RotatingLog:
    """Appends to a file that only its owner may read."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> None:
        self._path, self._max_bytes, self._kept = path, max_bytes, kept
        self._file = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, content: bytes) -> None:
        """Append some bytes."""
        if os.fstat(self._file).st_size + len(content) > self._max_bytes:
            self._rotate()
        os.write(self._file, content)

    def _rotate(self) -> None:
        os.close(self._file)
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._kept + 1))]
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if newer.is_file():
                newer.replace(older)
        self._file = self._open()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@contextmanager
def rotating_log(path: Path, *, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> Iterator[IO[bytes]]:
    """A file for the output of processes, which ends up in a rotating log."""
    log = RotatingLog(path, max_bytes=max_bytes, kept=kept)
    reading, writing = os.pipe()

    def copy() -> None:
        while content := os.read(reading, 1 << 16):
            log.write(content)
        os.close(reading)
        log.close()

    thread = threading.Thread(target=copy, daemon=True, name="log")
    thread.start()
    try:
        with os.fdopen(writing, "wb", buffering=0) as file:
            yield file
    finally:
        thread.join(_END_SECONDS)  # unless a process that outlived its parent still holds the pipe
