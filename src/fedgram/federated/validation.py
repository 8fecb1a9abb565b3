"""What an update must be before it enters a sum, and the reasons for refusing one.

An update comes from a device, so nothing about it is taken on trust: its shape, that its numbers are finite and in
range, its weight, its norm, and that the device was asked and has not been counted yet. Under secure aggregation the
server sees none of this; there a device checks its own update, and the range of the sum is all the server can judge.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf, sqrt

import numpy as np

from fedgram.core.arrays import FloatArray
from fedgram.core.errors import FedgramError, InvariantError


class Reason(StrEnum):
    """Why an update was refused."""

    DAMAGED = "damaged"
    SHAPE = "wrong shape"
    NOT_FINITE = "not finite"
    TOO_LARGE = "too large"
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

    def holds(self, values: Mapping[str, FloatArray], weight: float) -> bool:
        """Whether the update keeps to the limit, give or take what rounding may add."""
        parts = [values[name] for name in self.vectors]
        total = sum(float(np.abs(v).sum()) if self.order == 1 else float(np.dot(v, v)) for v in parts)
        norm = total if self.order == 1 else sqrt(total)
        return norm <= self.limit * (weight if self.by_weight else 1.0) * (1 + 1e-6)


@dataclass(frozen=True, slots=True)
class UpdateBounds:
    """How much one device may weigh, and how long its vectors may be."""

    weight: float = inf
    norms: tuple[NormLimit, ...] = ()

    def check(self, values: Mapping[str, FloatArray], weight: float) -> None:
        """Refuse what is out of bounds."""
        if not 0.0 <= weight <= self.weight:
            raise RefusedUpdateError(Reason.WEIGHT, "an update's weight is negative, not finite or too large")
        if not all(limit.holds(values, weight) for limit in self.norms):
            raise RefusedUpdateError(Reason.NORM, "an update is longer than its limit")
