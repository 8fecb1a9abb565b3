"""B = M ∘ A: a word topology A read piece by piece.

A state of B is a pair (q₁, q₂) of a node of the lexicon M, which says how much of a word has been read, and a state of
A, which says after which words. At (q₁, q₂) B reads piece x

- to (0, d_{q₂}[y]) if x completes a word y that q₂ reads,
- to (q₁·x, q₂) if some word that q₂ reads goes on with x,

and `</s>` at (0, q₂) if q₂ reads it; (q₁, q₂) backs off to (q₁, backoff q₂), also in the middle of a word. So the
states at q₂ are the root and the inner nodes of the trie of the words that q₂ reads. Each of them can be reached if q₂
can, and is a state at backoff q₂ as well: B is deterministic and backoff-complete, with O((|E| + |Q| + |Δ|)·ℓ) arcs for
codes of at most ℓ pieces.

Pieces that lead to no word are read in state 0 of B, *inside an unknown word*, to which the states at A's empty history
back off. It reads every piece: one that ends a word leads to the state of A behind `<unk>`, any other leads back to it.
For this `<unk>` may be read only at the empty history: elsewhere, it would not be known which of q₂ and its backoff is
to read a word before the word ends.

Each word y is put out at (q_y, q) by the piece x_y alone, and exact counts on B are counts on A:

    C_A(y, q) = C_B(x_y, (q_y, q)),   C_A(</s>, q) = C_B(</s>, (0, q)),   C_A(φ, q) = Σ_{q₁} C_B(φ, (q₁, q)),

where Σ_{q₁} C_B(φ, (q₁, empty)) is C_A(<unk>, empty). For counts from samples see `transfer`. Paper: §6.
"""

from dataclasses import dataclass

import numpy as np

from fedgram.automata.build import ngrams_of, topology_from_ngrams
from fedgram.automata.lexicon import Lexicon
from fedgram.automata.model import NGramModel, has_unknown, model_from_weights
from fedgram.automata.topology import END, Topology, arc_sources, backoff_arcs
from fedgram.core.arrays import FloatArray, IntArray, LongArray, frozen
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary

UNKNOWN_WORD = 0  # the state of B inside a word that A does not know


@dataclass(frozen=True, slots=True, eq=False)
class PieceTopology:
    """B, with the way back to A.

    Attributes:
        topology: B itself; T1–T4 hold.
        words: A.
        word_arc: The arc of B that puts out each arc of A; −1 for `<unk>` and for words that cannot be spelled.
        word_state: q₂ by state of B, −1 inside an unknown word.
        node: q₁ by state of B, −1 inside an unknown word.
    """

    topology: Topology
    words: Topology
    word_arc: IntArray
    word_state: IntArray
    node: IntArray

    def __repr__(self) -> str:
        return f"PieceTopology({self.topology} of {self.words})"


def with_unknown_as_unigram(topology: Topology, words: int) -> Topology:
    """The topology that reads `<unk>` at the empty history and nowhere else, as `compose` demands."""
    ngrams = ngrams_of(topology)
    inner = ngrams.values == UNK
    inner[ngrams.offsets[:-1]] = False
    keep = np.add.reduceat(inner, ngrams.offsets[:-1]) == 0
    return topology_from_ngrams(ngrams.select(keep), words, open_vocabulary=True).topology


def compose(lexicon: Lexicon, words: Topology) -> PieceTopology:
    """B = M ∘ A for a lexicon over A's vocabulary."""
    A = words
    if A.arcs and int(A.label.max()) >= lexicon.words:
        raise InvariantError("compose: the topology reads words that the lexicon does not have")
    if bool(np.any(A.label[A.first_arc[1] :] == UNK)):
        raise InvariantError("compose: <unk> may be read at the empty history alone")
    rank = np.full(lexicon.words, -1, np.int32)
    rank[lexicon.order] = np.arange(len(lexicon.order), dtype=np.int32)
    ranked = np.lexsort((rank[A.label], arc_sources(A))).astype(np.int32)  # what has no code, as </s>, comes first
    path, path_begin = lexicon.path.values, lexicon.path.offsets
    first_state = _first_states(A.first_arc, A.label, ranked, path, path_begin)
    word_state, node, parent, at, created = _place(A.first_arc, A.label, ranked, first_state, path, path_begin)
    piece = np.where(A.label == EOS, EOS, lexicon.word_piece[A.label]).astype(np.int32)
    behind = np.where(A.dest == END, END, first_state[np.maximum(A.dest, 0)]).astype(np.int32)
    unknown = first_state[A.dest[UNK] if has_unknown(A) else 0]
    label = np.delete(np.arange(lexicon.pieces, dtype=np.int32), BOS)  # what is read inside an unknown word
    dest = np.where(label == EOS, END, np.where(lexicon.is_final[label], unknown, UNKNOWN_WORD)).astype(np.int32)
    first_arc, label, dest, word_arc = _lay_out(
        ranked, piece, behind, at, created, parent, lexicon.node_piece[node], label, dest
    )
    backoff = _backoffs(first_state, word_state, node, A.backoff)
    B = Topology(first_arc, label, dest, backoff, start=int(first_state[A.start]))
    return PieceTopology(B, A, frozen(word_arc), frozen(word_state), frozen(node))


@kernel
def _shared_nodes(path: IntArray, begin: int, end: int, previous: int, previous_end: int) -> int:
    """How many nodes two paths have in common, from the root on."""
    most, shared = min(end - begin, previous_end - previous), 0
    while shared < most and path[begin + shared] == path[previous + shared]:
        shared += 1
    return shared


@kernel
def _first_states(
    first_arc: LongArray, label: IntArray, ranked: IntArray, path: IntArray, path_begin: LongArray
) -> LongArray:
    """For each q₂ the number of (0, q₂), which the other states at q₂ follow; and the number of all states."""
    first_state = np.empty(len(first_arc), np.int64)
    states = 1
    for q in range(len(first_arc) - 1):
        first_state[q] = states
        states += 1
        previous, previous_end = 0, 0
        for k in range(first_arc[q], first_arc[q + 1]):
            begin, end = path_begin[label[ranked[k]]], path_begin[label[ranked[k]] + 1]
            states += end - begin - _shared_nodes(path, begin, end, previous, previous_end)
            previous, previous_end = begin, end
    first_state[-1] = states
    return first_state


@kernel
def _place(
    first_arc: LongArray, label: IntArray, ranked: IntArray, first_state: LongArray, path: IntArray,
    path_begin: LongArray,
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:  # fmt: skip
    """(q₂, q₁) and parent of each state; and for each arc of A, in their ranked order, the state that puts it out and
    the number of states there are once it is placed.
    """
    states = first_state[-1]
    word_state, node = np.full(states, -1, np.int32), np.full(states, -1, np.int32)
    parent, at = np.full(states, -1, np.int32), np.empty(len(ranked), np.int32)
    created = np.empty(len(ranked), np.int32)
    chain = np.empty(len(path) + 1, np.int32)  # the states along the current path
    for q in range(len(first_arc) - 1):
        s = first_state[q]
        word_state[s], node[s], chain[0] = q, 0, s
        previous, previous_end = 0, 0
        for k in range(first_arc[q], first_arc[q + 1]):
            begin, end = path_begin[label[ranked[k]]], path_begin[label[ranked[k]] + 1]
            for i in range(_shared_nodes(path, begin, end, previous, previous_end), end - begin):
                s += 1
                word_state[s], node[s], parent[s], chain[i + 1] = q, path[begin + i], chain[i], s
            at[k], created[k] = chain[end - begin], s + 1
            previous, previous_end = begin, end
    return word_state, node, parent, at, created


@kernel
def _lay_out(
    ranked: IntArray, piece: IntArray, behind: IntArray, at: IntArray, created: IntArray, parent: IntArray,
    entered_by: IntArray, unknown_label: IntArray, unknown_dest: IntArray,
) -> tuple[LongArray, IntArray, IntArray, IntArray]:  # fmt: skip
    """The arcs by state. Codes come in order, so that each state meets its pieces in order."""
    first_arc = np.zeros(len(parent) + 1, np.int64)
    first_arc[1] = len(unknown_label)
    for s in range(len(parent)):
        if parent[s] >= 0:
            first_arc[parent[s] + 1] += 1
    for k in range(len(ranked)):
        first_arc[at[k] + 1] += piece[ranked[k]] >= 0
    for s in range(len(parent)):
        first_arc[s + 1] += first_arc[s]
    label, dest = np.empty(first_arc[-1], np.int32), np.empty(first_arc[-1], np.int32)
    label[: len(unknown_label)], dest[: len(unknown_label)] = unknown_label, unknown_dest
    word_arc = np.full(len(ranked), -1, np.int32)
    cursor, s = first_arc[:-1].copy(), 1
    for k in range(len(ranked)):
        while s < created[k]:
            if parent[s] >= 0:
                e = cursor[parent[s]]
                label[e], dest[e] = entered_by[s], s
                cursor[parent[s]] += 1
            s += 1
        if piece[ranked[k]] >= 0:
            e = cursor[at[k]]
            label[e], dest[e], word_arc[ranked[k]] = piece[ranked[k]], behind[ranked[k]], e
            cursor[at[k]] += 1
    return first_arc, label, dest, word_arc


@kernel
def _backoffs(first_state: LongArray, word_state: IntArray, node: IntArray, backoff: IntArray) -> IntArray:
    """(q₁, backoff q₂), found by q₁ among the states at backoff q₂, whose nodes rise."""
    result = np.full(len(node), UNKNOWN_WORD, np.int32)
    result[UNKNOWN_WORD] = -1
    for s in range(1, len(node)):
        below = backoff[word_state[s]]
        if below >= 0:
            begin, end = first_state[below], first_state[below + 1]
            result[s] = begin + np.searchsorted(node[begin:end], node[s])
    return result


def compose_model(lexicon: Lexicon, model: NGramModel, labels: Vocabulary) -> NGramModel:
    """The model read piece by piece: the same distribution over sentences, on M ∘ A.

    The probability that words beginning with a node's pieces have at a state of A is passed on to the pieces that
    continue them. An unknown word, and one that cannot be spelled, is some sequence of pieces that is no word.
    """
    if lexicon.pieces != len(labels):
        raise InvariantError("compose_model: the lexicon has other pieces than the vocabulary of labels")
    B = compose(lexicon, model.topology)
    t = B.topology
    weight, below = np.zeros(t.arcs), np.zeros(t.arcs)  # of the words put out: at q₂, and at its backoff
    spelled = np.flatnonzero(B.word_arc >= 0)
    lower = backoff_arcs(model.topology)[spelled]
    weight[B.word_arc[spelled]] = np.exp(model.log_weight[spelled])
    below[B.word_arc[spelled]] = np.where(lower >= 0, np.exp(model.log_weight[lower]), 0.0)
    _share(t.first_arc, t.dest, t.backoff, B.word_state, B.node, np.exp(model.log_backoff), weight, below)
    inside = t.label[: t.first_arc[1]]
    ends = lexicon.is_final[inside]
    goes_on = ~ends & (inside != EOS)
    weight[: len(inside)] = 0.5 * ends / max(ends.sum(), 1) + 0.5 * goes_on / goes_on.sum()
    return model_from_weights(t, labels, weight)


@kernel
def _share(
    first_arc: LongArray, dest: IntArray, backoff: IntArray, word_state: IntArray, node: IntArray,
    backoff_weight: FloatArray, weight: FloatArray, below: FloatArray,
) -> None:  # fmt: skip
    """Turn the weights of words into those of pieces: shares of p(q₁|q₂), the probability of all words below q₁.

    With E and E' the explicit ones of these words at q₂ and at its backoff, p(q₁|q₂) = E + w[φ]·(p(q₁|backoff) − E').
    """
    E, E_below, p = np.zeros(len(node)), np.zeros(len(node)), np.ones(len(node))
    for s in range(len(node) - 1, 0, -1):
        for e in range(first_arc[s], first_arc[s + 1]):
            inner = dest[e] >= 0 and node[dest[e]] > 0
            E[s] += E[dest[e]] if inner else weight[e]
            E_below[s] += E_below[dest[e]] if inner else below[e]
    for s in range(1, len(node)):
        if node[s] > 0:  # what is left at the root of the empty history is the probability of unknown words
            q = word_state[s]
            p[s] = E[s] + (backoff_weight[q] * max(p[backoff[s]] - E_below[s], 0.0) if q else 0.0)
    for s in range(1, len(node)):
        for e in range(first_arc[s], first_arc[s + 1]):
            inner = dest[e] >= 0 and node[dest[e]] > 0
            weight[e] = (p[dest[e]] if inner else weight[e]) / p[s]
