"""Flower's SuperNode. It runs no app but its own, and polls for messages as often as the federation says.

A SuperLink tells its nodes which app to run, and sends it along: an attacker who controls the server could read every
device. So a node compares what it is sent with the app in its own folder, which only names functions of the fedgram
that is installed on the device, and ignores anything else. Its local port answers only its own worker (`gate.py`), so
other users of the device's machine can neither take its messages nor answer them. It also sends heartbeats more often
than Flower's default, so that the server notices sooner when a node has gone. Without Flower's private modules
(`internals.py`) none of this is possible, and a device joins only a server on its own machine.
"""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

from fedgram.core.parent import end_with
from fedgram.deployment.checks import refuse_revoked
from fedgram.deployment.flower import internals
from fedgram.deployment.flower.programs import module_command, run_program

_LOOK_SECONDS = 2.0


def main() -> None:
    """Run `flower-supernode` with its usual arguments, until the parent process ends."""
    end_with(os.getppid())
    if not internals.are_enabled():
        run_program("flower-supernode")
        return
    from fedgram.deployment.flower import internals_http
    from fedgram.deployment.flower.gate import Gate, LocalDoor

    app, poll, heartbeat = (os.environ[f"FEDGRAM_{name}"] for name in ("APP", "POLL", "HEARTBEAT"))
    internals.restrict_supernode(Path(app), poll=float(poll), heartbeat=float(heartbeat))
    _refuse_revoked(Path(os.environ["FEDGRAM_REVOKED"]))
    token = secrets.token_hex(32)
    internals_http.extend_supernode(partial(Gate, door=LocalDoor(token)))
    worker = _start_worker(sys.argv, token)
    try:
        run_program("flower-supernode")
    finally:
        worker.terminate()


def _refuse_revoked(revoked: Path) -> None:
    """Refuse a server whose certificate is on a list; when the list changes, end, to be started again by `join`."""
    internals.prepare_connections(lambda context: refuse_revoked(context, revoked))

    def changed() -> int:
        return revoked.stat().st_mtime_ns if revoked.is_file() else 0

    def watch(known: int) -> None:
        while changed() == known:
            time.sleep(_LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, args=(changed(),), daemon=True, name="revoked-certificates").start()


def _start_worker(arguments: list[str], token: str) -> "subprocess.Popen[bytes]":
    """Start the process that computes; it ends when this one does."""
    host, port = (arguments[arguments.index(name) + 1] for name in ("--host", "--port"))
    command = [*module_command("fedgram.deployment.flower.worker"), f"{host}:{port}", str(os.getpid())]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert worker.stdin is not None
    with worker.stdin as pipe:
        pipe.write(token.encode())  # not on the command line, which other users can read
    return worker


if __name__ == "__main__":
    main()
