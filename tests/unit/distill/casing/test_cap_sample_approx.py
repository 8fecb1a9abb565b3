"""CapSampleApprox, compared with counts added label by label, on random cased and uncased models."""

from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from tests.reference.capitalization import case_ratio
from tests.reference.composition import read_by
from tests.reference.dict_model import DictModel
from tests.reference.random_models import random_topology, random_weights
from tests.unit.distill.casing.test_capitalization import CASED, SENTENCES, cased_model, trained

from fedgram.automata.model import NGramModel
from fedgram.automata.properties import model_faults
from fedgram.automata.topology import Topology
from fedgram.core.errors import FedgramError
from fedgram.distill import sample_approx as module
from fedgram.distill.casing.cap_sample_approx import (
    CasedCounting,
    CasedNGramCounting,
    cap_sample_approx,
    cased_topology,
)
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_words import Casing, casing_of
from fedgram.distill.sample_approx import Counting, CountingOptions, count_samples
from fedgram.distill.source import NGramSource
from fedgram.text.normalize import uncase
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary

LABELS = Vocabulary.of(["c", "ab", "e", "f"])  # A_W does not know e and f, the source does not know d


def case(seed: int) -> tuple[NGramSource, Casing, Topology]:
    rng = np.random.default_rng(seed)
    uncased = random_weights(rng, random_topology(rng, words=4, order=3, ngrams=14), 4)
    source = NGramSource(NGramModel(uncased.topology, LABELS, uncased.log_weight, uncased.log_backoff), max_length=30)
    casing = casing_of(Capitalizer(cased_model(seed)), LABELS)
    return source, casing, cased_topology(cased_model(seed + 1), source, casing)


def test_the_casing_of_a_source() -> None:
    casing = casing_of(Capitalizer(cased_model(3)), LABELS)
    assert casing.vocabulary.words[3:] == ("ab", "Ab", "c", "AB", "C", "e", "f")
    lower = [LABELS.words[x] for x in casing.uncased_id]
    assert lower == [uncase(word) for word in casing.vocabulary.words]
    with pytest.raises(FedgramError, match="capitals"):
        casing_of(Capitalizer(cased_model(3)), Vocabulary.of(["Ab"]))


def p_tilde(casing: Casing, row: list[float], history: list[str]) -> dict[str, float]:
    """p̃(y | ȳ) of every cased word."""
    model = casing.capitalizer.model
    reference = DictModel(model)
    ids = model.vocabulary.encode(history)
    if not model.has_unknown and UNK in ids:  # A_W reads on from the empty history
        ids = ids[len(ids) - ids[::-1].index(UNK) :]
    elif UNK not in ids or model.has_unknown:
        ids = [BOS, *ids]
    result = {}
    for word in casing.vocabulary.words:
        p = row[LABELS[uncase(word)]]
        known = word in model.vocabulary
        result[word] = p * (case_ratio(reference, CASED, tuple(ids), CASED[word]) if known else 1.0)
    return result


def counts_by_hand(
    source: NGramSource, casing: Casing, topology: Topology, samples: range, seed: int
) -> tuple[dict[tuple[int, int], float], dict[int, float]]:
    read = [read_by(topology, q) for q in range(topology.states)]
    C: dict[tuple[int, int], float] = defaultdict(float)
    N: dict[int, float] = defaultdict(float)
    sentences = source.sample(samples, seed=seed)
    cased = casing.capitalize(sentences)
    for step in source.walk(samples, seed=seed):
        for j, row in zip(step.sample.tolist(), step.row.tolist(), strict=True):
            before = cased[j][: step.position].tolist()
            q = topology.start
            for y in before:
                while y not in read[q]:
                    q = int(topology.backoff[q])
                q = read[q][y]
            N[q] += 1
            p = p_tilde(casing, step.p[row].tolist(), casing.vocabulary.decode(before))
            assert sum(p.values()) == pytest.approx(1.0, abs=1e-9)
            for y, word in enumerate(casing.vocabulary.words):
                at = q
                while y != BOS and y not in read[at]:
                    at = int(topology.backoff[at])
                C[at, y] += p[word]
    return C, N


@pytest.mark.parametrize("counting_of", [CasedCounting, CasedNGramCounting], ids=["rows", "states"])
def test_counts_match_the_definition(counting_of: Callable[..., Counting]) -> None:
    for seed in range(10):
        source, casing, t = case(seed)
        counting = counting_of(source, casing, t, seed)
        counts = counting.finish(count_samples(counting, 25))
        C, N = counts_by_hand(source, casing, t, range(25), seed)
        arcs = [C[q, int(t.label[e])] for q in range(t.states) for e in range(t.first_arc[q], t.first_arc[q + 1])]
        assert counts.arc == pytest.approx(arcs, abs=1e-6)
        assert counts.visits == pytest.approx([N[q] for q in range(t.states)])


@pytest.mark.parametrize("counting_of", [CasedCounting, CasedNGramCounting], ids=["rows", "states"])
def test_counts_are_the_same_bits_for_any_batches_and_workers(
    counting_of: Callable[..., Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARD", 64)
    source, casing, t = case(4)
    counting = counting_of(source, casing, t, 4)
    whole = count_samples(counting, 300)
    for batch, workers in [(1, 1), (7, 2), (64, 3)]:
        other = count_samples(counting, 300, CountingOptions(batch=batch, workers=workers))
        assert np.array_equal(whole.summed, other.summed)
        assert np.array_equal(whole.visits, other.visits)
        assert np.array_equal(counting.finish(whole).arc, counting.finish(other).arc)


def test_capitals_come_back() -> None:
    """The source is a lower-case copy of a cased model; names get back the capitals that they had."""
    sentences = [sentence.split() for sentence in SENTENCES]
    A_W = trained(sentences, smoothing="witten-bell")
    uncased = trained([[uncase(word) for word in sentence] for sentence in sentences], smoothing="witten-bell")
    source, casing = NGramSource(uncased), casing_of(Capitalizer(A_W), uncased.vocabulary)
    result = cap_sample_approx(source, cased_topology(A_W, source, casing), casing, samples=4000, seed=1)
    assert model_faults(result.model) == []
    model, word = DictModel(result.model), casing.vocabulary
    assert model.prob((word["in"],), word["New"]) > 5 * model.prob((word["in"],), word["new"])
    assert model.prob((word["a"],), word["new"]) > 5 * model.prob((word["a"],), word["New"])
    assert model.prob((word["New"],), word["York"]) > 0.2
    assert model.prob((BOS,), word["In"]) > 5 * model.prob((BOS,), word["in"])
    assert sum(model.prob((word["in"],), y) for y in range(len(word)) if y != BOS) == pytest.approx(1.0)
    assert model.prob((word["York"],), EOS) > 0.1
