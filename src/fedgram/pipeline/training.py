"""FederatedAveraging of one network as a job: all it needs is in files and settings, so that processes can share it.

Helpers are started for a job and end with it, or with the process that started them. They meet through a file and talk
on this machine alone. Sums are exact, so that the result does not depend on their number.
"""

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Semaphore
from pathlib import Path

import torch

from fedgram.core.errors import FedgramError, InputError
from fedgram.federated.averaging import ServerStep
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions
from fedgram.federated.simulation import SimulatedFleet
from fedgram.neural.local_training import LocalTraining
from fedgram.neural.network import read_network
from fedgram.neural.ranks import Ranks, join_at
from fedgram.neural.scoring import text_to_score
from fedgram.pipeline.config import TrainingConfig
from fedgram.text.population import open_population
from fedgram.training.fedavg_task import FederatedAveraging, Schedule, TrainingPlan
from fedgram.training.federated_training import Following, Moment, RunResult, train

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


def train_job(job: TrainingJob, workers: int, *, on_round: Callable[[Moment], object]) -> RunResult:
    """The trained weights with the story of the rounds."""
    if job.device != "cpu":
        workers = 1
    with _helpers(job, workers) as ranks:
        return _train(job, ranks, on_round)


def _train(job: TrainingJob, ranks: Ranks, on_round: Callable[[Moment], object]) -> RunResult:
    if job.device == "cpu":
        torch.set_num_threads(1)
    network, people, c = read_network(job.start), open_population(job.users), job.config
    task = FederatedAveraging(network.shape, network.weights, job.plan(), network.coding, job.device)
    rounds = Job(task, job.seed)
    if not (network.coding.codes(people.words).values > 0).any():
        raise InputError(job.users, "holds no word of the network's vocabulary")
    dev = text_to_score(network.coding, people, people.clients("dev")[: c.dev_users])
    fleet = SimulatedFleet(rounds, people, people.clients("train"), dropout=c.dropout, ranks=ranks)
    return train(
        rounds, fleet, RunOptions(c.rounds, RoundPlan(c.clients_per_round, c.over_selection)), dev=dev,
        following=Following(c.evaluate_every, c.patience), ranks=ranks, folder=job.checkpoints, resume=True,
        belongs_to={"dropout": c.dropout}, on_round=on_round,
    )  # fmt: skip


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
