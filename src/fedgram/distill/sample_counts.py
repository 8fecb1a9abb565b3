"""Counts of samples on a topology, as sums in fixed point.

For each arc, S(x, q) is the probability of x, summed over all visits whose backoff path contains q. For each state,
N(q) is the number of visits. A probability is rounded to 34 fraction bits when it is added. Sums of integers are exact,
so the counts are the same for any batches, workers and machines. The counts of SampleApprox,

    C(x, q) = S(x, q) − Σ_{q' backs off to q, x ∈ L[q']} S(x, q'),

are differences of sums of the same rounded numbers: they are exact, and never negative. Paper: §4.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.automata.counting import TopologyCounts, counts_from_arcs
from fedgram.automata.topology import Topology, backoff_arcs
from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.fixed_point import BITS, SCALE
from fedgram.core.jit import kernel

MOST_VISITS = 1 << (62 - BITS)  # whose sums fit into 64 bits
ENTROPY_BITS = 24  # fraction bits of summed entropies


@dataclass(slots=True, eq=False)
class SampleCounts:
    """The sums over some samples.

    Attributes:
        topology: The topology that is counted on.
        summed: S(x, q) for each arc, in fixed point.
        visits: N(q) for each state.
        source_visits: Where the source is an automaton, the visits to its states; some ways to count use them in place
            of `summed`.
        samples: The number of samples.
        entropy: The sum of the source's entropies over all visits, in fixed point, or None if it is not known.
    """

    topology: Topology
    summed: LongArray
    visits: LongArray
    source_visits: LongArray
    samples: int = 0
    entropy: int | None = 0

    @classmethod
    def zero(cls, topology: Topology, source_states: int = 0) -> "SampleCounts":
        """The counts of no samples."""
        summed, visits = np.zeros(topology.arcs, np.int64), np.zeros(topology.states, np.int64)
        return cls(topology, summed, visits, np.zeros(source_states, np.int64))

    def add(
        self, p: NDArray[np.floating[Any]], row: LongArray, states: IntArray, entropy: FloatArray | None = None
    ) -> None:
        """Count one visit for each of `states`, with the probabilities `p[row]`."""
        t = self.topology
        if int(t.label[: t.first_arc[1]].max(initial=0)) >= p.shape[1]:
            raise InvariantError("SampleCounts: the topology reads labels that the source does not have")
        order = np.lexsort((states, row))
        _add(t.first_arc, t.label, t.backoff, self.summed, self.visits, p, row[order], states[order])
        self.add_entropy(None if entropy is None else entropy[row])

    def add_entropy(self, entropy: FloatArray | None) -> None:
        """Add the entropies of visits; if one is not known, the sum is not known."""
        if entropy is None or self.entropy is None:
            self.entropy = None
        else:
            self.entropy += int(np.rint(entropy * 2.0**ENTROPY_BITS).astype(np.int64).sum())

    def __add__(self, other: "SampleCounts") -> "SampleCounts":
        """The counts of two disjoint sets of samples."""
        if self.summed.shape != other.summed.shape or self.visits.shape != other.visits.shape:
            raise InvariantError("SampleCounts: counts on different topologies cannot be added")
        entropy = None if self.entropy is None or other.entropy is None else self.entropy + other.entropy
        summed, visits = self.summed + other.summed, self.visits + other.visits
        if int(visits.sum()) > MOST_VISITS:
            raise FedgramError(f"more than {MOST_VISITS:,} visits cannot be counted; use fewer samples")
        source_visits, samples = self.source_visits + other.source_visits, self.samples + other.samples
        return SampleCounts(self.topology, summed, visits, source_visits, samples, entropy)

    @property
    def positions(self) -> int:
        """The number of visits."""
        return int(self.visits.sum())

    @property
    def source_entropy(self) -> float | None:
        """The source's entropy in nats per sentence, estimated from these samples, or None if it is not known."""
        return None if self.entropy is None else self.entropy * 2.0**-ENTROPY_BITS / max(self.samples, 1)

    def counts(self) -> TopologyCounts:
        """C(x, q), C(φ, q) and N(q)."""
        own = self.summed.copy()
        _subtract(own, self.summed, backoff_arcs(self.topology))
        arc = np.ldexp(own.astype(np.float64), -BITS)
        return counts_from_arcs(self.topology, arc, self.visits.astype(np.float64), float(max(self.samples, 1)))

    def __repr__(self) -> str:
        return f"SampleCounts({self.samples} samples, {self.positions} positions, {self.topology})"


@kernel
def _add(
    first_arc: LongArray, label: IntArray, backoff: IntArray, summed: LongArray, visits: LongArray,
    p: NDArray[np.floating[Any]], row: LongArray, states: IntArray,
) -> None:  # fmt: skip
    """Visits are sorted by row and state. Equal visits are added together, and the empty history's arcs at the end."""
    fixed, total = np.empty(p.shape[1], np.int64), np.zeros(p.shape[1], np.int64)
    scale = p.dtype.type(SCALE)
    i = 0
    while i < len(row):
        first, end = i, i
        while end < len(row) and row[end] == row[first]:
            end += 1
        line = p[row[first]]
        for x in range(len(line)):
            fixed[x] = np.int64(np.rint(line[x] * scale))
            total[x] += (end - first) * fixed[x]
        while i < end:
            j = i
            while j < end and states[j] == states[i]:
                j += 1
            visits[states[i]] += j - i
            add_path(first_arc, label, backoff, summed, fixed, states[i], j - i)
            i = j
    for e in range(first_arc[1]):
        summed[e] += total[label[e]]


@kernel
def add_path(
    first_arc: LongArray, label: IntArray, backoff: IntArray, summed: LongArray, fixed: LongArray, q: int, times: int
) -> None:
    """Add a row, multiplied by `times`, to the arcs on q's backoff path, without those of the empty history."""
    while q > 0:
        for e in range(first_arc[q], first_arc[q + 1]):
            summed[e] += times * fixed[label[e]]
        q = backoff[q]


@kernel
def _subtract(own: LongArray, summed: LongArray, lower: IntArray) -> None:
    for e in range(len(own)):
        if lower[e] >= 0:
            own[lower[e]] -= summed[e]
