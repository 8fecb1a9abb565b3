"""Batches of sentences to read: each sentence once, and no batch larger than allowed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.arrays import Ragged
from fedgram.neural.batching import reading_batches
from fedgram.text.vocabulary import BOS


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
