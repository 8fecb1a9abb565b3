"""The sketch of pairs: which cells a device marks, and when a pair counts as found. With a hash of its own."""

import math
from collections.abc import Iterable

import numpy as np
import pytest

from fedgram.core.arrays import Ragged
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.distill.refit.pair_sketch import CELLS, WORDS, PairCollection, SketchSize
from fedgram.text.population import ClientDataset
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary

VOCABULARY = Vocabulary.of(("see", "you", "soon", "there"))
SEE, YOU, SOON, THERE = VOCABULARY.encode(["see", "you", "soon", "there"])
TABLES, BITS = 3, 10
SIZE = SketchSize(TABLES, BITS)
_64 = 2**64 - 1


def cell(first: int, second: int, table: int) -> int:
    """SplitMix64's finaliser of a pair and a table, in whole numbers of any size."""
    z = (((first << 32) | second) + (table + 1) * 0x9E3779B97F4A7C15) & _64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _64
    return ((z ^ (z >> 31)) >> (64 - BITS)) + (table << BITS)


def cells(pairs: Iterable[tuple[int, int]]) -> list[int]:
    return sorted({cell(*pair, table) for pair in pairs for table in range(TABLES)})


def marked(task: PairCollection, *sentences: list[int]) -> dict[str, list[int]]:
    text = Ragged.from_rows(sentences)
    update = task.client_update(Record(), ClientDataset("x", text), Stream(0))
    return {name: index.tolist() for name, index in update.index.items()}


@pytest.mark.parametrize("with_unknown", [True, False])
def test_a_device_marks_the_cells_of_its_pairs(with_unknown: bool) -> None:
    """In a closed model a pair with `<unk>` is none, whether `<unk>` comes first or second."""
    task = PairCollection(VOCABULARY, SIZE, labels=math.inf, with_unknown=with_unknown)
    found = marked(task, [SEE, YOU], [SEE, UNK, SOON])
    pairs = [(BOS, SEE), (SEE, YOU), (YOU, EOS), (SOON, EOS)]
    assert found[CELLS] == cells(pairs + ([(SEE, UNK), (UNK, SOON)] if with_unknown else []))
    assert found[WORDS] == sorted([SEE, YOU, SOON] + ([UNK] if with_unknown else []))


def test_a_device_marks_the_pairs_of_so_many_labels_only() -> None:
    """Each sentence has three labels, so that two of them are the most within seven."""
    sentences = [[SEE, YOU], [YOU, SOON], [SOON, THERE], [THERE, SEE]]
    all_pairs = [{(BOS, a), (a, b), (b, EOS)} for a, b in sentences]
    found = marked(PairCollection(VOCABULARY, SIZE, labels=7), *sentences)
    two = [cells(one | other) for i, one in enumerate(all_pairs) for other in all_pairs[:i]]
    assert found[CELLS] in two


def test_a_pair_is_found_if_enough_devices_marked_its_cells_in_all_tables() -> None:
    task = PairCollection(VOCABULARY, SIZE, labels=math.inf, with_unknown=False)
    words = np.full(len(VOCABULARY), 5)
    for missing in range(TABLES):
        marks = np.zeros(TABLES << BITS, np.int64)
        marks[cells([(SEE, YOU), (YOU, SOON)])] = 5
        marks[cell(YOU, SOON, missing)] = 4
        found = task.found({WORDS: words, CELLS: marks}, least=5, most=100)
        assert [row.tolist() for row in found] == [[SEE, YOU]]
