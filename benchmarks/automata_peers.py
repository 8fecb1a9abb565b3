"""OpenFst, by its Python module in pynini, beside fedgram: scores of sentences, and expected visits of states."""

from typing import Any

import numpy as np
from benchmarks.generated_text import write_text
from benchmarks.measure import seconds
from benchmarks.ngram_peers import Material
from benchmarks.side_by_side import MILLISECONDS, QUERIES, Figures, Missing, Peer, Row, compare

from fedgram.automata.build import count_ngrams
from fedgram.automata.counting import expected_visits
from fedgram.automata.model import NGramModel
from fedgram.automata.scoring import sentence_log_probs, step_on, weighted_arcs
from fedgram.automata.smoothing import smooth
from fedgram.automata.topology import END
from fedgram.automata.training import train
from fedgram.core.arrays import Ragged
from fedgram.formats.models import write_model
from fedgram.text.corpus import read_corpus
from fedgram.text.vocabulary import EOS, Vocabulary

WORDS, SENTENCES, FEW = 300_000, 300, 200


def pywrapfst() -> Any:
    """OpenFst's Python module, which comes with pynini."""
    try:
        import pywrapfst as module
    except ImportError:
        raise Missing("pip install pynini") from None
    return module


def scores(m: Material, notes: list[str]) -> list[Row]:
    """A sentence's score: by composition with the model, and the shortest distance in the result."""
    words = min(m.words, WORDS)
    model = train(read_corpus([write_text(m.folder / "automata.txt", words)]), order=3, smoothing="modified-kneser-ney")
    some = read_corpus([m.other], model.vocabulary).sentences
    known = [row.tolist() for row in some if (row > EOS).all()][:SENTENCES]
    sentences = Ragged.from_rows(known)
    ours = sentence_log_probs(model, sentences)
    queries = len(sentences.values) + len(sentences)

    def compositions() -> Figures:
        fst = pywrapfst()
        path = m.folder / "automata.fst"
        write_model(model, path, fst_style="epsilon")
        machine = fst.Fst.read(str(path))
        chains = [_chain(fst, row) for row in known]

        def distance(chain: Any) -> float:
            lattice = fst.compose(chain, machine)
            return float(fst.shortestdistance(lattice, reverse=True)[lattice.start()])

        gains = [-log_p - distance(chain) for chain, log_p in zip(chains, ours, strict=True)]
        notes.append(
            "OpenFst's best path may back off although the model has the n-gram, so it is at least as probable as the "
            f"sentence: by {min(gains):.1g} to {max(gains):.1g} nats."
        )
        return lambda: queries / seconds(lambda: [distance(chain) for chain in chains])

    return compare(
        {f"score sentences on {model.topology.arcs:,} n-grams": QUERIES},
        lambda: queries / seconds(lambda: sentence_log_probs(model, sentences)),
        Peer("OpenFst (pynini), composition", compositions),
        repeats=9,
    )


def _chain(fst: Any, words: list[int]) -> Any:
    """The acceptor of a sentence; word i has label i + 1."""
    machine = fst.VectorFst()
    one = fst.Weight.one(machine.weight_type())
    machine.add_states(len(words) + 1)
    machine.set_start(0)
    machine.set_final(len(words))
    for i, word in enumerate(words):
        machine.add_arc(i, fst.Arc(word + 1, word + 1, one, i + 1))
    return machine


def visits(m: Material, notes: list[str]) -> list[Row]:
    """OpenFst's shortest distance knows no backoff, so it gets the automaton with every word at every state."""
    text = read_corpus([write_text(m.folder / "few.txt", 20_000)]).sentences
    words = Vocabulary.of([f"w{i}" for i in range(FEW)])
    few = Ragged((text.values % FEW + len(words) - FEW).astype(np.int32), text.offsets)
    model = smooth(count_ngrams(few, words, order=2), "modified-kneser-ney")
    ours = expected_visits(model)

    def distances() -> Figures:
        fst = pywrapfst()
        machine, arcs = expanded(fst, model)

        def once() -> Any:
            return fst.shortestdistance(machine, delta=1e-9)

        furthest = np.abs(np.exp([-float(w) for w in once()]) - ours).max()
        most = f"up to {furthest:.1g} from ours, which are up to {ours.max():.2g}"
        notes.append(f"Expected visits by OpenFst, on {arcs:,} arcs: {most}.")
        return lambda: 1e3 * seconds(once)

    return compare(
        {f"expected visits of {model.topology.states:,} states": MILLISECONDS},
        lambda: 1e3 * seconds(lambda: expected_visits(model)),
        Peer("OpenFst (pynini), shortest distance, no backoffs", distances),
        repeats=9,
    )


def expanded(fst: Any, model: NGramModel) -> tuple[Any, int]:
    """The model in the log semiring without backoffs, and the number of its arcs."""
    machine, arcs, weights = fst.VectorFst("log"), weighted_arcs(model), 0
    machine.add_states(model.topology.states)
    machine.set_start(model.topology.start)
    for q in range(model.topology.states):
        for word in range(len(model.vocabulary)):
            log_p, dest = step_on(arcs, q, word)
            if not np.isfinite(log_p):
                continue
            weight = fst.Weight("log", -log_p)
            weights += 1
            if dest == END:
                machine.set_final(q, weight)
            else:
                machine.add_arc(q, fst.Arc(word + 1, word + 1, weight, int(dest)))
    return machine, weights


def rows(m: Material, notes: list[str]) -> list[Row]:
    """All rows of OpenFst."""
    return scores(m, notes) + visits(m, notes)
