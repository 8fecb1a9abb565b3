"""SampleApprox: the model on a topology that is closest to a source which can only be sampled and asked.

Count, then minimise: k samples of the source walk the topology and leave their probabilities on its arcs; the counts
determine the model with the least KL divergence from the source. Counting is a sum over samples, taken shard by shard:
memory is the topology and a batch, shards may go to any number of threads or machines, and a count that was interrupted
goes on from its last whole shard. Paper: §4.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fedgram.automata.build import union_topology
from fedgram.automata.counting import (
    TopologyCounts,
    counts_from_visits,
    cross_entropy,
    express_on,
    fold_counts,
    next_states,
    summed_counts,
    unvisited_ngrams,
    visited_states,
)
from fedgram.automata.kl_minimize import minimize_kl, summed_model
from fedgram.automata.model import NGramModel
from fedgram.automata.topology import Topology
from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.storage import content_digest
from fedgram.distill.checkpoint import Checkpoint
from fedgram.distill.sample_counts import SampleCounts
from fedgram.distill.source import NGramSource, SourceModel, state_entropies
from fedgram.text.vocabulary import Vocabulary

BATCH = 1024
SHARD = 16 * BATCH
PRIOR_VISITS = 1.0
LEAST_WEIGHT = float(np.exp(-18.0))  # of any n-gram; a model joined from two still has e⁻²⁰
MANY_UNVISITED = 0.1  # a larger share of unvisited n-grams gives a warning


class Counting(Protocol):
    """A way to count samples on a topology, such as SampleApprox's and CapSampleApprox's."""

    @property
    def digest(self) -> str:
        """A name of all that the counts depend on."""

    def zero(self) -> SampleCounts:
        """The counts of no samples."""

    def add(self, counts: SampleCounts, samples: range) -> None:
        """Count the samples of these numbers."""

    def finish(self, counts: SampleCounts) -> TopologyCounts:
        """C(x, q), C(φ, q) and N(q) of all samples."""


@dataclass(frozen=True, slots=True, eq=False)
class PlainCounting:
    """The counting step of SampleApprox; the topology is over the source's vocabulary."""

    source: SourceModel
    topology: Topology
    seed: int

    @property
    def digest(self) -> str:
        """Of the source, the topology and the seed."""
        return content_digest({"source": self.source.digest, "seed": self.seed}, topology_arrays(self.topology))

    def zero(self) -> SampleCounts:
        """On the topology."""
        return SampleCounts.zero(self.topology)

    def add(self, counts: SampleCounts, samples: range) -> None:
        """Let the samples walk the topology in lock-step."""
        states = np.full(len(samples), self.topology.start, np.int32)
        for step in self.source.walk(samples, seed=self.seed):
            at = states[step.sample]
            counts.add(step.p, step.row, at, step.entropy)
            states[step.sample] = next_states(self.topology, at, step.word)

    def finish(self, counts: SampleCounts) -> TopologyCounts:
        """From summed counts."""
        return counts.counts()


@runtime_checkable
class CountsItself(Protocol):
    """A source that has a way to count of its own, with the same result: where its probabilities are."""

    def counting(self, topology: Topology, seed: int) -> Counting:
        """The way to count on a topology over its labels."""


class NGramCounting:
    """The same for an n-gram model on the topology of another.

    What the source says next depends on its state alone. So visits are all there is to count: on the union of both
    topologies, whose states tell those of the source and of the target.
    """

    def __init__(self, source: NGramSource, topology: Topology, seed: int) -> None:
        self.source, self.target, self.seed = source, topology, seed
        words = len(source.vocabulary)
        self.topology, (_, self.arc) = union_topology([source.model.topology, topology], words)
        self.refined = express_on(source.model, self.topology)
        self.entropies = state_entropies(self.refined)

    @property
    def digest(self) -> str:
        """Of the source, the topology and the seed."""
        return PlainCounting(self.source, self.target, self.seed).digest

    def zero(self) -> SampleCounts:
        """On the union."""
        return SampleCounts.zero(self.topology)

    def add(self, counts: SampleCounts, samples: range) -> None:
        """Count visits."""
        states = visited_states(self.topology, self.source.sample(samples, seed=self.seed))
        counts.visits += np.bincount(states, minlength=self.topology.states)
        counts.add_entropy(self.entropies[states])

    def finish(self, counts: SampleCounts) -> TopologyCounts:
        """What the source says at its visits, on the target."""
        exact = counts_from_visits(self.refined, counts.visits.astype(np.float64), float(counts.samples))
        return fold_counts(exact, self.target, self.arc)


def counting_step(source: SourceModel, topology: Topology, seed: int) -> Counting:
    """The fastest way to count a source on an n-gram topology over its labels."""
    if isinstance(source, NGramSource):
        return NGramCounting(source, topology, seed)
    return plain_counting_step(source, topology, seed)


def plain_counting_step(source: SourceModel, topology: Topology, seed: int) -> Counting:
    """The fastest way on any backoff-complete topology; a source may know one itself."""
    if isinstance(source, CountsItself):
        return source.counting(topology, seed)
    return PlainCounting(source, topology, seed)


def topology_arrays(topology: Topology) -> dict[str, np.ndarray]:
    """A topology by the names of its arrays."""
    return {
        "first_arc": topology.first_arc,
        "label": topology.label,
        "dest": topology.dest,
        "backoff": topology.backoff,
    }


class Ranks(Protocol):
    """Processes that share the samples, such as `neural.ranks.Ranks`."""

    @property
    def rank(self) -> int:
        """The number of this one."""

    @property
    def size(self) -> int:
        """How many there are."""

    def sum(self, arrays: Sequence[LongArray]) -> list[LongArray]:
        """The sums of arrays over all of them; all must call it."""


class Alone:
    """A process by itself."""

    rank, size = 0, 1

    def sum(self, arrays: Sequence[LongArray]) -> list[LongArray]:
        """The arrays themselves."""
        return list(arrays)


ALONE = Alone()


@dataclass(frozen=True, slots=True)
class CountingOptions:
    """How to count.

    `workers` threads and `ranks` processes share the samples, a shard of `shard` samples each at a time; `batch`
    samples walk in lock-step; `checkpoint` is where a count that is interrupted goes on; `on_samples` is told of
    samples as they are counted. None of these changes the counts.
    """

    workers: int = 1
    batch: int = BATCH
    checkpoint: Checkpoint | None = None
    on_samples: Callable[[int], object] = lambda _: None
    ranks: Ranks = ALONE
    shard: int = SHARD


ONE_WORKER = CountingOptions()


def count_samples(counting: Counting, samples: int, options: CountingOptions = ONE_WORKER) -> SampleCounts:
    """Count samples 0 … samples − 1."""
    if samples < 1 or options.batch < 1 or options.workers < 1:
        raise FedgramError("the numbers of samples, of samples a batch and of workers must be at least 1")
    ranks, checkpoint = options.ranks, options.checkpoint
    total = counting.zero()
    if checkpoint:
        total = checkpoint.read(total, counting.digest, samples) if ranks.rank == 0 else total
        total = _over_ranks(total, ranks)
        options.on_samples(total.samples)
    shards = [range(a, min(a + options.shard, samples)) for a in range(total.samples, samples, options.shard)]
    own = _in_order(counting, shards[ranks.rank :: ranks.size], options)
    part = counting.zero()
    for _ in range(0, len(shards), ranks.size):  # a shard for every rank, as long as there are some
        part = part + next(own, counting.zero())
        if checkpoint:
            total, part = total + _over_ranks(part, ranks), counting.zero()
            if ranks.rank == 0:
                checkpoint.write(total, counting.digest)
    return total if checkpoint else total + _over_ranks(part, ranks)


def _over_ranks(counts: SampleCounts, ranks: Ranks) -> SampleCounts:
    """The counts of all ranks; of those without samples nothing but zeros is known."""
    if ranks.size == 1:
        return counts
    numbers = np.array([counts.samples, counts.entropy or 0, counts.entropy is None], np.int64)
    summed, visits, source_visits, numbers = ranks.sum([counts.summed, counts.visits, counts.source_visits, numbers])
    samples, entropy, unknown = numbers.tolist()
    return SampleCounts(counts.topology, summed, visits, source_visits, samples, None if unknown else entropy)


def _in_order(counting: Counting, ranges: Sequence[range], options: CountingOptions) -> Iterator[SampleCounts]:
    """The counts of shards, one after the other; few of them are in memory at a time."""
    shards = deque(ranges)
    running: deque[Future[SampleCounts]] = deque()
    with ThreadPoolExecutor(options.workers) as pool:
        try:
            while shards or running:
                while shards and len(running) < options.workers:
                    running.append(pool.submit(count_shard, counting, shards.popleft(), options))
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()


def count_shard(counting: Counting, samples: range, options: CountingOptions) -> SampleCounts:
    """Count the samples of one shard, batch by batch."""
    counts = counting.zero()
    for first in range(samples.start, samples.stop, options.batch):
        batch = range(first, min(first + options.batch, samples.stop))
        counting.add(counts, batch)
        options.on_samples(len(batch))
    counts.samples = len(samples)
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A model fitted to counts, and how far it is from them, in nats a sentence.

    `before` is the cross-entropy of the model that takes the source's average probability over visits ("summed"),
    `after` that of the KL minimum, and `entropy` the source's, where it is known: the differences are the divergences.
    `unvisited` states follow their backoff.
    """

    model: NGramModel
    counts: TopologyCounts
    before: float
    after: float
    unvisited: int
    entropy: float | None = None

    @property
    def unvisited_ngrams(self) -> int:
        """The n-grams for whose last word the source was never asked after their history."""
        return int(np.sum(unvisited_ngrams(self.counts)))

    @property
    def warning(self) -> str | None:
        """A sentence for people if many n-grams were never visited."""
        never, ngrams = self.unvisited_ngrams, self.counts.topology.arcs
        if never <= MANY_UNVISITED * ngrams:
            return None
        return (
            f"{never:,} of {ngrams:,} n-grams were never visited by a sample, and their probabilities are "
            "estimated from shorter histories; use more samples, or a topology that is closer to the source"
        )


def fit(counts: TopologyCounts, vocabulary: Vocabulary, *, entropy: float | None = None) -> Fit:
    """The KL minimum of sampled counts.

    One visit more to each visited state, distributed as its summed counts are, keeps rarely visited states sane at
    labels that were not read there by chance; a state that was not visited follows its backoff. No n-gram is
    impossible: before a state is scaled to sum to 1, every weight is at least LEAST_WEIGHT.
    """
    model = minimize_kl(counts, vocabulary, prior_visits=PRIOR_VISITS, floor=LEAST_WEIGHT)
    _, through = summed_counts(counts)
    return Fit(
        model, counts,
        before=cross_entropy(counts, summed_model(counts, vocabulary)),
        after=cross_entropy(counts, model),
        unvisited=int(np.sum(through <= 0.0)),
        entropy=entropy,
    )  # fmt: skip


def sample_approx(
    source: SourceModel,
    topology: Topology,
    *,
    samples: int,
    seed: int,
    options: CountingOptions = ONE_WORKER,
) -> Fit:
    """SampleApprox(source, topology): the topology is over the source's vocabulary (see `adopt_topology`)."""
    counting = counting_step(source, topology, seed)
    counted = count_samples(counting, samples, options)
    return fit(counting.finish(counted), source.vocabulary, entropy=counted.source_entropy)
