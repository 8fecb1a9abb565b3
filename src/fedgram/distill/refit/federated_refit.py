"""The federated refit: a distilled model fitted to what devices counted, with the network as its prior.

A distilled model knows what its network learned, averaged over histories. Devices can count the n-grams of its
topology on their own text (`ngram_collection`), and of the n-grams that the counts make likely (`ngram_growth`). The
server then joins both. With C(x, q) the devices' counts at state q, p(x|q) the distilled model and q' the backoff of q,

    c(x, q) = C(x, q) + the number of longer n-grams (q'', x) that occurred, q'' backing off to q      (Kneser-Ney)
    w_q[x]  = (max(c − D_c, 0) + R(q)·(μ·p(x|q) + (1−μ)·w_q'[x]) + β·p(x|q)) / (Σ_x c + C(φ, q) + β)

D_c is the discount of a count of 1, 2 or more, and R(q) = Σ_x min(c, D_c) what it takes away. So β visits of the
network are added to those of the devices: without any counts the refit is the distilled model, with many it is theirs.
The result is pruned to the budget by relative entropy. Beyond the paper.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.automata.build import NGramTopology, ngrams_of, topology_from_ngrams
from fedgram.automata.counting import express_on
from fedgram.automata.model import NGramModel, model_from_weights, renormalize
from fedgram.automata.prune import closed_under_parents, prune_to_size, subtopology
from fedgram.automata.smoothing import continuation_counts
from fedgram.automata.topology import Topology, arc_sources, backoff_arcs
from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged, sum_by
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.core.random import stream_key
from fedgram.distill.refit.ngram_collection import COUNT, Limits, NGramCollection, occurrences, topology_counts
from fedgram.distill.refit.ngram_growth import Growth, propose
from fedgram.distill.refit.pair_sketch import PairCollection, SketchSize
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Fleets, Job
from fedgram.federated.rounds import RunOptions, Tell, run_rounds
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import FederatedTask, State


@dataclass(frozen=True, slots=True)
class Prior:
    """How counts and distilled model are joined: β, the discounts of counts of 1, 2 and more, and μ."""

    visits: float = 3.0
    discounts: tuple[float, float, float] = (0.65, 1.0, 1.3)
    share: float = 0.6

    def __post_init__(self) -> None:
        if not (0 < self.visits < np.inf and 0 <= self.share <= 1):
            raise FedgramError("the prior's visits must be greater than 0, and its share between 0 and 1")
        if not all(0 <= d <= k for k, d in enumerate(self.discounts, 1)):
            raise FedgramError("the discounts of counts of 1, 2 and 3 must lie between 0 and the count")


def refit(model: NGramModel, count: LongArray, prior: Prior) -> NGramModel:
    """The model of the devices' counts C(x, q) on the topology of a normalised model, which is the prior."""
    t = model.topology
    lower, source = backoff_arcs(t), arc_sources(t)
    S, _ = occurrences(t, count)
    c = continuation_counts(lower, S.astype(np.float64))
    discount = np.array([0.0, *prior.discounts])[np.minimum(np.ceil(c), 3.0).astype(np.int64)]
    discount[: t.first_arc[1]] = 0.0
    kept = np.maximum(c - discount, 0.0)
    rest = sum_by(source, c - kept, t.states)
    total = sum_by(source, c, t.states) + topology_counts(t, count).backoff
    p = np.exp(model.log_weight)
    return model_from_weights(
        t, model.vocabulary, _join(t.first_arc, lower, kept, rest, total, p, prior.visits, prior.share)
    )  # fmt: skip


@kernel
def _join(
    first_arc: LongArray, lower: IntArray, kept: FloatArray, rest: FloatArray, total: FloatArray, p: FloatArray,
    beta: float, share: float,
) -> FloatArray:  # fmt: skip
    weight = np.empty(len(p))
    for q in range(len(first_arc) - 1):
        for e in range(first_arc[q], first_arc[q + 1]):
            below = weight[lower[e]] if q else p[e]
            spread = rest[q] * (share * p[e] + (1.0 - share) * below)
            weight[e] = (kept[e] + spread + beta * p[e]) / (total[q] + beta)
    return weight


@dataclass(frozen=True, slots=True)
class RefitOptions:
    """How to ask the devices, what to propose to them, and how to join what they say with the model.

    Pairs of words are looked for first, by a sketch, unless there is none. With `masking` the server learns sums alone.
    """

    limits: Limits = field(default_factory=Limits)
    plan: RoundPlan = field(default_factory=RoundPlan)
    sketch: SketchSize | None = field(default_factory=SketchSize)
    growth: Growth = field(default_factory=Growth)
    prior: Prior = field(default_factory=Prior)
    max_ngrams: int = 1_500_000
    masking: SecureSettings | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CountedNGrams:
    """C(x, q) of the devices on a topology, and what happened in every pass over them."""

    topology: Topology
    count: LongArray
    passes: tuple[Mapping[str, Any], ...]


ATTEMPTS = 100  # at a round of simulated devices: the last ones of a pass may drop out again and again


class Passes:
    """Passes over the devices of a fleet: in each, every device takes part once, as far as it can be reached.

    `on_pass` is told what is counted next, and on what topology; `tell` of every event in a round. With a folder, an
    interrupted pass resumes.
    """

    def __init__(
        self, fleets: Fleets, options: RefitOptions, *, seed: int, folder: Path | None = None,
        on_pass: Callable[[str, Topology | None], object] = lambda *_: None, tell: Tell = lambda *_: None,
    ) -> None:  # fmt: skip
        self._fleets, self._options, self._seed, self._folder = fleets, options, seed, folder
        self._on_pass, self._tell = on_pass, tell
        self.reports: list[Mapping[str, Any]] = []

    def run(self, task: FederatedTask[State], what: str, topology: Topology | None = None) -> State:
        """The state of a task after a pass."""
        number = len(self.reports)
        self._on_pass(what, topology)
        job = Job(task, int(stream_key(self._seed, "refit", number) >> np.uint64(1)), participations=1)
        run = run_rounds(
            job, self._fleets(job), RunOptions(None, self._options.plan, self._options.masking),
            folder=self._folder / f"pass-{number}" if self._folder else None, tell=self._tell,
        )  # fmt: skip
        self.reports.append({"rounds": run.progress.round, **run.progress.tally.fields()})
        return run.state


def count_on_devices(model: NGramModel, passes: Passes, options: RefitOptions) -> CountedNGrams:
    """The devices' counts on a topology that has the model's n-grams; in a pass every device is counted at most once.

    N-grams beside the model's are left out unless a device has them.
    """
    words, growth, limits = len(model.vocabulary), options.growth, options.limits
    built = NGramTopology(model.topology, np.arange(model.topology.arcs, dtype=np.int32))
    if options.sketch:
        finder = PairCollection(model.vocabulary, options.sketch, labels=limits.labels, with_unknown=model.has_unknown)
        pairs = finder.found(passes.run(finder, "pairs"), least=growth.least, most=growth.most)
        rows = Ragged.concatenate([ngrams_of(model.topology), pairs])
        built = topology_from_ngrams(rows, words, open_vocabulary=model.has_unknown)
    own = np.zeros(built.topology.arcs, bool)
    own[built.arc[: model.topology.arcs]] = True
    for number in range(growth.passes + 1):
        task = NGramCollection(built.topology, model.vocabulary, limits)
        count = passes.run(task, "n-grams", built.topology)[COUNT]
        keep = closed_under_parents(built.topology, own | (occurrences(built.topology, count)[0] > 0))
        topology, count, own = subtopology(built.topology, keep), count[keep], own[keep]
        if number < growth.passes:
            built = propose(topology, count, words, growth)
            grown = np.zeros(built.topology.arcs, bool)
            grown[built.arc[: topology.arcs][own]] = True
            own = grown
    return CountedNGrams(topology, count, tuple(passes.reports))


def refit_to_counts(model: NGramModel, counted: CountedNGrams, options: RefitOptions) -> NGramModel:
    """The model fitted to the devices' counts, within the budget."""
    prior = express_on(renormalize(model), counted.topology)
    return prune_to_size(refit(prior, counted.count, options.prior), options.max_ngrams, split_ties=True)
