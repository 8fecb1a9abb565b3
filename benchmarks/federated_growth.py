"""How a round of FederatedAveraging grows: its time with the cohort's tokens, its memory with the population.

    python -m benchmarks.federated_growth [--preset W_demo] [--users 1000 10000 100000]

Users of 10 sentences of 12 words, drawn at random. Each row is a process of its own, which opens the population and
trains three rounds; the best of them counts. *Own memory* is what the process has besides the population's file, which
is mapped and can be dropped by the system at any time.
"""

import argparse
import multiprocessing
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.measure import save

from fedgram.federated.cohort import RoundPlan
from fedgram.federated.fleet import RoundSum
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.watch import Unwatched
from fedgram.neural.model import PRESETS, initial_weights
from fedgram.neural.network import Coding, as_arrays
from fedgram.text.population import Population, open_population, write_population
from fedgram.text.vocabulary import Vocabulary
from fedgram.training.fedavg_task import FedAvgState, FederatedAveraging
from fedgram.training.plan import TrainingPlan

SENTENCES, LENGTH, ROUNDS = 10, 12, 3


def population(users: int, words: int, sentences: int = SENTENCES, length: int = LENGTH) -> Population:
    tokens = np.random.default_rng(0).integers(0, words, users * sentences * length).astype(np.int32)
    return Population(
        tuple(f"u{k:09}" for k in range(users)), np.zeros(users, np.uint8), np.arange(users + 1) * sentences,
        np.arange(users * sentences + 1) * length, tokens, tuple(f"w{k}" for k in range(words)),
    )  # fmt: skip


class Stopwatch(Unwatched):
    """Takes note of the fastest round, and of the tokens in the last."""

    best, tokens = float("inf"), 0

    def after_round(self, state: FedAvgState, number: int, found: RoundSum, seconds: float) -> None:  # noqa: ARG002
        self.best, self.tokens = min(self.best, seconds), state.targets


def measure(path: str, preset: str, clients: int, answer: Any) -> None:
    torch.set_num_threads(1)
    people, shape, watch = open_population(path), PRESETS[preset].shape, Stopwatch()
    words = Vocabulary.of(people.words)
    plan, weights = TrainingPlan(rows=8, length=12), as_arrays(initial_weights(shape, seed=0))
    job = Job(FederatedAveraging(shape, weights, plan, Coding(words, words)), seed=1)
    fleet = SimulatedFleet(job, people.train)
    run_rounds(job, fleet, RunOptions(ROUNDS, RoundPlan(clients, 1.3)), watch=watch)
    best, tokens = watch.best, watch.tokens
    status = Path("/proc/self/status").read_text()
    own, mapped = (int(re.findall(rf"{name}:\s+(\d+)", status)[0]) / 1e3 for name in ("RssAnon", "RssFile"))
    answer.put((best, tokens, own, mapped))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="W_demo")
    parser.add_argument("--users", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--clients", type=int, nargs="+", default=[25, 50, 100, 200, 400])
    given = parser.parse_args()
    context, rows = multiprocessing.get_context("spawn"), []
    with tempfile.TemporaryDirectory() as folder:
        for users in given.users:
            write_population(f"{folder}/{users}.population", population(users, PRESETS[given.preset].shape.words - 10))
        cases = [(given.users[0], c) for c in given.clients] + [(u, given.clients[0]) for u in given.users[1:]]
        for users, clients in cases:
            answer = context.Queue()
            child = context.Process(
                target=measure, args=(f"{folder}/{users}.population", given.preset, clients, answer)
            )
            child.start()
            seconds, tokens, own, mapped = answer.get()
            child.join()
            rows.append({
                "users": users, "clients a round": clients, "tokens": tokens, "seconds a round": seconds,
                "tokens/s": tokens / seconds, "own memory, MB": own, "mapped, MB": mapped,
            })  # fmt: skip
    save("federated_growth", rows)


if __name__ == "__main__":
    main()
