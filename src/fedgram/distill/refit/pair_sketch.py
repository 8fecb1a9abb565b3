"""Finding pairs of words that several devices have, without any device naming one: a count-min sketch.

There are too many pairs of words to count them all. So each pair has a cell in each of a few tables, by a hash that the
server chose, and a device marks the cells of its pairs. Sums over devices say, for every cell, how many devices have
some pair of it, and the least of a pair's cells is at least the number of devices that have the pair (Cormode and
Muthukrishnan 2005). The server looks up every pair of words that enough devices have. What it finds by collision is
left out once the pairs are counted. A device marks pairs of at most λ words, each cell once. Beyond the paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from fedgram.core.arrays import IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.jit import inline_kernel, kernel
from fedgram.core.random import Stream
from fedgram.core.storage import Record, limit_from_json, limit_to_json
from fedgram.distill.refit.asked_ngrams import at_most, uncased_ids
from fedgram.federated.counting import CountingTask, Sums
from fedgram.federated.task import Update
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.text.population import ClientDataset
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary, vocabulary_from_bytes, vocabulary_to_bytes

WORDS, CELLS = "words", "cells"


@dataclass(frozen=True, slots=True)
class SketchSize:
    """`tables` tables of 2^`bits` cells each; a cell should have fewer pairs than one, on average."""

    tables: int
    bits: int

    def __post_init__(self) -> None:
        if not (1 <= self.tables <= 16 and 4 <= self.bits <= 28):
            raise FedgramError("a sketch has 1 to 16 tables of 2^4 to 2^28 cells")


class PairCollection(CountingTask):
    """The sketch as a `FederatedTask`, over pairs of a vocabulary's words; `<unk>` is a word unless told."""

    name = "pairs"

    def __init__(self, vocabulary: Vocabulary, size: SketchSize, *, labels: float, with_unknown: bool = True) -> None:
        self.vocabulary, self.sketch, self.labels, self.with_unknown = vocabulary, size, labels, with_unknown
        self.size: Mapping[str, int] = {WORDS: len(vocabulary), CELLS: size.tables << size.bits}
        norms = NormLimit((WORDS,), labels, order=1), NormLimit((CELLS,), labels * size.tables, order=1)
        self.bounds = UpdateBounds(1.0, norms, entry=1.0, whole=True)

    def settings(self) -> Record:
        """The sketch's size, the limit, and the words."""
        labels = limit_to_json(float(self.labels))
        fields = {"sketch": asdict(self.sketch), "labels": labels, "with_unknown": self.with_unknown}
        return Record(fields, {"words": vocabulary_to_bytes(self.vocabulary)})

    @classmethod
    def from_settings(cls, settings: Record) -> "PairCollection":
        """The task of these settings."""
        f, words = settings.fields, vocabulary_from_bytes(settings.arrays["words"])
        labels = float(limit_from_json(f["labels"]))
        return cls(words, SketchSize(**f["sketch"]), labels=labels, with_unknown=bool(f["with_unknown"]))

    def encode(self, words: Sequence[str]) -> IntArray:
        """The ids of words."""
        return uncased_ids(self.vocabulary, words)

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:  # noqa: ARG002
        """The words and the cells that a device has, each once."""
        sentences = at_most(data.sentences, self.labels, rng)
        words = np.unique(sentences.values).astype(np.int64)
        pairs = np.unique(_pairs(sentences.values, sentences.offsets, self.with_unknown))
        cells = np.unique(_cells_of(pairs, self.sketch.tables, self.sketch.bits))
        index = {WORDS: words if self.with_unknown else words[words != UNK], CELLS: cells}
        return Update(self.size, index, {name: np.ones(len(i)) for name, i in index.items()}, weight=1.0)

    def found(self, state: Sums, *, least: int, most: int) -> Ragged:
        """The pairs that at least `least` devices may have, as n-grams; of more than `most` only the commoner."""
        words = np.flatnonzero(state[WORDS] >= least).astype(np.int32)
        words = words[(words > EOS) | ((words == UNK) & self.with_unknown)]  # devices may mark anything
        first, second = np.append(words, np.int32(BOS)), np.append(words, np.int32(EOS))
        pairs = np.empty((most, 2), np.int32)
        while (n := _look_up(first, second, state[CELLS], self.sketch.tables, self.sketch.bits, least, pairs)) > most:
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
