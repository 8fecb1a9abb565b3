"""Flower's SuperNode, which runs no code but ours and looks for messages more often.

A SuperLink tells its nodes which app to run, and sends it along: whoever holds the server could read every device.
So a node compares what it is sent with the app in its own folder, which only names functions of the fedgram that is
installed on the device, and ignores anything else. How often a node looks for messages is the federation's to say,
and a node that is gone is noticed sooner.
"""

import hashlib
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

_IDLE, _WAITING = 3.0, 0.1  # Flower's sleep between looks at the server, and ours for a reply of our own


class _Time:
    """The module `time` with other sleeps."""

    def __init__(self, poll: float) -> None:
        self._poll = poll

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Sleep between looks at the server as long as we are told, and for less while something is computed."""
        time.sleep(self._poll if seconds >= _IDLE else min(seconds, _WAITING))


def main() -> None:
    """Run `flower-supernode` with its usual arguments."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supercore.run import RunNotRunningException
    from flwr.supernode.cli.flower_supernode import flower_supernode

    loop: Any = import_module("flwr.supernode.start_client_internal")
    own = hashlib.sha256(build_fab_from_disk(Path(os.environ["FEDGRAM_APP"]))).digest()
    fused = loop.get_fused_config_from_fab

    def checked(content: Any, run: Any) -> Any:
        if hashlib.sha256(content).digest() != own:
            raise RunNotRunningException  # which Flower answers by dropping the message
        return fused(content, run)

    loop.get_fused_config_from_fab = checked
    loop.time = _Time(float(os.environ["FEDGRAM_POLL"]))
    for name in ("flwr.supernode.fleet_http_connection", "flwr.supercore.heartbeat"):
        setattr(import_module(name), "HEARTBEAT_DEFAULT_INTERVAL", float(os.environ["FEDGRAM_HEARTBEAT"]))  # noqa: B010
    start_parent_process_monitor(os.getppid())  # end with whoever started this
    worker = _start_worker(sys.argv)
    try:
        flower_supernode()
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
