"""What the server may use of the devices' counts.

`ExactCounts` releases the counts of public n-grams, and of others that enough devices have. The rest is in no
model: a new n-gram does not join it, and one that a network learned is dropped. The two may need different numbers of
devices. `NoisyCounts` adds Gaussian noise to every count, and so keeps user-level differential privacy. Both limit
the norm of what one device sends (`clipped_ngrams.py`).
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from fedgram.automata.topology import arc_sources, backoff_arcs, entering_arcs, state_lengths
from fedgram.core.arrays import BoolArray, FloatArray, IntArray, LongArray, sum_by
from fedgram.core.errors import FedgramError
from fedgram.distill.refit.asked_ngrams import AskedNGrams
from fedgram.distill.refit.clipped_ngrams import (
    BITS,
    COUNT,
    ClippedNGrams,
    Clipping,
    counts_from_sums,
    devices_from_sums,
)
from fedgram.distill.refit.count_fit import stands_out
from fedgram.federated.counting import Sums
from fedgram.federated.task import FederatedTask
from fedgram.privacy.noise import Randomness, gaussian_noise


class Released(NamedTuple):
    """By asked n-gram: S(x, q), the standard deviation of its noise, and whether it may be in the model.

    A standard deviation of 0 means a count without noise, an infinite one that nothing is known of it. `is_visible`
    says whether it may join the model, `may_stay` whether it may stay if the model has it already.
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


def without_outliers(count: FloatArray, devices: LongArray, length: IntArray, share: float) -> FloatArray:
    """The counts of n-grams of several words; what is typed unusually often per device is cut to what is usual.

    N-grams of the same length that about as many devices have are compared, those within a factor of √2. In each such
    group, counts per device above the quantile 1 − `share` are cut to it. No other count changes.
    """
    several = np.flatnonzero((length > 1) & (devices > 0))
    rate = count[several] / devices[several]
    group = length[several] * 128 + np.floor(2.0 * np.log2(devices[several])).astype(np.int64)
    order = np.lexsort((rate, group))
    _, first, size = np.unique(group[order], return_index=True, return_counts=True)
    usual = rate[order][first + np.floor((1.0 - share) * (size - 1)).astype(np.int64)]
    result = count.copy()
    is_cut, most = rate[order] > np.repeat(usual, size), np.repeat(usual, size) * devices[several[order]]
    result[several[order][is_cut]] = most[is_cut]
    return result


def without_their_words(asked: AskedNGrams, cut: FloatArray) -> FloatArray:
    """What to cut from each asked n-gram, if so much is cut from those of several words: words lose what pairs lose.

    Occurrences that are cut from pairs are occurrences of their words too. If a word kept them, it would seem to be
    followed by something that no n-gram knows. Of the pairs that begin with a word and those that end with it, the more
    that is cut from either counts. Pairs of a later pass than their words cut nothing from them.
    """
    t, everything = asked.topology, np.zeros(asked.topology.arcs)
    everything[asked.asked] = cut
    source, lengths = arc_sources(t), state_lengths(t)
    pairs = np.flatnonzero((lengths[source] == 1) & (everything > 0))
    first, second = entering_arcs(t)[source[pairs]], backoff_arcs(t)[pairs]
    begin, end = (sum_by(word[word >= 0], everything[pairs[word >= 0]], t.arcs) for word in (first, second))
    words = slice(0, int(t.first_arc[1]))
    everything[words] = np.maximum(begin, end)[words]
    return everything[asked.asked]


@dataclass(frozen=True, slots=True)
class ExactCounts:
    """Counts without noise; an n-gram joins the model only if at least `min_devices` devices have it.

    One that the model has already stays if it is public, or if at least `network_devices` devices have it. With a
    minimum of 1 nothing is hidden, and the model keeps its n-grams. `outliers` is the share of the n-grams whose
    counts are cut (`without_outliers`), so that few devices cannot make an n-gram frequent by typing it often. A device
    counts at most `labels` labels, and its counts are clipped.
    """

    clipping: Clipping
    labels: float
    min_devices: int
    network_devices: int
    outliers: float = 0.0

    draws_noise = False

    def __post_init__(self) -> None:
        if (least := min(self.min_devices, self.network_devices)) < 1:
            raise FedgramError(f"an n-gram must be on at least 1 device, not {least}")
        if not 0 <= self.outliers < 1:
            raise FedgramError(f"the share of outliers must be at least 0 and below 1, not {self.outliers}")

    @property
    def drops_hidden(self) -> bool:
        """With a threshold."""
        return self.network_devices > 1

    @property
    def part_devices(self) -> int:
        """At least two, or nobody else would have what is proposed."""
        return max(2, self.min_devices)

    def task(self, ngrams: AskedNGrams, choice: int) -> FederatedTask[Sums]:
        """Counts and marks."""
        return ClippedNGrams(ngrams, self.clipping, choice, labels=self.labels, marks=True)

    def release(self, number: int, ngrams: AskedNGrams, sums: Sums) -> Released:  # noqa: ARG002
        """All counts but for outliers; an n-gram may join or stay if enough devices have it.

        What nobody marked counts as 0: a device that has an n-gram marks it. An n-gram keeps one occurrence for each
        device, or its count if that is less because devices scaled it down.
        """
        devices = devices_from_sums(sums)
        count = np.where(devices > 0, counts_from_sums(sums, ngrams, self.clipping), 0.0)
        if self.outliers:
            cut = count - without_outliers(count, devices, ngrams.lengths, self.outliers)
            count = np.maximum(count - without_their_words(ngrams, cut), np.minimum(count, devices))
        return Released(
            count, np.zeros(ngrams.size), devices >= self.min_devices, devices >= self.network_devices
        )  # fmt: skip

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
        counts = counts_from_sums({COUNT: noisy}, ngrams, self.clipping)
        deviations = deviation / self.clipping.weights_of(ngrams)
        return Released(counts, deviations, stands_out(counts / deviations), np.ones(ngrams.size, bool))

    def parts(self, stays: BoolArray, visible: BoolArray) -> BoolArray:
        """All that are known."""
        return stays | visible
