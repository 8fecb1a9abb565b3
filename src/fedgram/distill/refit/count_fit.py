"""Fitting a model to counts, with a distilled model as the prior. Beyond the paper.

With S(x, q) the occurrences on devices, C(x, q) and C(φ, q) the counts that follow from them (`occurrences.py`), p(x|q)
the distilled model and q' the backoff of q,

    c(x, q) = C(x, q) + Σ g·min(1, S) of the n-grams (q'', x) that extend it to the left                  (Kneser-Ney)
    w_q[x]  = (max(c − g·D_c, 0) + R(q)·(μ·p(x|q) + (1−μ)·w_q'[x]) + β·p(x|q)) / (Σ_x c + C(φ, q) + β)

D_c is the discount of a count of 1, 2 or more, and R(q) = Σ_x min(c, g·D_c) what it takes away. So β visits of the
network are added to those of the devices.

The trust g(x, q) says how far a count can be believed, and `trusted_counts` draws noisy counts towards the expected
ones, E. Where g is 1, the count is exact, and with many counts the result is theirs. With noise, the result w of the
rule above is joined with the prior corrected by r = S/E, the change of each n-gram against what the prior expects. With
r(q) the change of the history itself, and G(q) the mean trust at q,

    p̃(x|q) ∝ p(x|q)·r(x, q)   for the labels of q, and   p̃(φ|q) ∝ p(φ|q)·r(q)
    w_q[x] ← G(q)·w_q[x] + (1 − G(q))·p̃(x|q)

So if g is 0 everywhere, the result is the prior itself.
"""

from dataclasses import dataclass
from math import erfc, sqrt
from typing import NamedTuple

import numpy as np

from fedgram.automata.counting import counts_from_visits, expected_visits, summed_counts
from fedgram.automata.model import NGramModel, model_from_weights
from fedgram.automata.topology import Topology, arc_sources, backoff_arcs, entering_arcs, state_lengths
from fedgram.core.arrays import BoolArray, FloatArray, IntArray, LongArray, sum_by
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.distill.refit.occurrences import consistent, flow_counts, sentences_of

_FURTHEST = 30.0  # by which factor shorter n-grams may change what is expected of longer ones
_FIRST_ERROR, _LEAST_ERROR, _LEAST_SCALE, _ERROR_STEPS = 0.3, 0.02, 0.01, 4
_LIMITS, _BY_CHANCE = np.arange(4.5, 9.0, 0.1), 0.01  # of what stands out
HIDDEN = 4.0  # standard deviations, below which noise hides the number of sentences, or of words
_USUAL = 4.5  # standard deviations, beyond which a count says nothing on how far others are off


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


class TrustedCounts(NamedTuple):
    """By arc: S(x, q) as far as it can be believed, the trust g, and r(x, q) = S/E; exact counts need no r."""

    ngrams: FloatArray
    trust: FloatArray
    change: FloatArray | None = None


def trusted_counts(model: NGramModel, ngrams: FloatArray, deviation: FloatArray) -> TrustedCounts:
    """Noisy counts drawn towards what is expected of them, the further the larger their noise; shorter n-grams first.

    With E the count that the model expects, r = S/E how far shorter n-grams differ from theirs, and h' the history h
    without its first word, the n-gram hx is expected Ê = E(hx)·r(h)·√(r(h'x)/r(h')) times: the model knows more of hx
    than of h'x, so that it is off by less. With v = (error·Ê)² + κ·Ê the variance of that and s the standard deviation
    of the noise, the trust is v / (v + s²), and S = Ê + trust·(noisy − Ê). A count that stands out from the noise is
    taken as it is. Where s is 0, the count is exact. If noise hides even the number of sentences, nothing is believed.
    """
    if not deviation.any():
        return TrustedCounts(ngrams.astype(np.float64), np.ones(len(ngrams)))
    t = model.topology
    per_sentence, _ = summed_counts(counts_from_visits(model, expected_visits(model, tolerance=1e-11), 1.0))
    sentences = _sentences(t, ngrams, deviation, per_sentence)
    E = max(sentences, 1.0) * per_sentence
    if not sentences:
        return TrustedCounts(E, np.zeros(t.arcs), np.ones(t.arcs))
    source, lower = arc_sources(t), backoff_arcs(t)
    history, words = entering_arcs(t)[source], state_lengths(t)[source]
    S, trust, change = np.empty(t.arcs), np.empty(t.arcs), np.append(np.ones(t.arcs), 1.0)  # −1 is no n-gram: 1
    for n in range(int(words.max()) + 1):
        of_length = np.flatnonzero(words == n)
        h, below = history[of_length], lower[of_length]
        known = change[below] / change[np.where(below >= 0, history[below], -1)]
        likely = E[of_length] * change[h] * np.sqrt(known)
        noisy, s = ngrams[of_length], deviation[of_length]
        variance = _spread(noisy, likely, s)
        is_certain = (s == 0.0) | stands_out((noisy - likely) / np.maximum(s, 1e-300))
        trust[of_length] = np.where(is_certain, 1.0, variance / np.maximum(variance + s * s, 1e-300))
        S[of_length] = np.maximum(likely + trust[of_length] * (noisy - likely), 0.0)
        change[of_length] = np.clip(S[of_length] / np.maximum(E[of_length], 1e-300), 1.0 / _FURTHEST, _FURTHEST)
    return TrustedCounts(S, trust, np.maximum(S / np.maximum(E, 1e-300), 1.0 / _FURTHEST))


def _sentences(t: Topology, ngrams: FloatArray, deviation: FloatArray, per_sentence: FloatArray) -> float:
    """The number of sentences: that of their ends, and if noise is large, also the one that suits all words best.

    0 if the noise hides it.
    """
    words = slice(0, int(t.first_arc[1]))
    count, p, s = ngrams[words], per_sentence[words], deviation[words]
    ends, noise = sentences_of(t, ngrams), sentences_of(t, deviation) ** 2
    if not noise or not s.all():
        return max(ends, 1.0)
    precision = float(np.sum((p / s) ** 2))
    by_words = float(np.sum(count * p / s**2)) / precision
    exact = 1.0 / noise, 1.0 / (1.0 / precision + (_FIRST_ERROR * by_words) ** 2)
    found = max((ends * exact[0] + by_words * exact[1]) / sum(exact), 1.0)
    return found if found > HIDDEN * sqrt(min(noise, 1.0 / precision)) else 0.0


def stands_out(excess: FloatArray) -> BoolArray:
    """Which of many noisy values are no noise, by how many standard deviations each exceeds what is expected.

    At least 4.5, and so many that of those that stand out at most 1 % would by chance (Benjamini and Hochberg, 1995).
    """
    for limit in _LIMITS:
        found = excess > limit
        if len(excess) * 0.5 * erfc(limit / sqrt(2.0)) <= _BY_CHANCE * np.count_nonzero(found):
            return found
    return np.zeros(len(excess), bool)


def _spread(noisy: FloatArray, expected: FloatArray, deviation: FloatArray) -> FloatArray:
    """The variance of what is expected: (error·Ê)² + κ·Ê, fitted to (noisy − Ê)² − s².

    κ is 1 for whole occurrences, and smaller where devices scaled their counts down. Every square is weighted by the
    inverse of its variance, and those that stand out are left out.
    """
    error, scale = _FIRST_ERROR**2, 1.0
    for _ in range(_ERROR_STEPS):
        variance = error * expected**2 + scale * expected + deviation**2
        usual = (np.abs(noisy - expected) < _USUAL * np.sqrt(variance)) & (variance > 0)
        e, weight = expected[usual], 1.0 / variance[usual] ** 2
        square = (noisy[usual] - e) ** 2 - deviation[usual] ** 2
        fourth, third, second = (float(np.sum(weight * e**power)) for power in (4, 3, 2))
        of_error, of_scale = float(np.sum(weight * e**2 * square)), float(np.sum(weight * e * square))
        found = (fourth * of_scale - third * of_error) / max(fourth * second - third**2, 1e-300)
        scale = min(max(found, _LEAST_SCALE), 1.0)
        error = min(max((of_error - scale * third) / max(fourth, 1e-300), _LEAST_ERROR**2), 1.0)
    return error * expected**2 + scale * expected


def fit_counts(model: NGramModel, counts: TrustedCounts, prior: Prior) -> NGramModel:
    """The model of the devices' counts on the topology of the prior, a normalised model."""
    t, p = model.topology, np.exp(model.log_weight)
    weight = _estimate(t, counts.ngrams, counts.trust, p, prior)
    if counts.change is not None:
        entering = entering_arcs(t)
        of_history = np.where(entering >= 0, counts.change[np.maximum(entering, 0)], 1.0)
        weight = _joined(t.first_arc, weight, p, counts.change, of_history, counts.trust)
    return model_from_weights(t, model.vocabulary, weight)


def _estimate(t: Topology, ngrams: FloatArray, trust: FloatArray, p: FloatArray, prior: Prior) -> FloatArray:
    """w_q[x] of these counts."""
    lower, source = backoff_arcs(t), arc_sources(t)
    found = consistent(t, ngrams)
    flow = flow_counts(t, found)
    longer = np.flatnonzero(lower >= 0)
    kinds = sum_by(lower[longer], (trust * np.minimum(found.ngrams, 1.0))[longer], t.arcs)
    c = flow.arc + kinds
    discount = trust * np.array([0.0, *prior.discounts])[np.minimum(np.ceil(c), 3.0).astype(np.int64)]
    discount[: t.first_arc[1]] = 0.0
    kept = np.maximum(c - discount, 0.0)
    rest = sum_by(source, c - kept, t.states)
    total = sum_by(source, c, t.states) + flow.backoff
    return _join(t.first_arc, lower, kept, rest, total, p, prior.visits, prior.share)


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


@kernel
def _joined(
    first_arc: LongArray, weight: FloatArray, p: FloatArray, change: FloatArray, of_history: FloatArray,
    trust: FloatArray,
) -> FloatArray:  # fmt: skip
    """G·w + (1 − G)·p̃; G is the trust of the labels, weighted by what the prior gives them."""
    result = np.empty(len(p))
    for q in range(len(first_arc) - 1):
        begin, end = first_arc[q], first_arc[q + 1]
        given, trusted, total = 0.0, 0.0, 0.0
        for e in range(begin, end):
            given, trusted, total = given + p[e], trusted + p[e] * trust[e], total + p[e] * change[e]
        total += max(1.0 - given, 0.0) * of_history[q]
        G = trusted / given
        for e in range(begin, end):
            result[e] = G * weight[e] + (1.0 - G) * p[e] * change[e] / total
    return result
