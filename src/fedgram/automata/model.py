"""N-gram models and n-gram counts: a topology with numbers on it.

Invariants of `NGramModel` (checked in full by `properties`); natural logarithms, float64:

- N1  all weights are finite, and those of arcs are ≤ 0.
- N2  at every state the probabilities of all labels sum to 1 ± 1e-9.
- N3  w_q[φ] = (1 − Σ_{x∈L[q]} w_q[x]) / (1 − Σ_{x∈L[q]} p(x | backoff q)).

A model read from a foreign file keeps the file's numbers, which may satisfy N2 and N3 only to the file's precision;
`renormalize` establishes them.
"""

from dataclasses import dataclass

import numpy as np

from fedgram.automata.topology import Topology, backoff_arcs
from fedgram.core.arrays import FloatArray, IntArray, LongArray, frozen
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import UNK, Vocabulary

MIN_LOG = -99.0  # the weight of what has no probability left; OpenGrm's "effective zero"
MIN_WEIGHT = float(np.exp(MIN_LOG))


@dataclass(frozen=True, slots=True, eq=False)
class NGramModel:
    """A probability model on a topology; `log_backoff[0]` is 0 and means nothing."""

    topology: Topology
    vocabulary: Vocabulary
    log_weight: FloatArray
    log_backoff: FloatArray

    def __post_init__(self) -> None:
        if len(self.log_weight) != self.topology.arcs or len(self.log_backoff) != self.topology.states:
            raise InvariantError("NGramModel: weights and topology differ in size")
        if not (np.isfinite(self.log_weight).all() and np.isfinite(self.log_backoff).all()):
            raise InvariantError("NGramModel: a weight is not finite")
        if len(self.log_weight) and self.log_weight.max() > 0:
            raise InvariantError("NGramModel: a probability is greater than 1")
        frozen(self.log_weight)
        frozen(self.log_backoff)

    @property
    def has_unknown(self) -> bool:
        """Whether `<unk>` has a probability; if not, the vocabulary is closed."""
        return has_unknown(self.topology)

    def __repr__(self) -> str:
        return f"NGramModel(order {self.topology.order}, {self.topology.arcs} n-grams, {self.vocabulary})"


@dataclass(frozen=True, slots=True, eq=False)
class NGramCounts:
    """How often each n-gram of a topology occurs; counts may be fractions."""

    topology: Topology
    vocabulary: Vocabulary
    count: FloatArray

    def __post_init__(self) -> None:
        if len(self.count) != self.topology.arcs:
            raise InvariantError("NGramCounts: counts and topology differ in size")
        if not np.isfinite(self.count).all() or (len(self.count) and self.count.min() < 0):
            raise InvariantError("NGramCounts: a count is negative or not finite")
        frozen(self.count)


def has_unknown(topology: Topology) -> bool:
    """Whether the unigram state reads `<unk>`."""
    return bool(topology.first_arc[1] > 0 and topology.label[0] == UNK)


def model_from_weights(topology: Topology, vocabulary: Vocabulary, weight: FloatArray) -> NGramModel:
    """The model with these arc probabilities, and the backoff weights that N2 and N3 demand.

    The unigrams are scaled to sum to 1. A state's arcs are scaled down where they sum to more than 1, and scaled to
    exactly 1 where nothing is left to back off to.
    """
    weight = np.maximum(weight, MIN_WEIGHT)
    log_backoff = _fit_backoffs(topology.first_arc, topology.label, topology.backoff, backoff_arcs(topology), weight)
    return NGramModel(topology, vocabulary, np.minimum(np.log(weight), 0.0), log_backoff)


def renormalize(model: NGramModel) -> NGramModel:
    """The same arc probabilities, with N2 and N3 established."""
    return model_from_weights(model.topology, model.vocabulary, np.exp(model.log_weight))


@kernel
def uncovered(first_arc: LongArray, label: IntArray, q: int, below: int, weight: FloatArray) -> float:
    """The weight of the arcs of state `below` whose labels q does not read."""
    total, e = 0.0, first_arc[q]
    for f in range(first_arc[below], first_arc[below + 1]):
        if e < first_arc[q + 1] and label[e] == label[f]:
            e += 1
        else:
            total += weight[f]
    return total


@kernel
def _fit_backoffs(
    first_arc: LongArray, label: IntArray, backoff: IntArray, lower: IntArray, weight: FloatArray
) -> FloatArray:
    """Log w_q[φ] of N3 for every state; scales `weight` in place where N2 could not hold otherwise."""
    states = len(backoff)
    rest = np.zeros(states)  # 1 − Σ_{L[q]} w_q
    log_backoff = np.zeros(states)
    for q in range(states):
        begin, end = first_arc[q], first_arc[q + 1]
        total, lower_total = 0.0, 0.0
        for e in range(begin, end):
            total += weight[e]
            if q:
                lower_total += weight[lower[e]]
        room = 0.0
        if q:
            room = 1.0 - lower_total
            if room < 1e-3:  # the difference has cancelled: add up what is not in L[q] instead
                room = rest[backoff[q]] + uncovered(first_arc, label, q, backoff[q], weight)
        if total > 1.0 or room <= 1e-30:
            for e in range(begin, end):
                weight[e] /= total
            total = 1.0
        rest[q] = 1.0 - total
        if q:
            log_backoff[q] = np.log(rest[q] / room) if rest[q] > 0.0 and room > 0.0 else MIN_LOG
            log_backoff[q] = max(log_backoff[q], MIN_LOG)
    return log_backoff
