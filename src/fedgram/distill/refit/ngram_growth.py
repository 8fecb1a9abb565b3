"""Proposing n-grams for devices to count: those that their counts so far make likely.

An n-gram hx can be on k devices only if h and h'x are, where h' is h without its first word. And if x follows h as
often as it follows h', then hx occurs S(h)·S(h'x)/T(h') times. So the server proposes every hx whose parts are known
and that is expected at least τ times; devices then count it. A device never names an n-gram that was not proposed to
it. Beyond the paper.
"""

from dataclasses import dataclass

import numpy as np

from fedgram.automata.build import NGramTopology, ngrams_of, topology_from_ngrams
from fedgram.automata.model import has_unknown
from fedgram.automata.topology import Topology, arc_sources, ngram_matrix, state_lengths
from fedgram.core.arrays import BoolArray, FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.distill.refit.occurrences import consistent
from fedgram.text.vocabulary import BOS, EOS


@dataclass(frozen=True, slots=True)
class Growth:
    """How to propose n-grams.

    `passes` times, n-grams of `shortest` to `order` words that are expected `expected` times or more; where that makes
    more than `most` of one length, the likeliest of them.
    """

    passes: int
    shortest: int
    order: int
    expected: float = 0.05
    most: int = 5_000_000

    def __post_init__(self) -> None:
        if self.passes < 0 or self.shortest < 2 or self.most < 1 or not self.expected > 0:
            raise FedgramError("growth needs n-grams of 2 words or more, and what it expects to be greater than 0")


def propose(topology: Topology, ngrams: FloatArray, known: BoolArray, words: int, growth: Growth) -> NGramTopology:
    """The topology with the n-grams that S(x, q) makes likely, over a vocabulary of `words` ids; first are its own.

    `known` are the n-grams that may be parts of others.
    """
    rows = [ngrams_of(topology)]
    matrix, lengths = ngram_matrix(topology)
    S, T = consistent(topology, ngrams)
    best_first = np.lexsort((-S, arc_sources(topology))).astype(np.int32)
    for n in range(growth.shortest, growth.order + 1):
        histories = np.flatnonzero((lengths == n - 1) & known & (topology.label != EOS))
        h, below, times = matrix[histories, : n - 1], _suffixes(topology, histories, n - 2), S[histories]
        if n == 2:
            start = np.full((1, 1), BOS, np.int32)
            h, below = np.concatenate([h, start]), np.append(below, np.int32(0))
            times = np.append(times, T[topology.start])
        found_below = below >= 0
        h, below, times = h[found_below], below[found_below], times[found_below]
        given = topology.first_arc, topology.label, S, T, times, below, best_first, known
        tau = growth.expected
        while (found := _propose(*given, tau, _NONE)) > growth.most:
            tau *= 1.25
        pairs = np.empty((found, 2), np.int32)
        _propose(*given, tau, pairs)
        grams = np.concatenate([h[pairs[:, 0]], pairs[:, 1:]], axis=1)
        rows.append(Ragged(grams.reshape(-1), np.arange(found + 1, dtype=np.int64) * n))
    return topology_from_ngrams(Ragged.concatenate(rows), words, open_vocabulary=has_unknown(topology))


_NONE = np.empty((0, 2), np.int32)


def _suffixes(topology: Topology, arcs: LongArray, length: int) -> IntArray:
    """The state of the last `length` words of each arc's n-gram, −1 where there is none."""
    depth, q = state_lengths(topology), topology.dest[arcs].copy()
    while bool(np.any(longer := depth[q] > length)):
        q[longer] = topology.backoff[q[longer]]
    return np.where(depth[q] == length, q, -1).astype(np.int32)


@kernel
def _propose(
    first_arc: LongArray, label: IntArray, S: FloatArray, T: FloatArray, times: FloatArray, below: IntArray,
    best_first: IntArray, known: BoolArray, tau: float, pairs: IntArray,
) -> int:  # fmt: skip
    """(history, label) of all that is expected τ times; only their number where `pairs` has no room."""
    found = 0
    for i in range(len(times)):
        q = below[i]
        for k in range(first_arc[q], first_arc[q + 1]):
            e = best_first[k]
            if S[e] <= 0.0 or times[i] * S[e] < tau * T[q]:
                break
            if not known[e]:
                continue
            if len(pairs):
                pairs[found, 0], pairs[found, 1] = i, label[e]
            found += 1
    return found
