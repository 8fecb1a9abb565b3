"""Networks as sources: counts match the paper's definition, and are the same for any way to count."""

from typing import Any

import numpy as np
import pytest
from tests.reference.composition import random_lexicon
from tests.reference.random_models import random_topology, vocabulary
from tests.reference.sample_counting import count_visits
from tests.reference.tiny_networks import network_over, tiny_network
from tests.unit.distill.casing.test_cap_sample_approx import LABELS
from tests.unit.distill.casing.test_capitalization import cased_model

from fedgram.automata.compose import compose, with_unknown_as_unigram
from fedgram.automata.counting import summed_counts
from fedgram.automata.properties import normalization_error
from fedgram.automata.topology import Topology, arc_sources
from fedgram.automata.transfer import transfer_counts
from fedgram.distill.casing.cap_sample_approx import CasedCounting, cased_topology
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_words import casing_of
from fedgram.distill.network_source import NetworkSource
from fedgram.distill.sample_approx import CountingOptions, PlainCounting, count_samples, fit
from fedgram.distill.sample_counts import SampleCounts
from fedgram.distill.tensor_cased_counting import TensorCasedCounting
from fedgram.distill.tensor_counting import TensorCounting

WORDS = 14


def case(seed: int, **shape: Any) -> tuple[NetworkSource, Topology]:
    source = NetworkSource(tiny_network(seed, words=WORDS, **shape), max_length=8)
    rng = np.random.default_rng(seed)
    return source, random_topology(rng, order=int(rng.integers(1, 5)), words=WORDS - 3, ngrams=60)


def same(a: SampleCounts, b: SampleCounts) -> bool:
    return a.samples == b.samples and np.array_equal(a.summed, b.summed) and np.array_equal(a.visits, b.visits)


def test_counts_match_the_definition() -> None:
    for seed in range(6):
        source, topology = case(seed, layers=1 + seed % 2)
        counted = count_samples(PlainCounting(source, topology, seed), 80).counts()
        defined = count_visits(source, topology, range(80), seed)
        np.testing.assert_allclose(counted.arc, defined.arc, atol=1e-5)
        np.testing.assert_allclose(counted.backoff, defined.backoff, atol=1e-4)
        np.testing.assert_array_equal(counted.visits, defined.visits)


def test_counts_are_the_same_bits_for_any_way_batches_and_workers() -> None:
    for seed in range(8):
        source, topology = case(seed)
        compiled, tensors = PlainCounting(source, topology, seed), TensorCounting(source, topology, seed)
        whole, entropy = count_samples(compiled, 300), count_samples(tensors, 300).source_entropy
        assert whole.source_entropy == pytest.approx(entropy, abs=1e-4)
        for batch, workers in [(11, 1), (64, 2), (300, 1)]:
            options = CountingOptions(workers, batch, shard=100)
            for counting in (compiled, tensors):
                again = count_samples(counting, 300, options)
                assert same(whole, again)
            assert count_samples(compiled, 300, options).entropy == whole.entropy
        assert not same(whole, count_samples(PlainCounting(source, topology, seed + 1), 300))
    assert compiled.digest == tensors.digest


def test_counts_with_capitals_in_tensors_are_those_of_compiled_code_but_for_rounding() -> None:
    """A_W knows some labels only, and its casings depend on the history."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        source = NetworkSource(network_over(LABELS, seed, ends=0.5), max_length=8)
        casing = casing_of(Capitalizer(cased_model(seed)), LABELS)
        topology = cased_topology(cased_model(seed + 1), source, casing)
        compiled, tensors = (way(source, casing, topology, seed) for way in (CasedCounting, TensorCasedCounting))
        options = CountingOptions(1, int(rng.integers(20, 300)), shard=300)
        one, other = count_samples(compiled, 300, options), count_samples(tensors, 300, options)
        np.testing.assert_array_equal(one.visits, other.visits)
        visits = one.visits.sum()
        assert np.abs(one.summed - other.summed).max() <= visits  # half a unit per visit, twice
        assert (one.summed > 100 * visits).sum() >= 9
        assert compiled.digest == tensors.digest


def test_networks_of_word_pieces_count_every_word_of_a_foreign_topology() -> None:
    """In compiled code and in tensors; no word is impossible, even with few samples."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        lexicon, labels = random_lexicon(rng, 40, pieces=6)
        words = with_unknown_as_unigram(random_topology(rng, order=3, words=40, ngrams=80), 43)
        source, composed = NetworkSource(network_over(labels, seed), max_length=30), compose(lexicon, words)
        countings = [way(source, composed.topology, seed) for way in (PlainCounting, TensorCounting)]
        one, other = (transfer_counts(composed, c.finish(count_samples(c, 20)), prior_visits=1.0) for c in countings)
        np.testing.assert_array_equal(one.arc, other.arc)
        S, T = summed_counts(one)
        assert (S[T[arc_sources(words)] > 0] > 0).all()
        model = fit(one, vocabulary(40)).model
        assert model.log_weight.min() > -20
        assert normalization_error(model) < 1e-9
