"""Case-aware backoff: the words that a state reads tell how likely its other words are to be capitalised.

After *University of*, most words are names, so an unexpected word is a name too. The backoff weight w_q[φ] of a state q
is therefore split into one for capitalised words and one for other words. With b the backoff state of q, the words that
q reads leave the share r_q of b's probability to its other words. By b, a share s_q of that belongs to capitalised
words. The n words that q reads, n' of them capitalised, turn it into t_q:

    r_q = 1 − Σ_{y∈L[q]} w_b[y],  s_q = (m_b − Σ'_{y∈L[q]} w_b[y]) / r_q,  t_q = (n' + 10 s_q) / (n + 10),
    m_q = Σ'_{y∈L[q]} w_q[y] + w_q[φ] r_q t_q,

where m_q is the probability of all capitalised words at q, and Σ' is over capitalised words. The weight is multiplied
by t_q / s_q for capitalised words and by (1 − t_q) / (1 − s_q) for others, so that all probabilities still sum to 1.
Where only one kind of word is left to back off to, t_q = s_q.
"""

from typing import NamedTuple

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.scoring import WeightedArcs, weighted_arcs
from fedgram.automata.topology import backoff_arcs
from fedgram.core.arrays import ByteArray, FloatArray, IntArray
from fedgram.core.jit import kernel

_PRIOR = 10.0  # s_q counts like so many words that q reads; tuned on sentences 5, 15, 25 … of the supplements
_LEAST_SHARE = 1e-6  # less probability than this counts as none


class CaseBackoff(NamedTuple):
    """What case-aware backoff adds, by state.

    Attributes:
        others: To log w_q[φ] for words without a capital.
        capitals: To log w_q[φ] for capitalised words.
        logit: To the log odds of a capital, by all backoffs from the state to the unigrams.
    """

    others: FloatArray
    capitals: FloatArray
    logit: FloatArray


def split_backoffs(model: NGramModel, is_capital: ByteArray) -> CaseBackoff:
    """Split the backoff weights of a model by case."""
    return _split(weighted_arcs(model), backoff_arcs(model.topology), is_capital)


@kernel
def _split(arcs: WeightedArcs, lower: IntArray, is_capital: ByteArray) -> CaseBackoff:
    """The split; `lower` is the arc with the same label at the backoff state."""
    states = len(arcs.backoff)
    others, capitals, logit, m = np.zeros(states), np.zeros(states), np.zeros(states), np.zeros(states)
    for e in range(arcs.first_arc[1]):
        m[0] += np.exp(arcs.log_weight[e]) * is_capital[arcs.label[e]]
    for q in range(1, states):
        b = arcs.backoff[q]
        rest, rest_capitals, n_capitals = 1.0, m[b], 0.0  # r_q, s_q · r_q, n'
        for e in range(arcs.first_arc[q], arcs.first_arc[q + 1]):
            capital, w_b = is_capital[arcs.label[e]], np.exp(arcs.log_weight[lower[e]])
            m[q] += np.exp(arcs.log_weight[e]) * capital
            n_capitals += capital
            rest -= w_b
            rest_capitals -= w_b * capital
        if min(rest_capitals, rest - rest_capitals) > _LEAST_SHARE:
            s = rest_capitals / rest
            t = (n_capitals + _PRIOR * s) / (arcs.first_arc[q + 1] - arcs.first_arc[q] + _PRIOR)
            others[q], capitals[q] = np.log((1.0 - t) / (1.0 - s)), np.log(t / s)
            rest_capitals = rest * t
        m[q] += np.exp(arcs.log_backoff[q]) * rest_capitals
        logit[q] = logit[b] + capitals[q] - others[q]
    return CaseBackoff(others, capitals, logit)
