"""One protocol for every federated computation: what a device does, what the server does, and what passes between.

A device turns its data into an `Update`, which is a vector; the server adds up the updates of a round and moves its
state. Clipping, masking, noise and the transport stand between the two and know nothing of the task. Sums are taken
in fixed point: integer addition has no rounding, so a round's total does not depend on the order in which devices
report or on how they are split over workers, and secure aggregation masks the very same integers. Paper: §3, §7.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Protocol, TypeVar

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.core.random import Stream
from fedgram.federated.validation import Reason, RefusedUpdateError, UpdateBounds
from fedgram.text.population import ClientDataset


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What one device sends: vectors by name and a weight. Most entries are often 0, so only the others are kept.

    The vector `name` has `size[name]` entries, and is `values[name]` at the rising places `index[name]`, 0 elsewhere.
    """

    size: Mapping[str, int]
    index: Mapping[str, LongArray]
    values: Mapping[str, FloatArray]
    weight: float

    @classmethod
    def dense(cls, arrays: Mapping[str, FloatArray], weight: float) -> "Update":
        """An update whose vectors are given in full."""
        size = {name: len(array) for name, array in arrays.items()}
        return cls(size, {name: np.arange(n, dtype=np.int64) for name, n in size.items()}, arrays, weight)

    @classmethod
    def zero(cls, size: Mapping[str, int]) -> "Update":
        """Nothing at all, with weight 0."""
        return cls(
            size, {name: np.zeros(0, np.int64) for name in size}, {name: np.zeros(0) for name in size}, 0.0
        )  # fmt: skip

    def array(self, name: str) -> FloatArray:
        """One vector in full."""
        full = np.zeros(self.size[name])
        full[self.index[name]] = self.values[name]
        return full

    def __repr__(self) -> str:
        return f"Update({', '.join(f'{name}[{n}]' for name, n in self.size.items())})"


_SAFE_BITS = 50  # of 63: the sum of 8,000 of the largest updates still fits


@kernel
def _add_fixed_point(total: LongArray, index: LongArray, values: FloatArray, scale: float) -> None:
    for k in range(len(index)):
        total[index[k]] += np.int64(np.rint(values[k] * scale))


@dataclass(slots=True, eq=False)
class Total:
    """The sum of updates in fixed point, `bits` bits behind the point; adding is exact, so order does not matter."""

    bits: int
    arrays: dict[str, LongArray]
    weight: int = 0
    devices: int = 0

    @classmethod
    def zero(cls, size: Mapping[str, int], bits: int) -> "Total":
        """The sum of no updates."""
        return cls(bits, {name: np.zeros(n, np.int64) for name, n in size.items()})

    def add(self, update: Update) -> None:
        """Add one device's update; one that is not sound is refused."""
        self.check(update)
        self.add_checked(update)

    def add_checked(self, update: Update) -> None:
        """Add an update that `check` has accepted."""
        for name, array in self.arrays.items():
            _add_fixed_point(array, update.index[name], update.values[name], 2.0**self.bits)
        self.weight += round(update.weight * 2**self.bits)
        self.devices += 1

    def check(self, update: Update) -> None:
        """Refuse what the kernel must not see: the numbers come from devices."""
        if self.arrays.keys() != update.size.keys() or any(len(a) != update.size[n] for n, a in self.arrays.items()):
            raise RefusedUpdateError(Reason.SHAPE, "an update has other vectors than the round's total")
        for name, array in self.arrays.items():
            self._check(update.index[name], update.values[name], len(array))
        if not 0.0 <= update.weight < 2.0 ** (_SAFE_BITS - self.bits):
            raise RefusedUpdateError(Reason.WEIGHT, "an update's weight is negative, not finite or too large")

    def _check(self, index: LongArray, values: FloatArray, size: int) -> None:
        if index.ndim != 1 or index.shape != values.shape:
            raise RefusedUpdateError(Reason.SHAPE, "an update's places and values differ in number")
        if len(index) and not (index[0] >= 0 and index[-1] < size and bool((index[1:] > index[:-1]).all())):
            raise RefusedUpdateError(Reason.SHAPE, "an update's places do not rise within its vector")
        largest = float(np.abs(values).max()) if len(values) else 0.0
        if not isfinite(largest):
            raise RefusedUpdateError(Reason.NOT_FINITE, "an update holds a value that is not finite")
        if not largest < 2.0 ** (_SAFE_BITS - self.bits):
            raise RefusedUpdateError(Reason.TOO_LARGE, "an update holds a value that is too large")

    def __add__(self, other: "Total") -> "Total":
        """The sum of two shards of a round."""
        if self.bits != other.bits or self.arrays.keys() != other.arrays.keys():
            raise InvariantError("totals of different tasks cannot be added")
        arrays = {name: self.arrays[name] + other.arrays[name] for name in self.arrays}
        return Total(self.bits, arrays, self.weight + other.weight, self.devices + other.devices)

    def array(self, name: str) -> FloatArray:
        """One vector of the sum, as real numbers."""
        return np.ldexp(self.arrays[name].astype(np.float64), -self.bits)


State = TypeVar("State")


class FederatedTask(Protocol[State]):
    """A federated computation: three functions and the shape of an update."""

    @property
    def bits(self) -> int:
        """Bits behind the point of a sum."""

    @property
    def size(self) -> Mapping[str, int]:
        """The length of each vector of an update."""

    @property
    def bounds(self) -> UpdateBounds:
        """How much one device may contribute."""

    def init(self) -> State:
        """The server's state before the first round."""

    def client_update(self, state: State, data: ClientDataset, rng: Stream) -> Update:
        """What a device sends. It must not return, write or log anything else of its data."""

    def server_update(self, state: State, total: Total) -> State:
        """The state after a round."""
