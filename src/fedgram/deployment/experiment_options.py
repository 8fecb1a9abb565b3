"""The settings of live experiments, and of the question how many devices they need."""

from dataclasses import dataclass
from math import inf
from typing import Annotated

from fedgram.core.settings import Between, Limit, Needs, Positive, Settings, setting
from fedgram.evaluate.jackknife import BUCKETS


@dataclass(frozen=True, slots=True)
class ExperimentOptions(Settings):
    """How an experiment is run."""

    share: Annotated[float, Between(above=0, high=1)] = setting(
        0.1, "Share of the devices that take part, half of them in each arm."
    )
    days: Positive = setting(7.0, "How long the experiment lasts, in days.")
    period: Positive = setting(1.0, "Days per period; each device reports once per period.")
    buckets: Annotated[int, Between(2, 1000)] = setting(
        BUCKETS, "Number of buckets of devices for the jackknife's 95 % intervals."
    )
    cased: bool = setting(False, "Measure with regard to case.")
    clip: Positive = setting(
        100_000.0, "Maximum L2 norm of a device's sums per report, about 2.5 times its words. Use less with --epsilon."
    )
    epsilon: Limit = setting(inf, "Add noise so that the experiment costs a device ε at most; inf adds none.")
    delta: Annotated[float, Between(above=0, high=0.1)] = setting(1e-8, "With --epsilon: δ.", needs=Needs("epsilon"))

    @property
    def is_private(self) -> bool:
        """Whether sums get noise."""
        return self.epsilon < inf


@dataclass(frozen=True, slots=True)
class PowerOptions(Settings):
    """What is known of an experiment before it begins."""

    effect: Annotated[float, Between(above=0, high=100)] = setting(1.0, "Relative change to be found, in per cent.")
    words_per_device: Positive = setting(300.0, "Words that a device types per day, on average.")
    level: Annotated[float, Between(0.01, 99.9)] = setting(
        13.0, "Level of the measure in the control arm, in per cent; top-1 accuracy by default."
    )
    spread: Annotated[float, Between(0, 10)] = setting(0.2, "Relative standard deviation of the level between devices.")
    word_spread: Annotated[float, Between(0, 100)] = setting(
        1.0, "Relative standard deviation of the number of words between devices."
    )
    power: Annotated[float, Between(0.5, 0.999)] = setting(0.8, "Probability of finding the effect.")
    buckets: Annotated[int, Between(2)] = setting(BUCKETS, "Number of buckets of the jackknife.")
