"""A model over fewer words, against the dictionary model and by hand."""

import numpy as np
import pytest
from tests.reference.dict_model import DictModel
from tests.reference.random_models import random_model

from fedgram.automata.model import NGramModel
from fedgram.automata.properties import normalization_error, topology_faults
from fedgram.automata.restrict import keep_words
from fedgram.text.vocabulary import SPECIAL


def by_words(model: NGramModel) -> dict[tuple[str, ...], float]:
    words = model.vocabulary.words
    return {tuple(words[x] for x in ngram): p for ngram, p in DictModel(model).p.items()}


@pytest.mark.parametrize("seed", range(10))
def test_the_other_ngrams_keep_their_probabilities(seed: int) -> None:
    model = random_model(np.random.default_rng(seed), order=3)
    words = set(model.vocabulary.words[len(SPECIAL) + 2 :])
    kept, before = keep_words(model, words), by_words(model)
    assert set(kept.vocabulary.words) == {*SPECIAL, *words}
    assert topology_faults(kept.topology) == []
    assert normalization_error(kept) < 1e-9
    wanted = {ngram: p for ngram, p in before.items() if set(ngram) <= {*SPECIAL, *words}}
    after = by_words(kept)
    assert after.keys() == wanted.keys()
    longer = [ngram for ngram in wanted if len(ngram) > 1]
    assert [after[n] for n in longer] == pytest.approx([wanted[n] for n in longer])


def test_dropped_words_become_unknown() -> None:
    model = NGramModel.train(["a a b c", "a d"], vocab=["a", "b", "c"], order=2, smoothing="witten-bell")
    before, after = by_words(model), by_words(keep_words(model, {"a", "b"}))
    assert after[("<unk>",)] == pytest.approx(before[("<unk>",)] + before[("c",)])
    assert after[("a",)] == pytest.approx(before[("a",)])
    assert ("b", "c") in before
    assert not any("c" in ngram for ngram in after)


def test_a_closed_model_shares_what_was_dropped() -> None:
    model = NGramModel.train(["a a b c"], order=1, smoothing="witten-bell")  # 2/5, 1/5, 1/5, and 1/5 for the end
    assert by_words(keep_words(model, {"a", "b"})) == pytest.approx({("a",): 0.5, ("b",): 0.25, ("</s>",): 0.25})


def test_all_words_are_the_model() -> None:
    model = random_model(np.random.default_rng(3), order=3)
    assert by_words(keep_words(model, set(model.vocabulary.words))) == pytest.approx(by_words(model))
