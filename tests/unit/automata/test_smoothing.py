"""Every smoothing method against its definition spelled out over dictionaries."""

import numpy as np
import pytest
from tests.reference import smoothing as reference
from tests.reference.random_models import random_sentences, vocabulary

from fedgram.automata.build import count_ngrams, ngrams_of
from fedgram.automata.model import NGramModel
from fedgram.automata.smoothing import smooth
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError


def trained(seed: int, order: int, method: str, size: int = 7) -> tuple[NGramModel, list[list[str]]]:
    text = random_sentences(np.random.default_rng(seed), words=size, sentences=40)
    words = vocabulary(size)
    used = Ragged(text.values, text.offsets)
    model = smooth(count_ngrams(used, words, order=order), method)
    return model, [words.decode(row.tolist()) for row in text]


def probabilities(model: NGramModel) -> dict[tuple[str, ...], float]:
    rows = ngrams_of(model.topology)
    return {
        tuple(model.vocabulary.decode(row.tolist())): float(np.exp(w))
        for row, w in zip(rows, model.log_weight, strict=True)
    }


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("method", ["witten-bell", "absolute", "kneser-ney", "modified-kneser-ney"])
def test_interpolated_methods_match_their_definitions(method: str, order: int) -> None:
    model, sentences = trained(order, order, method)
    counts = reference.count(sentences, order)
    if method in ("kneser-ney", "modified-kneser-ney"):
        counts = reference.kneser_ney_counts(counts, order)
    formula = {
        "witten-bell": reference.witten_bell,
        "absolute": reference.absolute,
        "kneser-ney": reference.absolute,
        "modified-kneser-ney": reference.modified,
    }[method]
    for ngram, p in probabilities(model).items():
        assert p == pytest.approx(formula(counts, ngram[:-1], ngram[-1]), rel=1e-9), ngram


@pytest.mark.parametrize("order", [2, 3])
def test_katz_matches_its_definition(order: int) -> None:
    model, sentences = trained(7, order, "katz", size=30)  # no history is followed by every word
    counts = reference.count(sentences, order)
    after = reference.successors(counts)
    for ngram, p in probabilities(model).items():
        if len(ngram) == 1:
            continue  # relative frequencies, and a floor for the words that do not occur
        c, total = counts[ngram], sum(after[ngram[:-1]].values())
        factor = reference.katz_discounts(counts, len(ngram)).get(c, 0.999)
        assert p == pytest.approx(factor * c / total, rel=1e-9), ngram


def test_unseen_words_get_a_probability() -> None:
    text = Ragged.from_rows([[3, 4, 3], [3]])
    for method in ("katz", "witten-bell", "absolute", "kneser-ney", "modified-kneser-ney"):
        model = smooth(count_ngrams(text, vocabulary(6), order=2, open_vocabulary=True), method)
        p = probabilities(model)
        assert p[("w5",)] == p[("<unk>",)] > 0
        assert p[("w0",)] > p[("w5",)]


def test_unknown_method_is_refused() -> None:
    with pytest.raises(FedgramError, match="choose one of katz"):
        smooth(count_ngrams(Ragged.from_rows([[3]]), vocabulary(1), order=1), "good-turing")
