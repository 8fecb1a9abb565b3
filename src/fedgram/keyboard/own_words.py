"""The user's own words while they are typed or glided: each is held against the taps or the trail by itself.

Personal words are few, so no search is needed, and words that the packed model lacks take part like all others. What a
word is worth has its probability in both models together (see `personal`). Every other word's probability is (1 − α) of
what it was, so its worth falls by the same −weight·ln(1 − α) for all: they keep their order, and none loses more than
the guard.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.jit import kernel
from fedgram.keyboard.layout import Layout
from fedgram.keyboard.lexicon import MAX_LETTERS
from fedgram.keyboard.personal import LearnedWords, PersonalModel

_LEAST = 1e-300


@dataclass(frozen=True, slots=True, eq=False)
class OwnWords:
    """The learned words that a layout can type, and how probable they are in one context."""

    words: tuple[str, ...]
    spelled: IntArray
    """Letters of all words, as numbers in the layout."""
    offsets: LongArray
    log_p: FloatArray
    log_rest: float
    """ln(1 − α): what every other word's log-probability loses."""


def own_words(personal: PersonalModel | None, layout: Layout, context: Sequence[str]) -> OwnWords | None:
    """The words as they are now; nothing if nothing was learned."""
    if personal is None or not personal.share:
        return None
    table, mixed = personal.table, personal.mixed(context)
    if layout.name not in table.spelled:
        table.spelled[layout.name] = _spell(table, layout)
    typed, words, letters, offsets = table.spelled[layout.name]
    log_p = np.log(np.maximum(mixed[typed], _LEAST))
    return OwnWords(words, letters, offsets, log_p, float(np.log1p(-personal.share)))


def _spell(table: LearnedWords, layout: Layout) -> tuple[list[int], tuple[str, ...], IntArray, LongArray]:
    """Which words the layout can type, and their letters."""
    rank = {letter: n for n, letter in enumerate(layout.letters)}
    typed = [i for i, key in enumerate(table.keys) if 0 < len(key) <= MAX_LETTERS and set(key) <= rank.keys()]
    lengths = [len(table.keys[i]) for i in typed]
    letters = np.array([rank[c] for i in typed for c in table.keys[i]], np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return typed, tuple(table.words[i] for i in typed), letters, offsets


@kernel
def align(
    cost: FloatArray, spelled: IntArray, offsets: LongArray, slips: FloatArray, completion: float
) -> tuple[FloatArray, FloatArray]:
    """What taps are worth for each word: typed wholly, and typed in part, every letter to come costing `completion`.

    `cost[t, letter]` is what tap t is worth for a letter; `slips` are those of an insertion, a deletion and a
    transposition. Letters may be missed as in the keyboard's search: one before a hit or at the end.
    """
    count = len(offsets) - 1
    whole, begun = np.full(count, -np.inf), np.full(count, -np.inf)
    rows = np.empty((3, MAX_LETTERS + 1))
    for w in range(count):
        first, n = offsets[w], offsets[w + 1] - offsets[w]
        rows[:, :] = -np.inf
        rows[0, 0] = 0.0
        for t in range(1, len(cost) + 1):
            now, last, before = rows[t % 3], rows[(t - 1) % 3], rows[(t - 2) % 3]
            for j in range(n + 1):
                value = last[j] + slips[0]
                if j >= 1:
                    value = max(value, last[j - 1] + cost[t - 1, spelled[first + j - 1]])
                if j >= 2:
                    value = max(value, last[j - 2] + slips[1] + cost[t - 1, spelled[first + j - 1]])
                    if t >= 2:
                        swapped = cost[t - 1, spelled[first + j - 2]] + cost[t - 2, spelled[first + j - 1]]
                        value = max(value, before[j - 2] + slips[2] + swapped)
                now[j] = value
        end = rows[len(cost) % 3]
        whole[w] = max(end[n], end[n - 1] + slips[1])
        for j in range(1, n):
            begun[w] = max(begun[w], end[j] + completion * (n - j))
    return whole, begun
