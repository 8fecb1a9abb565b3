"""95 % intervals by the jackknife with user buckets, as in the paper (Tables 1, 3, 4).

The sampling units are users, not words, because the words of one person depend on each other. Users are assigned to B
buckets of equal size by a hash of their ids. The estimate θ is computed again with each bucket left out, and

    se² = (B − 1)/B · Σ_b (θ_(−b) − mean)²,        interval = θ ± t · se

where t is a quantile of Student's distribution. A few people type much of the text, so buckets have different weights
and the effective number of buckets is below B. The degrees of freedom are 1/Σ_b s_b² − 1, where s_b is the bucket's
share of the count (the effective number of clusters of Carter, Schnepel and Steigerwald 2017); with equal shares this
is B − 1.

A relative change is 100 · (new / old − 1). Each bucket is left out of both sides, so the variation they share cancels.
The interval is computed for log(new / old) and transformed back, because ratios are skewed and their logarithms are
not.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import atan, ceil, cos, exp, floor, isnan, nan, pi, sin, sqrt
from typing import NamedTuple

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.evaluate.measure import Measure

BUCKETS = 20


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate with the ends of its 95 % interval, which is None if there are too few users.

    >>> str(Estimate(10.52, (10.49, 10.55))), Estimate(10.52, (10.49, 10.55)).covers(10.6)
    ('10.52 ± 0.03', False)
    """

    value: float
    interval: tuple[float, float] | None

    def covers(self, value: float) -> bool:
        """Whether the interval contains a value."""
        return self.interval is not None and self.interval[0] <= value <= self.interval[1]

    @property
    def half_width(self) -> float:
        """The number after the ±; NaN without an interval."""
        return (self.interval[1] - self.interval[0]) / 2 if self.interval else nan

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.half_width:.2f}" if self.interval else f"{self.value:.2f}"


def deal_users(client_ids: Sequence[str], buckets: int) -> IntArray:
    """The bucket of each user, by the order of the hashed ids; the sizes of buckets differ by at most one.

    >>> np.bincount(deal_users([f"u{i}" for i in range(7)], 3)).tolist()
    [3, 2, 2]
    """
    if buckets < 2:
        raise FedgramError(f"an interval needs at least 2 user buckets, not {buckets}")
    hashes = [hashlib.sha256(i.encode()).digest() for i in client_ids]
    bucket = np.empty(len(hashes), np.int32)
    bucket[sorted(range(len(hashes)), key=hashes.__getitem__)] = np.arange(len(hashes), dtype=np.int32) % buckets
    return bucket


def level(measure: Measure, bucket: IntArray) -> Estimate:
    """The level of a measure, with its interval."""
    sides = _Buckets.of(measure, bucket)
    half = _half_width(sides.left_out, sides.share)
    value = measure.level
    return Estimate(value, None if isnan(half) else (value - half, value + half))


def relative_change(new: Measure, old: Measure, bucket: IntArray, old_bucket: IntArray | None = None) -> Estimate:
    """The relative change in per cent, with its interval; `old_bucket` is needed if the old users are others.

    It is relative to the size of the old level, so that a rise is positive, also of negative levels such as SLL.
    """
    after = _Buckets.of(new, bucket)
    before = _Buckets.of(old, bucket if old_bucket is None else old_bucket)
    if len(after.share) != len(before.share):
        raise InvariantError("both sides must have the same number of buckets")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = float(np.divide(new.level, old.level))
        half = _half_width(np.log(after.left_out / before.left_out), (after.share + before.share) / 2)
    scale = -100.0 if old.level < 0 else 100.0
    if isnan(half):
        return Estimate(scale * (ratio - 1.0), None)
    low, high = sorted((scale * (ratio * exp(-half) - 1.0), scale * (ratio * exp(half) - 1.0)))
    return Estimate(scale * (ratio - 1.0), (low, high))


class _Buckets(NamedTuple):
    """The level with each bucket left out, and each bucket's share of the count."""

    left_out: FloatArray
    share: FloatArray

    @classmethod
    def of(cls, measure: Measure, bucket: IntArray) -> "_Buckets":
        if len(bucket) != measure.users:
            raise InvariantError("every user must have a bucket")
        amount, count = np.bincount(bucket, measure.amount), np.bincount(bucket, measure.count)
        total = count.sum()
        share = count / total if total > 0 else np.zeros(len(count))
        return cls(measure.of_totals(amount.sum() - amount, total - count), share)


def _half_width(left_out: FloatArray, share: FloatArray) -> float:
    """Half the width of the interval; NaN if the level cannot be computed without one of the buckets."""
    B = len(left_out)
    if B < 2 or not np.isfinite(left_out).all():
        return nan
    variance = (B - 1) / B * float(((left_out - left_out.mean()) ** 2).sum())
    return student_quantile(max(1.0 / float((share**2).sum()) - 1.0, 1.0)) * sqrt(variance)


def student_quantile(freedom: float, share: float = 0.95) -> float:
    """The t for which this share of Student's distribution is within ± t.

    >>> round(student_quantile(1), 3), round(student_quantile(19), 4), round(student_quantile(1000), 4)
    (12.706, 2.093, 1.9623)
    """
    low, high = floor(freedom), ceil(freedom)
    if low == high:
        return _whole_quantile(low, share)
    part = (1 / low - 1 / freedom) / (1 / low - 1 / high)  # t is almost linear in 1 / freedom
    return (1 - part) * _whole_quantile(low, share) + part * _whole_quantile(high, share)


@cache
def _whole_quantile(freedom: int, share: float) -> float:
    low, high = 0.0, 1e3
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if _student_share(middle, freedom) < share else (low, middle)
    return high


def _student_share(t: float, n: int) -> float:
    """The share within ± t, in closed form for integer n (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
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
