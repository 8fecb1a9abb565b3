"""All n-grams of runs of words, numbered order by order: the basis of every topology.

A *run* is a sentence with `<s>` and `</s>`, or a single n-gram. The n-grams of order n are all substrings of n words of
all runs. Together, they are closed under dropping the first and the last word, as a backoff-complete topology requires.
The n-gram of order n at position i is the pair (n-gram of order n−1 at i, word at i+n−1). Sorting these pairs numbers
the n-grams in prefix order, and any position at which an n-gram occurs gives its suffix as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgram.automata.topology import END, Topology
from fedgram.core.arrays import BoolArray, IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import BOS, EOS, UNK

MAX_ORDER = 7
_DIGIT_BITS = 11
KeyArray = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The n-grams of one order, sorted by (parent, word).

    `parent` is the number of the n-gram without its last word, and `suffix` the number without its first word, both
    among the n-grams of the order below. `count` is the number of occurrences. The n-grams of order 1 are the words of
    the vocabulary by id.
    """

    parent: IntArray
    word: IntArray
    suffix: IntArray
    count: LongArray

    def __len__(self) -> int:
        return len(self.word)


def index_runs(runs: Ragged, *, order: int, words: int) -> tuple[list[Level], list[IntArray]]:
    """Number the n-grams of all runs up to `order`, over a vocabulary of `words` ids.

    Returns the levels; and for each order n, the number of the first n-gram of each run, −1 for runs of less than n
    words.
    """
    if not 1 <= order <= MAX_ORDER:
        raise InvariantError(f"the order must be between 1 and {MAX_ORDER}, not {order}")
    stream, starts = runs.values, runs.offsets[:-1]
    if len(stream) >= 2**31:
        raise FedgramError(
            "the text has more than 2,147,483,647 words and sentence marks; count it in parts and merge the counts"
        )
    if len(stream) and not (stream.min() >= 0 and stream.max() < words):
        raise InvariantError("a word id is outside the vocabulary")
    room = _room(runs.offsets, order)
    node = stream
    zeros = np.zeros(words, np.int32)
    levels = [Level(zeros, np.arange(words, dtype=np.int32), zeros, np.bincount(stream, minlength=words))]
    at_start = [_gather(node, starts, room, 1)]
    for n in range(2, order + 1):
        keys, positions = _pair_keys(stream, node, room, n, words)
        bits = int(len(levels[-1]) - 1).bit_length() + (words - 1).bit_length()
        keys, positions = _radix_sort(keys, positions, bits, _DIGIT_BITS)
        parent, word, first, count, next_node = _number(keys, positions, (words - 1).bit_length(), len(stream))
        suffix = node[first + 1] if len(first) else np.zeros(0, np.int32)
        levels.append(Level(parent, word, suffix, count))
        node = next_node
        at_start.append(_gather(node, starts, room, n))
    return levels, at_start


def _gather(node: IntArray, starts: LongArray, room: NDArray[np.uint8], n: int) -> IntArray:
    """The number of the n-gram at the start of each run; −1 for runs of less than n words."""
    result = np.full(len(starts), -1, np.int32)
    if len(node):
        inside = np.minimum(starts, len(node) - 1)
        long_enough = (starts < len(node)) & (room[inside] >= n)
        result[long_enough] = node[starts[long_enough]]
    return result


@kernel
def _room(offsets: LongArray, order: int) -> NDArray[np.uint8]:
    """For each position, the number of words from it to the end of its run, at most `order`."""
    room = np.empty(offsets[-1], np.uint8)
    for r in range(len(offsets) - 1):
        for i in range(offsets[r], offsets[r + 1]):
            room[i] = min(order, offsets[r + 1] - i)
    return room


@kernel
def _pair_keys(
    stream: IntArray, node: IntArray, room: NDArray[np.uint8], n: int, words: int
) -> tuple[KeyArray, IntArray]:
    """The pairs (n-gram of order n−1, last word) of all n-grams of order n as sort keys, and their positions."""
    shift = np.uint64(0)
    while (1 << shift) < words:
        shift += np.uint64(1)
    total = 0
    for i in range(len(stream)):
        total += room[i] >= n
    keys, positions = np.empty(total, np.uint64), np.empty(total, np.int32)
    k = 0
    for i in range(len(stream)):
        if room[i] >= n:
            keys[k] = (np.uint64(node[i]) << shift) | np.uint64(stream[i + n - 1])
            positions[k] = i
            k += 1
    return keys, positions


@kernel
def _radix_sort(keys: KeyArray, positions: IntArray, bits: int, digit_bits: int) -> tuple[KeyArray, IntArray]:
    """Stable sort of (key, position) pairs by the low `bits` of the key, in linear time."""
    other_keys, other_positions = np.empty_like(keys), np.empty_like(positions)
    mask = np.uint64((1 << digit_bits) - 1)
    for shift in range(0, bits, digit_bits):
        begin = np.zeros((1 << digit_bits) + 1, np.int64)
        for i in range(len(keys)):
            begin[np.int64((keys[i] >> np.uint64(shift)) & mask) + 1] += 1
        for d in range(1 << digit_bits):
            begin[d + 1] += begin[d]
        for i in range(len(keys)):
            digit = np.int64((keys[i] >> np.uint64(shift)) & mask)
            other_keys[begin[digit]] = keys[i]
            other_positions[begin[digit]] = positions[i]
            begin[digit] += 1
        keys, other_keys = other_keys, keys
        positions, other_positions = other_positions, positions
    return keys, positions


@kernel
def _number(
    keys: KeyArray, positions: IntArray, word_bits: int, length: int
) -> tuple[IntArray, IntArray, IntArray, LongArray, IntArray]:
    """Number the distinct keys: parent, word, first position and count of each; and the number at each position."""
    distinct = 0
    for i in range(len(keys)):
        distinct += i == 0 or keys[i] != keys[i - 1]
    parent, word, first = np.empty(distinct, np.int32), np.empty(distinct, np.int32), np.empty(distinct, np.int32)
    count, node = np.zeros(distinct, np.int64), np.full(length, -1, np.int32)
    k = -1
    for i in range(len(keys)):
        if i == 0 or keys[i] != keys[i - 1]:
            k += 1
            parent[k] = np.int32(keys[i] >> np.uint64(word_bits))
            word[k] = np.int32(keys[i] & np.uint64((1 << word_bits) - 1))
            first[k] = positions[i]
        count[k] += 1
        node[positions[i]] = k
    return parent, word, first, count, node


def topology_of(levels: Sequence[Level], *, open_vocabulary: bool, kept: Sequence[BoolArray] = ()) -> Topology:
    """The topology of the n-grams of the levels.

    Arcs are in the order of the levels and, within a level, in the order of its n-grams. So the number of an arc is the
    number of its n-gram plus an offset (see `first_arc_of_level`). States are the empty history, `<s>`, every n-gram
    that another n-gram continues, and the n-grams marked in `kept`.
    """
    states = _states(levels, kept)
    labels = _first_labels(len(levels[0]), open_vocabulary)
    ids, count = [], 1
    for is_state in states:
        numbers = np.where(is_state, count + np.cumsum(is_state) - 1, -1).astype(np.int32)
        ids.append(numbers)
        count += int(is_state.sum())
    resolved = [_resolve(levels, ids, n) for n in range(len(levels))]
    children = [np.array([len(labels)])]
    children += [
        np.bincount(levels[n + 1].parent, minlength=len(levels[n]))[states[n]]
        if n + 1 < len(levels)
        else np.zeros(int(states[n].sum()), np.int64)
        for n in range(len(levels))
    ]
    backoffs = [np.array([-1], np.int32), np.zeros(int(states[0].sum()), np.int32)]
    backoffs += [ids[n - 1][levels[n].suffix[states[n]]] for n in range(1, len(levels))]
    return Topology(
        np.concatenate([[0], np.cumsum(np.concatenate(children))]).astype(np.int64),
        np.concatenate([labels, *(level.word for level in levels[1:])]).astype(np.int32),
        np.concatenate([resolved[0][labels], *resolved[1:]]).astype(np.int32),
        np.concatenate(backoffs).astype(np.int32),
        start=int(ids[0][BOS]),
    )


def first_arc_of_level(levels: Sequence[Level], order: int, *, open_vocabulary: bool) -> int:
    """The arc of the first n-gram of this order (≥ 2)."""
    return len(_first_labels(len(levels[0]), open_vocabulary)) + sum(len(level) for level in levels[1 : order - 1])


def _first_labels(words: int, open_vocabulary: bool) -> IntArray:
    """The labels of the empty history."""
    labels = np.arange(words, dtype=np.int32)
    wanted: BoolArray = (labels != BOS) & ((labels != UNK) | open_vocabulary)
    return labels[wanted]


def _states(levels: Sequence[Level], kept: Sequence[BoolArray]) -> list[BoolArray]:
    """For each level, which of its n-grams are states."""
    states = [np.zeros(len(level), bool) for level in levels]
    states[0][BOS] = True
    for n in range(len(levels) - 1, -1, -1):
        if n + 1 < len(levels):
            states[n][levels[n + 1].parent] = True
            states[n][levels[n + 1].suffix[states[n + 1]]] = True
        if kept:
            states[n] |= kept[n]
    return states


def _resolve(levels: Sequence[Level], ids: Sequence[IntArray], n: int) -> IntArray:
    """For each n-gram of `levels[n]`, the state of its longest suffix that is one; END after `</s>`."""
    suffix: NDArray[np.int32] | None = None
    result = ids[n].copy()
    for m in range(n - 1, -1, -1):
        suffix = levels[m + 1].suffix if suffix is None else levels[m + 1].suffix[suffix]
        missing = result < 0
        result[missing] = ids[m][suffix[missing]]
    result[result < 0] = 0
    result[levels[n].word == EOS] = END
    return result
