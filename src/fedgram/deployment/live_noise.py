"""Noise for the sums of a live experiment, and its entries in the ledgers of the federation.

A device reports at most once per period, and once more after the end: `reports` times in all. Each sum gets Gaussian
noise for the norm of one report. So the whole experiment is one Gaussian event per device, whatever sums it is in.
Devices of all arms (train, dev, test) take part, so the event is entered in the ledger of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.federated.fleet import RoundSum
from fedgram.federated.task import Total
from fedgram.privacy.accounting import Gaussian
from fedgram.privacy.gaussian import multiplier_for
from fedgram.privacy.ledger import Ledger
from fedgram.privacy.noise import Randomness, SystemRandomness, gaussian_noise

_OPERATION = "experiment"  # its name in a ledger


@dataclass(frozen=True, slots=True)
class LiveNoise:
    """The noise of an experiment that costs ε at δ, in which a device reports at most `reports` times.

    A report has the norm `clip` at most, and one mark besides: whether the device's messages have no times.
    """

    epsilon: float
    delta: float
    clip: float
    reports: int

    @property
    def event(self) -> Gaussian:
        """All reports of a device together."""
        return Gaussian(multiplier_for(self.epsilon, self.delta) * sqrt(self.reports), self.reports)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on every number of a sum."""
        return self.event.multiplier * hypot(self.clip, 1.0)

    def record(self, ledgers: Sequence[Ledger], run: str, period: int, randomness: Randomness | None = None) -> None:
        """Enter a period, before devices are asked; refused if it exceeds the budget of an arm."""
        generator = (randomness or SystemRandomness()).name
        for ledger in ledgers:
            ledger.plan(_OPERATION, self.event, rounds=self.reports, run=run, generator=generator)
        for ledger in ledgers:
            ledger.spend(_OPERATION, period + 1, run=run)

    def added_to(self, found: RoundSum, randomness: Randomness | None = None) -> RoundSum:
        """A sum with noise on every number."""
        total = found.total

        def noisy(name: str, values: LongArray) -> LongArray:
            scale, source = self.deviation * 2.0**total.bits, randomness or SystemRandomness()
            return values + gaussian_noise(len(values), scale, source, f"{_OPERATION} {name}").astype(np.int64)

        arrays = {name: noisy(name, values) for name, values in total.arrays.items()}
        return replace(found, total=Total(total.bits, arrays, total.weight, total.devices))
