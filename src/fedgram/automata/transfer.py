"""Counts on B = M ∘ A as counts on A, averaging the probability of every piece of a word.

In expectation C_A(y, q) = C_B(x_y, (q_y, q)): a word is counted where its last piece is read. Applied to sampled
counts, this gives no count to a word that no sample began, because only the last piece's probability is averaged.
Here, the visits to the states (0, q), where words begin, flow through B once more. At each state s they divide as the
counts C_B(·, s) do; C_B(s) is their sum, C_B(φ, s) included:

    r(x, s) = (C_B(x, s) + κ·p(x | s)) / (C_B(s) + κ),        r(φ, s) = 1 − Σ_x r(x, s).

So the count of a word is a product of averages along its code. With exact counts and κ = 0, C_B(s) is what arrives at
s, and the result is the paper's. κ is a number of prior visits to every state, distributed as p:

    p(x | s) = (S(x, s) + κ·p(x | backoff s)) / (T(s) + κ),

with S and T of `counting.summed_counts`. At A's empty history there is no backoff to a known word; there the prior
gives every word that continues from the node, and one unknown word, the same probability. A state without visits
divides as p. Paper: §6.
"""

from typing import NamedTuple

import numpy as np

from fedgram.automata.compose import PieceTopology
from fedgram.automata.counting import TopologyCounts, summed_counts
from fedgram.automata.model import has_unknown
from fedgram.automata.topology import arc_sources, backoff_arcs
from fedgram.core.arrays import FloatArray, IntArray, LongArray, sum_by
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import UNK


class PieceArcs(NamedTuple):
    """B for kernels.

    The arcs of state s are `first_arc[s]:first_arc[s+1]`; arc e leads to `dest[e]`, and `lower[e]` is the arc with the
    same piece at the backoff state. `node` is q₁ by state. The states at q₂ are `first_state[q₂]:first_state[q₂+1]`,
    in preorder, from (0, q₂) on.
    """

    first_arc: LongArray
    dest: IntArray
    backoff: IntArray
    lower: IntArray
    node: IntArray
    first_state: LongArray


def transfer_counts(composed: PieceTopology, counts: TopologyCounts, *, prior_visits: float = 0.0) -> TopologyCounts:
    """Counts on B as counts on A.

    Guarantees: counts are at least 0, and what comes to a state of A leaves it. N(q) is the number of visits to (0, q).
    With exact counts and no prior visits, the result is the counts of the words themselves. With prior visits, S(y, q)
    is positive for every word y that has a code, at every visited state q that reads it. Where A has no `<unk>`, the
    probability of unknown words is dropped.

    Args:
        composed: B, with the way back to A.
        counts: C(x, s), C(φ, s) and N(s) on B; exact, or from samples.
        prior_visits: κ; with sampled counts, 1 steadies the states that few samples reached.
    """
    if prior_visits < 0:
        raise InvariantError(f"prior_visits must be at least 0, not {prior_visits}")
    A, B = composed.words, composed.topology
    first_state = np.searchsorted(composed.word_state, np.arange(A.states + 1)).astype(np.int64)
    arcs = PieceArcs(B.first_arc, B.dest, B.backoff, backoff_arcs(B), composed.node, first_state)
    S, T = summed_counts(counts)
    p = _smooth(arcs, S, T, prior_visits, float(has_unknown(A)))
    read, fallen = _flow(arcs, counts.arc, counts.backoff, counts.visits, p, prior_visits)
    arc = np.where(composed.word_arc >= 0, read[composed.word_arc], 0.0)
    leaving = sum_by(composed.word_state + 1, fallen, A.states + 1)[1:]
    asked = np.where(composed.word_arc >= 0, T[arc_sources(B)[composed.word_arc]], 0.0)
    if has_unknown(A):
        arc[UNK], asked[UNK] = leaving[0], T[first_state[0]]
    leaving[0] = 0.0
    visits = counts.visits[first_state[:-1]]
    return TopologyCounts(A, arc, leaving, visits, counts.sentences, asked)


@kernel
def _goes_on(arcs: PieceArcs, e: int) -> bool:
    """Whether arc e leads on inside a word, to a node that is not the root."""
    inner: bool = arcs.dest[e] >= 0 and arcs.node[arcs.dest[e]] > 0
    return inner


@kernel
def _smooth(arcs: PieceArcs, S: FloatArray, T: FloatArray, prior_visits: float, unknown_words: float) -> FloatArray:
    """p(x | s) by arc; those of the state inside an unknown word are not needed, and stay 0."""
    words = np.zeros(len(arcs.node))  # how many words of A go on from each state
    for s in range(len(words) - 1, 0, -1):
        for e in range(arcs.first_arc[s], arcs.first_arc[s + 1]):
            words[s] += words[arcs.dest[e]] if _goes_on(arcs, e) else 1.0
    p = np.zeros(len(S))
    for s in range(1, len(words)):
        for e in range(arcs.first_arc[s], arcs.first_arc[s + 1]):
            if arcs.backoff[s] > 0:
                below = p[arcs.lower[e]]
            else:
                below = (words[arcs.dest[e]] if _goes_on(arcs, e) else 1.0) / (words[s] + unknown_words)
            total = T[s] + prior_visits
            p[e] = (S[e] + prior_visits * below) / total if total > 0.0 else below
    return p


@kernel
def _flow(
    arcs: PieceArcs, C: FloatArray, C_phi: FloatArray, visits: FloatArray, p: FloatArray, prior_visits: float
) -> tuple[FloatArray, FloatArray]:
    """What every arc reads, and what leaves every state by its backoff, if `visits` come to the roots (0, q₂).

    To a state come those of its parent at the same q₂, and of the states at longer histories that back off to it.
    """
    read, fallen, arriving = np.zeros(len(C)), np.zeros(len(C_phi)), np.zeros(len(C_phi))
    for q in range(len(arcs.first_state) - 2, -1, -1):
        arriving[arcs.first_state[q]] += visits[arcs.first_state[q]]
        for s in range(arcs.first_state[q], arcs.first_state[q + 1]):
            begin, end = arcs.first_arc[s], arcs.first_arc[s + 1]
            total = C_phi[s] + C[begin:end].sum() + prior_visits
            rest = 1.0
            for e in range(begin, end):
                share = (C[e] + prior_visits * p[e]) / total if total > 0.0 else p[e]
                rest -= share
                read[e] = arriving[s] * share
                if _goes_on(arcs, e):
                    arriving[arcs.dest[e]] += read[e]
            fallen[s] = arriving[s] * max(rest, 0.0)
            arriving[arcs.backoff[s]] += fallen[s]
    return read, fallen
