"""The ServerApp: answers the calls in the folder that the run names, or publishes a model, over Flower's Grid."""

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgram.core.errors import FedgramError
from fedgram.core.parent import end_with
from fedgram.deployment.collector import serve_rounds
from fedgram.deployment.flower.grid_transport import open_transport
from fedgram.deployment.publishing import is_rollout, serve_rollout

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Collect rounds until the job is over, or until the parent process ends.

    Flower's own watch can wait for ever for a SuperLink that is gone. What was committed is on disk, and the next
    ServerApp resumes from there.
    """
    work = str(context.run_config.get("work", ""))
    if not work:
        raise FedgramError("the run names no working folder; start it with `fedgram federation run`")
    end_with(os.getppid())
    if is_rollout(Path(work)):
        serve_rollout(Path(work), open_transport(grid))
        return
    server = os.environ.get("FEDGRAM_SERVER", "")
    serve_rounds(Path(work), open_transport(grid), Path(server) if server else None)
