"""Counts on B = M ∘ A as counts on A, averaging the probability of every piece of a word.

In expectation C_A(y, q) = C_B(x_y, (q_y, q)): a word is counted where its last piece is read. With sampled counts, this
gives no count to a word that no sample began, because it averages only the probability of the last piece.

Here, the visits to the states (0, q), where words begin, flow through B once more. At each state s they divide in
proportion to the counts C_B(·, s), whose sum including C_B(φ, s) is C_B(s):

    r(x, s) = (C_B(x, s) + κ·p(x | s)) / (C_B(s) + κ),        r(φ, s) = 1 − Σ_x r(x, s).

So the count of a word is a product of averages along its code. With exact counts and κ = 0, the flow that arrives at s
is C_B(s), and the result is the paper's. κ is the number of prior visits to every state, which are distributed as

    p(x | s) = (S(x, s) + κ·p(x | backoff s)) / (T(s) + κ),

with S and T of `counting.summed_counts`. The states at A's empty history do not back off to a known word; there the
prior gives the same probability to every word that continues from the node, and to one unknown word. The flow through
a state without visits divides as p. Paper: §6.
"""

import numpy as np

from fedgram.automata.compose import PieceArcs, PieceTopology
from fedgram.automata.counting import TopologyCounts, summed_counts
from fedgram.automata.model import has_unknown
from fedgram.automata.topology import arc_sources, backoff_arcs
from fedgram.core.arrays import FloatArray, IntArray, sum_by
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import UNK


def transfer_counts(composed: PieceTopology, counts: TopologyCounts, *, prior_visits: float = 0.0) -> TopologyCounts:
    """Counts on B as counts on A.

    Guarantees: counts are at least 0, and flow is conserved at every state of A. N(q) is the number of visits to
    (0, q). With exact counts and no prior visits, the result is the word counts themselves. With prior visits, S(y, q)
    is positive for every word y that has a code, at every visited state q that reads it. If A has no `<unk>`, the
    probability of unknown words is dropped.

    Args:
        composed: B, with the way back to A.
        counts: C(x, s), C(φ, s) and N(s) on B, exact or from samples.
        prior_visits: κ. Use 1 with sampled counts: it smooths the states that few samples reached.
    """
    if prior_visits < 0:
        raise InvariantError(f"prior_visits must be at least 0, not {prior_visits}")
    A, B, arcs = composed.words, composed.topology, composed.arrays
    S, T = summed_counts(counts)
    p = _smooth(arcs, backoff_arcs(B), (S, T), prior_visits, float(has_unknown(A)))
    read, left = _flow(arcs, (counts.arc, counts.backoff, counts.visits), p, prior_visits)
    arc = np.where(composed.word_arc >= 0, read[composed.word_arc], 0.0)
    leaving = sum_by(composed.word_state + 1, left, A.states + 1)[1:]
    asked = np.where(composed.word_arc >= 0, T[arc_sources(B)[composed.word_arc]], 0.0)
    if has_unknown(A):
        arc[UNK], asked[UNK] = leaving[0], T[arcs.first_state[0]]
    leaving[0] = 0.0
    visits = counts.visits[arcs.first_state[:-1]]
    return TopologyCounts(A, arc, leaving, visits, counts.sentences, asked)


@kernel
def _smooth(
    arcs: PieceArcs, lower: IntArray, summed: tuple[FloatArray, FloatArray], prior_visits: float, unknown_words: float
) -> FloatArray:
    """p(x | s) per arc; the arcs inside an unknown word are not needed and stay 0."""
    S, T = summed
    words = np.zeros(len(arcs.node))  # the number of words of A that continue from each state
    for s in range(len(words) - 1, 0, -1):
        for e in range(arcs.first_arc[s], arcs.first_arc[s + 1]):
            words[s] += words[arcs.dest[e]] if arcs.continues[e] else 1.0
    p = np.zeros(len(S))
    for s in range(1, len(words)):
        for e in range(arcs.first_arc[s], arcs.first_arc[s + 1]):
            if arcs.backoff[s] > 0:
                below = p[lower[e]]
            else:
                below = (words[arcs.dest[e]] if arcs.continues[e] else 1.0) / (words[s] + unknown_words)
            total = T[s] + prior_visits
            p[e] = (S[e] + prior_visits * below) / total if total > 0.0 else below
    return p


@kernel
def _flow(
    arcs: PieceArcs, counts: tuple[FloatArray, FloatArray, FloatArray], p: FloatArray, prior_visits: float
) -> tuple[FloatArray, FloatArray]:
    """The flow through every arc, and the flow from every state to its backoff, if N(0, q₂) visits begin at (0, q₂).

    `counts` are C(x, s), C(φ, s) and N(s). The flow into a state comes from its parent at the same q₂, and from the
    states at longer histories that back off to it.
    """
    C, C_phi, N = counts
    read, left, arriving = np.zeros(len(C)), np.zeros(len(C_phi)), np.zeros(len(C_phi))
    for q in range(len(arcs.first_state) - 2, -1, -1):
        arriving[arcs.first_state[q]] += N[arcs.first_state[q]]
        for s in range(arcs.first_state[q], arcs.first_state[q + 1]):
            begin, end = arcs.first_arc[s], arcs.first_arc[s + 1]
            total = C_phi[s] + C[begin:end].sum() + prior_visits
            rest = 1.0
            for e in range(begin, end):
                share = (C[e] + prior_visits * p[e]) / total if total > 0.0 else p[e]
                rest -= share
                read[e] = arriving[s] * share
                if arcs.continues[e]:
                    arriving[arcs.dest[e]] += read[e]
            left[s] = arriving[s] * max(rest, 0.0)
            arriving[arcs.backoff[s]] += left[s]
    return read, left
