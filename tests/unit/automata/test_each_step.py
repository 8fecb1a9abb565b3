"""Single steps of fitting, sampling, pruning and assembling, each against numbers worked out here."""

import numpy as np
import pytest
from tests.reference.dict_model import DictModel, expected_visits
from tests.reference.random_models import random_model, random_weights, vocabulary

from fedgram.automata.approximate import approximate, count_source
from fedgram.automata.assemble import WeightedNGrams, assemble
from fedgram.automata.build import ngrams_of, topology_from_ngrams
from fedgram.automata.counting import TopologyCounts, counts_from_arcs, cross_entropy, unvisited_ngrams
from fedgram.automata.kl_minimize import minimize_kl
from fedgram.automata.lowercase import lowercase_model
from fedgram.automata.model import NGramModel, model_from_weights
from fedgram.automata.properties import model_faults
from fedgram.automata.prune import closed_under_parents
from fedgram.automata.sampling import sample_sentences
from fedgram.automata.topology import Topology
from fedgram.core.arrays import Ragged
from fedgram.core.errors import InvariantError
from fedgram.text.vocabulary import EOS, Vocabulary

A, B, C = 3, 4, 5


def topology_of(*ngrams: list[int], words: int = 3) -> Topology:
    return topology_from_ngrams(Ragged.from_rows(list(ngrams)), words + 3, open_vocabulary=False).topology


def test_a_state_that_sums_to_more_than_one_is_scaled_down() -> None:
    t = topology_of([EOS], [A], [B], [C], [A, A], [A, B])
    model = model_from_weights(t, vocabulary(3), np.array([0.1, 0.2, 0.3, 0.4, 0.9, 0.6]))
    assert np.exp(model.log_weight[4:]) == pytest.approx([0.6, 0.4])
    assert model_faults(model) == []


def test_what_is_kept_keeps_its_histories_and_its_suffixes() -> None:
    t = topology_of([EOS], [A], [B], [C], [A, B, C], [B, A], [C, B, EOS])
    rows = [tuple(row.tolist()) for row in ngrams_of(t)]
    keep = np.array([row == (A, B, C) for row in rows])
    kept = {row for row, is_kept in zip(rows, closed_under_parents(t, keep), strict=True) if is_kept}
    assert kept == {(EOS,), (A,), (B,), (C,), (A, B), (B, C), (A, B, C)}


def test_ngrams_are_unvisited_where_nobody_asked_for_them() -> None:
    t = topology_of([EOS], [A], [B], [A, B], [B, A])
    visits = np.zeros(t.states)
    visits[[t.start, int(t.dest[1])]] = 1.0  # the start and the history A; B is never a history
    counts = TopologyCounts(t, np.zeros(t.arcs), np.zeros(t.states), visits)
    rows = [tuple(row.tolist()) for row in ngrams_of(t)]
    assert [row for row, never in zip(rows, unvisited_ngrams(counts), strict=True) if never] == [(B, A)]
    asked = np.array([1.0 if row != (A, B) else 0.0 for row in rows])
    counts = TopologyCounts(t, np.zeros(t.arcs), np.zeros(t.states), visits, asked=asked)
    assert [row for row, never in zip(rows, unvisited_ngrams(counts), strict=True) if never] == [(A, B)]


def test_a_sampled_fit_has_a_prior_visit_per_state_and_an_exact_one_has_none() -> None:
    source = random_model(np.random.default_rng(1), order=3)
    for samples, visits in ((20, 1.0), (None, 0.0)):
        counts = count_source(source, source.topology, samples=samples, seed=2).counts
        found = approximate(source, source.topology, samples=samples, seed=2).model.log_weight
        fits = {prior: minimize_kl(counts, source.vocabulary, prior_visits=prior).log_weight for prior in (0.0, 1.0)}
        assert np.array_equal(found, fits[visits])
        assert np.abs(found - fits[1.0 - visits]).max() > 1e-3


def skewed_counts(rng: np.random.Generator) -> TopologyCounts:
    """Counts on a small topology: some histories are visited ten thousand times as often, and some labels hardly."""
    t = topology_of([EOS], [A], [B], [C], [A, A], [A, B], [B, EOS], [B, C])
    visits, arc, histories = 10 ** rng.uniform(-4, 1, t.states), np.zeros(t.arcs), (int(t.dest[1]), int(t.dest[2]))
    for q in range(t.states):
        read = visits[q] * rng.dirichlet(np.full(4, rng.choice([0.1, 0.5, 1.0])))
        own = dict(zip((1, 2), (4, 5), strict=True)) if q == histories[0] else {}
        own |= dict(zip((0, 3), (6, 7), strict=True)) if q == histories[1] else {}
        for x in range(4):
            arc[own.get(x, x)] += read[x]
    return counts_from_arcs(t, arc, visits, 1.0)


def test_a_fit_never_gets_worse_from_one_cycle_to_the_next() -> None:
    for seed in range(100):
        counts = skewed_counts(np.random.default_rng(seed))
        fits = [minimize_kl(counts, vocabulary(3), tolerance=0.0, max_cycles=cycles) for cycles in range(1, 10)]
        nats = [cross_entropy(counts, fit) for fit in fits]
        assert np.diff(nats).max() <= 1e-12 * nats[0], seed


def test_histories_without_visits_change_nothing_elsewhere() -> None:
    small = topology_of([EOS], [A], [B], [C], [A, B])
    large = topology_of([EOS], [A], [B], [C], [A, B], [C, A])

    def fit(t: Topology) -> DictModel:
        visits, arc = np.zeros(t.states), np.zeros(t.arcs)
        rows = [tuple(row.tolist()) for row in ngrams_of(t)]
        visits[[0, t.start, int(t.dest[1])]] = [0.0, 5.0, 4.0]
        for ngram, count in {(A,): 4.0, (B,): 1.0, (EOS,): 1.0, (A, B): 3.0}.items():
            arc[rows.index(ngram)] = count
        backoff = np.zeros(t.states)
        backoff[[t.start, int(t.dest[1])]] = [5.0, 1.0]
        return DictModel(minimize_kl(TopologyCounts(t, arc, backoff, visits), vocabulary(3), prior_visits=1.0))

    without, has = fit(small), fit(large)
    assert {ngram: has.p[ngram] for ngram in without.p} == pytest.approx(without.p, rel=1e-9)
    assert has.p[(C, A)] == pytest.approx(has.p[(A,)])


def test_what_only_rounding_reads_at_a_state_has_no_weight_there() -> None:
    """All flow into the empty history comes from A, which reads A and B itself; a count of A there is an error."""
    t = topology_of([EOS], [A], [B], [A, A], [A, B], words=2)
    visits, arc, backoff = np.zeros(t.states), np.array([1.0, 1e-9, 0.0, 2.0, 1.0]), np.zeros(t.states)
    history = int(t.dest[1])
    visits[history], backoff[history] = 4.0, 1.0
    model = minimize_kl(TopologyCounts(t, arc, backoff, visits), vocabulary(2))
    assert np.exp(model.log_weight[:3]) == pytest.approx([1.0, 0.0, 0.0], abs=1e-12)


def test_sampled_sentences_are_cut_at_the_limit() -> None:
    model = model_from_weights(topology_of([EOS], [A], words=1), vocabulary(1), np.array([0.2, 0.8]))
    lengths = np.diff(sample_sentences(model, 500, seed=1, max_length=3).offsets)
    assert set(lengths.tolist()) == {0, 1, 2, 3}
    assert (lengths == 3).mean() == pytest.approx(0.8**3, abs=0.07)


def test_a_model_in_lower_case_has_the_probability_of_all_casings() -> None:
    """P(x|h) in lower case is the average of P(X|H) + P(x|H) over visits to the casings H of h."""
    words = Vocabulary.of(["New", "new", "York", "york"])
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows = [[x] for x in (EOS, 3, 4, 5, 6)] + [
            [h, x] for h in (3, 4, 5, 6) for x in (3, 4, 5, 6) if (h + 2 * x) % 3
        ]
        t = topology_from_ngrams(Ragged.from_rows(rows), len(words), open_vocabulary=False).topology
        plain = random_weights(rng, t, 4)
        model = NGramModel(t, words, plain.log_weight, plain.log_backoff)
        cased, visits, found = DictModel(model), expected_visits(model), lowercase_model(model)
        lower, cases = DictModel(found), {3: (3, 4), 4: (5, 6)}
        assert found.vocabulary.words[3:] == ("new", "york")
        for h, x in [ngram for ngram in lower.p if len(ngram) == 2]:
            total = sum(visits[(H,)] for H in cases[h])
            read = sum(visits[(H,)] * cased.prob((H,), X) for H in cases[h] for X in cases[x])
            assert lower.p[(h, x)] == pytest.approx(read / total, rel=1e-6), (seed, h, x)


def test_a_word_without_a_unigram_is_refused() -> None:
    words = Vocabulary.of(["a", "b"])
    rows = [[EOS], [A], [B], [A, B]]
    for left_out in range(3):
        given = Ragged.from_rows([row for row in rows if row != rows[left_out]])
        with pytest.raises(InvariantError, match="1 words of the vocabulary are missing"):
            assemble(WeightedNGrams(words, given, np.full(3, -1.0), np.zeros(3)))
    assert assemble(WeightedNGrams(words, Ragged.from_rows(rows), np.full(4, -1.0), np.zeros(4))).topology.arcs == 4
