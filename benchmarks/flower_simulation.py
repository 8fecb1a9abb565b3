"""FederatedAveraging in Flower's own simulation: a child of `benchmarks.training_peers`.

    python -m benchmarks.flower_simulation PRESET CLIENTS STEPS ROUNDS DEVICE CORES

A client trains as in the plain loop of `benchmarks.federated_training`, on the same sentences. Prints the seconds of
each round as JSON, from the first message to the averaged weights. Flower runs clients with Ray, which
benchmarks/build_peers puts into a folder of its own, as Ray is no part of the project's environment.
"""

import importlib.util
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from time import perf_counter
from typing import Any

from benchmarks.measure import PEERS

RAY = PEERS / "ray"


def has_ray() -> bool:
    """Whether Flower's simulation can run."""
    if RAY.is_dir() and str(RAY) not in sys.path:
        sys.path.append(str(RAY))
    return importlib.util.find_spec("ray") is not None


@cache
def prepared(preset: str, clients: int, steps: int, device: str) -> Any:
    """The task and its batches, once per process."""
    import torch
    from benchmarks.federated_training import make

    torch.set_num_threads(1)
    return make(preset, clients, steps, 1, device)


def main(preset: str, clients: int, steps: int, rounds: int, device: str, cores: int) -> list[float]:
    """The seconds of each round."""
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    if not has_ray():
        raise SystemExit("Ray is not installed")
    from benchmarks import flower_simulation as here  # by its name, so that Ray's processes find it
    from benchmarks.federated_training import train_plainly
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    from fedgram.neural.network import as_tensors

    logging.getLogger("flwr").setLevel(logging.ERROR)
    seconds: list[float] = []
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        task, chunks = here.prepared(preset, clients, steps, device)
        own = chunks[int(context.node_config["partition-id"])].batches
        arrays = message.content.array_records["arrays"]
        start = {name: w.to(device) for name, w in arrays.to_torch_state_dict().items()}
        trained = train_plainly(task, start, own.words[0], own.targets[0], device)
        sent = ArrayRecord({name: w.cpu() for name, w in trained.items()})
        content = RecordDict({"arrays": sent, "metrics": MetricRecord({"num-examples": 1})})
        return Message(content=content, reply_to=message)

    class TimedFedAvg(FedAvg):
        def configure_train(self, *arguments: Any) -> Iterable[Message]:
            self.began = perf_counter()
            return super().configure_train(*arguments)

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            answers = list(replies)
            if sum(not message.has_error() for message in answers) != clients:
                raise RuntimeError(f"not all clients trained in round {server_round}")
            averaged = super().aggregate_train(server_round, answers)
            seconds.append(perf_counter() - self.began)
            return averaged

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:  # noqa: ARG001
        start = as_tensors(here.prepared(preset, clients, steps, device)[0].start, "cpu")
        TimedFedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients).start(
            grid, ArrayRecord(dict(start)), num_rounds=rounds
        )

    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        run_simulation(
            server_app, client_app, clients,
            backend_config={
                "init_args": {"num_cpus": cores, "_temp_dir": folder, "_node_ip_address": "127.0.0.1"},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0 if device == "cpu" else 1.0 / cores},
            },
        )  # fmt: skip
    return seconds


if __name__ == "__main__":
    given = sys.argv[1:]
    found = main(given[0], int(given[1]), int(given[2]), int(given[3]), given[4], int(given[5]))
    print(json.dumps(found))
