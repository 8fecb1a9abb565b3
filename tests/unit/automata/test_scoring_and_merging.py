"""Scores, mixtures and replaced unigrams against the dictionary model."""

import numpy as np
import pytest
from tests.reference.dict_model import DictModel
from tests.reference.random_models import random_model, random_sentences

from fedgram.automata.build import lowercase_topology, ngrams_of, topology_from_ngrams
from fedgram.automata.merge import merge, renumber, replace_unigrams
from fedgram.automata.model import NGramModel
from fedgram.automata.properties import topology_faults
from fedgram.automata.sampling import sample_sentences
from fedgram.automata.scoring import score, sentence_log_probs
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5, 6, 7])
def test_sentence_scores_match_the_dictionary(order: int) -> None:
    rng = np.random.default_rng(order)
    model = random_model(rng, order=order)
    sentences = random_sentences(rng, words=6, sentences=50, length=9)
    reference = DictModel(model)
    assert sentence_log_probs(model, sentences) == pytest.approx(
        [reference.log_prob(s.tolist()) for s in sentences], rel=1e-10
    )


@pytest.mark.parametrize("method", ["linear", "bayes"])
def test_mixture_follows_its_formula_at_every_ngram(method: str) -> None:
    for seed in range(15):
        rng = np.random.default_rng(seed)
        a, b = random_model(rng, order=2), random_model(rng, order=3)
        merged = merge(a, b, weight=0.3, method=method)
        models = DictModel(renumber(a, merged.vocabulary)), DictModel(renumber(b, merged.vocabulary))
        for ngram, p in DictModel(merged).p.items():
            history, share = ngram[:-1], 0.3
            if method == "bayes":
                odds = [0.3, 0.7]
                for k, model in enumerate(models):
                    for i, x in enumerate(history):
                        odds[k] *= model.prob(history[:i], x) if x != BOS else 1.0
                share = odds[0] / sum(odds)
            mixed = share * models[0].prob(history, ngram[-1]) + (1 - share) * models[1].prob(history, ngram[-1])
            assert p == pytest.approx(mixed, rel=1e-8), (seed, ngram)


def test_words_known_to_one_model_only_keep_their_share() -> None:
    a = _unigrams({"x": 0.5, "y": 0.25, "</s>": 0.25})
    b = _unigrams({"x": 0.5, "z": 0.25, "</s>": 0.25})
    p = DictModel(merge(a, b, weight=0.5)).p
    assert sorted(p.values()) == pytest.approx([0.125, 0.125, 0.25, 0.5])


def _unigrams(p: dict[str, float]) -> NGramModel:
    words = Vocabulary.of(p)
    built = topology_from_ngrams(
        Ragged.from_rows([[i] for i in range(2, len(words))]), len(words), open_vocabulary=False
    )
    weight = np.log([p[words.words[label]] for label in built.topology.label])
    return NGramModel(built.topology, words, weight, np.zeros(2))


def test_replaced_unigrams_are_in_proportion_and_the_end_stays() -> None:
    model = random_model(np.random.default_rng(3), order=3)
    words = model.vocabulary.words
    replaced = replace_unigrams(model, {words[4]: 3.0, words[8]: 6.0, "fresh": 1.5, words[5]: 0.0})
    before, after = DictModel(model), DictModel(replaced)
    assert after.prob((), EOS) == pytest.approx(before.prob((), EOS))
    assert after.prob((), 8) / after.prob((), 4) == pytest.approx(2.0)
    fresh = replaced.vocabulary["fresh"]
    assert fresh == len(words)
    assert after.prob((), 4) / after.prob((), fresh) == pytest.approx(2.0)
    assert after.prob((), 5) == pytest.approx(after.prob((), fresh))  # the smallest positive frequency
    for ngram, p in before.p.items():
        if len(ngram) > 1:
            assert after.p[ngram] == pytest.approx(p)
    with pytest.raises(FedgramError, match="share no word"):
        replace_unigrams(model, {words[3]: 0.0, "fresh": 1.0})
    with pytest.raises(FedgramError, match="finite"):
        replace_unigrams(model, {words[3]: 1.0, words[4]: -1.0})


def test_a_closed_model_leaves_unknown_words_out() -> None:
    model = _unigrams({"x": 0.5, "y": 0.25, "</s>": 0.25})
    result = score(model, Ragged.from_rows([[3, UNK, 4]]))
    assert (result.words, result.oov, result.oov_scored) == (3, 1, False)
    assert result.nats == pytest.approx(-np.log(0.5 * 0.25 * 0.25))
    assert result.perplexity == pytest.approx(np.exp(result.nats / 3))


def test_sentences_do_not_depend_on_batches() -> None:
    model = random_model(np.random.default_rng(5), order=3)
    whole = sample_sentences(model, 50, seed=9)
    parts = [sample_sentences(model, 10, seed=9, first=first) for first in range(0, 50, 10)]
    assert Ragged.concatenate(parts).values.tolist() == whole.values.tolist()
    assert sample_sentences(model, 50, seed=10).values.tolist() != whole.values.tolist()


def test_a_topology_in_lower_case() -> None:
    words = Vocabulary.of(["New", "new", "York", "york"])
    ngrams = [["New", "York"], ["new", "york"], ["<s>", "new", "york", "</s>"], ["York", "New"]]
    built = topology_from_ngrams(Ragged.from_rows([words.encode(n) for n in ngrams]), len(words))
    lower, uncased = lowercase_topology(built.topology, words)
    assert uncased.words[3:] == ("new", "york")
    assert topology_faults(lower, words=len(uncased)) == []
    listed = {tuple(uncased.decode(row.tolist())) for row in ngrams_of(lower)}
    assert {("new", "york"), ("york", "new"), ("<s>", "new", "york", "</s>")} <= listed
