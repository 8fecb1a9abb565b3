"""Measures per user: on a small text, against values computed by hand, and against the sentence scorer."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from fedgram.automata.model import NGramModel
from fedgram.automata.scoring import score
from fedgram.automata.training import NGramOptions, train
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.evaluate.accuracy import accuracy
from fedgram.evaluate.comparison import evaluate
from fedgram.evaluate.evaluation import MEASURES, evaluate_model
from fedgram.evaluate.keystrokes import keystroke_savings
from fedgram.evaluate.likelihood import GRID, perplexity, sentence_log_likelihood
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.ngram_predictor import NGramPredictor
from fedgram.evaluate.oov import oov_rate
from fedgram.evaluate.predictor import Judgement
from fedgram.evaluate.typed_text import UNKNOWN, TypedText
from fedgram.text.corpus import Corpus
from fedgram.text.normalize import uncase
from fedgram.text.population import Population, population_from_messages
from fedgram.text.vocabulary import Vocabulary

SUPPLEMENT = "she lives in New York\nthe new car\nhe lives in the city\nNew York is big\nshe has a new car\n"


@pytest.fixture
def text() -> TypedText:
    """Two users: "ab xyz <number>" and "q", "abc"; xyz is out of vocabulary."""
    return TypedText(
        users=3,
        read=Ragged.from_rows([[3, 0, 5], [4], [6]]),
        target=np.array([3, UNKNOWN, 5, 4, 6], np.int32),
        in_shared=np.array([True, False, True, True, True]),
        is_word=np.array([True, True, False, True, True]),
        letters=np.array([2, 3, 8, 1, 3], np.int32),
        sentence_user=np.array([0, 2, 2], np.int32),
    )


@pytest.fixture
def judged() -> Judgement:
    return Judgement(
        log_prob=np.log([0.5, 0.1, 0.2, 0.25, 0.125]),
        rank=np.array([0, 3, 3, 2, 3], np.int32),
        letters=np.array([0, 3, 8, 0, 2], np.int32),
        end_log_prob=np.log([0.5, 0.5, 0.25]),
    )


def by_user(measure: Measure) -> list[tuple[float, float]]:
    return list(zip(measure.amount.tolist(), measure.count.tolist(), strict=True))


def test_accuracy_counts_typed_words_only(text: TypedText, judged: Judgement) -> None:
    assert by_user(accuracy(text, judged, k=1)) == [(1, 2), (0, 0), (0, 2)]
    assert by_user(accuracy(text, judged, k=3)) == [(1, 2), (0, 0), (1, 2)]
    assert accuracy(text, judged, k=3).level == 0.5
    with pytest.raises(FedgramError, match="must be from 1 to 3, not 4"):
        accuracy(text, judged, k=4)


def test_a_placeholder_is_not_out_of_vocabulary(text: TypedText) -> None:
    assert by_user(oov_rate(replace(text, target=np.array([3, -1, -1, 4, 6], np.int32)))) == [(1, 2), (0, 0), (0, 2)]


def test_taps_of_the_stated_keyboard(text: TypedText, judged: Judgement) -> None:
    """ab: 1 tap for 3; xyz: 4 for 4; q: 1 for 2; abc: 3 for 4."""
    assert by_user(keystroke_savings(text, judged)) == [(2, 7), (0, 0), (2, 6)]


def test_likelihood_as_the_paper_defines_it(text: TypedText, judged: Judgement) -> None:
    sll = sentence_log_likelihood(text, judged, with_oov=True)
    assert sll.amount == pytest.approx([log(0.5 * 0.1 * 0.2), 0.0, log(0.25 * 0.125)])
    assert sll.count.tolist() == [1, 0, 2]
    sll_e = sentence_log_likelihood(text, judged, with_oov=False)
    assert sll_e.amount == pytest.approx([log(0.5 * 0.2), 0.0, log(0.25 * 0.125)])
    ppl = perplexity(text, judged)
    assert ppl.count.tolist() == [3, 0, 4]  # two words of 𝒱 and an end; two words and two ends
    assert ppl.level == pytest.approx(exp(-log(0.5 * 0.2 * 0.5 * 0.25 * 0.5 * 0.125 * 0.25) / 7))


def test_likelihoods_are_over_the_shared_words_only(text: TypedText, judged: Judgement) -> None:
    """This model knows q, but another one does not."""
    shared = replace(text, in_shared=np.array([True, False, True, False, True]))
    assert sentence_log_likelihood(shared, judged, with_oov=False).amount == pytest.approx(
        [log(0.5 * 0.2), 0.0, log(0.125)]
    )
    assert by_user(sentence_log_likelihood(shared, judged, with_oov=True)) == by_user(
        sentence_log_likelihood(text, judged, with_oov=True)
    )
    ppl = perplexity(shared, judged)
    assert ppl.count.tolist() == [3, 0, 3]
    assert ppl.level == pytest.approx(exp(-log(0.5 * 0.2 * 0.5 * 0.5 * 0.125 * 0.25) / 6))


def test_a_shared_word_without_probability_is_paid_for(text: TypedText, judged: Judgement) -> None:
    log_prob = judged.log_prob.copy()
    log_prob[0] = -np.inf
    impossible = replace(judged, log_prob=log_prob)
    assert perplexity(text, impossible).count.tolist() == perplexity(text, judged).count.tolist()
    assert sentence_log_likelihood(text, impossible, with_oov=False).amount[0] == pytest.approx(-99 + log(0.2))


def test_what_a_closed_model_cannot_score_is_left_out_of_sll(text: TypedText, judged: Judgement) -> None:
    log_prob = judged.log_prob.copy()
    log_prob[1] = -np.inf
    closed = replace(judged, log_prob=log_prob)
    assert sentence_log_likelihood(text, closed, with_oov=True).amount[0] == pytest.approx(log(0.5 * 0.2))


def people(*messages: tuple[str, str]) -> Population:
    return population_from_messages((user, message, "test") for user, message in messages)


def trained(sentences: str, *, vocabulary: Vocabulary | None = None, order: int = 3) -> NGramPredictor:
    rows = [line.split() for line in sentences.splitlines()]
    words = vocabulary or Vocabulary.of(word for row in rows for word in row)
    corpus = Corpus(Ragged.from_rows([words.encode(row) for row in rows]), words)
    return NGramPredictor(train(corpus, NGramOptions(order=order, smoothing="witten-bell")), cased=True)


def test_likelihoods_are_those_of_the_scorer() -> None:
    """On text with the model's capitals, with unknown words, for open and closed vocabularies."""
    users = people(("a", "she lives in New York. the big tree is new"), ("b", "New York is big"))
    for vocabulary in (None, Vocabulary.of(["she", "lives", "in", "New", "York", "the", "new", "is", "car"])):
        predictor = trained(SUPPLEMENT, vocabulary=vocabulary)
        evaluation = evaluate_model(predictor, users, users.clients())
        words = predictor.model.vocabulary
        rows = [words.encode([users.words[i] for i in s]) for c in range(2) for s in users.sentences(c)]
        expected = score(predictor.model, Ragged.from_rows(rows))
        sll, sll_e, nats = (evaluation.measures[m].amount.sum() for m in ("sll", "sll_e", "perplexity"))
        assert nats + sll_e - sll == pytest.approx(expected.nats, abs=6 * GRID)  # the ends, and all words
        if not expected.oov_scored:
            assert evaluation.measures["perplexity"].level == pytest.approx(expected.perplexity, rel=2 * GRID)
        assert evaluation.measures["oov_rate"].amount.sum() == expected.oov


def test_uncased_evaluation_of_a_cased_model() -> None:
    cased = trained(SUPPLEMENT)
    uncased = NGramPredictor(cased.model, cased=False)
    typed = people(("a", "she lives in new york"), ("b", "she has a NEW car"))
    strict, loose = (evaluate_model(p, typed, typed.clients()).measures for p in (cased, uncased))
    assert strict["oov_rate"].amount.tolist() == [1, 1]  # york, NEW
    assert loose["oov_rate"].amount.tolist() == [0, 0]
    assert loose["top1"].amount.sum() > strict["top1"].amount.sum()
    assert loose["sll_e"].amount[0] == pytest.approx(
        sum(
            log(sum(p for w, p in cased.suggest(words[:i], 50) if uncase(w) == word))
            for words in [["she", "lives", "in", "new", "york"]]
            for i, word in enumerate(words)
        )
    )


def test_an_unknown_target_is_wrong_and_its_sentence_goes_on() -> None:
    predictor = trained("a b\na b\na c\n")
    evaluation = evaluate_model(predictor, people(("u", "zz a b")), np.array([0]))
    assert by_user(evaluation.measures["top3"]) == [(2, 3)]
    assert by_user(evaluation.measures["oov_rate"]) == [(1, 3)]
    assert evaluation.words == 3
    assert repr(evaluation) == "Evaluation(1 users, 3 words)"


def unigrams(sentences: str) -> NGramModel:
    return trained(sentences, order=1).model


def test_one_vocabulary_for_all_models_of_a_comparison() -> None:
    """By hand: 𝒱 is {a}; of the four typed words, two are others."""
    models = {"ab": unigrams("a a b\n"), "ac": unigrams("a c c c\n")}  # p(a) = 2/4, p(end) = 1/4; p(a) = p(end) = 1/5
    users = people(("u", "a b c a"), ("v", "a"))
    found = evaluate(models, users.test, buckets=2)
    assert (found.shared_words, found.outside) == (1, 40.0)
    figures = {name: [model[m]["value"] for m in ("sll_e", "perplexity")] for name, model in found.models.items()}
    assert figures["ab"] == pytest.approx([3 * log(1 / 2) / 2, exp(-(3 * log(1 / 2) + 2 * log(1 / 4)) / 5)])
    assert figures["ac"] == pytest.approx([3 * log(1 / 5) / 2, 5.0])
    assert [model["oov_rate"]["value"] for model in found.models.values()] == [20.0, 20.0]  # of its own
    alone = evaluate({"ab": models["ab"]}, users.test, buckets=2)
    assert alone.models["ab"]["sll_e"]["value"] == pytest.approx((3 * log(1 / 2) + log(1 / 4)) / 2)
    assert "over the 1 words that all models have; 40.00 % of the typed words are others" in repr(found)
    assert "over the 2 words that the model has" in alone._repr_html_()


def test_capitals_and_the_shared_vocabulary() -> None:
    models = [unigrams("New york\n"), unigrams("new york\n")]
    users = people(("u", "New york"), ("v", "york"))
    assert [evaluate(models, users.test, cased=cased, buckets=2).shared_words for cased in (False, True)] == [2, 1]
    with pytest.raises(FedgramError, match="no word in common"):
        evaluate([unigrams("a\n"), unigrams("b\n")], users.test)
    with pytest.raises(InvariantError, match="words that the model does not have"):
        evaluate_model(trained("a b\n"), users, users.clients(), shared={"c"})


def test_every_measure_is_there_for_every_user() -> None:
    users = people(("a", "she lives"), ("b", "in the city"), ("c", "5"))
    seen: list[int] = []
    evaluation = evaluate_model(trained(SUPPLEMENT), users, users.clients(), on_users=seen.append)
    assert evaluation.client_ids == ("a", "b", "c")
    assert sum(seen) == 3
    assert evaluation.measures.keys() == MEASURES.keys()
    assert all(measure.users == 3 for measure in evaluation.measures.values())


def test_users_without_words_are_refused() -> None:
    users = people(("c", "5 6"))
    with pytest.raises(FedgramError, match="typed no words"):
        evaluate_model(trained(SUPPLEMENT), users, users.clients())
    with pytest.raises(FedgramError, match="typed no words"):
        evaluate_model(trained(SUPPLEMENT), users, users.clients("train"))


def test_measures_refuse_what_is_none() -> None:
    for amount, count in [([1.0], [1.0, 2.0]), ([1.0], [-1.0]), ([np.nan], [1.0])]:
        with pytest.raises(InvariantError):
            Measure(np.array(amount), np.array(count))
    assert np.isnan(Measure(np.zeros(2), np.zeros(2)).level)
