"""An n-gram model as a library user sees it: what it refuses, in one clear line."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError

TEXT = ["see you there", "see you soon", "", "you see"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ([["see", "you"]], "a sentence must be a string with words separated by blanks, not of type list"),
        ([b"see you"], "not of type bytes"),
        (None, "a text must be the name of a file, or sentences, not of type NoneType"),
        ([], "the text has no words; give at least one sentence"),
        (["", " "], "the text has no words"),
    ],
)
def test_what_is_no_text_is_refused(text: Any, problem: str) -> None:
    with pytest.raises(FedgramError, match=problem):
        NGramModel.train(text)


def test_blank_sentences_are_skipped_in_training_and_count_in_scoring() -> None:
    model = NGramModel.train(TEXT, order=2)
    assert np.array_equal(model.log_weight, NGramModel.train([s for s in TEXT if s], order=2).log_weight)
    assert model.score("") == model.score(" ") < 0


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.score(["see", ["you"]]),
        lambda model: model.score(5),
        lambda model: model.perplexity([["see", "you"]]),
    ],
)
def test_what_is_no_sentence_is_not_scored(use: Callable[[NGramModel], float]) -> None:
    with pytest.raises(FedgramError, match="a sentence must be a string"):
        use(NGramModel.train(TEXT, order=2))


@pytest.mark.parametrize("wrong", ["10", 10.0, None])
def test_a_model_is_pruned_to_a_whole_number_of_ngrams(wrong: Any) -> None:
    model = NGramModel.train(TEXT, order=2)
    with pytest.raises(FedgramError, match=f"max_ngrams must be a whole number of n-grams, not {wrong!r}"):
        model.prune(wrong)
    with pytest.raises(FedgramError, match="allow at least that many"):
        model.prune(1)
    assert model.prune(np.int64(8)).topology.arcs <= 8  # type: ignore[arg-type]
