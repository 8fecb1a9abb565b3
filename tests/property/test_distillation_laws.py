"""Laws of SampleApprox on random sources and topologies."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.reference.composition import distribution
from tests.reference.random_models import random_model, random_topology, random_weights
from tests.reference.sample_counting import count_visits

from fedgram.automata.approximate import adopt_topology, approximate, count_source
from fedgram.automata.counting import cross_entropy
from fedgram.automata.model import NGramModel
from fedgram.automata.properties import model_faults
from fedgram.automata.prune import subtopology
from fedgram.automata.topology import Topology, arc_sources, state_lengths
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError, InputError
from fedgram.distill.checkpoint import Checkpoint
from fedgram.distill.sample_approx import (
    CountingOptions,
    NGramCounting,
    PlainCounting,
    count_samples,
    count_shard,
    sample_approx,
)
from fedgram.distill.sample_counts import SampleCounts
from fedgram.distill.source import NGramSource, Step


def case(seed: int) -> tuple[NGramSource, Topology]:
    rng = np.random.default_rng(seed)
    source = random_weights(rng, random_topology(rng, words=5, order=3, ngrams=14), 5)
    return NGramSource(source, max_length=40), random_topology(rng, words=5, order=1 + seed % 4, ngrams=9)


def same(a: SampleCounts, b: SampleCounts) -> bool:
    arrays = np.array_equal(a.summed, b.summed) and np.array_equal(a.visits, b.visits)
    return arrays and (a.samples, a.entropy) == (b.samples, b.entropy)


# -- a source's steps -------------------------------------------------------------------------------------------------


def test_a_walk_visits_every_prefix_once_and_tells_its_distribution() -> None:
    for seed in range(6):
        source, _ = case(seed)
        model, samples = source.model, range(3, 40)
        sentences = source.sample(samples, seed=seed)
        visits = [(int(j), step.position) for step in source.walk(samples, seed=seed) for j in step.sample]
        assert sorted(visits) == [(j, i) for j, row in enumerate(sentences) for i in range(len(row) + 1)]
        for step in source.walk(samples, seed=seed, sentences=sentences):
            assert step.p.sum(axis=1) == pytest.approx(1.0, abs=1e-9)
            assert step.entropy == pytest.approx(-(step.p * np.log(np.maximum(step.p, 1e-300))).sum(axis=1), abs=1e-9)
            if step.position == 0:
                expected = distribution(model, model.topology.start)
                assert step.p[0] == pytest.approx([expected.get(x, 0.0) for x in range(len(model.vocabulary))])
            for j, word in zip(step.sample.tolist(), step.word.tolist(), strict=True):
                assert word == ([*sentences[j].tolist(), 2])[step.position]


# -- counts are those of the definition -------------------------------------------------------------------------------


def counts_match_the_definition(shift: int) -> None:
    for seed in range(12):
        source, topology = case(seed)
        counted = count_samples(PlainCounting(source, topology, seed), 50).counts()
        by_hand = count_visits(source, topology, range(shift, 50 + shift), seed)
        assert counted.arc == pytest.approx(by_hand.arc, abs=1e-6)
        assert counted.backoff == pytest.approx(by_hand.backoff, abs=1e-6)
        assert np.array_equal(counted.visits, by_hand.visits)
        inflow = counted.visits + np.bincount(topology.backoff[1:], counted.backoff[1:], minlength=topology.states)
        outflow = counted.backoff + np.bincount(arc_sources(topology), counted.arc, minlength=topology.states)
        assert inflow == pytest.approx(outflow, abs=1e-6)


def test_counts_match_the_definition() -> None:
    counts_match_the_definition(shift=0)


def test_counting_visits_of_an_ngram_model_is_the_same() -> None:
    for seed in range(12):
        source, topology = case(seed)
        plain, visits = PlainCounting(source, topology, seed), NGramCounting(source, topology, seed)
        a, b = plain.finish(count_samples(plain, 200)), visits.finish(count_samples(visits, 200))
        assert b.arc == pytest.approx(a.arc, abs=1e-6)
        assert b.backoff == pytest.approx(a.backoff, abs=1e-6)
        assert np.array_equal(a.visits, b.visits)
        assert a.sentences == b.sentences
        known = count_samples(plain, 200).source_entropy, count_samples(visits, 200).source_entropy
        assert known[0] == pytest.approx(known[1], abs=1e-5)


def test_definition_catches_other_samples() -> None:
    with pytest.raises(AssertionError):
        counts_match_the_definition(shift=1)


# -- counts do not depend on how the samples are split ----------------------------------------------------------------


def test_counts_are_the_same_bits_for_any_batches_and_workers() -> None:
    for seed in range(4):
        source, topology = case(seed)
        counting = PlainCounting(source, topology, seed)
        whole = count_samples(counting, 700)
        for batch, workers in [(1, 1), (7, 2), (64, 3), (1024, 1), (1024, 4)]:
            assert same(whole, count_samples(counting, 700, CountingOptions(batch=batch, workers=workers, shard=128)))
        for machines in (2, 3, 5):
            cuts = np.linspace(0, 700, machines + 1).astype(int).tolist()
            parts = [count_shard(counting, range(a, b), CountingOptions()) for a, b in pairwise(cuts)]
            assert same(whole, sum(parts[::-1], SampleCounts.zero(topology)))
        assert not same(whole, count_samples(counting, 699))
        assert not same(whole, count_samples(PlainCounting(source, topology, seed + 1), 700))


def test_differences_of_summed_counts_are_never_negative() -> None:
    for seed in range(12):
        source, topology = case(seed)
        assert count_samples(PlainCounting(source, topology, seed), 300).counts().arc.min() >= 0.0


# -- more samples, less error -----------------------------------------------------------------------------------------


def error(source: NGramSource, topology: Topology, samples: int, seeds: range) -> float:
    """Root mean square error of log weights against the exact optimum, at n-grams that are visited often enough."""
    best = approximate(source.model, topology)
    often = best.source.counts.arc > 0.05
    off = [
        sample_approx(source, topology, samples=samples, seed=seed).model.log_weight - best.model.log_weight
        for seed in seeds
    ]
    return float(np.sqrt(np.mean([d[often] ** 2 for d in off])))


def slopes(orders: tuple[int, int]) -> list[float]:
    """D log error / d log k, from a source of one order to a topology of another within it."""
    result = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        large = random_topology(rng, words=5, order=orders[0], ngrams=20)
        model = random_weights(rng, large, 5)
        keep = state_lengths(large)[arc_sources(large)] < orders[1]
        source = NGramSource(model, max_length=200)
        few, many = (error(source, subtopology(large, keep), k, range(8)) for k in (400, 40_000))
        assert many < 0.05
        result.append(float(np.log(many / few) / np.log(100.0)))
    return result


def test_the_error_falls_as_the_square_root_of_samples() -> None:
    assert -0.65 < np.mean(slopes((3, 2))) < -0.35


def test_self_approximation_has_no_sampling_error() -> None:
    """What a source says in a state does not depend on how it came there, so that only the prior visits are off."""
    assert -1.1 < np.mean(slopes((3, 3))) < -0.9


def test_models_are_whole_and_near_the_exact_optimum() -> None:
    for seed in range(6):
        source, topology = case(seed)
        topology = adopt_topology(topology, source.vocabulary, source.vocabulary, open_vocabulary=True)
        result = sample_approx(source, topology, samples=4000, seed=seed)
        assert model_faults(result.model) == []
        exact = count_source(source.model, topology)
        best = result.after
        assert best <= result.before + 1e-3
        assert cross_entropy(exact.counts, result.model) == pytest.approx(best, rel=0.05)


def test_unvisited_states_are_reported_and_follow_their_backoff() -> None:
    source, _ = case(3)
    silent = NGramModel(
        source.model.topology, source.vocabulary,
        np.where(source.model.topology.label == 4, -99.0, source.model.log_weight), source.model.log_backoff,
    )  # fmt: skip
    topology = random_topology(np.random.default_rng(8), words=5, order=3, ngrams=40)
    result = sample_approx(NGramSource(silent), topology, samples=2000, seed=0)
    assert result.unvisited > 0
    assert model_faults(result.model) == []


# -- an interrupted count goes on -------------------------------------------------------------------------------------


class Interrupted(Exception):
    pass


class Failing(NGramSource):
    """A source that fails when it is asked for samples from `limit` on, and remembers what it was asked for."""

    def __init__(self, model: NGramModel, limit: int) -> None:
        super().__init__(model, max_length=40)
        self.limit, self.asked = limit, list[int]()

    def walk(self, samples: range, *, seed: int, sentences: Ragged | None = None) -> Iterator[Step]:
        if samples.stop > self.limit:
            raise Interrupted
        self.asked += samples
        yield from super().walk(samples, seed=seed, sentences=sentences)


def test_an_interrupted_count_goes_on_from_its_last_shard(tmp_path: Path) -> None:
    source, topology = case(2)
    options = CountingOptions(batch=30, shard=100, checkpoint=Checkpoint(tmp_path / "counts"))
    first = Failing(source.model, 250)
    with pytest.raises(Interrupted):
        count_samples(PlainCounting(first, topology, 5), 430, options)
    assert options.checkpoint is not None
    assert (
        options.checkpoint.read(SampleCounts.zero(topology), PlainCounting(first, topology, 5).digest, 430).samples
        == 200
    )
    second, told = Failing(source.model, 430), list[int]()
    resumed = CountingOptions(batch=17, shard=100, checkpoint=options.checkpoint, on_samples=told.append)
    counted = count_samples(PlainCounting(second, topology, 5), 430, resumed)
    assert second.asked == list(range(200, 430))
    assert sum(told) == 430
    assert same(counted, count_samples(PlainCounting(source, topology, 5), 430))
    again = Failing(source.model, 0)
    assert same(counted, count_samples(PlainCounting(again, topology, 5), 430, resumed))


def test_counts_of_other_work_are_refused(tmp_path: Path) -> None:
    source, topology = case(2)
    options = CountingOptions(checkpoint=Checkpoint(tmp_path / "counts"))
    count_samples(PlainCounting(source, topology, 5), 60, options)
    other, elsewhere = case(3)
    for counting in (
        PlainCounting(source, topology, 6), PlainCounting(other, topology, 5), PlainCounting(source, elsewhere, 5),
    ):  # fmt: skip
        with pytest.raises(InputError, match="source, topology or seed"):
            count_samples(counting, 60, options)
    with pytest.raises(InputError, match="60 samples already"):
        count_samples(PlainCounting(source, topology, 5), 59, options)
    with pytest.raises(FedgramError, match="at least 1"):
        count_samples(PlainCounting(source, topology, 5), 0)


def test_a_random_model_of_text_comes_back() -> None:
    model = random_model(np.random.default_rng(3), order=3)
    result = sample_approx(NGramSource(model), model.topology, samples=20_000, seed=1)
    exact = count_source(model, model.topology)
    assert cross_entropy(exact.counts, result.model) - exact.entropy < 0.01
