"""What the server may use of the devices' counts.

`ExactCounts` releases the exact counts of public n-grams, and of others that enough devices have. The rest is in no
model: a new n-gram does not join it, and one that a network learned is dropped. `NoisyCounts` asks devices for clipped
counts, adds Gaussian noise to every one, and so keeps user-level differential privacy.
"""

from dataclasses import dataclass
from math import inf, isfinite
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
    """By asked n-gram: S(x, q), the standard deviation of its noise, and whether it may be in the model.

    A standard deviation of 0 means an exact count, an infinite one that nothing is known of it.
    """

    ngrams: FloatArray
    deviation: FloatArray
    is_visible: BoolArray


class CountRelease(Protocol):
    """How devices count, and what of it the server may use."""

    @property
    def draws_noise(self) -> bool:
        """Whether a pass must not be released twice."""

    @property
    def drops_hidden(self) -> bool:
        """Whether n-grams of the model are dropped that are neither public nor visible."""

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
    """Exact counts; an n-gram that is not public is in the model only if at least `min_devices` devices have it.

    With a minimum of 1 nothing is hidden, and the model keeps its n-grams. An n-gram of two or more words counts at
    most `repeats` times per device that has it, so that few devices cannot make it frequent by typing it often.
    """

    limits: Limits
    min_devices: int
    repeats: float = inf

    draws_noise = False

    def __post_init__(self) -> None:
        if self.min_devices < 1:
            raise FedgramError(f"an n-gram must be on at least 1 device, not {self.min_devices}")
        if not self.repeats >= 1:
            raise FedgramError(f"an n-gram must count at least once per device, not {self.repeats} times")

    @property
    def drops_hidden(self) -> bool:
        """With a threshold."""
        return self.min_devices > 1

    @property
    def part_devices(self) -> int:
        """At least two, or nobody else would have what is proposed."""
        return max(2, self.min_devices)

    def task(self, ngrams: AskedNGrams, choice: int) -> FederatedTask[Sums]:
        """Counts and marks."""
        return NGramCollection(ngrams, self.limits, choice)

    def release(self, number: int, ngrams: AskedNGrams, sums: Sums) -> Released:  # noqa: ARG002
        """All counts, within the bound; an n-gram is visible if enough devices have it."""
        count, devices = sums[COUNT].astype(np.float64), sums[DEVICES]
        if isfinite(self.repeats):
            is_word = np.flatnonzero(ngrams.asked) < ngrams.topology.first_arc[1]
            count = np.where(is_word, count, np.minimum(count, np.rint(self.repeats * devices)))
        return Released(count, np.zeros(ngrams.size), devices >= self.min_devices)

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

    draws_noise, drops_hidden, part_devices = True, False, 2

    def task(self, ngrams: AskedNGrams, choice: int) -> FederatedTask[Sums]:
        """Clipped counts."""
        return ClippedNGrams(ngrams, self.clipping, choice)

    def release(self, number: int, ngrams: AskedNGrams, sums: Sums) -> Released:
        """The sums with noise on every n-gram that was asked for, counted or not."""
        deviation = self.multiplier * self.clipping.norm / self.stands_for
        noisy = sums[COUNT] + gaussian_noise(ngrams.size, deviation * 2.0**BITS, self.randomness, "n-grams", number)
        weight = self.clipping.weights_of(ngrams)
        counts, deviations = np.ldexp(noisy.astype(np.float64), -BITS) / weight, deviation / weight
        return Released(counts, deviations, stands_out(counts / deviations))

    def parts(self, stays: BoolArray, visible: BoolArray) -> BoolArray:
        """All that are known."""
        return stays | visible
