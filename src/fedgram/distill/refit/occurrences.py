"""How often n-grams and their histories occur, on a topology: S(x, q) and T(q), and what follows from them.

A history occurs as often as its own n-gram, and `<s>` as often as a sentence ends. Exact counts of a text are
consistent: an n-gram occurs at least as often as all its extensions to the left together, and a history at least as
often as what follows it. Limits on devices, noise, and devices that missed a pass break this, and `consistent` restores
it by raising what is too low.
"""

from typing import NamedTuple

import numpy as np

from fedgram.automata.counting import TopologyCounts, counts_from_arcs
from fedgram.automata.topology import Topology, arc_sources, backoff_arcs, entering_arcs
from fedgram.core.arrays import FloatArray, IntArray, sum_by
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import EOS


class Occurrences(NamedTuple):
    """S(x, q) by arc and T(q) by state."""

    ngrams: FloatArray
    histories: FloatArray


def consistent(topology: Topology, ngrams: FloatArray) -> Occurrences:
    """S(x, q), raised to what the counts of longer n-grams demand, and T(q)."""
    t = topology
    S = _raised(ngrams.astype(np.float64), backoff_arcs(t))
    entering = entering_arcs(t)
    T = np.where(entering >= 0, S[np.maximum(entering, 0)], 0.0)
    T[t.start] = max(float(T[t.start]), sentences_of(t, S))
    return Occurrences(S, np.maximum(T, sum_by(arc_sources(t), S, t.states)))


def sentences_of(topology: Topology, ngrams: FloatArray) -> float:
    """The number of sentences: that of their ends."""
    return float(ngrams[np.searchsorted(topology.label[: topology.first_arc[1]], EOS)])


def flow_counts(topology: Topology, found: Occurrences) -> TopologyCounts:
    """C(x, q), C(φ, q) and N(q) of the text: what each state reads itself, and what it leaves to its backoff."""
    t, (S, T) = topology, found
    lower = backoff_arcs(t)
    longer = np.flatnonzero(lower >= 0)
    read = np.maximum(S - sum_by(lower[longer], S[longer], t.arcs), 0.0)
    visits = np.maximum(T - sum_by(t.backoff[1:], T[1:], t.states), 0.0)
    return counts_from_arcs(t, read, visits, max(sentences_of(t, S), 1.0))


@kernel
def _raised(values: FloatArray, parent: IntArray) -> FloatArray:
    """Raise every value to at least the sum of its children; children come after their parents."""
    demanded = np.zeros(len(values))
    for i in range(len(values) - 1, -1, -1):
        values[i] = max(values[i], demanded[i])
        if parent[i] >= 0:
            demanded[parent[i]] += values[i]
    return values
