"""What an update must satisfy before it enters a sum, and how large a sum of updates can be.

An update comes from a device, so the server trusts nothing about it: neither its shape, nor that its numbers are finite
and in range, nor its weight and norms, nor that the device was invited and has not been counted yet. The rules look at
a few numbers of an update (`MeasuredUpdate`). The same rules therefore serve updates that arrive one by one and updates
that were computed in a stack on a GPU. Under secure aggregation the server sees only the sum: each device checks its
own update, and the server checks that the sum of n updates is within n times the bounds of one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite, sqrt
from typing import NamedTuple

import numpy as np

from fedgram.core.arrays import FloatArray
from fedgram.core.errors import FedgramError, InvariantError

SAFE_BITS = 50  # of 63: the sum of 8,000 of the largest updates still fits
_ROUNDING = 1e-6  # relative amount by which a norm may exceed its limit


class Reason(StrEnum):
    """Why an update was refused."""

    DAMAGED = "damaged"
    SHAPE = "wrong shape"
    NOT_FINITE = "not finite"
    TOO_LARGE = "too large"
    NEGATIVE = "negative count"
    NOT_WHOLE = "no whole numbers"
    WEIGHT = "wrong weight"
    NORM = "norm above the limit"
    REPEATED = "device already counted"
    NOT_INVITED = "device not invited"


class RefusedUpdateError(InvariantError):
    """An update that must not enter a sum; `example` has the numbers, for a simulation."""

    def __init__(self, reason: Reason, problem: str, example: str = "") -> None:
        self.reason, self.example = reason, example
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class NormLimit:
    """A limit on the L1 or L2 norm (`order`) of some vectors taken together.

    The limit is `limit`, or `limit` times the update's weight if `by_weight` is set.
    """

    vectors: tuple[str, ...]
    limit: float
    order: int = 2
    by_weight: bool = False

    def __post_init__(self) -> None:
        if self.order not in (1, 2) or not self.limit > 0:
            raise FedgramError("a norm must have order 1 or 2 and a limit greater than 0")

    def norm(self, values: Mapping[str, FloatArray]) -> float:
        """The norm of the vectors taken together; inf on overflow."""
        parts = [values[name] for name in self.vectors]
        with np.errstate(over="ignore"):
            if self.order == 1:
                return float(sum(float(np.abs(v).sum()) for v in parts))
            return sqrt(sum(float(np.dot(v, v)) for v in parts))

    def most(self, entries: int, weight: float, bits: int) -> float:
        """The largest L2 norm that an accepted update of so many entries can have in a sum, its rounding included."""
        limit = self.limit * (weight if self.by_weight else 1.0)
        return limit * (1 + _ROUNDING) + sqrt(entries) * 2.0 ** -(bits + 1)

    def allows(self, norm: float, weight: float) -> bool:
        """Whether the norm of one device's update is within the limit, up to rounding."""
        return norm <= self.limit * (weight if self.by_weight else 1.0) * (1 + _ROUNDING)

    def allows_sum(self, norm: float, weight: float, devices: int, slack: float) -> bool:
        """Whether this many devices with this total weight can have made a sum of this norm (triangle inequality)."""
        return norm <= self.limit * (weight if self.by_weight else devices) * (1 + _ROUNDING) + slack


class MeasuredUpdate(NamedTuple):
    """The numbers of an update, or of a sum, that the rules look at.

    `max_abs` is the largest absolute value of all entries, inf if any entry is not finite. `min_count` is the smallest
    entry of the vectors that must not be negative, at most 0. `whole` says whether all entries are whole numbers of at
    least 1. `norms` has the norm for each limit. `max_mark` is the largest entry of the vectors of marks.
    """

    weight: float
    max_abs: float
    min_count: float
    whole: bool
    norms: tuple[float, ...]
    max_mark: float = 0.0


@dataclass(frozen=True, slots=True)
class UpdateBounds:
    """The limits on one device's update.

    `weight` limits its weight, `norms` the norms of its vectors, `entry` the absolute value of each entry. No entry of
    the vectors in `non_negative` may be below 0, and none of those in `marks` above 1. With `whole`, the entries that
    are sent must be whole numbers of at least 1.
    """

    weight: float = inf
    norms: tuple[NormLimit, ...] = ()
    entry: float = inf
    non_negative: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    whole: bool = False

    def measure(self, values: Mapping[str, FloatArray], weight: float) -> MeasuredUpdate:
        """The numbers of an update that the rules look at."""
        max_abs = max((float(np.abs(v).max(initial=0.0)) for v in values.values()), default=0.0)
        if not all(np.isfinite(v).all() for v in values.values()):  # max() may hide a NaN behind another entry
            max_abs = inf
        if not isfinite(max_abs):
            return MeasuredUpdate(weight, inf, 0.0, False, tuple(inf for _ in self.norms))
        min_count = min((float(values[name].min(initial=0.0)) for name in self._counts(values)), default=0.0)
        whole = self.whole and all(bool(np.all((v >= 1.0) & (v == np.rint(v)))) for v in values.values())
        max_mark = max((float(values[name].max(initial=0.0)) for name in self.marks), default=0.0)
        norms = tuple(limit.norm(values) for limit in self.norms)
        return MeasuredUpdate(weight, max_abs, min_count, whole, norms, max_mark)

    def _counts(self, values: Mapping[str, FloatArray]) -> Iterable[str]:
        return values if self.whole else self.non_negative

    def judge(self, found: MeasuredUpdate, bits: int) -> None:
        """Raise `RefusedUpdateError` unless an update keeps the bounds; `bits` are the sum's fraction bits.

        Guarantees for an accepted update: all entries are finite and fit the sum; the weight is positive, or the update
        is empty; every bound holds.
        """
        room = 2.0 ** (SAFE_BITS - bits)
        if not (isfinite(found.weight) and 0.0 <= found.weight <= self.weight and found.weight < room):
            raise RefusedUpdateError(Reason.WEIGHT, "the update's weight is negative, not finite or too large")
        if not isfinite(found.max_abs):
            raise RefusedUpdateError(Reason.NOT_FINITE, "the update has an entry that is not finite")
        if not (found.max_abs <= self.entry and found.max_abs < room and found.max_mark <= 1.0):
            raise RefusedUpdateError(Reason.TOO_LARGE, "the update has an entry that is too large")
        if found.weight * 2.0**bits < 0.5 and (found.max_abs > 0.0 or found.weight > 0.0):
            raise RefusedUpdateError(Reason.WEIGHT, "the update has entries but no weight")
        if self.whole and not found.whole:
            raise RefusedUpdateError(Reason.NOT_WHOLE, "the update's counts are not whole numbers of at least 1")
        if found.min_count < 0.0:
            raise RefusedUpdateError(Reason.NEGATIVE, "the update has a count below 0")
        if not all(limit.allows(n, found.weight) for limit, n in zip(self.norms, found.norms, strict=True)):
            raise RefusedUpdateError(Reason.NORM, "the update's norm is above the limit", self._excess(found))

    def _excess(self, found: MeasuredUpdate) -> str:
        """Which norm of an update is above its limit."""
        limit, norm = next(
            (limit, norm) for limit, norm in zip(self.norms, found.norms, strict=True)
            if not limit.allows(norm, found.weight)
        )  # fmt: skip
        most = limit.limit * (found.weight if limit.by_weight else 1.0)
        return f"the {limit.order}-norm of {' and '.join(limit.vectors)} is {norm:g}, and its limit is {most:g}"

    def judge_sum(self, found: MeasuredUpdate, devices: int, sizes: Mapping[str, int], bits: int) -> None:
        """Raise `RefusedUpdateError` if this many accepted updates cannot have made this sum.

        Every bound of one update holds `devices` times over for the sum, up to the rounding of each entry. This is all
        that a server can check of a masked sum. `sizes` are the lengths of the vectors.
        """
        rounding = devices * 2.0 ** -(bits + 1)
        if not 0.0 <= found.weight <= devices * self.weight + rounding:
            raise RefusedUpdateError(Reason.WEIGHT, "the sum's weight is more than its devices may send")
        if not found.max_abs <= devices * min(self.entry, 2.0 ** (SAFE_BITS - bits)) + rounding:
            raise RefusedUpdateError(Reason.TOO_LARGE, "the sum has an entry larger than its devices may send")
        if not found.max_mark <= devices:
            raise RefusedUpdateError(Reason.TOO_LARGE, "the sum has more marks than devices")
        if found.min_count < 0.0:
            raise RefusedUpdateError(Reason.NEGATIVE, "the sum has a count below 0")
        for limit, norm in zip(self.norms, found.norms, strict=True):
            entries = sum(sizes[name] for name in limit.vectors)
            slack = rounding * (entries if limit.order == 1 else sqrt(entries))
            if not limit.allows_sum(norm, found.weight, devices, slack):
                raise RefusedUpdateError(Reason.NORM, "the sum's norm is above the limit of its devices")
