"""Locks on folders: one process at a time holds a folder. The system releases the lock when the process ends.

The lock is an advisory lock on a file in the folder; the file names the process that took it last.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedgram.core.errors import FedgramError

LOCK = ".lock"
_POLL_SECONDS = 0.2
_MODE = 0o666  # less the umask: the folder's own permissions decide who reaches the file


@contextmanager
def locked(
    folder: Path, *, seconds: float = 0.0, taken: str | Callable[[str], FedgramError], name: str = LOCK
) -> Iterator[None]:
    """Hold the lock of a folder, after waiting at most `seconds` for it.

    If another process keeps it, `taken` is the text of the error; or it makes the error from the owner's description,
    such as "process 4711". Locks of different `name` are independent of each other.
    """
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, _MODE)
    try:
        end = time.monotonic() + seconds
        while not _try_lock(descriptor):
            if time.monotonic() > end:
                raise FedgramError(taken) if isinstance(taken, str) else taken(_owner(descriptor))
            time.sleep(_POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path, *, name: str = LOCK) -> bool:
    """Whether a process holds the lock of a folder."""
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, _MODE)
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "another process"
