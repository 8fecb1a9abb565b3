"""One protocol for every federated computation: what a device does, what the server does, and what passes between.

A device turns its data and the server's broadcast into an `Update`, which is a vector; the server adds up the updates
of a round and moves its state. Cohorts, validation, masking, noise and the transport stand between the two and know
nothing of the task. Sums are taken in fixed point: integer addition has no rounding, so a round's total does not depend
on the order in which devices report or on how they are split over workers, and secure aggregation masks the very same
integers. Paper: §3, §7.1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.federated.validation import Measured, Reason, RefusedUpdateError, UpdateBounds
from fedgram.text.population import ClientDataset

if TYPE_CHECKING:
    from fedgram.federated.intake import Intake


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


@kernel
def _add_fixed_point(total: LongArray, index: LongArray, values: FloatArray, scale: float) -> None:
    for k in range(len(index)):
        total[index[k]] += np.int64(np.rint(values[k] * scale))


@dataclass(slots=True, eq=False)
class Total:
    """The sum of updates in fixed point, with `bits` fraction bits; adding is exact, so order does not matter."""

    bits: int
    arrays: dict[str, LongArray]
    weight: int = 0
    devices: int = 0

    @classmethod
    def zero(cls, size: Mapping[str, int], bits: int) -> "Total":
        """The sum of no updates."""
        return cls(bits, {name: np.zeros(n, np.int64) for name, n in size.items()})

    def add(self, update: Update, bounds: UpdateBounds) -> Measured:
        """Add one device's update; one that is not sound or out of bounds is refused, and the sum stays as it was."""
        self._check_shape(update)
        found = bounds.measure(update.values, update.weight)
        bounds.judge(found, self.bits)
        for name, array in self.arrays.items():
            _add_fixed_point(array, update.index[name], update.values[name], 2.0**self.bits)
        self.weight += round(update.weight * 2**self.bits)
        self.devices += 1
        return found

    def _check_shape(self, update: Update) -> None:
        """Refuse what the kernel must not see: the places come from devices."""
        if self.arrays.keys() != update.size.keys() or any(len(a) != update.size[n] for n, a in self.arrays.items()):
            raise RefusedUpdateError(Reason.SHAPE, "an update has other vectors than the round's total")
        if update.index.keys() != update.size.keys() or update.values.keys() != update.size.keys():
            raise RefusedUpdateError(Reason.SHAPE, "an update lacks a vector")
        for name, size in update.size.items():
            index, values = update.index[name], update.values[name]
            if index.dtype != np.int64 or values.dtype != np.float64:
                raise RefusedUpdateError(Reason.SHAPE, "an update holds numbers of another type")
            if index.ndim != 1 or index.shape != values.shape:
                raise RefusedUpdateError(Reason.SHAPE, "an update's places and values differ in number")
            if len(index) and not (index[0] >= 0 and index[-1] < size and bool((index[1:] > index[:-1]).all())):
                raise RefusedUpdateError(Reason.SHAPE, "an update's places do not rise within its vector")

    def __add__(self, other: "Total") -> "Total":
        """The sum of two shards of a round."""
        if self.bits != other.bits or {n: len(a) for n, a in self.arrays.items()} != {
            n: len(a) for n, a in other.arrays.items()
        }:
            raise InvariantError("totals of different tasks cannot be added")
        arrays = {name: self.arrays[name] + other.arrays[name] for name in self.arrays}
        return Total(self.bits, arrays, self.weight + other.weight, self.devices + other.devices)

    def array(self, name: str) -> FloatArray:
        """One vector of the sum, as real numbers."""
        return np.ldexp(self.arrays[name].astype(np.float64), -self.bits)

    def check(self, bounds: UpdateBounds, found: Measured | None = None) -> None:
        """Refuse a sum that updates within the bounds cannot make; `found` are its numbers, if they are known."""
        if found is None:
            found = bounds.measure({name: self.array(name) for name in self.arrays}, self.weight * 2.0**-self.bits)
        bounds.judge_sum(found, self.devices, {name: len(a) for name, a in self.arrays.items()}, self.bits)


State = TypeVar("State")


class FederatedTask(Protocol[State]):
    """A federated computation: all that any way of running it needs.

    A task is made of its settings alone (`from_settings(task.settings())` is the same task on another machine), and is
    found by its name there (`federated/job.py`). Its functions have no side effects: state, broadcast and data in,
    update or state out.
    """

    @property
    def name(self) -> str:
        """The name under which the task is registered."""

    @property
    def counting(self) -> bool:
        """Whether an update depends on the text alone; a real device then takes part once."""

    @property
    def bits(self) -> int:
        """Fraction bits of a sum in fixed point."""

    @property
    def size(self) -> Mapping[str, int]:
        """The length of each vector of an update."""

    @property
    def bounds(self) -> UpdateBounds:
        """How much one device may contribute."""

    def settings(self) -> Record:
        """All that a device must know of the task, besides what is broadcast in a round."""

    @classmethod
    def from_settings(cls, settings: Record) -> Self:
        """The task of these settings."""

    def encode(self, words: Sequence[str]) -> IntArray | Ragged:
        """The ids that words have in a device's data: one id for each word, or a row of them."""

    def init(self) -> State:
        """The server's state before the first round."""

    def broadcast(self, state: State) -> Record:
        """What devices are sent in the round after this state."""

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:
        """What a device sends. It must not return, write or log anything else of its data."""

    def server_update(self, state: State, total: Total) -> State:
        """The state after a round."""

    def save(self, state: State) -> Record:
        """The state as values and arrays."""

    def load(self, saved: Record) -> State:
        """The state that `save` wrote."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One device of a simulated round: its number, its data, and the random numbers it draws."""

    device: int
    data: ClientDataset
    rng: Stream


@runtime_checkable
class BatchedTask(Protocol):
    """A task that can also compute the updates of many simulated devices at once."""

    def batches(self, members: Sequence[Member]) -> Sequence[Any]:
        """The members in batches, each ready to be computed; may run ahead of time, in another thread."""

    def client_updates(self, broadcast: Record, batches: Sequence[Any], intake: "Intake") -> None:
        """Compute the updates of some batches and hand each to the intake, which judges and sums them."""


def device_stream(seed: int, round_number: int, device: int) -> Stream:
    """The random numbers that a device draws in a round."""
    return Stream(seed, "client", round_number, device)
