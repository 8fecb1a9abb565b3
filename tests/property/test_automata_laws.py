"""Laws of the automata on random models; each law is shown to catch a seeded fault."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from tests.reference import dict_model
from tests.reference.joint_optimum import joint_minimum
from tests.reference.random_models import random_model, random_topology, random_weights, vocabulary

from fedgram.automata.approximate import approximate, count_source
from fedgram.automata.build import ngrams_of, topology_from_ngrams, union_topology
from fedgram.automata.counting import TopologyCounts, counts_from_arcs, cross_entropy, expected_visits
from fedgram.automata.kl_minimize import minimize_kl, summed_model
from fedgram.automata.model import NGramModel
from fedgram.automata.properties import model_faults, normalization_error, topology_faults
from fedgram.automata.prune import best_ngrams, keep_ngrams, prune_to_size, relative_entropy_scores, subtopology
from fedgram.automata.sampling import sampled_visits
from fedgram.text.vocabulary import Vocabulary

Fit = Callable[[TopologyCounts, Vocabulary], NGramModel]


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def random_counts(seed: int) -> tuple[TopologyCounts, Vocabulary, float]:
    """Counts of a random source on a random topology, and the source's entropy."""
    source = random_weights(rng(seed), random_topology(rng(seed), words=4, order=3, ngrams=14), 4)
    target = random_topology(rng(seed + 1000), words=4, order=2 + seed % 2, ngrams=8)
    counted = count_source(source, target)
    return counted.counts, source.vocabulary, counted.entropy


# -- every state sums to one ------------------------------------------------------------------------------------------


def states_sum_to_one(models: list[NGramModel]) -> None:
    for model in models:
        assert model_faults(model) == []
        reference = dict_model.DictModel(model)
        for history in reference.backoff:
            assert reference.distribution(history).sum() == pytest.approx(1.0, abs=1e-9)


def test_states_sum_to_one() -> None:
    states_sum_to_one([random_model(rng(seed), order=1 + seed % 5) for seed in range(60)])


def test_states_sum_to_one_catches_a_wrong_backoff_weight() -> None:
    model = random_model(rng(1), order=2)
    off = NGramModel(model.topology, model.vocabulary, model.log_weight, model.log_backoff + 1e-6)
    with pytest.raises(AssertionError):
        states_sum_to_one([off])
    assert normalization_error(off) > 1e-9


# -- self-approximation returns the model -----------------------------------------------------------------------------


def self_approximation_returns_the_model(method: str, orders: range) -> None:
    for order in orders:
        for seed in range(12):
            model = random_model(rng(100 * order + seed), order=order)
            result = approximate(model, model.topology, method=method)
            assert abs(result.kl) < 1e-9
            assert normalization_error(result.model) <= 1e-9


def test_self_approximation_returns_the_model() -> None:
    self_approximation_returns_the_model("kl-min", range(1, 5))


def test_self_approximation_catches_summed_counts() -> None:
    with pytest.raises(AssertionError):
        self_approximation_returns_the_model("summed", range(2, 4))


# -- the fit is the joint optimum -------------------------------------------------------------------------------------


def fit_is_the_joint_optimum(fit: Fit) -> None:
    for seed in range(25):
        counts, words, entropy = random_counts(seed)
        reached = cross_entropy(counts, fit(counts, words))
        assert reached >= entropy - 1e-9
        assert reached == pytest.approx(joint_minimum(counts), abs=1e-8)


def test_fit_is_the_joint_optimum() -> None:
    fit_is_the_joint_optimum(minimize_kl)


@pytest.mark.parametrize(
    "fault", [summed_model, lambda counts, words: minimize_kl(counts, words, max_cycles=0)], ids=["summed", "no cycles"]
)
def test_joint_optimum_catches_a_wrong_fit(fault: Fit) -> None:
    with pytest.raises(AssertionError):
        fit_is_the_joint_optimum(fault)


# -- the divergence never rises ---------------------------------------------------------------------------------------


def divergence_never_rises(fit_after: Callable[[TopologyCounts, Vocabulary, int], NGramModel]) -> None:
    for seed in range(25):
        counts, words, _ = random_counts(seed)
        reached = [cross_entropy(counts, fit_after(counts, words, cycles)) for cycles in (0, 1, 2, 3, 5, 10, 30, 100)]
        assert all(later <= before + 1e-12 for before, later in pairwise(reached))


def test_divergence_never_rises() -> None:
    divergence_never_rises(lambda counts, words, cycles: minimize_kl(counts, words, max_cycles=cycles))


def test_divergence_law_catches_a_fit_that_overshoots() -> None:
    def overshooting(counts: TopologyCounts, words: Vocabulary, cycles: int) -> NGramModel:
        return summed_model(counts, words) if cycles == 3 else minimize_kl(counts, words, max_cycles=cycles)

    with pytest.raises(AssertionError):
        divergence_never_rises(overshooting)


# -- counts equal a sum over visits, one by one -----------------------------------------------------------------------


def counts_match_visits(change: Callable[[TopologyCounts], TopologyCounts]) -> None:
    for seed in range(20):
        source = random_weights(rng(seed), random_topology(rng(seed), words=4, order=3, ngrams=14), 4)
        scores = relative_entropy_scores(source)
        keep = best_ngrams(scores, (source.topology.arcs + int(source.topology.first_arc[1])) // 2, split_ties=True)
        target = keep_ngrams(source, keep)
        counts = change(count_source(source, target.topology).counts)
        C, C_phi, N = dict_model.visit_counts(source, target)
        order = list(dict_model.DictModel(target).backoff)
        assert counts.arc == pytest.approx([C[tuple(n.tolist())] for n in ngrams_of(target.topology)], abs=1e-10)
        assert counts.backoff == pytest.approx([C_phi[h] for h in order], abs=1e-10)
        assert counts.visits == pytest.approx([N[h] for h in order], abs=1e-10)
        inflow = counts.visits + np.bincount(
            target.topology.backoff[1:], counts.backoff[1:], minlength=target.topology.states
        )
        outflow = counts.backoff + np.add.reduceat(np.append(counts.arc, 0.0), target.topology.first_arc[:-1]) * (
            np.diff(target.topology.first_arc) > 0
        )
        assert inflow == pytest.approx(outflow, abs=1e-10)


def test_counts_match_visits() -> None:
    counts_match_visits(lambda counts: counts)


def test_count_law_catches_a_lost_visit() -> None:
    def lossy(counts: TopologyCounts) -> TopologyCounts:
        visits = counts.visits.copy()
        visits[counts.topology.start] *= 0.999
        return counts_from_arcs(counts.topology, counts.arc, visits, counts.sentences)

    with pytest.raises(AssertionError):
        counts_match_visits(lossy)


# -- samples come from the model --------------------------------------------------------------------------------------


def samples_match_expectation(sampler: Callable[[NGramModel, int], NGramModel]) -> None:
    k = 20_000
    for seed in range(6):
        model = random_model(rng(seed), order=1 + seed % 3, words=4)
        expected, seen = expected_visits(model), sampled_visits(sampler(model, seed), k, seed=seed) / k
        assert np.abs(seen - expected).max() < 0.05 * expected.sum()
        counted = count_source(model, model.topology, samples=k, seed=seed)
        assert counted.entropy == pytest.approx(count_source(model, model.topology).entropy, rel=0.03)


def test_samples_match_expectation() -> None:
    samples_match_expectation(lambda model, _: model)


def test_sampling_law_catches_another_model() -> None:
    with pytest.raises(AssertionError):
        samples_match_expectation(lambda model, seed: random_weights(rng(seed + 5), model.topology, 4))


# -- topologies stay closed -------------------------------------------------------------------------------------------


def test_topologies_are_well_formed_and_rebuild_themselves() -> None:
    for seed in range(40):
        t = random_topology(rng(seed), words=5, order=1 + seed % 6, ngrams=15)
        assert topology_faults(t, words=8) == []
        again = topology_from_ngrams(ngrams_of(t), 8)
        for name in ("first_arc", "label", "dest", "backoff", "start"):
            assert np.array_equal(getattr(again.topology, name), getattr(t, name))
        assert np.array_equal(again.arc, np.arange(t.arcs))


def test_topology_predicates_catch_an_unclosed_cut() -> None:
    caught = 0
    for seed in range(20):
        t = random_topology(rng(seed), words=5, order=3, ngrams=15)
        keep = np.ones(t.arcs, bool)
        keep[rng(seed).integers(t.first_arc[1], t.arcs)] = False
        caught += bool(topology_faults(subtopology(t, keep), words=8))
    assert caught


def test_pruning_keeps_closure_and_meets_the_budget() -> None:
    for seed in range(40):
        model = random_model(rng(seed), order=2 + seed % 4)
        unigrams = int(model.topology.first_arc[1])
        for budget in range(unigrams, model.topology.arcs + 2, 3):
            exact = prune_to_size(model, budget, split_ties=True)
            assert exact.topology.arcs == min(budget, model.topology.arcs)
            assert model_faults(exact) == []
            fair = prune_to_size(model, budget)
            assert fair.topology.arcs <= budget
            assert model_faults(fair) == []


def test_union_holds_both_and_nothing_else() -> None:
    for seed in range(20):
        a = random_topology(rng(seed), words=4, order=3, ngrams=10)
        b = random_topology(rng(seed + 50), words=4, order=4, ngrams=10)
        union, (in_a, in_b) = union_topology([a, b], len(vocabulary(4)))
        assert set(in_a.tolist()) | set(in_b.tolist()) == set(range(union.arcs))
        assert topology_faults(union, words=7) == []
