"""B = M ∘ A: a word topology A read piece by piece.

A state of B is a pair (q₁, q₂): a node q₁ of the lexicon M, which is the part of a word read so far, and a state q₂ of
A, which is the history of words. With L[q₂] the words that q₂ reads, (q₁, q₂) has these arcs:

1. Piece x leads to (0, d_{q₂}[y]) and puts out y, if x completes a word y = o_{q₁}[x] ∈ L[q₂].
2. Piece x leads to (q₁·x, q₂), if the code of some word in L[q₂] passes through node q₁·x.
3. `</s>` ends the sentence at (0, q₂), if q₂ reads it.
4. φ leads to (q₁, backoff q₂), also in the middle of a word.

So the states at q₂ are the root and the inner nodes of the trie of the words in L[q₂]. Each of them can be reached if
q₂ can, and each is a state at backoff q₂ as well. B is therefore deterministic and backoff-complete. It has
O((|E| + |Q| + |Δ|)·ℓ) arcs for codes of at most ℓ pieces.

Unknown words. The states at A's empty history back off to state 0 of B, which is *inside an unknown word*. It reads
every piece: a piece that ends a word leads to the state of A after `<unk>`, and any other piece leads back to state 0.
For this, A may read `<unk>` only at the empty history. Elsewhere, B would have to choose between q₂ and its backoff
before the word ends.

Each word y is put out only at (q_y, q), by the piece x_y. So exact counts on B give the counts on A:

    C_A(y, q) = C_B(x_y, (q_y, q)),   C_A(</s>, q) = C_B(</s>, (0, q)),   C_A(φ, q) = Σ_{q₁} C_B(φ, (q₁, q)),

where Σ_{q₁} C_B(φ, (q₁, empty)) is C_A(<unk>, empty). `transfer` handles sampled counts. Paper: §6.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedgram.automata.build import ngrams_of, topology_from_ngrams
from fedgram.automata.lexicon import ROOT, Lexicon
from fedgram.automata.model import NGramModel, has_unknown, model_from_weights
from fedgram.automata.topology import END, Topology, arc_sources, backoff_arcs
from fedgram.core.arrays import BoolArray, FloatArray, IntArray, LongArray, frozen
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary

UNKNOWN_WORD = 0  # the state of B inside a word that A does not know


class PieceArcs(NamedTuple):
    """B as one argument for kernels.

    Attributes:
        first_arc: The arcs of state s are `first_arc[s]:first_arc[s+1]`.
        dest: The destination of each arc; END for `</s>`.
        continues: Whether each arc leads to an inner node of M, inside a word.
        backoff: (q₁, backoff q₂) per state (q₁, q₂).
        node: q₁ per state; −1 inside an unknown word.
        word_state: q₂ per state; −1 inside an unknown word.
        first_state: The states at q₂ are `first_state[q₂]:first_state[q₂+1]`, with increasing q₁; the first is (0, q₂).
    """

    first_arc: LongArray
    dest: IntArray
    continues: BoolArray
    backoff: IntArray
    node: IntArray
    word_state: IntArray
    first_state: LongArray


@dataclass(frozen=True, slots=True, eq=False)
class PieceTopology:
    """B, with the way back to A.

    Attributes:
        topology: B itself; T1–T4 hold.
        words: A.
        word_arc: For each arc of A, the arc of B that puts it out; −1 for `<unk>` and for words without a code.
        word_state: q₂ per state of B; −1 inside an unknown word.
        node: q₁ per state of B; −1 inside an unknown word.
    """

    topology: Topology
    words: Topology
    word_arc: IntArray
    word_state: IntArray
    node: IntArray

    @property
    def arrays(self) -> PieceArcs:
        """B as one argument for kernels."""
        B = self.topology
        first_state = np.searchsorted(self.word_state, np.arange(self.words.states + 1)).astype(np.int64)
        continues = (B.dest != END) & (self.node[B.dest] > ROOT)
        return PieceArcs(B.first_arc, B.dest, continues, B.backoff, self.node, self.word_state, first_state)

    def __repr__(self) -> str:
        return f"PieceTopology({self.topology} of {self.words})"


class WordCodes(NamedTuple):
    """The words of A with their codes in M.

    Attributes:
        first_arc: The arcs of state q₂ of A are `arc[first_arc[q₂]:first_arc[q₂+1]]`.
        arc: The arcs of A, those of each state sorted by the codes of their words; `</s>` and words without a code
            come first.
        path: Nodes of M.
        path_begin, path_end: For each entry of `arc`, `path[path_begin:path_end]` are the nodes that the code of its
            word passes after the root. The last of them is q_y.
        piece: For each entry of `arc`, the last piece x_y of its word; EOS for `</s>`; −1 for a word without a code.
        dest: For each entry of `arc`, d_{q₂}[y]: the state of A after the word, or END.
    """

    first_arc: LongArray
    arc: IntArray
    path: IntArray
    path_begin: LongArray
    path_end: LongArray
    piece: IntArray
    dest: IntArray


class PieceStates(NamedTuple):
    """The states (q₁, q₂) of B. State 0 is inside an unknown word, with q₁ = q₂ = −1.

    The states at q₂ are `first_state[q₂]:first_state[q₂+1]`. They are in preorder of the trie, so that q₁ increases.
    """

    node: IntArray
    word_state: IntArray
    first_state: LongArray


class FoundArcs(NamedTuple):
    """The arcs of B in the order in which they are found.

    Codes are visited in lexicographic order, so the pieces of the arcs of one source increase (T2).

    Attributes:
        source: The state (q₁, q₂).
        piece: x.
        dest: (q₁·x, q₂) inside a word, (0, d_{q₂}[y]) at its end, END for `</s>`.
        word_arc: The arc of A that is put out; −1 inside a word.
    """

    source: IntArray
    piece: IntArray
    dest: IntArray
    word_arc: IntArray


def with_unknown_as_unigram(topology: Topology, words: int) -> Topology:
    """The topology that reads `<unk>` only at the empty history, as `compose` requires."""
    ngrams = ngrams_of(topology)
    inner = ngrams.values == UNK
    inner[ngrams.offsets[:-1]] = False
    keep = np.add.reduceat(inner, ngrams.offsets[:-1]) == 0
    return topology_from_ngrams(ngrams.select(keep), words, open_vocabulary=True).topology


def compose(lexicon: Lexicon, words: Topology) -> PieceTopology:
    """B = M ∘ A for a lexicon M over the vocabulary of A."""
    A = words
    if A.arcs and int(A.label.max()) >= lexicon.words:
        raise InvariantError("compose: the topology reads words that are not in the lexicon's vocabulary")
    if bool(np.any(A.label[A.first_arc[1] :] == UNK)):
        raise InvariantError("compose: the topology reads <unk> after a word; apply with_unknown_as_unigram first")
    codes = _word_codes(lexicon, A)
    states, found = _walk(codes, _first_states(codes), lexicon.node_piece)
    after_unknown = int(states.first_state[A.dest[UNK] if has_unknown(A) else 0])
    inside = _arcs_inside_unknown(lexicon, after_unknown)
    found = FoundArcs(*(np.concatenate(arrays) for arrays in zip(inside, found, strict=True)))
    first_arc, label, dest, word_arc = _sort_by_source(found, len(states.node), A.arcs)
    B = Topology(first_arc, label, dest, _backoffs(states, A.backoff), start=int(states.first_state[A.start]))
    return PieceTopology(B, A, frozen(word_arc), frozen(states.word_state), frozen(states.node))


def _word_codes(lexicon: Lexicon, A: Topology) -> WordCodes:
    rank = np.full(lexicon.words, -1, np.int32)
    rank[lexicon.order] = np.arange(len(lexicon.order), dtype=np.int32)
    arc = np.lexsort((rank[A.label], arc_sources(A))).astype(np.int32)
    word, path = A.label[arc], lexicon.path
    piece = np.where(word == EOS, EOS, lexicon.word_piece[word]).astype(np.int32)
    return WordCodes(A.first_arc, arc, path.values, path.offsets[word], path.offsets[word + 1], piece, A.dest[arc])


def _arcs_inside_unknown(lexicon: Lexicon, after: int) -> FoundArcs:
    """The arcs of the state inside an unknown word; `after` is the state after the word."""
    piece = np.delete(np.arange(lexicon.pieces, dtype=np.int32), BOS)
    dest = np.where(piece == EOS, END, np.where(lexicon.is_final[piece], after, UNKNOWN_WORD)).astype(np.int32)
    return FoundArcs(np.full_like(piece, UNKNOWN_WORD), piece, dest, np.full_like(piece, -1))


@kernel
def _shared_nodes(codes: WordCodes, k: int, begin: int, end: int) -> int:
    """The number of nodes that the path of entry k and `path[begin:end]` have in common, from the root on."""
    own, most, shared = codes.path_begin[k], min(codes.path_end[k] - codes.path_begin[k], end - begin), 0
    while shared < most and codes.path[own + shared] == codes.path[begin + shared]:
        shared += 1
    return shared


@kernel
def _first_states(codes: WordCodes) -> LongArray:
    """`first_state` of `PieceStates`: each word adds the nodes of its path that the word before does not pass."""
    first_state = np.empty(len(codes.first_arc), np.int64)
    states = UNKNOWN_WORD + 1
    for q2 in range(len(codes.first_arc) - 1):
        first_state[q2] = states
        states += 1
        begin, end = 0, 0  # the path of the word before
        for k in range(codes.first_arc[q2], codes.first_arc[q2 + 1]):
            shared = _shared_nodes(codes, k, begin, end)
            begin, end = codes.path_begin[k], codes.path_end[k]
            states += end - begin - shared
    first_state[-1] = states
    return first_state


@kernel
def _walk(codes: WordCodes, first_state: LongArray, node_piece: IntArray) -> tuple[PieceStates, FoundArcs]:
    """The states and arcs of B, found by walking the codes of the words of every q₂ in order."""
    states, roots = first_state[-1], len(first_state) - 1
    node, word_state = np.full(states, -1, np.int32), np.full(states, -1, np.int32)
    arcs = states - 1 - roots + np.sum(codes.piece >= 0)  # one enters each inner node, one ends each word
    source, piece = np.empty(arcs, np.int32), np.empty(arcs, np.int32)
    dest, word_arc = np.empty(arcs, np.int32), np.full(arcs, -1, np.int32)
    on_path = np.empty(len(codes.path) + 1, np.int32)  # the states along the current code, from (0, q₂) on
    e = 0
    for q2 in range(roots):
        s = first_state[q2]
        node[s], word_state[s], on_path[0] = ROOT, q2, s
        begin, end = 0, 0  # the path of the word before
        for k in range(codes.first_arc[q2], codes.first_arc[q2 + 1]):
            shared = _shared_nodes(codes, k, begin, end)
            begin, end = codes.path_begin[k], codes.path_end[k]
            for i in range(shared, end - begin):  # rule 2: to a node that is new at q₂
                s += 1
                node[s], word_state[s], on_path[i + 1] = codes.path[begin + i], q2, s
                source[e], piece[e], dest[e] = on_path[i], node_piece[node[s]], s
                e += 1
            if codes.piece[k] >= 0:  # rules 1 and 3: the word, or the sentence, ends
                source[e], piece[e], word_arc[e] = on_path[end - begin], codes.piece[k], codes.arc[k]
                dest[e] = END if codes.dest[k] == END else first_state[codes.dest[k]]
                e += 1
    return PieceStates(node, word_state, first_state), FoundArcs(source, piece, dest, word_arc)


@kernel
def _sort_by_source(found: FoundArcs, states: int, words: int) -> tuple[LongArray, IntArray, IntArray, IntArray]:
    """`first_arc`, `label` and `dest` of B, and `word_arc` of `PieceTopology` for `words` arcs of A; a stable sort."""
    first_arc = np.zeros(states + 1, np.int64)
    for i in range(len(found.source)):
        first_arc[found.source[i] + 1] += 1
    for s in range(states):
        first_arc[s + 1] += first_arc[s]
    label, dest = np.empty_like(found.piece), np.empty_like(found.dest)
    word_arc = np.full(words, -1, np.int32)
    following = first_arc[:-1].copy()
    for i in range(len(found.source)):
        e = following[found.source[i]]
        following[found.source[i]] += 1
        label[e], dest[e] = found.piece[i], found.dest[i]
        if found.word_arc[i] >= 0:
            word_arc[found.word_arc[i]] = e
    return first_arc, label, dest, word_arc


@kernel
def _backoffs(states: PieceStates, backoff: IntArray) -> IntArray:
    """Rule 4: (q₁, backoff q₂) per state, by a binary search for q₁ among the states at backoff q₂."""
    result = np.full(len(states.node), UNKNOWN_WORD, np.int32)
    result[UNKNOWN_WORD] = -1
    for s in range(UNKNOWN_WORD + 1, len(states.node)):
        below = backoff[states.word_state[s]]
        if below >= 0:
            begin, end = states.first_state[below], states.first_state[below + 1]
            result[s] = begin + np.searchsorted(states.node[begin:end], states.node[s])
    return result


def compose_model(lexicon: Lexicon, model: NGramModel, labels: Vocabulary) -> NGramModel:
    """The model read piece by piece: the same distribution over sentences, on M ∘ A.

    The probability of all words whose codes begin with the pieces read so far is divided among the pieces that continue
    them. An unknown word, and a word without a code, becomes some sequence of pieces that is not a word.
    """
    if lexicon.pieces != len(labels):
        raise InvariantError("compose_model: the lexicon and the vocabulary of labels have different numbers of pieces")
    B = compose(lexicon, model.topology)
    t = B.topology
    weight, below = np.zeros(t.arcs), np.zeros(t.arcs)  # of the word that an arc puts out: at q₂, and at its backoff
    spelled = np.flatnonzero(B.word_arc >= 0)
    lower = backoff_arcs(model.topology)[spelled]
    weight[B.word_arc[spelled]] = np.exp(model.log_weight[spelled])
    below[B.word_arc[spelled]] = np.where(lower >= 0, np.exp(model.log_weight[lower]), 0.0)
    _share(B.arrays, np.exp(model.log_backoff), weight, below)
    inside = t.label[: t.first_arc[1]]  # an unknown word ends with each piece with probability 1/2
    ends = lexicon.is_final[inside]
    continues = ~ends & (inside != EOS)
    weight[: len(inside)] = 0.5 * ends / max(ends.sum(), 1) + 0.5 * continues / continues.sum()
    return model_from_weights(t, labels, weight)


@kernel
def _share(arcs: PieceArcs, backoff_weight: FloatArray, weight: FloatArray, below: FloatArray) -> None:
    """Turn the weights of words into weights of pieces: each piece gets its share of p(q₁|q₂).

    p(q₁|q₂) is the probability after q₂ of all words whose code passes node q₁. Let E be the weight at q₂ of those
    that q₂ reads, and E' their weight at backoff q₂. Then p(q₁|q₂) = E + w[φ]·(p(q₁|backoff q₂) − E').
    """
    states = len(arcs.node)
    E, E_below, p = np.zeros(states), np.zeros(states), np.ones(states)
    for s in range(states - 1, UNKNOWN_WORD, -1):
        for e in range(arcs.first_arc[s], arcs.first_arc[s + 1]):
            E[s] += E[arcs.dest[e]] if arcs.continues[e] else weight[e]
            E_below[s] += E_below[arcs.dest[e]] if arcs.continues[e] else below[e]
    for s in range(UNKNOWN_WORD + 1, states):
        if arcs.node[s] > ROOT:  # p of a root is 1: at the empty history, the rest is for unknown words
            q = arcs.word_state[s]
            p[s] = E[s] + (backoff_weight[q] * max(p[arcs.backoff[s]] - E_below[s], 0.0) if q else 0.0)
    for s in range(UNKNOWN_WORD + 1, states):
        for e in range(arcs.first_arc[s], arcs.first_arc[s + 1]):
            weight[e] = (p[arcs.dest[e]] if arcs.continues[e] else weight[e]) / p[s]
