"""Algorithm 1 as printed: which model gives the topology and which the capitals, line by line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.distill.casing.test_capitalization import trained
from tests.unit.distill.test_nn2wfa import CASED, UNCASED, WORDS, piece_source

from fedgram.automata.approximate import adopt_topology
from fedgram.automata.budget import Budget
from fedgram.automata.build import lowercase_topology
from fedgram.automata.compose import with_unknown_as_unigram
from fedgram.automata.merge import merge
from fedgram.automata.model import NGramModel
from fedgram.distill.algorithm1 import Approximations
from fedgram.distill.casing.cap_sample_approx import cap_sample_approx, cased_topology
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_words import casing_of
from fedgram.distill.distillation import DistillationOptions, Running, distill
from fedgram.distill.nn2wfa import PieceNN2WFA, count_by_pieces
from fedgram.distill.paper_way import distill_as_printed
from fedgram.distill.sample_approx import fit
from fedgram.distill.source import NGramSource
from fedgram.distill.spelling import spellable_words
from fedgram.text.wordpieces import WordPieces, train_pieces

pytest.importorskip("sentencepiece")
OPTIONS = DistillationOptions(samples=400, infer_samples=800, order=3, uncased_first=True)
A_W, SOURCE = trained(CASED), NGramSource(trained(UNCASED))


@pytest.fixture(scope="module")
def words() -> Approximations:
    return distill_as_printed(SOURCE, A_W, OPTIONS, seed=2)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> WordPieces:
    return train_pieces(WORDS, size=30, path=tmp_path_factory.mktemp("pieces") / "pieces.model")


def applied(source: NGramSource, topology: NGramModel, p_cap: NGramModel) -> NGramModel:
    """CapSampleApprox(source, topology, p_cap), on its own."""
    casing = casing_of(Capitalizer(p_cap, rules=False), source.vocabulary)
    return cap_sample_approx(source, cased_topology(topology, source, casing), casing, samples=400, seed=2).model


def assert_same(one: NGramModel, other: NGramModel, tolerance: float = 1e-5) -> None:
    assert one.vocabulary.words == other.vocabulary.words
    assert one.log_weight == pytest.approx(other.log_weight, abs=tolerance)


def test_the_lines_for_words(words: Approximations) -> None:
    assert_same(words.external, applied(SOURCE, A_W, A_W))
    assert_same(words.inferred, applied(SOURCE, words.inferred, A_W))
    assert_same(words.merged, merge(words.external, words.inferred))
    assert_same(words.refitted, applied(SOURCE, words.merged, words.merged))
    with_A_W = applied(SOURCE, words.merged, A_W)
    assert with_A_W.log_weight != pytest.approx(words.refitted.log_weight, abs=1e-3)  # p_cap is A_m, and it matters


def test_the_lines_for_word_pieces(words: Approximations, pieces: WordPieces) -> None:
    source, A_W_i = piece_source(trained(UNCASED, smoothing="witten-bell"), pieces), words.inferred
    made = distill_as_printed(source, A_W, OPTIONS, inferred=A_W_i, pieces=pieces, seed=2)
    apart = PieceNN2WFA(source, Capitalizer(A_W), [A_W, A_W_i], pieces=pieces, samples=400, seed=2)
    for model, topology, p_cap in (
        (made.external, A_W, A_W),
        (made.inferred, A_W_i, A_W_i),
        (made.refitted, made.merged, made.merged),
    ):
        assert_same(model, apart.capitalized(topology, Capitalizer(p_cap, rules=False)).model)
    other = apart.capitalized(A_W_i, Capitalizer(A_W, rules=False)).model
    assert other.log_weight != pytest.approx(made.inferred.log_weight, abs=1e-3)


def test_the_lines_of_NN2WFA_P(pieces: WordPieces) -> None:
    """Lower-case the topology, count on B = M ∘ T by pieces, bring the counts back, minimise, and add the capitals."""
    source = piece_source(trained(UNCASED, smoothing="witten-bell"), pieces)
    lower, words = lowercase_topology(A_W.topology, A_W.vocabulary)
    known = spellable_words(source, pieces, words)
    T = with_unknown_as_unigram(adopt_topology(lower, words, known, open_vocabulary=True), len(known))
    uncased = fit(count_by_pieces(source, pieces, T, known, samples=400, seed=2), known).model
    by_lines = applied(NGramSource(uncased), A_W, A_W)
    nn2wfa = PieceNN2WFA(source, Capitalizer(A_W, rules=False), [A_W], pieces=pieces, samples=400, seed=2)
    assert_same(nn2wfa.uncased(A_W).model, uncased)
    assert_same(nn2wfa(A_W).model, by_lines)


def test_our_own_way_takes_all_capitals_from_A_W() -> None:
    """Algorithm 1 with p_cap = A_W in every line, and the capitaliser's own rules."""
    ours = distill(SOURCE, A_W, replace(OPTIONS, uncased_first=False), seed=2)
    casing = casing_of(Capitalizer(A_W), SOURCE.vocabulary)
    for model, topology in ((ours.external, A_W), (ours.inferred, ours.inferred), (ours.refitted, ours.merged)):
        T = cased_topology(topology, SOURCE, casing)
        assert_same(model, cap_sample_approx(SOURCE, T, casing, samples=400, seed=2).model)
    assert_same(ours.merged, merge(ours.external, ours.inferred))


def test_it_differs_from_our_own_way_in_capitals_only() -> None:
    ours, printed = (way(SOURCE, A_W, OPTIONS, seed=2) for way in (distill, distill_as_printed))
    assert ours.external.topology.arcs == printed.external.topology.arcs
    assert not np.allclose(ours.external.log_weight, printed.external.log_weight, atol=1e-3)


def test_a_budget_and_checkpoints(tmp_path: Path) -> None:
    budget = Budget(max_ngrams=90)
    made = distill_as_printed(SOURCE, A_W, OPTIONS, budget=budget, seed=2, running=Running(folder=tmp_path))
    assert max(model.topology.arcs for model in made.by_letter().values()) <= 90
    assert {path.name for path in tmp_path.iterdir()} == {"inferred.ngram", "counts", "counts_r"}
    again = distill_as_printed(SOURCE, A_W, OPTIONS, budget=budget, seed=2, running=Running(folder=tmp_path))
    assert np.array_equal(again.refitted.log_weight, made.refitted.log_weight)
