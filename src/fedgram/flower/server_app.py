"""The ServerApp: finds its orders in the folder that the run names, and carries them out over Flower's Grid."""

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
    execute(Path(work), GridFleet(grid))
