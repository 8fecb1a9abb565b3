"""The ServerApp: answers the calls in the folder that the run names, over Flower's Grid."""

import os
import threading
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgram.core.errors import FedgramError
from fedgram.deployment.collector import serve_rounds
from fedgram.deployment.flower.grid_transport import GridTransport

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Collect rounds."""
    work = str(context.run_config.get("work", ""))
    if not work:
        raise FedgramError("start a run with `fedgram federation run`, which writes its orders")
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    serve_rounds(Path(work), GridTransport(grid))


def _end_with(parent: int) -> None:
    """End at once when whoever started this has: Flower's own watch can wait for ever for a SuperLink that is gone.

    What was committed is on the disk, and the next server goes on from there.
    """
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
