"""Processes that end when their parent process ends."""

import os
import threading
import time

_POLL_SECONDS = 0.2


def end_with(parent: int) -> None:
    """Exit this process at once when the parent with this process ID has gone, for instance because it was killed.

    A thread watches the parent. Nothing is cleaned up: call this only where all that must survive is on disk. Take the
    ID from the parent if possible: if the parent ends before this call, `os.getppid()` already names another process.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
