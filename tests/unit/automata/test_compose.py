"""Figure 3 by hand: the lexicon, the composition and the transfer of counts for words {ab, ac} and pieces {a, b, c}."""

import numpy as np
import pytest
from tests.unit.automata.test_goldens import AB_AC, ab_ac_topology

from fedgram.automata.compose import PieceTopology, compose
from fedgram.automata.counting import TopologyCounts, counts_from_visits, expected_visits
from fedgram.automata.kl_minimize import minimize_kl
from fedgram.automata.lexicon import Lexicon, lexicon_from_codes
from fedgram.automata.model import NGramModel, model_from_weights
from fedgram.automata.properties import topology_faults
from fedgram.automata.transfer import transfer_counts
from fedgram.core.arrays import Ragged
from fedgram.core.errors import InvariantError
from fedgram.text.vocabulary import Vocabulary

PIECES = Vocabulary.of(["a", "b", "c"])
A_, B_, C_ = PIECES.encode(["a", "b", "c"])
FINAL = [False, False, False, False, True, True]


def ab_ac_lexicon() -> Lexicon:
    return lexicon_from_codes(Ragged.from_rows([[], [], [], [A_, B_], [A_, C_]]), FINAL)


def ab_ac_composed() -> PieceTopology:
    return compose(ab_ac_lexicon(), ab_ac_topology())


def names(composed: PieceTopology) -> list[str]:
    """The states of B in the paper's notation; u is the empty history."""
    word = ["u", "<s>", "ab"]
    pairs = zip(composed.node.tolist(), composed.word_state.tolist(), strict=True)
    return [f"({v},{word[q]})" if q >= 0 else "unknown" for v, q in pairs]


def test_the_lexicon_of_figure_3() -> None:
    M = ab_ac_lexicon()
    arcs = [
        (v, PIECES.words[M.piece[e]], int(M.dest[e]), AB_AC.words[M.output[e]] if M.output[e] >= 0 else "")
        for v in range(M.nodes)
        for e in range(M.first_arc[v], M.first_arc[v + 1])
    ]
    assert arcs == [(0, "a", 1, ""), (1, "b", 0, "ab"), (1, "c", 0, "ac")]
    assert M.word_node.tolist() == [-1, -1, -1, 1, 1]
    assert M.word_piece.tolist() == [-1, -1, -1, B_, C_]


def test_the_composition_of_figure_3() -> None:
    composed = ab_ac_composed()
    t, name = composed.topology, names(composed)
    arcs = {
        (name[s], PIECES.words[t.label[e]], name[t.dest[e]] if t.dest[e] >= 0 else "end")
        for s in range(1, t.states)
        for e in range(t.first_arc[s], t.first_arc[s + 1])
    }
    assert arcs == {
        ("(0,u)", "a", "(1,u)"),
        ("(0,u)", "</s>", "end"),
        ("(1,u)", "b", "(0,ab)"),
        ("(1,u)", "c", "(0,u)"),
        ("(0,ab)", "a", "(1,ab)"),
        ("(1,ab)", "c", "(0,u)"),
    }
    backoffs = {(name[s], name[t.backoff[s]]) for s in range(1, t.states)}
    assert backoffs == {
        ("(0,<s>)", "(0,u)"),
        ("(0,ab)", "(0,u)"),
        ("(1,ab)", "(1,u)"),
        ("(0,u)", "unknown"),
        ("(1,u)", "unknown"),
    }
    assert name[t.start] == "(0,<s>)"
    assert topology_faults(t) == []


def test_inside_an_unknown_word_every_piece_is_read() -> None:
    composed = ab_ac_composed()
    t, name = composed.topology, names(composed)
    read = {PIECES.words[t.label[e]]: t.dest[e] for e in range(t.first_arc[1])}
    assert {piece: name[d] if d >= 0 else "end" for piece, d in read.items()} == {
        "<unk>": "unknown", "</s>": "end", "a": "unknown", "b": "(0,u)", "c": "(0,u)",
    }  # fmt: skip


def figure_3_source() -> NGramModel:
    """A word begins with p(a) = .75, p(</s>) = .25; then p(b), p(c) = .2, .8 if the last word was ab, else .6, .4."""
    t = ab_ac_composed().topology
    name = names(ab_ac_composed())
    after_ab = {("(0,ab)", "a"): 0.75, ("(1,ab)", "c"): 0.8}
    otherwise = {("(0,u)", "a"): 0.75, ("(0,u)", "</s>"): 0.25, ("(1,u)", "b"): 0.6, ("(1,u)", "c"): 0.4}
    weight = np.zeros(t.arcs)
    for s in range(t.states):
        for e in range(t.first_arc[s], t.first_arc[s + 1]):
            weight[e] = (after_ab | otherwise).get((name[s], PIECES.words[t.label[e]]), 0.2)
    return model_from_weights(t, PIECES, weight)


def figure_3_counts() -> TopologyCounts:
    source = figure_3_source()
    return counts_from_visits(source, expected_visits(source), 1.0)


def test_the_counts_of_the_worked_example() -> None:
    composed, counts = ab_ac_composed(), figure_3_counts()
    t, name = composed.topology, names(composed)
    C = {
        (PIECES.words[t.label[e]], name[s]): counts.arc[e]
        for s in range(1, t.states)
        for e in range(t.first_arc[s], t.first_arc[s + 1])
    }
    expected = {
        ("a", "(0,ab)"): 1.038462, ("c", "(1,ab)"): 0.830769, ("a", "(0,u)"): 1.961538, ("</s>", "(0,u)"): 1.0,
        ("b", "(1,u)"): 1.384615, ("c", "(1,u)"): 0.784615,
    }  # fmt: skip
    assert pytest.approx(expected, abs=1e-6) == C
    C_phi = dict(zip(name, counts.backoff.tolist(), strict=True))
    assert C_phi["(0,ab)"] == pytest.approx(0.346154, abs=1e-6)
    assert C_phi["(1,ab)"] == pytest.approx(0.207692, abs=1e-6)
    assert C_phi["(0,<s>)"] == pytest.approx(1.0, abs=1e-6)
    assert C_phi["(0,u)"] == pytest.approx(0.0, abs=1e-12)
    assert C_phi["(1,u)"] == pytest.approx(0.0, abs=1e-12)


def test_the_transfer_of_the_worked_example() -> None:
    counts = transfer_counts(ab_ac_composed(), figure_3_counts())
    assert counts.arc == pytest.approx([1.0, 1.384615, 0.784615, 0.830769], abs=1e-6)  # </s>, ab, ac; ab ac
    assert counts.backoff == pytest.approx([0.0, 1.0, 0.553846], abs=1e-6)
    assert counts.visits == pytest.approx([1.615385, 1.0, 1.384615], abs=1e-6)
    model = minimize_kl(counts, AB_AC)
    assert np.exp(model.log_weight) == pytest.approx([0.293548, 0.406452, 0.3, 0.6], abs=1e-6)
    assert np.exp(model.log_backoff[2]) == pytest.approx(0.571429, abs=1e-6)


@pytest.mark.parametrize(
    ("codes", "problem"),
    [
        ([[A_, B_], [A_, B_]], "same code"),
        ([[B_, A_]], "must end a word"),
        ([[A_]], "must end a word"),
        ([[A_, B_], [A_, B_, C_]], "must end a word"),
        ([[9]], "not in the inventory"),
    ],
)
def test_invalid_codes_are_refused(codes: list[list[int]], problem: str) -> None:
    with pytest.raises(InvariantError, match=problem):
        lexicon_from_codes(Ragged.from_rows(codes), FINAL)


def test_negative_prior_visits_of_a_transfer_are_refused() -> None:
    composed = ab_ac_composed()
    t = composed.topology
    counts = TopologyCounts(t, np.ones(t.arcs), np.ones(t.states), np.ones(t.states))
    with pytest.raises(InvariantError, match="prior_visits must be at least 0"):
        transfer_counts(composed, counts, prior_visits=-0.5)


def test_words_that_cannot_be_spelled_have_no_code() -> None:
    M = lexicon_from_codes(Ragged.from_rows([[], [], [], [A_, 0, B_], [B_]]), FINAL)
    assert M.word_node.tolist() == [-1, -1, -1, -1, 0]
    assert M.order.tolist() == [4]
    composed = compose(M, ab_ac_topology())
    assert topology_faults(composed.topology) == []
    assert (composed.word_arc >= 0).tolist() == [True, False, True, True]
