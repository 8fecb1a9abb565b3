"""OpenFst's shortest distance over our automata equals our sentence score."""

from pathlib import Path

import numpy as np
import pytest
from tests.reference.random_models import random_sentences, vocabulary

from fedgram.automata.build import count_ngrams
from fedgram.automata.scoring import sentence_log_probs
from fedgram.automata.smoothing import smooth
from fedgram.formats.models import read_model, write_model
from fedgram.text.vocabulary import Vocabulary

fst = pytest.importorskip("pywrapfst", reason="pynini is not installed")


def random_text_model(order: int = 3):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(order)
    text = random_sentences(rng, words=40, sentences=300, length=8)
    return smooth(count_ngrams(text, vocabulary(40), order=order), "katz"), random_sentences(
        rng, words=40, sentences=60, length=8
    )


def acceptor(labels: list[int], backoff: int):  # type: ignore[no-untyped-def]
    """The sentence, with a backoff loop at each state, so that composition may back off at any state."""
    machine = fst.VectorFst()
    one = fst.Weight.one(machine.weight_type())
    states = [machine.add_state() for _ in range(len(labels) + 1)]
    machine.set_start(states[0])
    machine.set_final(states[-1])
    for i, label in enumerate(labels):
        machine.add_arc(states[i], fst.Arc(label, label, one, states[i + 1]))
    for q in states:
        machine.add_arc(q, fst.Arc(backoff, backoff, one, q))
    return machine


@pytest.mark.parametrize("order", [1, 2, 3])
def test_shortest_distance_is_the_sentence_score(order: int, tmp_path: Path) -> None:
    """With <phi> as an ordinary label, the tropical distance is that of the best path; ours backs off only if it must.

    In a Katz model, an explicit n-gram may be less likely than the same n-gram by backoff. So paths with unnecessary
    backoff are removed first; the remaining path must have exactly our score.
    """
    model, sentences = random_text_model(order)
    write_model(model, tmp_path / "m.fst", fst_style="phi")
    machine = fst.Fst.read(str(tmp_path / "m.fst"))
    phi = machine.input_symbols().find("<phi>")
    ours = sentence_log_probs(model, sentences)
    for sentence, score in zip(sentences, ours, strict=True):
        lattice = fst.compose(acceptor([x + 1 for x in sentence.tolist()], phi), machine)
        best = _last_backoff_cost(lattice, phi)
        assert best == pytest.approx(-score, abs=1e-4)


def _last_backoff_cost(lattice, phi: int) -> float:  # type: ignore[no-untyped-def]
    """Remove the <phi> arc of each state that can read the next word (or end) without it, then ask OpenFst."""
    trimmed = lattice.copy()
    for q in list(trimmed.states()):
        arcs = list(trimmed.arcs(q))
        infinite = fst.Weight.zero(trimmed.weight_type())
        reads_on = any(arc.ilabel != phi for arc in arcs) or trimmed.final(q) != infinite
        if reads_on:
            trimmed.delete_arcs(q)
            for arc in arcs:
                if arc.ilabel != phi:
                    trimmed.add_arc(q, arc)
    distances = fst.shortestdistance(trimmed, reverse=True)
    return float(distances[trimmed.start()])


@pytest.mark.parametrize("style", ["epsilon", "phi", "kaldi"])
def test_automata_come_back_through_openfst(style: str, tmp_path: Path) -> None:
    model, sentences = random_text_model()
    write_model(model, tmp_path / "m.fst", fst_style=style)
    back = read_model(tmp_path / "m.fst")
    assert back.topology.arcs_by_order() == model.topology.arcs_by_order()
    renumbered = _encode(back.vocabulary, model.vocabulary, sentences.values)
    again = type(sentences)(renumbered, sentences.offsets)
    assert sentence_log_probs(back, again) == pytest.approx(sentence_log_probs(model, sentences), abs=1e-4)


def _encode(to: Vocabulary, of: Vocabulary, ids):  # type: ignore[no-untyped-def]
    return np.array(to.encode(of.decode(ids.tolist())), np.int32)


def test_text_automata_compile_to_the_binary_ones(tmp_path: Path) -> None:
    model, _ = random_text_model()
    for style in ("epsilon", "phi", "kaldi"):
        write_model(model, tmp_path / "m.fst.txt", fst_style=style)
        write_model(model, tmp_path / "m.fst", fst_style=style)
        compiler = fst.Compiler()
        compiler.write((tmp_path / "m.fst.txt").read_text())
        symbols = fst.SymbolTable.read_text(str(tmp_path / "m.syms"))
        binary = fst.Fst.read(str(tmp_path / "m.fst"))
        assert fst.equal(compiler.compile().arcsort("ilabel"), binary)
        assert symbols.labeled_checksum() == binary.input_symbols().labeled_checksum()


def test_kaldi_style_is_a_g_fst(tmp_path: Path) -> None:
    model, _ = random_text_model()
    write_model(model, tmp_path / "G.fst", fst_style="kaldi")
    machine = fst.Fst.read(str(tmp_path / "G.fst"))
    symbols = machine.input_symbols()
    used = {symbols.find(arc.ilabel) for q in machine.states() for arc in machine.arcs(q)}
    assert not used & {"<s>", "</s>", "<eps>"}
    backoffs = [arc for q in machine.states() for arc in machine.arcs(q) if symbols.find(arc.ilabel) == "#0"]
    assert len(backoffs) == model.topology.states - 1
    assert all(arc.olabel == 0 for arc in backoffs)
