"""Finding pairs of words that several devices have, without any device naming one: a count-min sketch.

There are too many pairs of words to count them all. So each pair has a cell in each of a few tables, by a hash that the
server chose, and a device marks the cells of its pairs. Sums over devices say, for every cell, how many devices have
some pair of it, and the least of a pair's cells is at least the number of devices that have the pair (Cormode and
Muthukrishnan 2005). The server looks up every pair of words that enough devices have. What it finds by collision is
left out once the pairs are counted. A device marks pairs of at most λ words, each cell once. Beyond the paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import IntArray, LongArray, Ragged, frozen
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.jit import inline_kernel, kernel
from fedgram.core.random import Stream
from fedgram.federated.one_pass import at_most
from fedgram.federated.task import Total, Update
from fedgram.text.population import ClientDataset
from fedgram.text.vocabulary import BOS, EOS, UNK

WORDS, CELLS = "words", "cells"


@dataclass(frozen=True, slots=True)
class SketchSize:
    """`tables` tables of 2^`bits` cells each; a cell should have fewer pairs than one, on average."""

    tables: int = 3
    bits: int = 22

    def __post_init__(self) -> None:
        if not (1 <= self.tables <= 16 and 4 <= self.bits <= 28):
            raise FedgramError("a sketch has 1 to 16 tables of 2^4 to 2^28 cells")


@dataclass(frozen=True, slots=True, eq=False)
class PairSketch:
    """How many devices have each word, and some pair of each cell; tables stand one behind the other."""

    words: LongArray
    cells: LongArray

    def __post_init__(self) -> None:
        frozen(self.words)
        frozen(self.cells)


class PairCollection:
    """The sketch as a `FederatedTask`; device data is in ids below `words`, and `<unk>` is no word unless told."""

    bits = 0

    def __init__(self, words: int, size: SketchSize, *, labels: float, with_unknown: bool = True) -> None:
        self.words, self.sketch, self.labels, self.with_unknown = words, size, labels, with_unknown
        self.size: Mapping[str, int] = {WORDS: words, CELLS: size.tables << size.bits}

    def init(self) -> PairSketch:
        """Nobody has anything."""
        return PairSketch(np.zeros(self.words, np.int64), np.zeros(self.size[CELLS], np.int64))

    def client_update(self, state: PairSketch, data: ClientDataset, rng: Stream) -> Update:  # noqa: ARG002
        """The words and the cells that a device has, each once."""
        sentences = at_most(data.sentences, self.labels, rng)
        words = np.unique(sentences.values).astype(np.int64)
        pairs = np.unique(_pairs(sentences.values, sentences.offsets, self.with_unknown))
        cells = np.unique(_cells_of(pairs, self.sketch.tables, self.sketch.bits))
        index = {WORDS: words if self.with_unknown else words[words != UNK], CELLS: cells}
        return Update(self.size, index, {name: np.ones(len(i)) for name, i in index.items()}, weight=1.0)

    def admit(self, update: Update) -> None:
        """Refuse marks that are no marks, or more than the words of one device can make."""
        if any(not np.array_equal(v, np.ones(len(v))) for v in update.values.values()) or update.weight != 1.0:
            raise InvariantError("an update holds something else than marks")
        if any(len(update.index.get(n, ())) > k * self.labels for n, k in ((WORDS, 1), (CELLS, self.sketch.tables))):
            raise InvariantError("an update has more marks than one device may make")

    def server_update(self, state: PairSketch, total: Total) -> PairSketch:
        """Add a round's marks."""
        return PairSketch(state.words + total.arrays[WORDS], state.cells + total.arrays[CELLS])

    def found(self, state: PairSketch, *, least: int, most: int) -> Ragged:
        """The pairs that at least `least` devices may have, as n-grams; of more than `most` only the commoner."""
        first = np.flatnonzero(state.words >= least).astype(np.int32)
        first, second = first[(first != BOS) & (first != EOS)], np.append(first, np.int32(EOS))
        first = np.append(first, np.int32(BOS))
        pairs = np.empty((most, 2), np.int32)
        while (n := _look_up(first, second, state.cells, self.sketch.tables, self.sketch.bits, least, pairs)) > most:
            least += 1
        return Ragged(pairs[:n].reshape(-1).copy(), np.arange(n + 1, dtype=np.int64) * 2)


@kernel
def _pairs(values: IntArray, offsets: LongArray, with_unknown: bool) -> LongArray:
    pairs = np.empty(len(values) + len(offsets) - 1, np.int64)
    n = 0
    for s in range(len(offsets) - 1):
        w = BOS
        for i in range(offsets[s], offsets[s + 1] + 1):
            x = values[i] if i < offsets[s + 1] else EOS
            if with_unknown or (w != UNK and x != UNK):
                pairs[n] = (np.int64(w) << 32) | x
                n += 1
            w = x
    return pairs[:n]


@inline_kernel
def _cell(pair: np.int64, table: int, bits: int) -> np.int64:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014) of the pair and the table."""
    z = np.uint64(pair) + np.uint64(table + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.int64(z >> np.uint64(64 - bits)) + (np.int64(table) << np.int64(bits))


@kernel
def _cells_of(pairs: LongArray, tables: int, bits: int) -> LongArray:
    cells = np.empty(len(pairs) * tables, np.int64)
    for i in range(len(pairs)):
        for table in range(tables):
            cells[i * tables + table] = _cell(pairs[i], table, bits)
    return cells


@kernel
def _look_up(
    first: IntArray, second: IntArray, cells: LongArray, tables: int, bits: int, least: int, pairs: IntArray
) -> int:
    """All pairs with `least` marks in all of their cells; one more than there is room for where they do not fit."""
    n = 0
    for w in first:
        for x in second:
            pair, table = (np.int64(w) << 32) | x, 0
            while table < tables and cells[_cell(pair, table, bits)] >= least:
                table += 1
            if table == tables:
                if n == len(pairs):
                    return n + 1
                pairs[n, 0], pairs[n, 1] = w, x
                n += 1
    return n
