"""Mixtures of any number of models, and their weights by EM."""

import numpy as np
import pytest
from scipy.optimize import minimize
from tests.reference.dict_model import DictModel
from tests.reference.random_models import random_sentences, vocabulary

from fedgram.automata.build import count_ngrams, union_topology
from fedgram.automata.counting import express_on
from fedgram.automata.merge import merge
from fedgram.automata.mixture import fit_weights, joint_vocabulary
from fedgram.automata.model import NGramModel
from fedgram.automata.scoring import score
from fedgram.automata.smoothing import smooth
from fedgram.automata.training import train_on
from fedgram.core.arrays import FloatArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.text.corpus import Corpus, corpus_of
from fedgram.text.vocabulary import BOS, EOS, Vocabulary

WORDS = vocabulary(30)


def some_models(count: int = 3, sentences: int = 80) -> list[NGramModel]:
    texts = [random_sentences(np.random.default_rng(i), words=30, sentences=sentences) for i in range(count)]
    return [smooth(count_ngrams(text, WORDS, order=3, open_vocabulary=True)) for text in texts]


def blended(models: list[NGramModel], shares: tuple[int, ...]) -> Ragged:
    """Sentences from the texts of the models, so many of each."""
    parts = [random_sentences(np.random.default_rng(i), words=30, sentences=n) for i, n in enumerate(shares)]
    return Ragged.concatenate(parts[: len(models)])


def test_weights_are_those_of_a_generic_optimiser() -> None:
    models = some_models()
    text = Corpus(blended(models, (40, 15, 5)), WORDS)
    fitted = fit_weights(models, text)
    parts = [DictModel(model) for model in models]
    p = np.array([[part.prob(h, x) for part in parts] for h, x in histories(text.sentences)])

    def shares(free: FloatArray) -> FloatArray:
        odds = np.exp(np.array([*free, 0.0]))
        scaled: FloatArray = odds / odds.sum()
        return scaled

    def loss(free: FloatArray) -> tuple[float, FloatArray]:
        weights = shares(free)
        slope = weights * (1.0 - (p / (p @ weights)[:, None]).mean(axis=0))
        return -float(np.log(p @ weights).mean()), slope[:2]

    best = minimize(loss, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-13}).x
    expected = shares(best)
    assert np.abs(np.array(fitted.weights) - expected).max() < 1e-6
    assert fitted.perplexity == pytest.approx(np.exp(loss(best)[0]), rel=1e-10)
    assert fitted.perplexity < fitted.perplexity_before
    assert fitted.symbols == len(p)


def histories(sentences: Ragged) -> list[tuple[tuple[int, ...], int]]:
    found = []
    for row in sentences:
        words = [BOS, *row.tolist(), EOS]
        found += [(tuple(words[max(0, i - 2) : i]), words[i]) for i in range(1, len(words))]
    return found


def test_a_mixture_of_three_is_two_mixtures_of_two() -> None:
    models = some_models()
    union, _ = union_topology([m.topology for m in models], len(WORDS))
    a, b, c = (express_on(m, union) for m in models)
    at_once = merge(a, b, c, weights=(0.5, 0.3, 0.2))
    in_steps = merge(merge(a, b, weight=0.5 / 0.8), c, weight=0.8)
    assert np.abs(np.exp(at_once.log_weight) - np.exp(in_steps.log_weight)).max() < 1e-12
    assert np.abs(np.exp(at_once.log_backoff) - np.exp(in_steps.log_backoff)).max() < 1e-9


def test_every_ngram_of_the_mixture_has_the_mixed_probability() -> None:
    models = some_models(sentences=20)
    mixed = DictModel(merge(*models, weights=(5, 3, 2)))
    parts = [DictModel(m) for m in models]
    for history, word in histories(random_sentences(np.random.default_rng(9), words=30, sentences=30)):
        if (*history, word) in mixed.p:
            expected = sum(w * part.prob(history, word) for w, part in zip((0.5, 0.3, 0.2), parts, strict=True))
            assert mixed.p[(*history, word)] == pytest.approx(expected, rel=1e-9)


def test_fitted_weights_are_the_best_of_the_mixture_too() -> None:
    models = some_models()
    union, _ = union_topology([m.topology for m in models], len(WORDS))
    models = [express_on(m, union) for m in models]
    text = Corpus(blended(models, (40, 15, 5)), WORDS)
    fitted = fit_weights(models, text)
    best = score(merge(*models, weights=fitted.weights), text.sentences).perplexity
    for other in ((1, 1, 1), (0.8, 0.1, 0.1), (0.1, 0.8, 0.1)):
        assert score(merge(*models, weights=other), text.sentences).perplexity > best


def test_models_with_other_words() -> None:
    a, b = train_on(["a b", "a c"], order=2), train_on(["x y", "x z", "a b"], order=2)
    words = joint_vocabulary([a, b])
    fitted = fit_weights([a, b], corpus_of(["x y", "x q"], words))
    assert fitted.weights[1] > 0.99
    assert fitted.symbols == 5  # q is known to nobody
    with pytest.raises(FedgramError, match="know no word"):
        fit_weights([a, b], Corpus(Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64)), Vocabulary.of(["q"])))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"weight": 0.5}, "for two models"),
        ({"weights": (1, 2)}, "3 models, but 2 weights"),
        ({"weights": (1, -1, 1)}, "at least 0"),
        ({"weights": (0, 0, 0)}, "at least 0"),
        ({"weights": (float("nan"), 1, 1)}, "at least 0"),
    ],
)
def test_wrong_weights_are_refused(options: dict[str, object], problem: str) -> None:
    models = some_models(sentences=5)
    with pytest.raises(FedgramError, match=problem):
        merge(*models, **options)  # type: ignore[arg-type]
    with pytest.raises(FedgramError, match="at least two"):
        merge(models[0])
    assert np.array_equal(merge(*models, weights=(0, 1, 0)).topology.label, models[1].topology.label)
