"""Flower's SuperNode. It runs no app but its own, and polls for messages as often as the federation says.

A SuperLink tells its nodes which app to run, and sends it along: an attacker who controls the server could read every
device. So a node compares what it is sent with the app in its own folder, which only names functions of the fedgram
that is installed on the device, and ignores anything else. It also sends heartbeats more often than Flower's default,
so that the server notices sooner when a node has gone. Without Flower's private modules (`internals.py`) none of this
is possible, and a device joins only a server on its own machine.
"""

import os
import subprocess
import sys
from pathlib import Path

from fedgram.core.parent import end_with
from fedgram.deployment.flower import internals
from fedgram.deployment.flower.programs import run_program


def main() -> None:
    """Run `flower-supernode` with its usual arguments, until the parent process ends."""
    end_with(os.getppid())
    if not internals.are_enabled():
        run_program("flower-supernode")
        return
    app, poll, heartbeat = (os.environ[f"FEDGRAM_{name}"] for name in ("APP", "POLL", "HEARTBEAT"))
    internals.restrict_supernode(Path(app), poll=float(poll), heartbeat=float(heartbeat))
    worker = _start_worker(sys.argv)
    try:
        run_program("flower-supernode")
    finally:
        worker.terminate()


def _start_worker(arguments: list[str]) -> "subprocess.Popen[bytes]":
    """Start the process that computes; it ends when this one does."""
    host, port = (arguments[arguments.index(name) + 1] for name in ("--host", "--port"))
    return subprocess.Popen(
        [sys.executable, "-m", "fedgram.deployment.flower.worker", f"{host}:{port}", str(os.getpid())]
    )


if __name__ == "__main__":
    main()
