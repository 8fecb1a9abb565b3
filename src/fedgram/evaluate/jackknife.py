"""95 % intervals by the jackknife with user buckets, as the paper quotes them (Tables 1, 3, 4).

Users, not words, are drawn at random: a person's words depend on each other. Users are dealt to B buckets of equal
size, by a hash of their ids; the figure θ is computed again with each bucket left out, and

    se² = (B − 1)/B · Σ_b (θ_(−b) − mean)²,        interval = θ ± t_{B−1} · se

where t is Student's quantile. Relative changes are figures like any other: 100 · (new / old − 1), with the bucket
left out of both, so that what the two have in common cancels.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import atan, cos, pi, sin, sqrt

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.evaluate.measure import Measure

BUCKETS = 20


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with the half-width of its 95 % interval; None where there are too few users to tell.

    >>> Estimate(10.52, 0.03).low, str(Estimate(10.52, 0.03))
    (10.49, '10.52 ± 0.03')
    """

    value: float
    half_width: float | None

    @property
    def low(self) -> float:
        """The lower end."""
        return self.value - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """The upper end."""
        return self.value + (self.half_width or 0.0)

    def covers(self, value: float) -> bool:
        """Whether the interval holds a value."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.value:.2f}" if self.half_width is None else f"{self.value:.2f} ± {self.half_width:.2f}"


def deal_users(client_ids: Sequence[str], buckets: int) -> IntArray:
    """The bucket of every user: by the order of their hashed ids, so that sizes differ by at most one.

    >>> np.bincount(deal_users([f"u{i}" for i in range(7)], 3)).tolist()
    [3, 2, 2]
    """
    if buckets < 2:
        raise FedgramError(f"an interval needs at least 2 buckets of users, not {buckets}")
    hashes = [hashlib.sha256(i.encode()).digest() for i in client_ids]
    bucket = np.empty(len(hashes), np.int32)
    bucket[sorted(range(len(hashes)), key=hashes.__getitem__)] = np.arange(len(hashes), dtype=np.int32) % buckets
    return bucket


def level(measure: Measure, bucket: IntArray) -> Estimate:
    """A measure's level with its interval."""
    return _estimate(measure.level, measure.of_totals(*_without_each(measure, bucket)))


def relative_change(new: Measure, old: Measure, bucket: IntArray, old_bucket: IntArray | None = None) -> Estimate:
    """100 · (new / old − 1) in per cent with its interval; of the same users unless the old ones' buckets are given."""
    old_bucket = bucket if old_bucket is None else old_bucket
    without = [m.of_totals(*_without_each(m, b)) for m, b in ((new, bucket), (old, old_bucket))]
    if len(without[0]) != len(without[1]):
        raise InvariantError("both sides need the same number of buckets")
    with np.errstate(divide="ignore", invalid="ignore"):
        changes = 100.0 * (without[0] / without[1] - 1.0)
        change = 100.0 * (np.divide(new.level, old.level) - 1.0)
    return _estimate(float(change), changes)


def _without_each(measure: Measure, bucket: IntArray) -> tuple[FloatArray, FloatArray]:
    """The totals with each bucket left out."""
    if len(bucket) != measure.users:
        raise InvariantError("there must be a bucket for every user")
    amount, count = np.bincount(bucket, measure.amount), np.bincount(bucket, measure.count)
    return amount.sum() - amount, count.sum() - count


def _estimate(value: float, without: FloatArray) -> Estimate:
    B = len(without)
    if B < 2 or not np.isfinite(without).all():
        return Estimate(value, None)
    variance = (B - 1) / B * float(((without - without.mean()) ** 2).sum())
    return Estimate(value, student_quantile(B - 1) * sqrt(variance))


@cache
def student_quantile(freedom: int, share: float = 0.95) -> float:
    """The t such that Student's distribution with whole degrees of freedom has this share within ± t.

    >>> round(student_quantile(1), 3), round(student_quantile(19), 4), round(student_quantile(1000), 4)
    (12.706, 2.093, 1.9623)
    """
    low, high = 0.0, 1e3
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if _student_share(middle, freedom) < share else (low, middle)
    return high


def _student_share(t: float, n: int) -> float:
    """The share within ± t, in closed form for whole n (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(n))
    c = cos(angle) ** 2
    odd = n % 2
    term = total = cos(angle) if odd else 1.0
    for i in range(2 + odd, n - 1, 2):
        term *= c * (i - 1) / i
        total += term
    if odd:
        return 2.0 / pi * (angle + (sin(angle) * total if n > 1 else 0.0))
    return sin(angle) * total
