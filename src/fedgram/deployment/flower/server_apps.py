"""Starts a process for every ServerApp that waits for one. The SuperLink does this itself.

Flower's own way is a further process that asks for tasks over HTTP, and which starts ServerApps with their token on the
command line, where every user of the machine can read it. Here the token is written to the new process, and requests
for tasks over HTTP are refused (`gate.py`).

A task that was taken must be heard of within 30 s, or Flower gives it out again. On a busy machine the libraries of a
ServerApp can take longer to load. So a process loads them first, says that it is ready, and is then given a task. It
says so with one byte on a descriptor of its own, as anything that it loads may print.
"""

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from fedgram.core.parent import end_with
from fedgram.deployment.flower import internals, internals_http
from fedgram.deployment.flower.programs import module_command

_POLL_SECONDS, _PAUSE_SECONDS = 0.2, 5.0
_LOAD_SECONDS = 300.0  # after which a process that is still not ready is ended, and another one started
_LOG = 2  # standard error


def start_server_apps(state: Any, address: str, authority: str) -> None:
    """Start ServerApps as they are needed, in a thread; `authority` is the path of a certificate, or ""."""
    apps = ServerApps(state, [*module_command("fedgram.deployment.flower.server_apps"), address, authority])
    threading.Thread(target=apps.keep_starting, daemon=True, name="server-apps").start()


class ServerAppProcess:
    """A process that loads what a ServerApp needs, says that it is ready, and waits for the token of a task.

    Its command gets one more argument: the descriptor on which it says that it is ready.
    """

    def __init__(self, command: list[str]) -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._from = os.fdopen(reading, "rb", buffering=0)
        self._is_ready, self._began = False, time.monotonic()
        try:
            self._process = subprocess.Popen(
                [*command, str(writing)], stdin=subprocess.PIPE, stdout=_LOG, bufsize=0, pass_fds=[writing]
            )
        except OSError:
            self._from.close()
            raise
        finally:
            os.close(writing)
        assert self._process.stdin is not None
        self._to = self._process.stdin

    def is_ready(self) -> bool:
        """Whether it has loaded everything."""
        self._is_ready = self._is_ready or bool(self._from.read(1))
        return self._is_ready

    def is_late(self) -> bool:
        """Whether it should have loaded everything by now."""
        return time.monotonic() - self._began > _LOAD_SECONDS

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def give(self, token: str) -> None:
        """Let it work on a task; if it has just ended, Flower gives the task out again."""
        try:
            with suppress(BrokenPipeError):
                self._to.write(token.encode())
        finally:
            self._close()

    def end(self) -> None:
        """End it at once, if it has not ended."""
        self._process.kill()
        self._close()

    def _close(self) -> None:
        self._to.close()
        self._from.close()


class ServerApps:
    """Gives the ServerApps of a SuperLink's state to processes that are started with a command."""

    def __init__(self, state: Any, command: list[str]) -> None:
        self._state, self._command = state, command
        self._next: ServerAppProcess | None = None
        self._past: list[ServerAppProcess] = []  # those that were given a task, or ended, until they are gone

    def keep_starting(self) -> None:
        """Start processes for ever."""
        while True:
            try:
                self.look()
                pause = _POLL_SECONDS
            except Exception as error:  # such as a database that is busy
                _log(f"ServerApps cannot be started ({type(error).__name__})")
                pause = _PAUSE_SECONDS
            time.sleep(pause)

    def look(self) -> None:
        """If a ServerApp waits, start a process for it, or let the one that is ready have it.

        A process that ends while it loads fails the ServerApp: another one would end in the same way. One that loads
        for too long may only have been unlucky, and is replaced.
        """
        self._past = [process for process in self._past if not process.has_ended()]
        if not internals_http.server_app_waits(self._state):
            return
        process = self._next = self._next or ServerAppProcess(self._command)
        try:
            is_ready, has_ended = process.is_ready(), process.has_ended()
        except Exception:
            self._drop(process)
            raise
        if has_ended:
            self._drop(process)
            if not is_ready:
                internals_http.fail_server_app(self._state, "its process ended before it was ready")
        elif not is_ready and process.is_late():
            self._drop(process)
            _log(f"a ServerApp's process was not ready after {_LOAD_SECONDS:.0f} s, and is started again")
        elif is_ready and (token := internals_http.next_server_app(self._state)):
            self._next = None
            self._past.append(process)
            process.give(token)

    def _drop(self, process: ServerAppProcess) -> None:
        """End the process that would be given the next task; the next look starts another one."""
        self._next = None
        self._past.append(process)
        process.end()


def _log(line: str) -> None:
    print(f"fedgram: {line}", file=sys.stderr, flush=True)


def main() -> None:
    """Run one ServerApp: server_apps ADDRESS AUTHORITY READY, with its token on standard input when it is ready.

    READY is the descriptor that is written to then.
    """
    end_with(os.getppid())
    address, authority, ready = sys.argv[1:4]
    internals.load_server_app()
    os.write(int(ready), b"r")
    os.close(int(ready))
    if token := sys.stdin.read():
        internals.run_server_app(address, token, authority)


if __name__ == "__main__":
    main()
