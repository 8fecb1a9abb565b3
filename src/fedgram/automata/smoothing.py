"""From counts to a model: Katz, Witten-Bell, absolute, Kneser-Ney and modified Kneser-Ney smoothing.

Every method defines the discounted count of each n-gram, and the share of each history that goes to the lower order.
With c(h) the total count of the history,

    p(w|h) = kept(hw) / c(h) + share(h) · p(w|h').

The backoff weights follow from normalisation. A pure backoff method has share 0. Katz, Witten-Bell, absolute and
Kneser-Ney are as in OpenGrm NGram, where unigrams have their relative frequency. Modified Kneser-Ney is as in Chen and
Goodman (1999), with the unigrams mixed with the uniform distribution as in KenLM. Paper: §1.1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedgram.automata.model import NGramCounts, NGramModel, model_from_weights
from fedgram.automata.topology import arc_sources, backoff_arcs, state_lengths
from fedgram.core.arrays import FloatArray, IntArray, LongArray, sum_by
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel

KATZ_BINS = 5  # counts up to this are discounted by their own factor
KATZ_RESERVE = 0.001  # the discount of all other counts
FALLBACK_DISCOUNT = 0.6  # absolute and Kneser-Ney, if no n-gram occurs once
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # modified Kneser-Ney, if the counts of counts do not give valid discounts


@dataclass(frozen=True, slots=True, eq=False)
class _Counted:
    """The input of a method: `count`, `source` and `order` per arc, and the `total` c(h) per state."""

    count: FloatArray
    source: IntArray
    order: IntArray
    total: FloatArray

    def by_state(self, values: FloatArray) -> FloatArray:
        return sum_by(self.source, values, len(self.total))


@dataclass(frozen=True, slots=True, eq=False)
class _Discounted:
    """The output of a method: kept(hw) per arc, and per state the denominator `total` and share(h).

    `total` may be larger than c(h).
    """

    kept: FloatArray
    total: FloatArray
    share: FloatArray


def smooth(counts: NGramCounts, method: str = "modified-kneser-ney") -> NGramModel:
    """The smoothed model of the counts; `method` is one of `METHODS`.

    The words that do not occur get together as much as the rarest words that do (Good-Turing), but each at most as much
    as one of those. In modified Kneser-Ney they get their probability from the uniform distribution.
    """
    if method not in METHODS:
        raise FedgramError(f"unknown smoothing method {method!r}; choose one of {', '.join(METHODS)}")
    t, lower, source = counts.topology, backoff_arcs(counts.topology), arc_sources(counts.topology)
    kneser_ney = method in ("kneser-ney", "modified-kneser-ney")
    count = continuation_counts(lower, counts.count) if kneser_ney else counts.count
    if method != "modified-kneser-ney":
        count = _with_unseen_words(count, int(t.first_arc[1]))
    total = sum_by(source, count, t.states)
    discounted = METHODS[method](_Counted(count, source, state_lengths(t)[source] + 1, total))
    discounted = _with_unseen_histories(discounted, total)
    weight = _interpolate(t.first_arc, lower, discounted.kept, discounted.total, discounted.share)
    return model_from_weights(t, counts.vocabulary, weight)


def _with_unseen_words(count: FloatArray, words: int) -> FloatArray:
    """The counts, with a small count for every unigram that does not occur."""
    unigrams = count[:words]
    unseen = int(np.sum(unigrams == 0))
    if not unseen:
        return count
    least = float(unigrams[unigrams > 0].min(initial=np.inf)) if np.any(unigrams > 0) else 1.0
    rare = least * int(np.sum(unigrams == least))
    filled = count.copy()
    filled[:words][unigrams == 0] = min(least, max(rare, least) / unseen)
    return filled


def _with_unseen_histories(d: _Discounted, total: FloatArray) -> _Discounted:
    """Let every history that does not occur use the distribution of its backoff."""
    uncounted = total <= 0
    return _Discounted(d.kept, np.where(uncounted, 1.0, d.total), np.where(uncounted, 1.0, d.share))


@kernel
def _interpolate(
    first_arc: LongArray, lower: IntArray, kept: FloatArray, total: FloatArray, share: FloatArray
) -> FloatArray:
    """p(w|h) of every n-gram; unigrams are mixed with the uniform distribution."""
    weight = np.zeros(len(kept))
    uniform = 1.0 / max(first_arc[1], 1)
    for q in range(len(first_arc) - 1):
        for e in range(first_arc[q], first_arc[q + 1]):
            below = weight[lower[e]] if q else uniform
            weight[e] = kept[e] / total[q] + share[q] * below
    return weight


def continuation_counts(lower: IntArray, count: FloatArray) -> FloatArray:
    """Kneser-Ney counts: the number of different words that precede an n-gram.

    Occurrences that no longer n-gram extends keep their count: n-grams of the highest order, and those that begin with
    `<s>`.
    """
    higher = np.flatnonzero((lower >= 0) & (count > 0))
    extensions = np.bincount(lower[higher], minlength=len(count))
    continued = sum_by(lower[higher], count[higher], len(count))
    return np.maximum(count - continued, 0.0) + extensions


def _counts_of_counts(c: _Counted, order: int, most: int) -> list[int]:
    """n_0 … n_most: the number of n-grams of this order that occur 0 … `most` times; fractions are rounded."""
    times = np.rint(c.count[c.order == order]).astype(np.int64)
    return [int(n) for n in np.bincount(np.minimum(times, most + 1), minlength=most + 2)[: most + 1]]


def _katz(c: _Counted) -> _Discounted:
    """d_r = ((r+1)·n_{r+1} / (r·n_r) − R) / (1 − R) with R = 6·n_6/n_1, for r ≤ 5 and if that is in (0, 1)."""
    kept = c.count.copy()
    for order in range(2, int(c.order.max()) + 1):
        n = _counts_of_counts(c, order, KATZ_BINS + 1)
        base = next((x for x in n[1:] if x), 1)
        R = (KATZ_BINS + 1) * n[KATZ_BINS + 1] / base
        factor = np.full(KATZ_BINS + 2, 1.0 - KATZ_RESERVE)
        for r in range(1, KATZ_BINS + 1):
            d = ((r + 1) * n[r + 1] / (r * n[r]) - R) / (1.0 - R) if n[r] and R != 1.0 else -1.0
            if 0.0 < d < 1.0:
                factor[r] = d
        arcs = np.flatnonzero(c.order == order)
        kept[arcs] *= factor[np.minimum(np.rint(c.count[arcs]), KATZ_BINS + 1).astype(np.int64)]
    return _Discounted(kept, c.total, np.zeros_like(c.total))


def _witten_bell(c: _Counted) -> _Discounted:
    """p(w|h) = (c(hw) + T(h)·p(w|h')) / (c(h) + T(h)), with T(h) the number of different words after h."""
    types = c.by_state((c.count > 0).astype(np.float64))
    types[0] = 0.0
    total = c.total + types
    return _Discounted(c.count, total, types / np.maximum(total, 1e-300))


def _absolute(c: _Counted) -> _Discounted:
    """p(w|h) = max(c(hw) − D, 0) / c(h) + rest(h)·p(w|h'), with D = n_1 / (n_1 + 2·n_2) per order."""
    kept = c.count.copy()
    for order in range(2, int(c.order.max()) + 1):
        _, n1, n2 = _counts_of_counts(c, order, 2)
        arcs = c.order == order
        kept[arcs] = np.maximum(kept[arcs] - (n1 / (n1 + 2 * n2) if n1 else FALLBACK_DISCOUNT), 0.0)
    return _interpolated(c, kept)


def _modified_kneser_ney(c: _Counted) -> _Discounted:
    """Like absolute, with discounts D_1, D_2, D_3+ for counts of 1, 2 and more, at every order including 1."""
    kept = c.count.copy()
    for order in range(1, int(c.order.max()) + 1):
        discounts = np.array([0.0, *_modified_discounts(_counts_of_counts(c, order, 4))])
        arcs = np.flatnonzero(c.order == order)
        times = np.ceil(np.minimum(kept[arcs], 3.0)).astype(np.int64)
        kept[arcs] = np.maximum(kept[arcs] - discounts[times], 0.0)
    return _interpolated(c, kept)


def _modified_discounts(n: list[int]) -> tuple[float, ...]:
    """D_k = k − (k+1)·Y·n_{k+1}/n_k with Y = n_1/(n_1 + 2·n_2); the fallback if one is not in (0, k]."""
    if all(n[1:4]):
        Y = n[1] / (n[1] + 2 * n[2])
        found = tuple(k - (k + 1) * Y * n[k + 1] / n[k] for k in (1, 2, 3))
        if all(0.0 < d <= k for k, d in enumerate(found, 1)):
            return found
    return FALLBACK_DISCOUNTS


def _interpolated(c: _Counted, kept: FloatArray) -> _Discounted:
    rest = np.maximum(c.total - c.by_state(kept), 0.0)
    return _Discounted(kept, c.total, rest / np.maximum(c.total, 1e-300))


METHODS: dict[str, Callable[[_Counted], _Discounted]] = {
    "katz": _katz,
    "witten-bell": _witten_bell,
    "absolute": _absolute,
    "kneser-ney": _absolute,
    "modified-kneser-ney": _modified_kneser_ney,
}
