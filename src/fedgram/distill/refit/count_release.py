"""What the server may use of the devices' counts.

`ExactCounts` releases the exact counts of public n-grams, and of others that enough devices have. What fewer devices
have is in no model: a new n-gram does not join it, and one that a network learned from them is dropped. An n-gram of
the model that no device has stays; it is nobody's text. `NoisyCounts` asks devices for clipped counts, adds Gaussian
noise to every one, and so keeps user-level differential privacy.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from fedgram.core.arrays import BoolArray, FloatArray
from fedgram.core.errors import FedgramError
from fedgram.distill.refit.clipped_ngrams import BITS, ClippedNGrams, Clipping
from fedgram.distill.refit.count_fit import stands_out
from fedgram.distill.refit.ngram_collection import COUNT, DEVICES, AskedNGrams, Limits, NGramCollection
from fedgram.federated.counting import Sums
from fedgram.federated.task import FederatedTask
from fedgram.privacy.noise import Randomness, gaussian_noise


class Released(NamedTuple):
    """By asked n-gram: S(x, q), the standard deviation of its noise, and whether it may join the model or stay in it.

    A standard deviation of 0 means an exact count, an infinite one that nothing is known of it.
    """

    ngrams: FloatArray
    deviation: FloatArray
    is_visible: BoolArray
    may_stay: BoolArray


class CountRelease(Protocol):
    """How devices count, and what of it the server may use."""

    @property
    def draws_noise(self) -> bool:
        """Whether a pass must not be released twice."""

    @property
    def part_devices(self) -> int:
        """The number of devices that must have a pair of words for the sketch to find it."""

    def task(self, ngrams: AskedNGrams, choice: int) -> FederatedTask[Sums]:
        """What devices do in a pass; `choice` is the seed of a collection."""

    def release(self, number: int, ngrams: AskedNGrams, sums: Sums) -> Released:
        """What may be used of pass `number`."""

    def parts(self, stays: BoolArray, visible: BoolArray) -> BoolArray:
        """Which n-grams may be parts of longer ones: of those that stay in the model, and of those that may join."""


@dataclass(frozen=True, slots=True)
class ExactCounts:
    """Exact counts; an n-gram that is not public must be on at least `min_devices` devices, or on none."""

    limits: Limits
    min_devices: int

    draws_noise = False

    def __post_init__(self) -> None:
        if self.min_devices < 1:
            raise FedgramError(f"an n-gram must be on at least 1 device, not {self.min_devices}")

    @property
    def part_devices(self) -> int:
        """At least two, or nobody else would have what is proposed."""
        return max(2, self.min_devices)

    def task(self, ngrams: AskedNGrams, choice: int) -> FederatedTask[Sums]:
        """Counts and marks."""
        return NGramCollection(ngrams, self.limits, choice)

    def release(self, number: int, ngrams: AskedNGrams, sums: Sums) -> Released:  # noqa: ARG002
        """All counts; an n-gram may join if enough devices have it, and stay also if none has it."""
        enough, nobody = sums[DEVICES] >= self.min_devices, sums[DEVICES] == 0
        return Released(sums[COUNT].astype(np.float64), np.zeros(ngrams.size), enough, enough | nobody)

    def parts(self, stays: BoolArray, visible: BoolArray) -> BoolArray:  # noqa: ARG002
        """Those that enough devices have: what contains another one cannot be on enough."""
        return visible


@dataclass(frozen=True, slots=True)
class NoisyCounts:
    """Clipped counts with noise: one Gaussian event of this multiplier over all passes of a collection.

    `stands_for` is the number of users that each device stands for in a simulation: noise is divided by it.
    """

    clipping: Clipping
    multiplier: float
    randomness: Randomness
    stands_for: float = 1.0

    draws_noise, part_devices = True, 2

    def task(self, ngrams: AskedNGrams, choice: int) -> FederatedTask[Sums]:
        """Clipped counts."""
        return ClippedNGrams(ngrams, self.clipping, choice)

    def release(self, number: int, ngrams: AskedNGrams, sums: Sums) -> Released:
        """The sums with noise on every n-gram that was asked for, counted or not."""
        deviation = self.multiplier * self.clipping.norm / self.stands_for
        noisy = sums[COUNT] + gaussian_noise(ngrams.size, deviation * 2.0**BITS, self.randomness, "n-grams", number)
        weight = self.clipping.weights_of(ngrams)
        counts, deviations = np.ldexp(noisy.astype(np.float64), -BITS) / weight, deviation / weight
        return Released(counts, deviations, stands_out(counts / deviations), np.ones(ngrams.size, bool))

    def parts(self, stays: BoolArray, visible: BoolArray) -> BoolArray:
        """All that are known."""
        return stays | visible
