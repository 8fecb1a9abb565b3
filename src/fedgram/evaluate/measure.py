"""Measures: each result of an evaluation is a ratio of two per-user sums.

For each user, a measure has an amount and a count, such as words predicted and words typed. Its level is the ratio of
the totals over all users, so every word has the same weight. Levels, changes, intervals and experiments are all
computed from these two arrays. Perplexity is the exponential of such a ratio.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, frozen
from fedgram.core.errors import InvariantError


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """The ratio `amount[u]` / `count[u]` for each user u."""

    amount: FloatArray
    count: FloatArray
    exponential: bool = False

    def __post_init__(self) -> None:
        if self.amount.shape != self.count.shape or self.amount.ndim != 1:
            raise InvariantError("Measure: amounts and counts must be one-dimensional arrays of equal length")
        if bool((self.count < 0).any()) or not (np.isfinite(self.amount).all() and np.isfinite(self.count).all()):
            raise InvariantError("Measure: a count is negative, or a number is not finite")
        frozen(self.amount)
        frozen(self.count)

    @property
    def users(self) -> int:
        """Number of users."""
        return len(self.count)

    def of_totals(self, amount: FloatArray, count: FloatArray) -> FloatArray:
        """The levels for these totals; NaN where the count is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(count > 0, amount / count, np.nan)
        return np.exp(ratio) if self.exponential else ratio

    @property
    def level(self) -> float:
        """The level over all users."""
        return float(self.of_totals(self.amount.sum(), self.count.sum()))

    def select(self, users: IntArray) -> "Measure":
        """The measure of these users."""
        return replace(self, amount=self.amount[users], count=self.count[users])

    @classmethod
    def join(cls, parts: Sequence["Measure"]) -> "Measure":
        """The users of all parts, in order."""
        return cls(
            np.concatenate([part.amount for part in parts]),
            np.concatenate([part.count for part in parts]),
            parts[0].exponential,
        )
