"""Counting n-grams on devices, in passes over all of them.

Devices first mark pairs of words in a sketch, from which the server learns those that several devices have. Then they
count the n-grams of a model and these pairs, and in further passes the longer n-grams that became likely. In each pass
a device takes part at most once, and no n-gram is asked for twice, not even one of which nothing was released: the
noise of differential privacy is measured for one answer. What the server may use of the counts, and which n-grams join
the model, is decided by a `CountRelease`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.automata.build import NGramTopology, ngrams_of, topology_from_ngrams
from fedgram.automata.counting import express_on
from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.prune import closed_under_parents, subtopology
from fedgram.automata.topology import Topology, ngram_matrix
from fedgram.core.arrays import BoolArray, FloatArray, Ragged
from fedgram.core.progress import Begin, silent
from fedgram.core.random import stream_key
from fedgram.core.storage import Record
from fedgram.distill.refit.asked_ngrams import AskedNGrams
from fedgram.distill.refit.count_fit import HIDDEN, trusted_counts
from fedgram.distill.refit.count_release import CountRelease, Released
from fedgram.distill.refit.ngram_growth import Growth, propose
from fedgram.distill.refit.pair_sketch import PairCollection, SketchSize
from fedgram.federated.cohort import CohortOptions
from fedgram.federated.devices import Devices
from fedgram.federated.job import Job
from fedgram.federated.one_event import OneEvent
from fedgram.federated.run_task import run_job
from fedgram.federated.task import FederatedTask, State

HashArray = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Sketch:
    """The sketch for pairs: its size, and the number of labels that a device marks at most."""

    size: SketchSize
    labels: float


@dataclass(frozen=True, slots=True)
class CountingPlan:
    """What may be used of the counts, the sketch for pairs if there is one, and how n-grams grow."""

    release: CountRelease
    sketch: Sketch | None
    growth: Growth


@dataclass(frozen=True, slots=True, eq=False)
class CountedNGrams:
    """By arc of a topology: S(x, q) on devices as it was released, and the standard deviation of its noise.

    `passes` says what happened in every pass over the devices.
    """

    topology: Topology
    ngrams: FloatArray
    deviation: FloatArray
    passes: tuple[Mapping[str, Any], ...]

    @property
    def words(self) -> float:
        """The number of words that devices counted, with the noise of its parts."""
        return float(self.ngrams[self._single].sum())

    @property
    def deviation_of_words(self) -> float:
        """The standard deviation of the noise of that number; 0 without noise."""
        deviation = self.deviation[self._single]
        return float(np.sqrt((deviation[np.isfinite(deviation)] ** 2).sum()))

    @property
    def is_hidden(self) -> bool:
        """Whether noise hides that number."""
        return self.deviation_of_words > 0.0 and self.words < HIDDEN * self.deviation_of_words

    @property
    def _single(self) -> slice:
        """The arcs of single words."""
        return slice(0, int(self.topology.first_arc[1]))


class Passes:
    """Passes over devices: in each, every device takes part at most once, if it can be reached.

    With a folder, an interrupted pass resumes, if it belongs to the same work.
    """

    def __init__(
        self, devices: Devices, cohort: CohortOptions, *, seed: int, folder: Path | None = None,
        belongs_to: Mapping[str, Any] | None = None, begin: Begin = silent,
    ) -> None:  # fmt: skip
        self._devices, self._cohort, self._seed, self._folder, self._begin = devices, cohort, seed, folder, begin
        self._belongs_to = belongs_to or {}
        self.reports: list[Mapping[str, Any]] = []

    @property
    def event(self) -> OneEvent:
        """These passes as one event of privacy."""
        return OneEvent(self._folder, self._belongs_to)

    def released(self, make: Callable[[], Released]) -> Released:
        """What `make` releases of one more pass; after an interruption the same, so that no noise is drawn twice."""
        number = len(self.reports)

        def kept() -> Record:
            found = make()
            return Record({"report": dict(self.reports[number])}, found._asdict())

        record = self.event.release(f"released-{number}", kept, sums=f"pass-{number}")
        self.reports[number:] = [record.fields["report"]]
        return Released(**{name: record.arrays[name] for name in Released._fields})

    @property
    def choice(self) -> int:
        """A seed that all passes have in common."""
        return int(stream_key(self._seed, "refit") >> np.uint64(1))

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


@dataclass(slots=True, eq=False)
class _Counted:
    """What is known so far: a topology, and by arc the count, its noise, and whether it is counted.

    `own` are the n-grams of the model, `stays` those of them that stay in it, `visible` those that devices give it.
    """

    topology: Topology
    ngrams: FloatArray
    deviation: FloatArray
    counted: BoolArray
    own: BoolArray
    stays: BoolArray
    visible: BoolArray

    @classmethod
    def nothing(cls, topology: Topology, own: BoolArray, stays: BoolArray) -> "_Counted":
        n = topology.arcs
        return cls(topology, np.zeros(n), np.full(n, np.inf), np.zeros(n, bool), own, stays.copy(), np.zeros(n, bool))

    def on(self, built: NGramTopology) -> "_Counted":
        """The same on a larger topology, whose first n-grams these are."""
        none = np.zeros(built.topology.arcs, bool)
        result = _Counted.nothing(built.topology, none.copy(), none)
        place = built.arc[: self.topology.arcs]
        for name in _BY_ARC:
            getattr(result, name)[place] = getattr(self, name)
        return result

    def take(self, asked: BoolArray, found: Released) -> None:
        """Note what was released of the n-grams that were asked for."""
        self.ngrams[asked], self.deviation[asked] = found.ngrams, found.deviation
        self.visible[asked], self.counted[:] = found.is_visible, True
        self.stays[asked] |= self.own[asked] & found.may_stay

    def kept(self) -> "_Counted":
        """The same without what may not be in the model."""
        return self._only(closed_under_parents(self.topology, self.stays | self.visible))

    def _only(self, keep: BoolArray) -> "_Counted":
        return _Counted(subtopology(self.topology, keep), *(getattr(self, name)[keep] for name in _BY_ARC))

    def without(self, answered: HashArray) -> "_Counted":
        """The same without n-grams that were proposed again, after devices had answered for them."""
        again = ~self.counted & np.isin(ngram_hashes(self.topology), answered)
        self.counted |= again  # so that nobody asks for them, even if another n-gram needed them
        return self._only(closed_under_parents(self.topology, ~again))


_BY_ARC = ("ngrams", "deviation", "counted", "own", "stays", "visible")


def ngram_hashes(topology: Topology) -> HashArray:
    """A number for the n-gram of every arc, the same on every topology over the same words."""
    matrix, _ = ngram_matrix(topology)
    hashes = np.zeros(topology.arcs, np.uint64)
    for word in matrix.T:
        mixed = (hashes ^ (word + 1).astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        hashes = np.where(word >= 0, mixed ^ (mixed >> np.uint64(29)), hashes)
    return hashes


def _likely(model: NGramModel, state: _Counted) -> FloatArray:
    """S(x, q) to grow from: the counts, and if they are noisy, what can be believed of them."""
    if not np.any(np.isfinite(state.deviation) & (state.deviation > 0)):
        return state.ngrams
    wide = express_on(renormalize(model), state.topology)
    return trusted_counts(wide, state.ngrams, state.deviation).ngrams


def _count(passes: Passes, release: CountRelease, number: int, asked: AskedNGrams) -> Released:
    """One pass, and what may be used of it."""
    return release.release(number, asked, passes.run(release.task(asked, passes.choice), "n-grams", asked.size))


def count_on_devices(
    model: NGramModel, passes: Passes, plan: CountingPlan, public: BoolArray | None = None
) -> CountedNGrams:
    """The devices' counts on a topology of n-grams that may be in the result: the model's, and others that join them.

    The n-grams of the model that are `public` stay in it, whoever typed them; by default, none is public. The release
    says whether all others stay too, or only those that enough devices have.
    """
    words, growth, release = len(model.vocabulary), plan.growth, plan.release
    known = np.zeros(model.topology.arcs, bool) if public is None else public
    own = np.ones(len(known), bool)
    state = _Counted.nothing(model.topology, own, known if release.drops_hidden else own)
    if plan.sketch:
        finder = PairCollection(
            model.vocabulary, plan.sketch.size, labels=plan.sketch.labels, with_unknown=model.has_unknown
        )
        pairs = finder.found(passes.run(finder, "pairs"), least=release.part_devices, most=growth.most)
        rows = Ragged.concatenate([ngrams_of(model.topology), pairs])
        state = state.on(topology_from_ngrams(rows, words, open_vocabulary=model.has_unknown))
    answered = np.zeros(0, np.uint64)  # hashes of all n-grams that devices were asked for
    for number in range(growth.passes + 1):
        asked = AskedNGrams(state.topology, model.vocabulary, ~state.counted)
        if not asked.size:
            break
        answered = np.union1d(answered, ngram_hashes(state.topology)[asked.asked])
        count = partial(_count, passes, release, number, asked)
        state.take(asked.asked, passes.released(count) if release.draws_noise else count())
        state = state.kept()
        if number < growth.passes:
            parts = release.parts(state.stays, state.visible)
            state = state.on(propose(state.topology, _likely(model, state), parts, words, growth)).without(answered)
    return CountedNGrams(state.topology, state.ngrams, state.deviation, tuple(passes.reports))
