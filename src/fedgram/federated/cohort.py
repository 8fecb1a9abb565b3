"""Who takes part in a round: more devices are invited than needed, and the first to report count.

The order in which devices are invited depends on the seed, the round and the attempt alone, so that a simulation and a
real federation with the same devices invite the same ones. With Poisson sampling (`PoissonCohorts`), every device joins
a round independently of the others, and all that join are invited.
"""

from dataclasses import dataclass
from math import ceil
from typing import Annotated

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.random import stream
from fedgram.core.settings import AtLeastOne, Between, Settings, setting


@dataclass(frozen=True, slots=True)
class CohortOptions(Settings):
    """What all federated operations ask for: the size of a round's cohort, and how its updates are summed."""

    devices_per_round: AtLeastOne = setting(
        500, "Number of devices that must report per round.", formerly="clients_per_round"
    )
    over_selection: Annotated[float, Between(1, 1000)] = setting(
        1.3, "Over-selection: devices to invite per report needed."
    )
    dropout: Annotated[float, Between(0, 0.99)] = setting(
        0.1, "Share of invited devices that drop out, in a simulation."
    )
    secure_aggregation: bool = setting(
        False, "Mask every update, so that the server learns only their sum. The result is the same."
    )


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """How rounds are run.

    `devices` is the number of reports wanted per round, `over_selection` the devices to invite per report wanted. With
    fewer than `minimum` reports a round is abandoned; `attempts` is the limit of attempts per round.
    """

    devices: int
    over_selection: float
    minimum: int = 1
    attempts: int = 5

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise FedgramError(f"a round needs at least 1 device, not {self.devices}")
        if not 1.0 <= self.over_selection <= 1000.0:
            raise FedgramError(f"over-selection must lie in [1, 1000], not {self.over_selection}")
        if not 1 <= self.minimum <= self.devices:
            raise FedgramError(f"a round of {self.devices} devices cannot need {self.minimum} reports")
        if self.attempts < 1:
            raise FedgramError("a round needs at least 1 attempt")

    @property
    def invited(self) -> int:
        """Devices invited at first."""
        return ceil(self.devices * self.over_selection)


@dataclass(frozen=True, slots=True)
class PoissonCohorts:
    """Cohorts that every device joins independently with the same probability, so that their size varies.

    Differential privacy counts on nobody knowing who joined, so the seed must be secret.
    """

    probability: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise FedgramError(f"the sampling probability must lie in (0, 1], not {self.probability}")

    def draw(self, devices: LongArray, *, round_number: int, attempt: int = 0) -> LongArray:
        """The devices that join a round."""
        known = np.sort(devices)
        joins = stream(self.seed, "poisson cohort", round_number, attempt).random(len(known)) < self.probability
        cohort: LongArray = known[joins]
        return cohort

    def __repr__(self) -> str:
        return f"PoissonCohorts({self.probability:g})"


def draw_order(devices: LongArray, *, seed: int, round_number: int, attempt: int = 0) -> LongArray:
    """The devices in the order in which a round invites them."""
    names: tuple[str | int, ...] = ("cohort", round_number) if attempt == 0 else ("cohort", round_number, attempt)
    order: LongArray = stream(seed, *names).permutation(np.sort(devices))
    return order
