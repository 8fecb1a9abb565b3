"""The ServerApp: finds its orders in the folder that the run names, and carries them out over Flower's Grid."""

import os
import threading
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgram.core.errors import FedgramError
from fedgram.flower.grid_fleet import GridFleet
from fedgram.flower.orders import execute

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    work = str(context.run_config.get("work", ""))
    if not work:
        raise FedgramError("start a run with `fedgram federation run`, which writes its orders")
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    execute(Path(work), GridFleet(grid))


def _end_with(parent: int) -> None:
    """End at once when whoever started this has: Flower's own watch can wait for ever for a SuperLink that is gone.

    What was committed is on the disk, and the next server goes on from there.
    """
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
