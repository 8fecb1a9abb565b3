"""Capitals for an uncased n-gram model, n-gram by n-gram.

CapSampleApprox capitalises samples, since a network can only be sampled. For an n-gram model, the same probabilities
can be computed exactly: with y a cased word, h a cased history, u(·) in lower case and a the state of A_W after h,

    w_h[y] = p(u(y) | u(h)) · r(y | a),

without sampling noise. The n-grams are those of the uncased model, in every casing that A_W gives at least the share
`least` of all casings of the n-gram. There are several times as many, so the result is usually pruned. This goes beyond
the paper; the ratio is that of §5.
"""

from dataclasses import dataclass

import numpy as np

from fedgram.automata.build import topology_from_ngrams
from fedgram.automata.counting import conditional_log_weights, image_states, next_states
from fedgram.automata.model import NGramModel, model_from_weights, renormalize
from fedgram.automata.topology import Topology, arc_sources, entering_arcs
from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.distill.casing.cased_words import Casing
from fedgram.text.vocabulary import BOS, UNK

LEAST = 1e-3


def capitalize_model(model: NGramModel, casing: Casing, *, least: float = LEAST) -> NGramModel:
    """The cased model of an uncased one; the casing must be of the model's vocabulary."""
    model = renormalize(model)
    topology = cased_ngrams(model, casing, least=least)
    image = image_states(topology, model, casing.uncased_id)
    log_p = conditional_log_weights(topology, model, image, casing.uncased_id)
    a = image_states(topology, casing.capitalizer.model, casing.own_id)
    weight = np.exp(log_p) * _ratios(casing, a[arc_sources(topology)], topology.label)
    return model_from_weights(topology, casing.vocabulary, weight)


@dataclass(frozen=True, slots=True, eq=False)
class _Histories:
    """Cased histories of one length: their words, uncased states, states of A_W, and the shares of their casings."""

    words: IntArray
    state: IntArray
    a: IntArray
    share: FloatArray


def cased_ngrams(model: NGramModel, casing: Casing, *, least: float) -> Topology:
    """The topology of the likely casings of a model's n-grams, which includes all words of Δ."""
    t, grown = model.topology, list[Ragged]()
    entering, state = entering_arcs(t), np.full(t.arcs, -1, np.int32)
    entered = np.flatnonzero(entering >= 0)
    state[entering[entered]] = entered
    variants = Ragged(
        np.argsort(casing.uncased_id, kind="stable").astype(np.int32),
        np.append(0, np.cumsum(np.bincount(casing.uncased_id, minlength=len(model.vocabulary)))),
    )
    none, start = np.empty((1, 0), np.int32), np.full((1, 1), BOS, np.int32)
    waiting = [
        _Histories(words, np.array([q], np.int32), np.array([a], np.int32), np.ones(1))
        for words, q, a in ((none, 0, 0), (start, t.start, casing.topology.start))
    ]
    while waiting:
        h = waiting.pop()
        row, arc = _spread(t.first_arc, h.state)
        cased, at = _spread(variants.offsets, t.label[arc])
        y, row, arc = variants.values[at], row[cased], arc[cased]
        share: FloatArray = np.multiply(h.share[row], _ratios(casing, h.a[row], y))
        likely = np.flatnonzero(share >= least) if h.words.shape[1] else np.arange(len(y))
        y, row, arc, share = y[likely], row[likely], arc[likely], share[likely]
        words = np.concatenate([h.words[row], y[:, None]], axis=1)
        grown.append(Ragged(words.reshape(-1), np.arange(len(words) + 1, dtype=np.int64) * words.shape[1]))
        on = np.flatnonzero((state[arc] >= 0) & (share >= least))
        if len(on):
            a = next_states(casing.topology, h.a[row[on]], casing.own_id[y[on]])
            waiting.append(_Histories(words[on], state[arc[on]], a, share[on]))
    ngrams = Ragged.concatenate(grown)
    return topology_from_ngrams(ngrams, len(casing.vocabulary), open_vocabulary=model.has_unknown).topology


def _spread(offsets: LongArray, rows: IntArray) -> tuple[LongArray, LongArray]:
    """For every value of these rows, the index into `rows` and the index of the value."""
    sizes = offsets[rows.astype(np.int64) + 1] - offsets[rows]
    which = np.repeat(np.arange(len(rows)), sizes)
    return which, np.arange(len(which)) + np.repeat(offsets[rows] - np.cumsum(sizes) + sizes, sizes)


def _ratios(casing: Casing, states: IntArray, word_ids: IntArray) -> FloatArray:
    """r(y | a) for pairs; a word that A_W does not know is the only one of its class."""
    ratio, own = np.ones(len(word_ids)), casing.own_id[word_ids]
    known = np.flatnonzero(own != UNK)
    ratio[known] = np.exp(casing.capitalizer.case_log_ratios(states[known], own[known]))
    return ratio
