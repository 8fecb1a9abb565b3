"""How a tree of prefixes grows by one level, and the two rules that decide what survives.

A rule turns the sum of a level into scores and thresholds. `NoisyTree` adds Gaussian noise to every candidate, also to
those that no device has. `VotingTree` is TrieHH: no noise, and only a random batch of devices votes.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log, sqrt
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.federated.discovery.options import DiscoveryOptions
from fedgram.federated.discovery.prefix_level import PrefixLevel
from fedgram.federated.discovery.triehh import Voting
from fedgram.privacy.accounting import Approximate, Event, Gaussian
from fedgram.privacy.gaussian import multiplier_for
from fedgram.privacy.noise import Randomness, gaussian_noise

_PREFIX_DEVIATIONS = 3.0
_SURE_DEVIATIONS = 2.33  # of 100 numbers from a normal distribution, 99 are above −2.33


class Scores(NamedTuple):
    """The score of each candidate of a level, and the thresholds for whole words and for prefixes."""

    score: FloatArray
    word: float
    prefix: float


class Grown(NamedTuple):
    """The words that a level found, with their scores, and the prefixes that survived it, the best first."""

    words: Mapping[str, float]
    prefixes: tuple[str, ...]


class Guarantee(NamedTuple):
    """(ε, δ) per user, and where it comes from: values with the names under which reports show them."""

    epsilon: float
    delta: float
    origin: Mapping[str, Any]


class Rule(Protocol):
    """Decides what survives a level."""

    @property
    def batch(self) -> int | None:
        """The number of devices to ask at each level; None means all."""

    @property
    def holders(self) -> int:
        """How many holders a word needs to be found in every second case."""

    def scores(self, task: PrefixLevel, total: LongArray) -> Scores:
        """What the server uses of the sum of a level."""

    def can_find(self, devices: int) -> bool:
        """Whether a word of this many devices can be found at all."""

    def in_words(self) -> str:
        """How many holders a word needs, and why, in one sentence."""

    @property
    def event(self) -> Event:
        """What all levels together cost, for a ledger."""

    def guarantee(self) -> Guarantee:
        """The guarantee for all levels together."""


@dataclass(frozen=True)
class NoisyTree:
    """Gaussian noise on every candidate: one Gaussian event over all levels of a collection.

    Formal guarantee: a device's vectors over `levels` levels have norm √levels together at most, and the noise at each
    level has the standard deviation multiplier·√levels. So all levels together are one Gaussian mechanism with this
    multiplier, however the prefixes of a level were chosen from the noisy sums of earlier ones. The multiplier is the
    smallest one for (ε, δ).

    A word needs √(2·ln(max_candidates)) standard deviations, which the largest noise of a level rarely exceeds, and
    never less than `min_holders`. A prefix needs fewer, because a wrong one is dropped at the next levels.
    """

    options: DiscoveryOptions
    randomness: Randomness

    batch = None

    @cached_property
    def multiplier(self) -> float:
        """The noise multiplier of the whole collection."""
        return multiplier_for(self.options.epsilon, self.options.delta)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise at each level, in devices."""
        return self.multiplier * sqrt(self.options.levels)

    @property
    def threshold(self) -> float:
        """The noisy number of holders that a word needs."""
        return max(self.options.min_holders, sqrt(2 * log(self.options.max_candidates)) * self.deviation)

    @property
    def holders(self) -> int:
        """The threshold as a whole number."""
        return ceil(self.threshold)

    @property
    def sure_holders(self) -> int:
        """How many holders a word needs to be found in 99 of 100 cases."""
        return ceil(self.threshold + _SURE_DEVIATIONS * self.deviation)

    def scores(self, task: PrefixLevel, total: LongArray) -> Scores:
        """The sum with noise on every candidate."""
        deviation = self.deviation * 2.0**task.bits
        noise = gaussian_noise(len(total), deviation, self.randomness, "discovery", task.level)
        prefix = max(self.options.min_holders, min(_PREFIX_DEVIATIONS * self.deviation, self.threshold))
        return Scores(np.ldexp((total + noise).astype(np.float64), -task.bits), self.threshold, prefix)

    def can_find(self, devices: int) -> bool:
        """Whether there are as many devices as a word needs."""
        return devices >= self.threshold

    def in_words(self) -> str:
        """How many holders a word needs."""
        needs = (
            f"A word needs about {self.holders:,} holders to be found, {self.sure_holders:,} to be found almost surely"
        )
        noise = f"noise of standard deviation {self.deviation:.2f} is added at each of {self.options.levels} levels"
        shared = "; a holder that contributes k words counts as 1/√k" if self.options.words_per_device > 1 else ""
        return f"{needs}: {noise}{shared}."

    @property
    def event(self) -> Event:
        """One Gaussian event."""
        return Gaussian(self.multiplier)

    def guarantee(self) -> Guarantee:
        """One Gaussian event."""
        origin = {
            "noise_multiplier": self.multiplier, "noise_deviation": self.deviation, "randomness": self.randomness.name
        }  # fmt: skip
        return Guarantee(self.options.epsilon, self.options.delta, origin)


@dataclass(frozen=True, slots=True)
class VotingTree:
    """TrieHH: a prefix survives with enough votes of a random batch; `randomness` draws the batches."""

    voting: Voting
    randomness: Randomness

    @property
    def batch(self) -> int | None:
        """The devices that vote at each level."""
        return self.voting.batch

    @property
    def holders(self) -> int:
        """Enough for the threshold, on average."""
        return self.voting.holders

    def scores(self, task: PrefixLevel, total: LongArray) -> Scores:
        """The votes."""
        threshold = float(self.voting.threshold)
        return Scores(np.ldexp(total.astype(np.float64), -task.bits), threshold, threshold)

    def can_find(self, devices: int) -> bool:  # noqa: ARG002
        """Whether enough devices vote."""
        return self.voting.batch >= self.voting.threshold

    def in_words(self) -> str:
        """How many holders a word needs."""
        v = self.voting
        asked = f"at each of {v.levels} levels, {v.threshold} of {v.batch:,} devices drawn at random must have it"
        return f"A word needs about {v.holders:,} holders to be found: {asked}."

    @property
    def event(self) -> Event:
        """(ε, δ), which is added to that of other operations."""
        return Approximate(self.voting.epsilon, max(self.voting.delta, sys.float_info.min))  # it is never 0

    def guarantee(self) -> Guarantee:
        """What follows from the sampling and the threshold."""
        v = self.voting
        origin = {"threshold": v.threshold, "batch": v.batch, "randomness": self.randomness.name}
        return Guarantee(v.epsilon, v.delta, origin)


def grow(task: PrefixLevel, scores: Scores, max_prefixes: int) -> Grown:
    """The words and prefixes whose scores reach their thresholds; of the prefixes only the best `max_prefixes`."""
    words, prefixes = dict[str, float](), list[str]()
    passed = np.flatnonzero(scores.score >= min(scores.word, scores.prefix))
    for candidate in passed[np.argsort(-scores.score[passed], kind="stable")].tolist():
        text, is_word = task.extended(candidate)
        score = float(scores.score[candidate])
        if is_word and text and score >= scores.word and text not in task.collection.known:
            words[text] = score
        elif not is_word and text and score >= scores.prefix:
            prefixes.append(text)
    return Grown(words, tuple(prefixes[:max_prefixes]))
