"""Noise for the sums of rounds: independent from round to round (`GaussianSums`), or correlated (`BltSums`).

The noise is drawn for vectors by name, each with its own standard deviation, and is rounded to the grid of the sum
(`noise.py`). Every coordinate gets noise, whether any device sent something for it or not. Rounds are drawn in order
and once: a run that resumes continues after the last round that was saved.
"""

from collections.abc import Mapping
from math import inf
from typing import Protocol

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.storage import Record
from fedgram.privacy.blt import Blt, BltNoise
from fedgram.privacy.noise import Randomness, normals, on_grid


class SumNoise(Protocol):
    """Noise for the sums of rounds."""

    @property
    def size(self) -> Mapping[str, int]:
        """The vectors that get noise, and their lengths."""

    def draw(self, number: int, bits: int) -> dict[str, LongArray]:
        """The noise of a round, in fixed point with so many fraction bits."""

    def save(self) -> Record:
        """What the noise of later rounds depends on."""

    def load(self, saved: Record) -> None:
        """Continue from what `save` wrote."""


class _Rounds:
    """What both kinds of noise have in common: the vectors, their deviations, and rounds that come in order."""

    def __init__(self, size: Mapping[str, int], deviation: Mapping[str, float]) -> None:
        if size.keys() != deviation.keys():
            raise InvariantError("every vector with noise needs a length and a standard deviation")
        if not all(0 < d < inf for d in deviation.values()):
            raise FedgramError("the standard deviation of noise must be greater than 0 and finite")
        self.size, self.deviation, self.round = dict(size), dict(deviation), 0

    def _begin(self, number: int) -> None:
        if number != self.round + 1:
            raise InvariantError(f"the noise of round {number} is asked for after that of round {self.round}")
        self.round = number

    def _scaled(self, noise: Mapping[str, FloatArray], bits: int) -> dict[str, LongArray]:
        return {name: on_grid(unit, self.deviation[name] * 2.0**bits) for name, unit in noise.items()}


class GaussianSums(_Rounds):
    """Independent Gaussian noise. `label` tells apart the noise of several runs with the same seed."""

    def __init__(
        self, size: Mapping[str, int], deviation: Mapping[str, float], randomness: Randomness, *, label: str = ""
    ) -> None:
        super().__init__(size, deviation)
        self._randomness, self._label = randomness, label

    def draw(self, number: int, bits: int) -> dict[str, LongArray]:
        """The noise of a round."""
        self._begin(number)
        names = {name: (self._label, "sum", number, name) for name in self.size}
        return self._scaled({name: normals(self._randomness, n, *names[name]) for name, n in self.size.items()}, bits)

    def save(self) -> Record:
        """The number of the last round."""
        return Record({"round": self.round})

    def load(self, saved: Record) -> None:
        """Continue after that round."""
        self.round = int(saved.fields["round"])


class BltSums(_Rounds):
    """BLT noise. The deviations are those of the fresh noise. Its buffers are part of a checkpoint."""

    def __init__(
        self, blt: Blt, size: Mapping[str, int], deviation: Mapping[str, float], randomness: Randomness, *,
        label: str = "",
    ) -> None:  # fmt: skip
        super().__init__(size, deviation)
        self._noise = BltNoise(blt, size, randomness, label=label)

    def draw(self, number: int, bits: int) -> dict[str, LongArray]:
        """The noise of a round."""
        self._begin(number)
        return self._scaled(self._noise.next(), bits)

    def save(self) -> Record:
        """The round and the buffers."""
        return self._noise.save()

    def load(self, saved: Record) -> None:
        """Continue after that round."""
        self._noise.load(saved)
        self.round = self._noise.round
