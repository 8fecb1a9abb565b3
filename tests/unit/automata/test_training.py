"""Training within a keyboard's limits: few words in longer n-grams, and few n-grams in all."""

from math import log

import pytest

from fedgram.automata.build import ngrams_of
from fedgram.automata.model import NGramModel
from fedgram.automata.properties import model_faults
from fedgram.automata.training import train
from fedgram.text.corpus import corpus_of

TEXT = ["the cat sat on the mat", "the dog sat on the cat", "a zebra sat", "the dog ran", "a cat ran"] * 3


def longer(model: NGramModel) -> set[str]:
    """The words of n-grams of two and more words."""
    rows = [row.tolist() for row in ngrams_of(model.topology) if len(row) > 1]
    return {model.vocabulary.words[x] for row in rows for x in row} - {"<s>", "</s>"}


def test_only_the_most_frequent_words_are_in_longer_ngrams() -> None:
    whole, few = (train(corpus_of(TEXT), order=3, smoothing="katz", higher_order_words=n) for n in (64_000, 3))
    assert longer(few) == {"the", "sat", "cat"} < longer(whole)
    assert few.vocabulary.words == whole.vocabulary.words  # the others stay as unigrams
    assert model_faults(few) == []


def test_a_model_keeps_to_its_number_of_ngrams() -> None:
    corpus = corpus_of(TEXT)
    whole = train(corpus, order=3, smoothing="modified-kneser-ney")
    small = train(corpus, order=3, smoothing="modified-kneser-ney", max_ngrams=20)
    assert small.topology.arcs <= 20 < whole.topology.arcs
    assert small.vocabulary.words == whole.vocabulary.words
    assert model_faults(small) == []
    kept = {tuple(row.tolist()) for row in ngrams_of(small.topology)}
    assert kept < {tuple(row.tolist()) for row in ngrams_of(whole.topology)}


def test_probabilities_are_those_of_the_counts() -> None:
    """Witten-Bell by hand: p(w|h) = (c(hw) + T(h)·p(w)) / (c(h) + T(h)), with T(h) different words after h."""
    model = train(corpus_of(["a b", "a b", "a c"]), order=2, smoothing="witten-bell")
    p_a, p_b, p_end = 3 / 9, 2 / 9, 3 / 9
    first, second, end = (3 + p_a) / 4, (2 + 2 * p_b) / 5, (2 + p_end) / 3
    assert model.score("a b") == pytest.approx(log(first * second * end))
