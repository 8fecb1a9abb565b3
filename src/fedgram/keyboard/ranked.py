"""The best items of a search, kept in order while it runs."""

from typing import NamedTuple

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.jit import lean_kernel


class Ranked(NamedTuple):
    """The best items found so far with their worth, the best first; −inf and −1 where there is none yet."""

    worth: FloatArray
    item: LongArray

    @classmethod
    def of(cls, k: int) -> "Ranked":
        """Room for k items."""
        return cls(np.full(k, -np.inf), np.full(k, -1, np.int64))

    def rows(self) -> list[tuple[int, float]]:
        """(item, worth) of those that were found."""
        pairs = zip(self.item.tolist(), self.worth.tolist(), strict=True)
        return [(item, worth) for item, worth in pairs if item >= 0]


@lean_kernel
def insert(ranked: Ranked, worth: float, item: int) -> None:
    """Insert an item after those of equal worth, unless it is not among the best."""
    _move_up(ranked, len(ranked.item) - 1, worth, item)


@lean_kernel
def insert_once(ranked: Ranked, worth: float, item: int) -> None:
    """Like `insert`; an item that is there already gets the greater worth."""
    place = len(ranked.item) - 1
    for j in range(len(ranked.item)):
        if ranked.item[j] == item:
            place = j
    _move_up(ranked, place, worth, item)


@lean_kernel
def _move_up(ranked: Ranked, place: int, worth: float, item: int) -> None:
    """Replace the item at a place by one that is worth more, and move it up to where it belongs."""
    if worth <= ranked.worth[place]:
        return
    while place > 0 and ranked.worth[place - 1] < worth:
        ranked.worth[place], ranked.item[place] = ranked.worth[place - 1], ranked.item[place - 1]
        place -= 1
    ranked.worth[place], ranked.item[place] = worth, item
