"""What an update must be before it enters a sum, and what a sum of updates can be at most.

An update comes from a device, so nothing about it is taken on trust: its shape, that its numbers are finite and in
range, its weight, its norm, and that the device was asked and has not been counted yet. The rules look at a few numbers
of an update (`Measured`), so that the same rules serve updates that arrive one by one and updates that were computed in
a stack on a GPU. Under secure aggregation the server sees the sum alone: there a device checks its own update, and the
server checks that the sum of n updates is within n times the bounds of one.
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
_ROUNDING = 1e-6  # by which a norm may pass its limit


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
    NOT_ASKED = "device not asked"


class RefusedUpdateError(InvariantError):
    """An update that must not enter a sum."""

    def __init__(self, reason: Reason, problem: str) -> None:
        self.reason = reason
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class NormLimit:
    """The norm (order 1 or 2) of some vectors taken together is at most `limit`, or `limit` times the weight."""

    vectors: tuple[str, ...]
    limit: float
    order: int = 2
    by_weight: bool = False

    def __post_init__(self) -> None:
        if self.order not in (1, 2) or not self.limit > 0:
            raise FedgramError("a norm has order 1 or 2, and a limit greater than 0")

    def norm(self, values: Mapping[str, FloatArray]) -> float:
        """The norm of the vectors taken together; inf if it is beyond all numbers."""
        parts = [values[name] for name in self.vectors]
        with np.errstate(over="ignore"):
            if self.order == 1:
                return float(sum(float(np.abs(v).sum()) for v in parts))
            return sqrt(sum(float(np.dot(v, v)) for v in parts))

    def allows(self, norm: float, weight: float) -> bool:
        """Whether a device's norm is within the limit, give or take what rounding may add."""
        return norm <= self.limit * (weight if self.by_weight else 1.0) * (1 + _ROUNDING)

    def allows_sum(self, norm: float, weight: float, devices: int, slack: float) -> bool:
        """Whether so many devices of this weight in all could have made a sum of this norm (triangle inequality)."""
        return norm <= self.limit * (weight if self.by_weight else devices) * (1 + _ROUNDING) + slack


class Measured(NamedTuple):
    """The numbers of an update that the rules look at; `largest` is not finite if any of its entries is not.

    `least` is the least entry of vectors that must not be negative, or 0; `norms` has one norm for each limit.
    """

    weight: float
    largest: float
    least: float
    whole: bool
    norms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class UpdateBounds:
    """How much one device may weigh, how long its vectors may be, and what their entries are.

    No entry is larger than `entry`, and none of the vectors in `non_negative` is below 0. With `whole` the entries that
    are sent are whole numbers of at least 1.
    """

    weight: float = inf
    norms: tuple[NormLimit, ...] = ()
    entry: float = inf
    non_negative: tuple[str, ...] = ()
    whole: bool = False

    def measure(self, values: Mapping[str, FloatArray], weight: float) -> Measured:
        """The numbers of an update that the rules look at."""
        largest = max((float(np.abs(v).max(initial=0.0)) for v in values.values()), default=0.0)
        if not all(np.isfinite(v).all() for v in values.values()):  # max() may hide a NaN behind another entry
            largest = inf
        if not isfinite(largest):
            return Measured(weight, inf, 0.0, False, tuple(inf for _ in self.norms))
        least = min((float(values[name].min(initial=0.0)) for name in self._counts(values)), default=0.0)
        whole = self.whole and all(bool(np.all((v >= 1.0) & (v == np.rint(v)))) for v in values.values())
        return Measured(weight, largest, least, whole, tuple(limit.norm(values) for limit in self.norms))

    def _counts(self, values: Mapping[str, FloatArray]) -> Iterable[str]:
        return values if self.whole else self.non_negative

    def judge(self, found: Measured, bits: int) -> None:
        """Refuse an update by its numbers; `bits` are those behind the point of the sum.

        Guarantees of what is accepted: all entries are finite and fit the sum; the weight is positive, or the update
        holds nothing; every bound holds.
        """
        room = 2.0 ** (SAFE_BITS - bits)
        if not (isfinite(found.weight) and 0.0 <= found.weight <= self.weight and found.weight < room):
            raise RefusedUpdateError(Reason.WEIGHT, "an update's weight is negative, not finite or too large")
        if not isfinite(found.largest):
            raise RefusedUpdateError(Reason.NOT_FINITE, "an update holds a value that is not finite")
        if not (found.largest <= self.entry and found.largest < room):
            raise RefusedUpdateError(Reason.TOO_LARGE, "an update holds a value that is too large")
        if found.weight * 2.0**bits < 0.5 and (found.largest > 0.0 or found.weight > 0.0):
            raise RefusedUpdateError(Reason.WEIGHT, "an update without weight holds values")
        if self.whole and not found.whole:
            raise RefusedUpdateError(Reason.NOT_WHOLE, "an update's counts are not whole numbers of at least 1")
        if found.least < 0.0:
            raise RefusedUpdateError(Reason.NEGATIVE, "an update holds a count below 0")
        if not all(limit.allows(n, found.weight) for limit, n in zip(self.norms, found.norms, strict=True)):
            raise RefusedUpdateError(Reason.NORM, "an update is longer than its limit")

    def judge_sum(self, found: Measured, devices: int, sizes: Mapping[str, int], bits: int) -> None:
        """Refuse the sum of so many updates if no accepted ones could have made it; `sizes` are the vectors' lengths.

        Every bound of one update holds `devices` times over for the sum, give or take the rounding of each entry. This
        is all a server can check of a masked sum.
        """
        rounding = devices * 2.0 ** -(bits + 1)
        if not 0.0 <= found.weight <= devices * self.weight + rounding:
            raise RefusedUpdateError(Reason.WEIGHT, "the sum of the weights is more than the devices may send")
        if not found.largest <= devices * min(self.entry, 2.0 ** (SAFE_BITS - bits)) + rounding:
            raise RefusedUpdateError(Reason.TOO_LARGE, "the sum holds a value larger than the devices may send")
        if found.least < 0.0:
            raise RefusedUpdateError(Reason.NEGATIVE, "the sum holds a count below 0")
        for limit, norm in zip(self.norms, found.norms, strict=True):
            entries = sum(sizes[name] for name in limit.vectors)
            slack = rounding * (entries if limit.order == 1 else sqrt(entries))
            if not limit.allows_sum(norm, found.weight, devices, slack):
                raise RefusedUpdateError(Reason.NORM, "the sum is longer than the devices' limits allow")
