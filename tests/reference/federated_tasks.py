"""The four federated tasks on a small population, for properties that all of them must have."""

from collections.abc import Callable, Sequence
from threading import Barrier
from typing import Any

import numpy as np
from tests.reference.random_models import random_topology

from fedgram.core.arrays import LongArray
from fedgram.core.storage import Record
from fedgram.distill.refit.asked_ngrams import AskedNGrams
from fedgram.distill.refit.clipped_ngrams import ClippedNGrams, Clipping
from fedgram.distill.refit.pair_sketch import PairCollection, SketchSize
from fedgram.federated.averaging import ServerStep
from fedgram.federated.task import FederatedTask
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import Coding, as_arrays
from fedgram.text.population import Population, population_from_messages
from fedgram.text.vocabulary import Vocabulary
from fedgram.training.fedavg_task import FederatedAveraging
from fedgram.training.plan import Schedule, TrainingPlan

WORDS = Vocabulary.of([f"w{k}" for k in range(8)])


def population(users: int = 30, seed: int = 0) -> Population:
    """Users with one to seven messages, which also hold words unknown to the tasks; the last user has no words at all.

    Every seventh user is in the dev split.
    """
    rng = np.random.default_rng(seed)
    words = [*WORDS.words[3:], "W1", "zzz"]
    messages: list[tuple[str, str, str | None]] = []
    for user in range(users):
        split = "dev" if user % 7 == 6 else "train"
        for _ in range(int(rng.integers(1, 8))):
            text = " ".join(rng.choice(words, int(rng.integers(1, 9)))) if user < users - 1 else "!!"
            messages.append((f"user{user:03d}", text, split))
    return population_from_messages(messages)


def _fedavg() -> FederatedAveraging:
    """With an optimizer that has two moments, and learning rates that depend on the round."""
    shape = ModelShape(len(WORDS), 6, 9)
    plan = TrainingPlan(
        rows=2, length=7, max_sentences=4, server=ServerStep("adam", 0.01), client_schedule=Schedule("linear", 9),
        server_schedule=Schedule("cosine", 9, warmup=2),
    )  # fmt: skip
    return FederatedAveraging(shape, as_arrays(initial_weights(shape, seed=2)), plan, Coding(WORDS, WORDS))


def _ngrams() -> ClippedNGrams:
    """As without noise: with marks, and a limit on labels too."""
    topology = random_topology(np.random.default_rng(3), words=8, order=3, ngrams=30)
    return ClippedNGrams(AskedNGrams.all_of(topology, WORDS), Clipping(norm=2.0), labels=15, marks=True)


def _clipped() -> ClippedNGrams:
    """As with noise."""
    topology = random_topology(np.random.default_rng(3), words=8, order=3, ngrams=30)
    return ClippedNGrams(AskedNGrams.all_of(topology, WORDS), Clipping(norm=3.0))


TASKS: dict[str, Callable[[], FederatedTask[Any]]] = {
    "fedavg": _fedavg,
    "unigrams": lambda: UnigramTask(WORDS, clip=5),  # limits may be given as whole numbers
    "pairs": lambda: PairCollection(WORDS, SketchSize(tables=2, bits=8), labels=12),
    "ngrams": _ngrams,
    "clipped-ngrams": _clipped,
}


def bits_of(record: Record) -> dict[str, Any]:
    """A record in a form that compares equal only if every bit is equal."""
    arrays = {name: (a.dtype.str, a.shape, np.ascontiguousarray(a).tobytes()) for name, a in record.arrays.items()}
    return {"fields": dict(record.fields), **arrays}


class ThreadRanks:
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self._parts: list[Sequence[LongArray]] = [() for _ in range(size)]
        self._barrier = Barrier(size)
        self.all = [_ThreadRank(rank, size, self) for rank in range(size)]

    def sum(self, rank: int, arrays: Sequence[LongArray]) -> list[LongArray]:
        self._parts[rank] = arrays
        self._barrier.wait(60)
        sums: list[LongArray] = [np.sum(parts, axis=0) for parts in zip(*self._parts, strict=True)]
        self._barrier.wait(60)
        return sums


class _ThreadRank:
    def __init__(self, rank: int, size: int, together: ThreadRanks) -> None:
        self.rank, self.size, self._together = rank, size, together

    def sum(self, arrays: Sequence[LongArray]) -> list[LongArray]:
        return self._together.sum(self.rank, arrays)
