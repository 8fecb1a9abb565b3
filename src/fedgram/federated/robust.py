"""Joining updates so that a few devices cannot move the result far: coordinate-wise median and trimmed mean.

With Δ_i = update / weight the change of device i, every coordinate of the result is the median of the devices' changes,
or their mean without the lowest and the highest share (Yin et al. 2018). The result is scaled to the weight of all
updates, so that a server that divides a sum by its weight gets it. Both need the single updates: they are for rounds
without masking, and without noise, whose size is measured for sums. All updates of a round are kept until its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedgram.core.arrays import FloatArray
from fedgram.core.errors import FedgramError
from fedgram.federated.task import FederatedTask, Total

Aggregation = Literal["mean", "median", "trimmed"]


@dataclass(frozen=True, slots=True)
class RobustRule:
    """The median, or the mean without the share `trim` of the devices at either end."""

    kind: Literal["median", "trimmed"]
    trim: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.trim < 0.5:
            raise FedgramError(f"the share that is cut at either end must be above 0 and below 0.5, not {self.trim}")

    def of(self, values: FloatArray) -> FloatArray:
        """One value per column; rows are devices.

        >>> RobustRule("median").of(np.array([[1.0], [2.0], [90.0]])).tolist()
        [2.0]
        """
        if self.kind == "median":
            return np.asarray(np.median(values, axis=0))
        cut = min(int(np.ceil(self.trim * len(values))), (len(values) - 1) // 2)
        inner: FloatArray = np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)
        return inner


def rule_of(task: FederatedTask[Any]) -> RobustRule | None:
    """The rule by which a task wants updates to be joined; None if they are added."""
    rule: RobustRule | None = getattr(task, "robust", None)
    return rule


def joined(single: Sequence[Total], empty: Total, rule: RobustRule) -> Total:
    """The updates of a round, each a total of its own, joined by the rule; devices without weight have no say."""
    total = Total(empty.bits, dict(empty.arrays), sum(one.weight for one in single), len(single))
    voting = [one for one in single if one.weight]
    for name in total.arrays if voting else ():
        changes = np.stack([one.arrays[name] / one.weight for one in voting])
        total.arrays[name] = np.rint(rule.of(changes) * total.weight).astype(np.int64)
    return total
