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
import socket
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
_BACKLOG = 100  # connections that wait to be accepted


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
    host, port = (sys.argv[sys.argv.index(name) + 1] for name in ("--host", "--port"))
    internals_http.extend_supernode(partial(Gate, door=LocalDoor(token)), hold_port(host, int(port)))
    worker = _start_worker(f"{host}:{port}", token)
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


def hold_port(host: str, port: int) -> socket.socket:
    """Listen on the local port, from before the worker is started until this process has ended.

    The worker runs what it is told at this port. If the port were free while the worker asks, such as in the half
    second in which Flower's server has ended and the process has not, any user of the machine could take it and answer.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise SystemExit(f"fedgram: cannot listen on {host}:{port} ({error.strerror or error})") from None
    listening.listen(_BACKLOG)
    os.dup(listening.fileno())  # never closed: Python closes its sockets some time before the process ends
    return listening


def _start_worker(address: str, token: str) -> "subprocess.Popen[bytes]":
    """Start the process that computes; it ends when this one does."""
    command = [*module_command("fedgram.deployment.flower.worker"), address, str(os.getpid())]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert worker.stdin is not None
    with worker.stdin as pipe:
        pipe.write(token.encode())  # not on the command line, which other users can read
    return worker


if __name__ == "__main__":
    main()
