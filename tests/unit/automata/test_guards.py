"""What models, counts, scores and pruning refuse or count, each condition on its own and at its edge."""

from math import exp, inf, nan

import numpy as np
import pytest
from tests.reference.dict_model import DictModel, expected_visits
from tests.reference.random_models import random_model, random_sentences, random_topology, random_weights, vocabulary

from fedgram.automata.approximate import approximate
from fedgram.automata.budget import Budget
from fedgram.automata.build import count_ngrams, ngrams_of, topology_from_ngrams
from fedgram.automata.counting import counts_from_arcs, counts_from_visits
from fedgram.automata.kl_minimize import minimize_kl
from fedgram.automata.merge import merge_counts, replace_unigrams, split_unknown
from fedgram.automata.model import NGramCounts, NGramModel
from fedgram.automata.prune import best_ngrams, keep_ngrams, prune_to_threshold, relative_entropy_scores
from fedgram.automata.scoring import Score, score, sentence_log_probs
from fedgram.automata.training import NGramOptions, train
from fedgram.automata.trie import MAX_ORDER, index_runs
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.text.corpus import corpus_of
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary


@pytest.fixture(scope="module")
def model() -> NGramModel:
    text = random_sentences(np.random.default_rng(1), words=6, sentences=30)
    return train(corpus_of([" ".join(f"w{x - 3}" for x in row) for row in text]), order=2, smoothing="witten-bell")


@pytest.mark.parametrize("wrong", [nan, inf, -inf])
@pytest.mark.parametrize("part", ["log_weight", "log_backoff"])
def test_a_model_with_a_number_that_is_not_finite_is_refused(model: NGramModel, part: str, wrong: float) -> None:
    numbers = {"log_weight": model.log_weight.copy(), "log_backoff": model.log_backoff.copy()}
    numbers[part][1] = wrong
    with pytest.raises(InvariantError, match="not finite"):
        NGramModel(model.topology, model.vocabulary, **numbers)


def test_a_probability_just_above_one_is_refused(model: NGramModel) -> None:
    weight = model.log_weight.copy()
    weight[0] = 1e-9
    with pytest.raises(InvariantError, match="greater than 1"):
        NGramModel(model.topology, model.vocabulary, weight, model.log_backoff)


@pytest.mark.parametrize("wrong", [-1e-9, nan, inf])
def test_a_count_that_is_negative_or_not_finite_is_refused(model: NGramModel, wrong: float) -> None:
    count = np.ones(model.topology.arcs)
    count[1] = wrong
    with pytest.raises(InvariantError, match="negative or not finite"):
        NGramCounts(model.topology, model.vocabulary, count)


def test_perplexity_counts_scored_words_and_sentence_ends() -> None:
    assert Score(2, 8, 3, True, 10.0).perplexity == pytest.approx(exp(10.0 / 10))  # unknown words are scored
    assert Score(2, 8, 3, False, 7.0).perplexity == pytest.approx(exp(7.0 / 7))  # unknown words are left out


def test_unknown_words_are_counted_and_scored_by_an_open_model() -> None:
    open_model = NGramModel.train(["a b", "b a <unk>"], order=2, vocab=["a", "b"])
    found = score(open_model, Ragged.from_rows([[3, UNK], [4]]))
    assert (found.sentences, found.words, found.oov, found.oov_scored) == (2, 3, 1, True)
    reference = DictModel(open_model)
    assert found.log_p == pytest.approx(reference.log_prob([3, UNK]) + reference.log_prob([4]))


@pytest.mark.parametrize("wrong", [-1, 9])
def test_word_ids_outside_the_vocabulary_are_not_scored_or_counted(model: NGramModel, wrong: int) -> None:
    rows = Ragged.from_rows([[3, wrong]])
    with pytest.raises(InvariantError, match="outside"):
        sentence_log_probs(model, rows)
    with pytest.raises(InvariantError, match="outside"):
        index_runs(rows, order=2, words=9)


@pytest.mark.parametrize("order", [0, MAX_ORDER + 1])
def test_orders_outside_their_range_are_refused(order: int) -> None:
    with pytest.raises(InvariantError, match="order must be between 1 and 7"):
        index_runs(Ragged.from_rows([[3]]), order=order, words=4)


@pytest.mark.parametrize("mark", [BOS, EOS])
def test_a_sentence_mark_inside_a_text_is_refused(mark: int) -> None:
    with pytest.raises(InvariantError, match="which are added when counting"):
        count_ngrams(Ragged.from_rows([[3, mark, 4]]), vocabulary(2), order=2)


@pytest.mark.parametrize("ngram", [[3, BOS], [EOS, 3], [3, BOS, 4], [3, EOS, 4]])
def test_a_mark_in_the_wrong_place_of_an_ngram_is_refused(ngram: list[int]) -> None:
    with pytest.raises(InvariantError, match="only be the first word"):
        topology_from_ngrams(Ragged.from_rows([ngram]), 5)


def test_unknown_words_do_not_enter_a_closed_model() -> None:
    with pytest.raises(InvariantError, match="open_vocabulary is False"):
        count_ngrams(Ragged.from_rows([[3, UNK]]), vocabulary(2), order=2, open_vocabulary=False)


def test_scores_of_ngrams_are_the_divergence_of_the_model_without_them() -> None:
    """p(h)·Σ_w p(w|h)·log(p(w|h) / p'(w|h)), with p' of the model that lacks the n-gram; p(<s>) is p(</s>)."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        model = random_weights(rng, random_topology(rng, words=5, order=2, ngrams=14), 5)
        visits = expected_visits(model)
        whole, rows = DictModel(model), [tuple(row.tolist()) for row in ngrams_of(model.topology)]
        for expected in (False, True):
            scores = relative_entropy_scores(model, expected_histories=expected)
            for arc, ngram in enumerate(rows):
                if len(ngram) == 1:
                    assert scores[arc] == inf
                    continue
                h, keep = ngram[:-1], np.ones(len(rows), bool)
                keep[arc] = False
                p, q = whole.distribution(h), DictModel(keep_ngrams(model, keep)).distribution(h)
                history = visits[h] / sum(visits.values()) if expected else whole.prob((), EOS if h == (BOS,) else h[0])
                change = history * float(np.sum(p[p > 0] * np.log(p[p > 0] / q[p > 0])))
                assert scores[arc] == pytest.approx(change, rel=1e-6, abs=1e-12), (seed, expected, ngram)


def test_a_pruning_threshold_is_a_factor_of_the_perplexity(model: NGramModel) -> None:
    scores = relative_entropy_scores(model)
    finite = np.sort(scores[np.isfinite(scores)])
    middle = float(finite[len(finite) // 2])
    above = (exp(middle * (1 + 1e-6)) - 1, exp(middle * (1 - 1e-6)) - 1)
    arcs = [prune_to_threshold(model, theta).topology.arcs for theta in above]
    assert arcs[0] < arcs[1]
    with pytest.raises(FedgramError, match="at least 0"):
        prune_to_threshold(model, -1e-9)


def test_equal_scores_are_kept_or_dropped_together() -> None:
    scores = np.array([inf, 3.0, 2.0, 2.0, 2.0, 1.0])
    assert [int(best_ngrams(scores, n).sum()) for n in range(1, 7)] == [1, 2, 2, 2, 5, 6]
    assert [int(best_ngrams(scores, n, split_ties=True).sum()) for n in range(1, 7)] == [1, 2, 3, 4, 5, 6]


def test_a_budget_is_filled_exactly_down_to_the_unigrams(model: NGramModel) -> None:
    arcs, unigrams = model.topology.arcs, int(model.topology.first_arc[1])
    for most in (unigrams, arcs - 1, arcs, arcs + 1):
        assert Budget(max_ngrams=most).within(model).topology.arcs == min(most, arcs)
    with pytest.raises(FedgramError, match="allow at least that many"):
        Budget(max_ngrams=unigrams - 1).within(model)


def test_minimum_counts_are_by_order_and_keep_what_occurs_so_often() -> None:
    corpus = corpus_of(["a b c", "a b c", "a b", "b c", "c a"])

    def kept(*least: int) -> set[str]:
        model = train(corpus, order=3, smoothing="witten-bell", min_count=least)
        return {" ".join(model.vocabulary.decode(row.tolist())) for row in ngrams_of(model.topology)}

    assert {"a b", "b c"} <= kept(1, 3)
    assert "c a" not in kept(1, 2)
    assert {"a", "b", "c"} <= kept(9, 9)
    assert "a b c" in kept(1, 1, 2)
    assert "a b c" not in kept(1, 1, 3)
    with pytest.raises(InvariantError, match="must not fall with the order"):
        kept(3, 1)
    with pytest.raises(InvariantError, match="min_count names 3 orders"):
        NGramOptions(order=2, min_count=(1, 1, 1))


def test_a_vocabulary_opens_the_model() -> None:
    assert NGramModel.train(["a b"], vocab=["a", "b"]).has_unknown
    assert not NGramModel.train(["a b"]).has_unknown


def test_merged_counts_have_both_weights() -> None:
    a, b = (count_ngrams(Ragged.from_rows([[3, 4]]), vocabulary(2), order=2) for _ in range(2))
    assert merge_counts(a, b, weight_a=2.0, weight_b=0.5).count.tolist() == (2.5 * a.count).tolist()
    for weights in ({"weight_a": -1.0}, {"weight_b": -1.0}, {"weight_b": nan}):
        with pytest.raises(FedgramError, match="at least 0"):
            merge_counts(a, b, **weights)


def test_replaced_unigrams_are_mixed_by_the_weight() -> None:
    model = NGramModel.train(["a b", "a c", "a"], order=2)
    new = {"a": 1.0, "b": 1.0, "c": 2.0}
    own, whole, half = (
        DictModel(m) for m in (model, replace_unigrams(model, new), replace_unigrams(model, new, weight=0.25))
    )
    for x in range(3, 6):
        assert half.prob((), x) == pytest.approx(0.25 * whole.prob((), x) + 0.75 * own.prob((), x))


@pytest.mark.parametrize("wrong", [-1.0, inf, nan])
def test_frequencies_that_are_negative_or_not_finite_are_refused(wrong: float) -> None:
    model = NGramModel.train(["a b"], vocab=["a", "b"])
    for change in (replace_unigrams, split_unknown):
        with pytest.raises(FedgramError, match="finite and at least 0"):
            change(model, {"a": 1.0, "new": wrong})


def test_new_words_share_the_probability_of_the_unknown_word() -> None:
    model = NGramModel.train(["a b", "a <unk>"], vocab=["a", "b"])
    before = DictModel(model).prob((), UNK)
    split = split_unknown(model, {"x": 3.0, "y": 1.0, "a": 7.0})
    after, words = DictModel(split), split.vocabulary
    assert [after.prob((), words[w]) / before for w in ("x", "y", "<unk>")] == pytest.approx([0.6, 0.2, 0.2])
    assert after.prob((), words["a"]) == pytest.approx(DictModel(model).prob((), words["a"]))


def test_no_samples_and_negative_prior_visits_are_refused() -> None:
    model = random_model(np.random.default_rng(4), order=2)
    with pytest.raises(FedgramError, match="at least 1"):
        approximate(model, model.topology, samples=0)
    counts = counts_from_visits(model, np.ones(model.topology.states), 1.0)
    with pytest.raises(InvariantError, match="at least 0"):
        minimize_kl(counts, model.vocabulary, prior_visits=-0.5)


def test_a_label_that_is_never_read_keeps_the_least_weight() -> None:
    words = Vocabulary.of(["a", "b"])
    rows = Ragged.from_rows([[EOS], [3], [4], [3, 4], [3, 3]])
    topology = topology_from_ngrams(rows, len(words), open_vocabulary=False).topology
    found = counts_from_arcs(topology, np.array([1.0, 2.0, 1.0, 0.0, 2.0]), np.array([2.0, 0.0, 4.0]), 1.0)
    model = minimize_kl(found, words, floor=1e-4)
    assert DictModel(model).p[(3, 3)] == pytest.approx(1e-4, rel=1e-3)
