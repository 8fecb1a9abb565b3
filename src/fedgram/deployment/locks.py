"""Folders held by one process at a time; the system gives a folder back when the process ends, however it does."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedgram.core.errors import FedgramError

LOCK = ".lock"


@contextmanager
def locked(
    folder: Path, *, seconds: float, taken: str = "another server works in the same folder", name: str = LOCK
) -> Iterator[None]:
    """Hold a folder, waiting so long for it; `name` tells apart those who may hold it at the same time."""
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        end = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise FedgramError(taken) from None
                time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Whether a process holds the folder."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
