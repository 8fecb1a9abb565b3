"""Starts a process for every ServerApp that waits for one. The SuperLink does this itself.

Flower's own way is a further process that asks for tasks over HTTP, and which starts ServerApps with their token on the
command line, where every user of the machine can read it. Here the token is written to the new process, and requests
for tasks over HTTP are refused (`gate.py`).

A task that was taken must be heard of within 30 s, or Flower gives it out again. On a busy machine the libraries of a
ServerApp can take longer to load. So a process loads them first, says that it is ready, and is then given a task.
"""

import os
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from fedgram.core.parent import end_with
from fedgram.deployment.flower import internals, internals_http

_POLL_SECONDS, _PAUSE_SECONDS = 0.2, 5.0
_READY = b"ready\n"


def start_server_apps(state: Any, address: str, authority: str) -> None:
    """Start ServerApps as they are needed, in a thread; `authority` is the path of a certificate, or ""."""
    apps = ServerApps(state, [sys.executable, "-m", "fedgram.deployment.flower.server_apps", address, authority])
    threading.Thread(target=apps.keep_starting, daemon=True, name="server-apps").start()


class ServerAppProcess:
    """A process that loads what a ServerApp needs, says that it is ready, and waits for the token of a task."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from, self._said = self._process.stdin, self._process.stdout, b""

    def is_ready(self) -> bool:
        """Whether it has loaded everything."""
        while self._said != _READY and select.select([self._from], [], [], 0.0)[0]:
            if not (part := self._from.read(1)):
                break
            self._said += part
        return self._said == _READY

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def give(self, token: str) -> None:
        """Let it work on a task; if it has just ended, Flower gives the task out again."""
        with suppress(BrokenPipeError):
            self._to.write(token.encode())
        self.close()

    def close(self) -> None:
        """Say nothing more to it."""
        self._to.close()
        self._from.close()


class ServerApps:
    """Gives the ServerApps of a SuperLink's state to processes that are started with a command."""

    def __init__(self, state: Any, command: list[str]) -> None:
        self._state, self._command = state, command
        self._next: ServerAppProcess | None = None
        self._given: list[ServerAppProcess] = []

    def keep_starting(self) -> None:
        """Start processes for ever."""
        while True:
            try:
                self.look()
                pause = _POLL_SECONDS
            except Exception as error:  # such as a database that is busy
                print(f"fedgram: ServerApps cannot be started ({type(error).__name__})", file=sys.stderr, flush=True)
                pause = _PAUSE_SECONDS
            time.sleep(pause)

    def look(self) -> None:
        """If a ServerApp waits, start a process for it, or let the one that is ready have it.

        A process that ends while it loads fails the ServerApp: another one would end in the same way.
        """
        self._given = [process for process in self._given if not process.has_ended()]
        if not internals_http.server_app_waits(self._state):
            return
        if self._next is None:
            self._next = ServerAppProcess(self._command)
        is_ready = self._next.is_ready()
        if self._next.has_ended():
            self._next.close()
            self._next = None
            if not is_ready:
                internals_http.fail_server_app(self._state, "its process ended before it was ready")
        elif is_ready and (token := internals_http.next_server_app(self._state)):
            self._next.give(token)
            self._given.append(self._next)
            self._next = None


def main() -> None:
    """Run one ServerApp: server_apps ADDRESS AUTHORITY, with its token on standard input when it is ready."""
    end_with(os.getppid())
    address, authority = sys.argv[1:3]
    internals.load_server_app()
    os.write(sys.stdout.fileno(), _READY)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # which is the log
    if token := sys.stdin.read():
        internals.run_server_app(address, token, authority)


if __name__ == "__main__":
    main()
