"""One protocol for every federated computation: what a device does, what the server does, and what they exchange.

A device turns its data and the server's broadcast into an `Update`, a set of vectors. The server adds up the updates of
a round and computes its next state. Cohorts, validation, masking, noise and transport stand between the two and know
nothing about the task. Sums are taken in fixed point. Integer addition has no rounding, so the total of a round does
not depend on the order of the reports or on how the devices are split over workers, and secure aggregation masks the
same integers. Paper: §3, §7.1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.federated.validation import MeasuredUpdate, Reason, RefusedUpdateError, UpdateBounds
from fedgram.text.population import ClientDataset


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What one device sends: vectors by name, and a weight. Vectors are sparse.

    The vector `name` has `size[name]` entries: `values[name]` at the increasing indices `index[name]`, 0 elsewhere.
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
        """An empty update, with weight 0."""
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


@kernel
def _add_fixed_point(total: LongArray, index: LongArray, values: FloatArray, scale: float) -> None:
    for k in range(len(index)):
        total[index[k]] += np.int64(np.rint(values[k] * scale))


@dataclass(slots=True, eq=False)
class Total:
    """The sum of updates in fixed point, with `bits` fraction bits. Addition is exact, so order does not matter."""

    bits: int
    arrays: dict[str, LongArray]
    weight: int = 0
    devices: int = 0

    @classmethod
    def zero(cls, size: Mapping[str, int], bits: int) -> "Total":
        """The sum of no updates."""
        return cls(bits, {name: np.zeros(n, np.int64) for name, n in size.items()})

    def add(self, update: Update, bounds: UpdateBounds) -> MeasuredUpdate:
        """Add one device's update. A malformed or excessive update is refused, and the sum stays as it was."""
        self._check_shape(update)
        found = bounds.measure(update.values, update.weight)
        bounds.judge(found, self.bits)
        for name, array in self.arrays.items():
            _add_fixed_point(array, update.index[name], update.values[name], 2.0**self.bits)
        self.weight += round(update.weight * 2**self.bits)
        self.devices += 1
        return found

    def _check_shape(self, update: Update) -> None:
        """Refuse indices that would take the kernel out of its arrays: they come from devices."""
        if self.arrays.keys() != update.size.keys() or any(len(a) != update.size[n] for n, a in self.arrays.items()):
            raise RefusedUpdateError(Reason.SHAPE, "the update has other vectors than the task")
        if update.index.keys() != update.size.keys() or update.values.keys() != update.size.keys():
            raise RefusedUpdateError(Reason.SHAPE, "the update lacks a vector")
        for name, size in update.size.items():
            index, values = update.index[name], update.values[name]
            if index.dtype != np.int64 or values.dtype != np.float64:
                raise RefusedUpdateError(Reason.SHAPE, "the update holds numbers of the wrong type")
            if index.ndim != 1 or index.shape != values.shape:
                raise RefusedUpdateError(Reason.SHAPE, "the update's indices and values differ in number")
            if len(index) and not (index[0] >= 0 and index[-1] < size and bool((index[1:] > index[:-1]).all())):
                raise RefusedUpdateError(Reason.SHAPE, "the update's indices are out of order or out of range")

    def __add__(self, other: "Total") -> "Total":
        """The sum of both."""
        if self.bits != other.bits or {n: len(a) for n, a in self.arrays.items()} != {
            n: len(a) for n, a in other.arrays.items()
        }:
            raise InvariantError("totals of different tasks cannot be added")
        arrays = {name: self.arrays[name] + other.arrays[name] for name in self.arrays}
        return Total(self.bits, arrays, self.weight + other.weight, self.devices + other.devices)

    def array(self, name: str) -> FloatArray:
        """One vector of the sum, as floating-point numbers."""
        return np.ldexp(self.arrays[name].astype(np.float64), -self.bits)

    def check(self, bounds: UpdateBounds, found: MeasuredUpdate | None = None) -> None:
        """Refuse a sum that updates within the bounds cannot make; `found` are its numbers, if already measured."""
        if found is None:
            found = bounds.measure({name: self.array(name) for name in self.arrays}, self.weight * 2.0**-self.bits)
        bounds.judge_sum(found, self.devices, {name: len(a) for name, a in self.arrays.items()}, self.bits)


State = TypeVar("State")


class FederatedTask(Protocol[State]):
    """A federated computation: everything that is needed to run it on any fleet.

    A task is defined by its settings: `from_settings(task.settings())` is the same task on another machine, which finds
    its class by name (`federated/job.py`). Its functions have no side effects: state, broadcast and data in, update or
    state out.
    """

    @property
    def name(self) -> str:
        """The name under which the task is registered."""

    @property
    def is_counting(self) -> bool:
        """Whether an update depends only on the device's text, not on the server's state.

        A second update of the same device would count the same text again, so a real device takes part only as often as
        its own setting `participations` allows, once by default.
        """

    @property
    def bits(self) -> int:
        """Fraction bits of the fixed-point sum."""

    @property
    def size(self) -> Mapping[str, int]:
        """The length of each vector of an update."""

    @property
    def bounds(self) -> UpdateBounds:
        """The limits on one device's update."""

    def settings(self) -> Record:
        """Everything that a device must know about the task, except what is broadcast in a round."""

    @classmethod
    def from_settings(cls, settings: Record) -> Self:
        """The task with these settings."""

    def encode(self, words: Sequence[str]) -> IntArray | Ragged:
        """The ids of words in a device's data: one id per word, or a row of ids per word."""

    def init(self) -> State:
        """The server's state before the first round."""

    def broadcast(self, state: State) -> Record:
        """What the server sends to devices in the round after this state."""

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:
        """What a device sends. It must not return, write or log anything else about its data."""

    def server_update(self, state: State, total: Total) -> State:
        """The state after a round."""

    def save(self, state: State) -> Record:
        """The state as values and arrays, for a checkpoint."""

    def load(self, saved: Record) -> State:
        """The state that `save` wrote."""


def device_stream(seed: int, round_number: int, device: int) -> Stream:
    """The random numbers that a device draws in a round."""
    return Stream(seed, "client", round_number, device)


def device_of(rng: Stream) -> int:
    """The number of the device whose `device_stream` this is."""
    return int(rng.names[-1])
