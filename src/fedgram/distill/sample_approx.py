"""SampleApprox: the model on a given topology that is closest to a source of samples and probabilities.

It has two steps. Counting: k samples of the source are read by the topology, and the source's probabilities are added
up on its arcs. Minimisation: the counts determine the model with the least KL divergence from the source.

Counting is a sum over samples, taken shard by shard. Memory is that of the topology and of one batch, shards can be
shared by any number of threads or machines, and an interrupted count resumes after its last complete shard. Paper: §4.
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
LEAST_WEIGHT = float(np.exp(-18.0))  # of any n-gram; a model that joins two such models still has at least e⁻²⁰
MANY_UNVISITED = 0.1  # the share of unvisited n-grams above which there is a warning


class Counting(Protocol):
    """A way to count samples on a topology, such as those of SampleApprox and CapSampleApprox."""

    @property
    def digest(self) -> str:
        """A digest of everything that the counts depend on."""

    def zero(self) -> SampleCounts:
        """The counts of no samples."""

    def add(self, counts: SampleCounts, samples: range) -> None:
        """Count the samples with these numbers."""

    def finish(self, counts: SampleCounts) -> TopologyCounts:
        """C(x, q), C(φ, q) and N(q) of all samples."""


@dataclass(frozen=True, slots=True, eq=False)
class PlainCounting:
    """The counting step of SampleApprox, on a topology over the source's vocabulary."""

    source: SourceModel
    topology: Topology
    seed: int

    @property
    def digest(self) -> str:
        """Of the source, the topology and the seed."""
        return content_digest({"source": self.source.digest, "seed": self.seed}, topology_arrays(self.topology))

    def zero(self) -> SampleCounts:
        """No counts, on the topology."""
        return SampleCounts.zero(self.topology)

    def add(self, counts: SampleCounts, samples: range) -> None:
        """Walk the source and the topology together, position by position."""
        states = np.full(len(samples), self.topology.start, np.int32)
        for step in self.source.walk(samples, seed=self.seed):
            at = states[step.sample]
            counts.add(step.p, step.row, at, step.entropy)
            states[step.sample] = next_states(self.topology, at, step.word)

    def finish(self, counts: SampleCounts) -> TopologyCounts:
        """C(x, q), C(φ, q) and N(q)."""
        return counts.counts()


@runtime_checkable
class CountsItself(Protocol):
    """A source with its own way to count, which gives the same counts as `PlainCounting`."""

    def counting(self, topology: Topology, seed: int) -> Counting:
        """Its way to count on a topology over its labels."""


class NGramCounting:
    """The counting step for an n-gram model as the source, on the topology of another n-gram model.

    The source's probabilities depend on its state alone, so it is enough to count visits. They are counted on the union
    of both topologies, whose states determine those of the source and of the target.
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
        """No counts, on the union."""
        return SampleCounts.zero(self.topology)

    def add(self, counts: SampleCounts, samples: range) -> None:
        """Count visits."""
        states = visited_states(self.topology, self.source.sample(samples, seed=self.seed))
        counts.visits += np.bincount(states, minlength=self.topology.states)
        counts.add_entropy(self.entropies[states])

    def finish(self, counts: SampleCounts) -> TopologyCounts:
        """The counts on the target: the source's probabilities, times its visits."""
        exact = counts_from_visits(self.refined, counts.visits.astype(np.float64), float(counts.samples))
        return fold_counts(exact, self.target, self.arc)


def counting_step(source: SourceModel, topology: Topology, seed: int) -> Counting:
    """The fastest way to count a source on an n-gram topology over its labels."""
    if isinstance(source, NGramSource):
        return NGramCounting(source, topology, seed)
    return plain_counting_step(source, topology, seed)


def plain_counting_step(source: SourceModel, topology: Topology, seed: int) -> Counting:
    """The fastest way to count on any backoff-complete topology; a source may provide its own."""
    if isinstance(source, CountsItself):
        return source.counting(topology, seed)
    return PlainCounting(source, topology, seed)


def topology_arrays(topology: Topology) -> dict[str, np.ndarray]:
    """The arrays of a topology by name."""
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
        """The number of this process."""

    @property
    def size(self) -> int:
        """The number of processes."""

    def sum(self, arrays: Sequence[LongArray]) -> list[LongArray]:
        """The sums of the arrays over all processes, each of which must call it."""


class Alone:
    """A single process."""

    rank, size = 0, 1

    def sum(self, arrays: Sequence[LongArray]) -> list[LongArray]:
        """The arrays themselves."""
        return list(arrays)


ALONE = Alone()


@dataclass(frozen=True, slots=True)
class CountingOptions:
    """How to count; none of the options changes the counts.

    Attributes:
        workers: The number of threads in each process.
        batch: The number of samples that are walked together.
        checkpoint: Where to save the counts after each shard, to resume an interrupted count.
        on_samples: A progress callback, with the number of samples counted since its last call.
        ranks: The processes that share the samples.
        shard: The number of samples that a thread counts at a time.
        cores: The number of threads for work without the source, such as adding capitals; by default `workers`.
    """

    workers: int = 1
    batch: int = BATCH
    checkpoint: Checkpoint | None = None
    on_samples: Callable[[int], object] = lambda _: None
    ranks: Ranks = ALONE
    shard: int = SHARD
    cores: int | None = None


ONE_WORKER = CountingOptions()


def count_samples(counting: Counting, samples: int, options: CountingOptions = ONE_WORKER) -> SampleCounts:
    """Count samples 0 … samples − 1."""
    if samples < 1 or options.batch < 1 or options.workers < 1:
        raise FedgramError("the number of samples, the batch size and the number of workers must be at least 1")
    ranks, checkpoint = options.ranks, options.checkpoint
    total = counting.zero()
    if checkpoint:
        total = checkpoint.read(total, counting.digest, samples) if ranks.rank == 0 else total
        total = _over_ranks(total, ranks)
        options.on_samples(total.samples)
    shards = [range(a, min(a + options.shard, samples)) for a in range(total.samples, samples, options.shard)]
    own = _in_order(counting, shards[ranks.rank :: ranks.size], options)
    part = counting.zero()
    for _ in range(0, len(shards), ranks.size):  # one shard per rank, until there are no more
        part = part + next(own, counting.zero())
        if checkpoint:
            total, part = total + _over_ranks(part, ranks), counting.zero()
            if ranks.rank == 0:
                checkpoint.write(total, counting.digest)
    return total if checkpoint else total + _over_ranks(part, ranks)


def _over_ranks(counts: SampleCounts, ranks: Ranks) -> SampleCounts:
    """The sum of the counts of all ranks."""
    if ranks.size == 1:
        return counts
    numbers = np.array([counts.samples, counts.entropy or 0, counts.entropy is None], np.int64)
    summed, visits, source_visits, numbers = ranks.sum([counts.summed, counts.visits, counts.source_visits, numbers])
    samples, entropy, unknown = numbers.tolist()
    return SampleCounts(counts.topology, summed, visits, source_visits, samples, None if unknown else entropy)


def _in_order(counting: Counting, ranges: Sequence[range], options: CountingOptions) -> Iterator[SampleCounts]:
    """The counts of shards in order; at most one per worker is in memory."""
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
    """A model fitted to counts, with cross-entropies in nats per sentence.

    The KL divergence of a model from the source is its cross-entropy minus the source's entropy.

    Attributes:
        model: The model with the least KL divergence.
        counts: The counts that it was fitted to.
        before: The cross-entropy of the model that has the source's mean probabilities over visits ("summed").
        after: The cross-entropy of `model`.
        unvisited: The number of states without visits; they use the probabilities of their backoff.
        entropy: The source's entropy, or None if it is not known.
    """

    model: NGramModel
    counts: TopologyCounts
    before: float
    after: float
    unvisited: int
    entropy: float | None = None

    @property
    def unvisited_ngrams(self) -> int:
        """The number of n-grams whose probability after their history no sample visited."""
        return int(np.sum(unvisited_ngrams(self.counts)))

    @property
    def warning(self) -> str | None:
        """A warning if many n-grams were never visited, or None."""
        never, ngrams = self.unvisited_ngrams, self.counts.topology.arcs
        if never <= MANY_UNVISITED * ngrams:
            return None
        return (
            f"{never:,} of {ngrams:,} n-grams were never visited by a sample, and their probabilities are "
            "estimated from shorter histories; use more samples, or a topology that is closer to the source"
        )


def fit(counts: TopologyCounts, vocabulary: Vocabulary, *, entropy: float | None = None) -> Fit:
    """The model with the least KL divergence from sampled counts.

    Each visited state gets one additional visit, distributed like its summed counts. This smooths the weights of rarely
    visited states. A state without visits uses the probabilities of its backoff. No n-gram is impossible: every weight
    is at least LEAST_WEIGHT before the weights of its state are scaled to sum to 1.
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
    """SampleApprox(source, topology), for a topology over the source's vocabulary (see `adopt_topology`)."""
    counting = counting_step(source, topology, seed)
    counted = count_samples(counting, samples, options)
    return fit(counting.finish(counted), source.vocabulary, entropy=counted.source_entropy)
