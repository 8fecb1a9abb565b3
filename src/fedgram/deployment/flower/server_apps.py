"""Starts a process for every ServerApp that waits for one. The SuperLink does this itself.

Flower's own way is a further process that asks for tasks over HTTP, and which starts ServerApps with their token on the
command line, where every user of the machine can read it. Here the token is written to the new process, and requests
for tasks over HTTP are refused (`gate.py`).
"""

import os
import subprocess
import sys
import threading
import time
from typing import Any

from fedgram.core.parent import end_with
from fedgram.deployment.flower import internals, internals_http

_POLL_SECONDS, _PAUSE_SECONDS = 0.2, 5.0


def start_server_apps(state: Any, address: str, authority: str) -> None:
    """Start ServerApps as they are needed, in a thread; `authority` is the path of a certificate, or ""."""
    threading.Thread(target=_keep_starting, args=(state, address, authority), daemon=True, name="server-apps").start()


def _keep_starting(state: Any, address: str, authority: str) -> None:
    started: list[subprocess.Popen[bytes]] = []
    while True:
        started = [process for process in started if process.poll() is None]
        try:
            token = internals_http.next_server_app(state)
        except Exception as error:  # such as a database that is busy
            print(f"fedgram: ServerApps cannot be started ({type(error).__name__})", file=sys.stderr, flush=True)
            time.sleep(_PAUSE_SECONDS)
            continue
        if token:
            started.append(_start(address, authority, token))
        else:
            time.sleep(_POLL_SECONDS)


def _start(address: str, authority: str, token: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "fedgram.deployment.flower.server_apps", address, authority]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(token.encode())
    return process


def main() -> None:
    """Run one ServerApp: server_apps ADDRESS AUTHORITY, with its token on standard input."""
    end_with(os.getppid())
    address, authority = sys.argv[1:3]
    internals.run_server_app(address, sys.stdin.read(), authority)


if __name__ == "__main__":
    main()
