"""Who takes part in a round: more devices are asked than needed, some drop out, the first to report count."""

from dataclasses import dataclass, field
from math import ceil

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.random import stream


@dataclass(frozen=True, slots=True)
class CohortPlan:
    """How a round's devices are chosen."""

    devices: int = 500
    over_selection: float = 1.3
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise FedgramError(f"a round needs at least 1 device, not {self.devices}")
        if not 1.0 <= self.over_selection <= 1000.0:
            raise FedgramError(f"over-selection must lie in [1, 1000], not {self.over_selection}")
        if not 0.0 <= self.dropout < 1.0:
            raise FedgramError(f"the dropout rate must lie in [0, 1), not {self.dropout}")


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    """One round's devices: those whose reports count, and how many were asked, dropped out, or came too late.

    `missing` has those that were asked and do not count.
    """

    reporting: LongArray
    asked: int
    dropped: int
    late: int
    missing: LongArray = field(default_factory=lambda: np.zeros(0, np.int64))


def choose_cohort(plan: CohortPlan, clients: LongArray, *, seed: int, round_number: int) -> Cohort:
    """The cohort of a round, without repetition; it depends on the seed and the round alone."""
    rng = stream(seed, "cohort", round_number)
    asked = rng.permutation(clients)[: ceil(plan.devices * plan.over_selection)]
    stays = rng.random(len(asked)) >= plan.dropout
    reports = asked[stays]
    counted, late = reports[: plan.devices], reports[plan.devices :]
    missing = np.concatenate([asked[~stays], late])
    return Cohort(counted, len(asked), len(asked) - len(reports), len(late), missing)
