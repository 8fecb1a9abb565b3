"""How many devices and days an experiment needs to find an effect.

A device types w words, of which its model predicts a share p that differs between people. The level of an arm of n
devices, log Σ hits / Σ words, has the variance σ²/n with

    σ² = (1 − p) / (p · w̄) + (1 + c²) · s²

where w̄ is the mean number of words per device, p the mean share, s the relative standard deviation of the share
between devices, and c that of the number of words. The first part falls with days, the second does not: it is due to
people, and only more devices help. The change between two arms has the variance 2σ²/n. It is found with the given power
if

    log(1 + effect) = (t + z) · √(2σ²/n)

where t is the quantile of the jackknife's 95 % interval and z that of the power.
"""

from dataclasses import dataclass
from math import ceil, log
from statistics import NormalDist

from fedgram.deployment.experiment_options import PowerOptions
from fedgram.evaluate.jackknife import student_quantile

DAYS = (1, 3, 7, 14, 28)


@dataclass(frozen=True, slots=True)
class NeededDevices:
    """Devices needed in both arms together, if the experiment lasts so many days."""

    days: float
    devices: int


def device_variance(options: PowerOptions, days: float) -> float:
    """σ²: the variance that one device contributes to the logarithm of an arm's level."""
    p, words = options.level / 100, options.words_per_device * days
    return (1 - p) / (p * words) + (1 + options.word_spread**2) * options.spread**2


def devices_needed(options: PowerOptions, days: float) -> int:
    """How many devices both arms need together to find the effect in so many days."""
    quantiles = student_quantile(options.buckets - 1) + NormalDist().inv_cdf(options.power)
    per_arm = 2 * device_variance(options, days) * (quantiles / log(1 + options.effect / 100)) ** 2
    return 2 * max(ceil(per_arm), options.buckets)


def days_needed(options: PowerOptions, devices: int) -> int | None:
    """The fewest days in which so many devices find the effect; None if no number of days is enough."""
    if devices_needed(options, 1e9) > devices:
        return None
    low, high = 0, 1
    while devices_needed(options, high) > devices:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if devices_needed(options, middle) > devices else (low, middle)
    return high


def power_table(options: PowerOptions, days: tuple[int, ...] = DAYS) -> list[NeededDevices]:
    """The devices that are needed by number of days."""
    return [NeededDevices(n, devices_needed(options, n)) for n in days]
