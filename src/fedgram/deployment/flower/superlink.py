"""Flower's SuperLink behind a gate (`gate.py`): other machines reach its interface for devices, and nothing else.

Since Flower 1.41 one port serves everything: devices (`/v1/fleet`), the commands that start runs (`/v1/control`), and
the processes that execute runs (`/v1/runtime`). Starting a run means running code, so the latter two answer only to
this machine, and only to those who can read the server's token. Without Flower's private modules (`internals.py`) there
is no gate, and the server listens on this machine only.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from fedgram.core.parent import end_with
from fedgram.deployment.flower import internals
from fedgram.deployment.flower.programs import run_program

_SWITCH_SECONDS = 0.001  # after which the thread that answers lets the thread that listens run


def main() -> None:
    """Run `flower-superlink` with its usual arguments, until the parent process ends."""
    end_with(os.getppid())
    if internals.are_enabled():
        sys.setswitchinterval(_SWITCH_SECONDS)
        _extend()
    run_program("flower-superlink")


def _extend() -> None:
    """Put the gate and the fast path before Flower's own middleware."""
    from fedgram.deployment.flower import internals_http
    from fedgram.deployment.flower.fast_path import FastPath
    from fedgram.deployment.flower.gate import Gate, ServerDoor
    from fedgram.deployment.flower.quotas import Quotas

    on_disk = not os.environ.get("FEDGRAM_ADMITTED")
    app = internals.app_digest(Path(os.environ["FEDGRAM_APP"]))
    door = ServerDoor(Path(os.environ["FEDGRAM_TOKEN"]).read_text("ascii"), app, blocking=on_disk)
    gate = partial(Gate, door=door, quotas=Quotas(int(os.environ["FEDGRAM_REPLY_MB"]) << 20))
    internals_http.extend_superlink((gate, FastPath), _started)


def _started(state: Any) -> None:
    """Register the admitted devices in the SuperLink's state, and start ServerApps from now on."""
    from fedgram.deployment.flower.admitted import restore
    from fedgram.deployment.flower.server_apps import start_server_apps

    if admitted := os.environ.get("FEDGRAM_ADMITTED"):
        restore(Path(admitted), state, float(os.environ["FEDGRAM_HEARTBEAT"]))
    start_server_apps(state, os.environ["FEDGRAM_ADDRESS"], os.environ.get("FEDGRAM_AUTHORITY", ""))


if __name__ == "__main__":
    main()
