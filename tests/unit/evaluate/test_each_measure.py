"""Every measure on one small text, made by hand: unknown words, placeholders, impossible words, several users."""

from math import exp, log

import numpy as np
import pytest

from fedgram.automata.model import MIN_LOG
from fedgram.core.arrays import Ragged
from fedgram.evaluate.accuracy import accuracy
from fedgram.evaluate.keystrokes import keystroke_savings
from fedgram.evaluate.likelihood import GRID, perplexity, sentence_log_likelihood
from fedgram.evaluate.oov import oov_rate
from fedgram.evaluate.predictor import Judgement
from fedgram.evaluate.typed_text import UNKNOWN, TypedText

# Two sentences of user 0, one of user 1. By token: a known word; a word outside 𝒱; an unknown word | a placeholder that
# is ranked first; a word without probability | a known word that the second suggestion has.
TEXT = TypedText(
    users=2,
    read=Ragged.from_rows([[3, 4, 0], [5, 6], [3]]),
    target=np.array([3, 4, UNKNOWN, 5, 6, 3], np.int32),
    in_shared=np.array([True, False, False, True, True, True]),
    is_word=np.array([True, True, True, False, True, True]),
    letters=np.array([4, 2, 6, 8, 3, 5], np.int32),
    sentence_user=np.array([0, 0, 1], np.int32),
)
LOG = np.array([-1.1, -2.3, -3.7, -0.7, -np.inf, -1.9])
JUDGED = Judgement(
    log_prob=LOG,
    rank=np.array([0, 3, 3, 0, 3, 1], np.int32),
    letters=np.array([0, 2, 6, 0, 3, 1], np.int32),
    end_log_prob=np.array([-0.3, -0.4, -np.inf]),
)
UNSCORED = Judgement(np.where(TEXT.target == UNKNOWN, -np.inf, LOG), JUDGED.rank, JUDGED.letters, JUDGED.end_log_prob)


def test_accuracy_is_over_typed_words_whatever_the_rank_of_a_placeholder() -> None:
    for k, right in ((1, [1, 0]), (2, [1, 1]), (3, [1, 1])):
        found = accuracy(TEXT, JUDGED, k=k)
        assert (found.amount.tolist(), found.count.tolist()) == (right, [4, 1])


def test_the_oov_rate_is_over_typed_words() -> None:
    found = oov_rate(TEXT)
    assert (found.amount.tolist(), found.count.tolist()) == ([1, 0], [4, 1])
    placeholder = TypedText(1, Ragged.from_rows([[0, 3]]), np.array([UNKNOWN, 3], np.int32), np.array([False, True]),
                            np.array([False, True]), np.array([8, 4], np.int32), np.zeros(1, np.int32))  # fmt: skip
    assert (oov_rate(placeholder).amount.tolist(), oov_rate(placeholder).count.tolist()) == ([0], [1])


def test_a_word_costs_its_letters_and_the_space() -> None:
    found = keystroke_savings(TEXT, JUDGED)
    assert found.amount.tolist() == [4, 4]  # the first word at once, and the last after one of five letters
    assert found.count.tolist() == [5 + 3 + 7 + 4, 6]


def test_perplexity_is_over_the_shared_words_and_sentence_ends() -> None:
    """A shared word without probability costs 99 nats; an end without one is left out."""
    found = perplexity(TEXT, JUDGED)
    assert found.amount.tolist() == pytest.approx([1.1 + 0.7 - MIN_LOG + 0.3 + 0.4, 1.9], abs=1e-6)
    assert found.count.tolist() == [3 + 2, 1]
    assert found.select(np.array([1])).level == pytest.approx(exp(1.9))


def test_sll_scores_unknown_words_and_sll_e_only_shared_ones() -> None:
    with_oov, without = (sentence_log_likelihood(TEXT, JUDGED, with_oov=w) for w in (True, False))
    assert with_oov.amount.tolist() == pytest.approx([-1.1 - 2.3 - 3.7 - 0.7 + MIN_LOG, -1.9], abs=1e-6)
    assert without.amount.tolist() == pytest.approx([-1.1 - 0.7 + MIN_LOG, -1.9], abs=1e-6)
    assert with_oov.count.tolist() == without.count.tolist() == [2, 1]


def test_a_model_that_cannot_score_unknown_words_leaves_them_out_of_sll() -> None:
    found = sentence_log_likelihood(TEXT, UNSCORED, with_oov=True)
    assert found.amount[0] == pytest.approx(-1.1 - 2.3 - 0.7 + MIN_LOG, abs=1e-6)


def test_sums_of_nats_are_multiples_of_the_grid() -> None:
    thirds = Judgement(np.full(6, log(1 / 3)), JUDGED.rank, JUDGED.letters, np.full(3, log(1 / 7)))
    for found in (perplexity(TEXT, thirds), sentence_log_likelihood(TEXT, thirds, with_oov=True)):
        assert (np.rint(found.amount / GRID) * GRID == found.amount).all()
