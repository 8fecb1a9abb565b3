"""FederatedAveraging of one network as a job: all it needs is in files and settings, so that processes can share it.

Helpers are started for a job and end with it, or with the process that started them. They meet through a file and talk
on this machine alone. Sums are exact, so that the result does not depend on their number.
"""

import json
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any

import torch

from fedgram.core.errors import FedgramError, InputError
from fedgram.fedavg.run import Moment, RunOptions, RunResult, train
from fedgram.fedavg.task import FederatedAveraging, Schedule, TrainingPlan
from fedgram.federated.averaging import ServerStep
from fedgram.federated.cohort import CohortPlan
from fedgram.federated.driver import Devices
from fedgram.neural.local_training import LocalTraining
from fedgram.neural.network import Network, as_tensors, read_network
from fedgram.neural.ranks import Ranks, join_at
from fedgram.neural.scoring import ScoredText, score, text_to_score
from fedgram.pipeline.config import TrainingConfig
from fedgram.text.population import open_population

_ENDED = "a helping process ended; try again, or with one worker"


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Train the network of `start` on the train users; checkpoints are kept in a folder, and gone on from."""

    users: Path
    start: Path
    checkpoints: Path
    config: TrainingConfig
    seed: int
    device: str

    def plan(self) -> TrainingPlan:
        """What devices and server agree on."""
        c = self.config
        return TrainingPlan(
            LocalTraining(c.client_rate), c.rows, c.length, c.epochs, c.max_sentences, c.weighting, c.update_norm,
            ServerStep(c.server_rule, c.server_rate, c.server_momentum),
            Schedule(c.client_schedule, c.rounds), Schedule(c.server_schedule, c.rounds),
        )  # fmt: skip


def train_job(
    job: TrainingJob, workers: int, *, on_round: Callable[[Moment], object]
) -> tuple[RunResult, Mapping[str, Any]]:
    """The trained weights with the story of the rounds, and the dev scores before the first round."""
    if job.device != "cpu":
        workers = 1
    with _helpers(job, workers) as ranks:
        return _train(job, ranks, on_round)


def _train(job: TrainingJob, ranks: Ranks, on_round: Callable[[Moment], object]) -> tuple[RunResult, Mapping[str, Any]]:
    if job.device == "cpu":
        torch.set_num_threads(1)
    network, people, c = read_network(job.start), open_population(job.users), job.config
    is_pieces = network.coding.pieces is not None
    codes = network.coding.codes(people.words)
    devices = Devices(people, codes if is_pieces else codes.values, people.clients("train"))
    if not (codes.values > 0).any():
        raise InputError(job.users, "holds no word of the network's vocabulary")
    dev = text_to_score(network.coding, people, people.clients("dev")[: c.dev_users])
    task = FederatedAveraging(network.shape, network.weights, job.plan())
    cohorts = CohortPlan(c.clients_per_round, c.over_selection, c.dropout)
    options = RunOptions(c.rounds, job.seed, c.evaluate_every, c.patience)
    settings = json.loads(json.dumps({"config": asdict(c), "seed": job.seed}))
    result = train(
        task, devices, cohorts, dev, options, pieces=is_pieces, device=job.device, ranks=ranks,
        folder=job.checkpoints, settings=settings, resume=True, on_round=on_round,
    )  # fmt: skip
    if ranks.rank:
        return result, {}
    return result, scores_before(network, dev, job.device)


def scores_before(network: Network, dev: ScoredText, device: str = "cpu") -> dict[str, Any]:
    """The dev scores before the first round."""
    weights = as_tensors(network.weights, device)
    scores = score(network.shape, weights, dev, pieces=network.coding.pieces is not None)
    return {"round": 0, **{k: getattr(scores, k) for k in ("sll", "sll_e", "perplexity", "top1", "top3")}}


@contextmanager
def _helpers(job: TrainingJob, workers: int) -> Iterator[Ranks]:
    """The process itself as the first of so many."""
    if workers == 1:
        yield Ranks()
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(prefix="fedgram-") as folder:
        where = f"file://{folder}/meet"
        context = multiprocessing.get_context("spawn")
        ready = context.Semaphore(0)
        processes = [
            context.Process(target=_help, args=(job, where, rank, workers, ready), daemon=True)
            for rank in range(1, workers)
        ]
        ranks = Ranks()
        try:
            _start(processes)
            _await(processes, ready)
            ranks = join_at(where, 0, workers)
            yield ranks
        except RuntimeError:
            if all(process.is_alive() for process in processes):
                raise
            raise FedgramError(_ENDED) from None
        finally:
            ranks.close()
            for process in processes:
                if process.pid is not None:
                    process.terminate()
                    process.join()


def _start(processes: Sequence[BaseProcess]) -> None:
    """Start helpers that know no Ctrl-C and say nothing, from their first moment: both are inherited."""
    before, stderr = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}), os.dup(2)
    try:
        with open(os.devnull, "w") as silence:  # noqa: PTH123
            os.dup2(silence.fileno(), 2)  # the first process says what there is to say
        for process in processes:
            process.start()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _await(processes: Sequence[BaseProcess], ready: Semaphore) -> None:
    """Wait until all helpers are ready to meet; whoever waits at the meeting itself waits for the dead too."""
    for _ in processes:
        while not ready.acquire(timeout=0.1):
            if not all(process.is_alive() for process in processes):
                raise FedgramError(_ENDED)


def _help(job: TrainingJob, where: str, rank: int, size: int, ready: Semaphore) -> None:
    """A helper's whole life."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    ready.release()
    ranks = join_at(where, rank, size)
    _train(job, ranks, lambda _: None)
    ranks.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
