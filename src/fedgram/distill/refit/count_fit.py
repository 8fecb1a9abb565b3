"""Fitting a model to counts, with a distilled model as the prior. Beyond the paper.

With C(x, q) the devices' counts at state q, p(x|q) the distilled model and q' the backoff of q,

    c(x, q) = C(x, q) + the number of longer n-grams (q'', x) that occurred, q'' backing off to q      (Kneser-Ney)
    w_q[x]  = (max(c − D_c, 0) + R(q)·(μ·p(x|q) + (1−μ)·w_q'[x]) + β·p(x|q)) / (Σ_x c + C(φ, q) + β)

D_c is the discount of a count of 1, 2 or more, and R(q) = Σ_x min(c, D_c) what it takes away. So β visits of the
network are added to those of the devices: without counts the result is the distilled model, with many counts it is
theirs.
"""

from dataclasses import dataclass

import numpy as np

from fedgram.automata.model import NGramModel, model_from_weights
from fedgram.automata.smoothing import continuation_counts
from fedgram.automata.topology import arc_sources, backoff_arcs
from fedgram.core.arrays import FloatArray, IntArray, LongArray, sum_by
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.distill.refit.ngram_collection import occurrences, topology_counts


@dataclass(frozen=True, slots=True)
class Prior:
    """How counts and distilled model are joined: β, the discounts of counts of 1, 2 and more, and μ."""

    visits: float
    discounts: tuple[float, float, float] = (0.65, 1.0, 1.3)
    share: float = 0.6

    def __post_init__(self) -> None:
        if not (0 < self.visits < np.inf and 0 <= self.share <= 1):
            raise FedgramError("the prior's visits must be greater than 0, and its share between 0 and 1")
        if not all(0 <= d <= k for k, d in enumerate(self.discounts, 1)):
            raise FedgramError("the discounts of counts of 1, 2 and 3 must lie between 0 and the count")


def fit_counts(model: NGramModel, count: LongArray, prior: Prior) -> NGramModel:
    """The model of the devices' counts C(x, q) on the topology of the prior, a normalised model."""
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
