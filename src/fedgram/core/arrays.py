"""Array types, and `Ragged`: rows of different lengths in one flat array, which numpy lacks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedgram.core.errors import InvariantError

IntArray = NDArray[np.int32]
LongArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
ByteArray = NDArray[np.uint8]
BoolArray = NDArray[np.bool_]


T = TypeVar("T", bound=np.generic)


def frozen(array: NDArray[T]) -> NDArray[T]:
    """Make the array read-only, and return it."""
    array.setflags(write=False)
    return array


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of integers: row i is `values[offsets[i]:offsets[i+1]]`.

    Invariant: offsets start at 0, never decrease, and end at `len(values)`.

    >>> rows = Ragged.from_rows([[5, 6], [], [7]])
    >>> len(rows), rows[0].tolist(), rows.offsets.tolist()
    (3, [5, 6], [0, 2, 2, 3])
    """

    values: IntArray
    offsets: LongArray

    def __post_init__(self) -> None:
        o = self.offsets
        if o.ndim != 1 or len(o) == 0 or o[0] != 0 or o[-1] != len(self.values) or bool((o[1:] < o[:-1]).any()):
            raise InvariantError("Ragged: offsets must start at 0, never decrease, and end at the number of values")

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        """The rows of these Python sequences."""
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls(np.array([x for row in rows for x in row], np.int32), offsets)

    @classmethod
    def concatenate(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """The rows of all parts, in order."""
        if not parts:
            return cls(np.zeros(0, np.int32), np.zeros(1, np.int64))
        starts = np.cumsum([0] + [len(p.values) for p in parts])
        offsets = [p.offsets[1:] + start for p, start in zip(parts, starts, strict=False)]
        return cls(
            np.concatenate([p.values for p in parts]),
            np.concatenate([np.zeros(1, np.int64), *offsets]),
        )

    def select(self, rows: BoolArray) -> "Ragged":
        """The rows for which the mask is true, in order.

        >>> [row.tolist() for row in Ragged.from_rows([[1], [2, 3], [4]]).select(np.array([True, False, True]))]
        [[1], [4]]
        """
        lengths = np.diff(self.offsets)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[rows])])
        return Ragged(self.values[np.repeat(rows, lengths)], offsets)

    def places(self, rows: LongArray | IntArray) -> LongArray:
        """The positions of these rows' values in `values`, in the given order."""
        lengths = np.diff(self.offsets)[rows]
        ends = np.cumsum(lengths)
        return np.repeat(self.offsets[rows] - (ends - lengths), lengths) + np.arange(int(lengths.sum()))

    def take(self, rows: LongArray | IntArray) -> "Ragged":
        """These rows, in the given order; a row may occur more than once.

        >>> [row.tolist() for row in Ragged.from_rows([[1], [2, 3], [4]]).take(np.array([2, 1, 1]))]
        [[4], [2, 3], [2, 3]]
        """
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.diff(self.offsets)[rows])])
        return Ragged(self.values[self.places(rows)], offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> IntArray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[IntArray]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows, {len(self.values)} values)"


def sum_by(group: NDArray[Any], values: FloatArray, groups: int) -> FloatArray:
    """The sum of the values of each group 0 … groups − 1.

    >>> sum_by(np.array([1, 0, 1]), np.array([0.5, 2.0, 0.25]), 3).tolist()
    [2.0, 0.75, 0.0]
    """
    return np.bincount(group, values, minlength=groups).astype(np.float64, copy=False)
