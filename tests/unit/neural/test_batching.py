"""Batches of sentences to read: each sentence once, and no batch larger than allowed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.arrays import Ragged
from fedgram.neural.batching import NOTHING, pack_clients, reading_batches
from fedgram.text.vocabulary import BOS, EOS


@given(
    sentences=st.lists(st.lists(st.integers(3, 50), max_size=12), max_size=20), positions=st.integers(1, 60),
    seed=st.integers(0, 5),
)  # fmt: skip
def test_every_sentence_is_read_once(sentences: list[list[int]], positions: int, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(sentences))
    seen: list[int] = []
    for chosen, words, inside in reading_batches(Ragged.from_rows(sentences), order, positions):
        assert words.size <= positions or len(chosen) == 1
        for k, row, asked in zip(chosen.tolist(), words.tolist(), inside.tolist(), strict=True):
            m = len(sentences[k])
            assert row == [BOS, *sentences[k], *[BOS] * (len(row) - m - 1)]
            assert asked == [True] * m + [False] * (len(row) - m)
        seen += chosen.tolist()
    assert seen == order.tolist()


def pack(sentences: list[list[int]], rows: int, length: int) -> list[list[list[tuple[int, int]]]]:
    """(input, target) by batch and row: a sentence goes to the first row of the last batch with room for it."""
    batches: list[list[list[tuple[int, int]]]] = []
    for sentence in sentences:
        pairs = list(zip([BOS, *sentence], [*sentence, EOS], strict=True))[:length]
        room = [row for row in batches[-1] if len(row) + len(pairs) <= length] if batches else []
        if not room:
            batches.append([[] for _ in range(rows)])
            room = batches[-1]
        room[0].extend(pairs)
    return batches


@given(
    clients=st.lists(st.lists(st.lists(st.integers(3, 50), max_size=9), max_size=9), min_size=1, max_size=4),
    rows=st.integers(1, 3), length=st.integers(1, 8), full=st.booleans(),
)  # fmt: skip
def test_clients_are_packed_sentence_by_sentence(
    clients: list[list[list[int]]], rows: int, length: int, full: bool
) -> None:
    packed = pack_clients([Ragged.from_rows(own) for own in clients], rows=rows, length=length, full_rows=full)
    expected = [pack(own, rows, length) for own in clients]
    assert packed.steps.tolist() == [len(batches) for batches in expected]
    assert packed.asked.tolist() == [sum(len(row) for batch in batches for row in batch) for batches in expected]
    longest = max((len(row) for batches in expected for batch in batches for row in batch), default=0)
    assert packed.words.shape[3] == (length if full else longest)
    for c, batches in enumerate(expected):
        for step in range(packed.words.shape[1]):
            for row in range(rows):
                pairs = batches[step][row] if step < len(batches) else []
                padding = packed.words.shape[3] - len(pairs)
                assert packed.words[c, step, row].tolist() == [x for x, _ in pairs] + [BOS] * padding
                assert packed.targets[c, step, row].tolist() == [y for _, y in pairs] + [NOTHING] * padding
