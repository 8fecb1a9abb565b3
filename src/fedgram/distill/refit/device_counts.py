"""Counting n-grams on devices, in passes over all of them.

Devices first mark pairs of words in a sketch, from which the server learns those that several devices have. Then they
count the n-grams of a model and these pairs, and in further passes the longer n-grams that became likely. In each pass
a device takes part at most once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.automata.build import NGramTopology, ngrams_of, topology_from_ngrams
from fedgram.automata.model import NGramModel
from fedgram.automata.prune import closed_under_parents, subtopology
from fedgram.automata.topology import Topology
from fedgram.core.arrays import LongArray, Ragged
from fedgram.core.progress import Begin, silent
from fedgram.core.random import stream_key
from fedgram.distill.refit.ngram_collection import COUNT, Limits, NGramCollection, occurrences
from fedgram.distill.refit.ngram_growth import Growth, propose
from fedgram.distill.refit.pair_sketch import PairCollection, SketchSize
from fedgram.federated.cohort import CohortOptions
from fedgram.federated.devices import Devices
from fedgram.federated.job import Job
from fedgram.federated.run_task import run_job
from fedgram.federated.task import FederatedTask, State


@dataclass(frozen=True, slots=True)
class CountingPlan:
    """The limits of one device, the sketch for pairs if there is one, and how n-grams grow."""

    limits: Limits
    sketch: SketchSize | None
    growth: Growth


@dataclass(frozen=True, slots=True, eq=False)
class CountedNGrams:
    """C(x, q) of the devices on a topology, and what happened in every pass over them."""

    topology: Topology
    count: LongArray
    passes: tuple[Mapping[str, Any], ...]


class Passes:
    """Passes over devices: in each, every device takes part at most once, if it can be reached.

    With a folder, an interrupted pass resumes.
    """

    def __init__(
        self, devices: Devices, cohort: CohortOptions, *, seed: int, folder: Path | None = None, begin: Begin = silent
    ) -> None:
        self._devices, self._cohort, self._seed, self._folder, self._begin = devices, cohort, seed, folder, begin
        self.reports: list[Mapping[str, Any]] = []

    def run(self, task: FederatedTask[State], what: str, ngrams: int | None = None) -> State:
        """The state of a task after a pass."""
        number = len(self.reports)
        counted = f"{ngrams:,} {what}" if ngrams else what
        advance = self._begin(f"Devices count {counted}", self._devices.count, unit="devices")
        seed = int(stream_key(self._seed, "refit", number) >> np.uint64(1))
        job = Job(task, seed, participations=1)
        run = run_job(
            job, self._devices, self._cohort, rounds=None,
            folder=self._folder / f"pass-{number}" if self._folder else None,
            tell=lambda event, about: advance(about["reports"]) if event == "round summed" else None,
        )  # fmt: skip
        self.reports.append({"rounds": run.progress.round, **run.progress.tally.fields()})
        return run.state


def count_on_devices(model: NGramModel, passes: Passes, plan: CountingPlan) -> CountedNGrams:
    """The devices' counts on a topology that has the model's n-grams; in a pass every device is counted at most once.

    N-grams beside the model's are left out unless a device has them.
    """
    words, growth, limits = len(model.vocabulary), plan.growth, plan.limits
    built = NGramTopology(model.topology, np.arange(model.topology.arcs, dtype=np.int32))
    if plan.sketch:
        finder = PairCollection(model.vocabulary, plan.sketch, labels=limits.labels, with_unknown=model.has_unknown)
        pairs = finder.found(passes.run(finder, "pairs"), least=growth.least, most=growth.most)
        rows = Ragged.concatenate([ngrams_of(model.topology), pairs])
        built = topology_from_ngrams(rows, words, open_vocabulary=model.has_unknown)
    own = np.zeros(built.topology.arcs, bool)
    own[built.arc[: model.topology.arcs]] = True
    for number in range(growth.passes + 1):
        task = NGramCollection(built.topology, model.vocabulary, limits)
        count = passes.run(task, "n-grams", built.topology.arcs)[COUNT]
        keep = closed_under_parents(built.topology, own | (occurrences(built.topology, count)[0] > 0))
        topology, count, own = subtopology(built.topology, keep), count[keep], own[keep]
        if number < growth.passes:
            built = propose(topology, count, words, growth)
            grown = np.zeros(built.topology.arcs, bool)
            grown[built.arc[: topology.arcs][own]] = True
            own = grown
    return CountedNGrams(topology, count, tuple(passes.reports))
