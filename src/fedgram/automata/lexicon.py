"""The lexicon M: a sequential transducer from word pieces to words.

M is the trie of the words' codes. Node 0 is the root; the arcs of node v are `first_arc[v]:first_arc[v+1]`, rising by
the piece they read. An arc inside a word leads to the next node and puts out nothing (`output` −1). The arc of a word's
last piece puts out the word and leads back to the root. Only the last piece of a code is final, so no code begins
another, M is deterministic, and each word y is put out at one node q_y by one piece x_y alone. Nodes are numbered in
preorder: a set of codes in their order meets its nodes in rising order. Paper: §6.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import BoolArray, IntArray, LongArray, Ragged, frozen
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import SPECIAL, UNK, Vocabulary
from fedgram.text.wordpieces import MARK, WordPieces

ROOT = 0


@dataclass(frozen=True, slots=True, eq=False)
class Lexicon:
    """M over the words and pieces of two vocabularies; make it with `lexicon_from_codes` or `spell_words`.

    Attributes:
        first_arc, piece, dest, output: The trie, as the module says.
        word_node: q_y by word, −1 for a word without a code.
        word_piece: x_y by word, −1 for a word without a code.
        node_piece: By node the piece that leads to it, −1 for the root.
        path: The nodes that each word's code passes, its root left out.
        order: The words that have codes, in the order of their codes.
        is_final: By piece, whether it ends a word.
    """

    first_arc: LongArray
    piece: IntArray
    dest: IntArray
    output: IntArray
    word_node: IntArray
    word_piece: IntArray
    node_piece: IntArray
    path: Ragged
    order: IntArray
    is_final: BoolArray

    def __post_init__(self) -> None:
        for array in (self.piece, self.dest, self.output, self.word_node, self.word_piece, self.node_piece, self.order):
            frozen(array)
        frozen(self.first_arc)
        frozen(self.is_final)

    @property
    def nodes(self) -> int:
        """|Q_M|."""
        return len(self.first_arc) - 1

    @property
    def words(self) -> int:
        """The size of the vocabulary, words without a code included."""
        return len(self.word_node)

    @property
    def pieces(self) -> int:
        """The size of the vocabulary of pieces."""
        return len(self.is_final)

    def code(self, word: int) -> tuple[int, ...]:
        """The pieces that spell a word; none for a word without a code."""
        if self.word_node[word] < 0:
            return ()
        return (*self.node_piece[self.path[word]].tolist(), int(self.word_piece[word]))

    def __repr__(self) -> str:
        return f"Lexicon({len(self.order)} of {self.words} words, {self.pieces} pieces, {self.nodes} nodes)"


def spell_words(words: Vocabulary, pieces: WordPieces, labels: Vocabulary) -> Lexicon:
    """The lexicon of a vocabulary by an inventory; `labels` are the pieces by id, as a source numbers them.

    A word that cannot be spelled with these labels has no code.
    """
    label = np.array([labels[piece] for piece in pieces.pieces], np.int32)
    is_final = np.array([piece.endswith(MARK) for piece in labels.words])
    spelled = [y for y, word in enumerate(words.words) if y >= len(SPECIAL) and MARK not in word]
    codes = pieces.encode_words([words.words[y] for y in spelled])
    lengths = np.zeros(len(words) + 1, np.int64)
    lengths[np.array(spelled, np.int64) + 1] = np.diff(codes.offsets)
    return lexicon_from_codes(Ragged(label[codes.values], np.cumsum(lengths)), is_final)


def lexicon_from_codes(codes: Ragged, is_final: Sequence[bool] | BoolArray) -> Lexicon:
    """The lexicon in which word y is spelled by row y of `codes`; empty rows, and rows with `<unk>`, are no codes.

    Refuses codes of which one begins another, and those in which another piece than the last is final.
    """
    final = np.array(is_final, np.bool_)
    values, lengths = codes.values, np.diff(codes.offsets)
    if len(values) and not (values.min() >= 0 and values.max() < len(final)):
        raise InvariantError("Lexicon: a code has a piece that is not one of the inventory")
    row = np.repeat(np.arange(len(codes)), lengths)
    coded = (lengths > 0) & (np.bincount(row, values == UNK, len(codes)) == 0)
    is_last = np.zeros(len(values), bool)
    is_last[codes.offsets[1:][lengths > 0] - 1] = True
    if bool(np.any((final[values] != is_last) & coded[row])):
        raise InvariantError("Lexicon: the last piece of a code, and no other, must end a word")
    matrix = np.full((len(codes), int(lengths.max(initial=1))), -1, np.int32)
    matrix[row, np.arange(len(values)) - codes.offsets[row]] = values
    order = np.lexsort(matrix.T[::-1])
    order = order[coded[order]].astype(np.int32)
    if bool(np.any(np.all(matrix[order[1:]] == matrix[order[:-1]], axis=1))):
        raise InvariantError("Lexicon: two words have the same code")
    node, word_node = _number_nodes(values, codes.offsets, order)
    word_piece = np.full(len(codes), -1, np.int32)
    word_piece[order] = values[codes.offsets[order + 1] - 1]
    passes = np.flatnonzero(~is_last & coded[row])
    path_offsets = np.concatenate([[0], np.cumsum(np.bincount(row[passes], minlength=len(codes)))]).astype(np.int64)
    path = Ragged(node[passes], path_offsets)
    # Each node but the root is entered by one arc, from the node before it, and each word has an arc of its own.
    nodes, first = np.unique(node[passes], return_index=True)
    entered = passes[first]
    before = np.where(entered == codes.offsets[row[entered]], ROOT, node[entered - 1])
    source = np.concatenate([before, word_node[order]])
    piece = np.concatenate([values[entered], word_piece[order]])
    dest = np.concatenate([nodes, np.full(len(order), ROOT, np.int32)])
    output = np.concatenate([np.full(len(nodes), -1, np.int32), order])
    arcs = np.lexsort((piece, source))
    first_arc = np.searchsorted(source[arcs], np.arange(len(nodes) + 2)).astype(np.int64)
    node_piece = np.concatenate([[-1], values[entered]]).astype(np.int32)
    return Lexicon(
        first_arc, piece[arcs], dest[arcs], output[arcs], word_node, word_piece, node_piece, path, order, final
    )


@kernel
def _number_nodes(values: IntArray, offsets: LongArray, order: IntArray) -> tuple[IntArray, IntArray]:
    """For each position of a code the node reached behind it (the root behind the last), for each word its q_y."""
    node, word_node = np.zeros(len(values), np.int32), np.full(len(offsets) - 1, -1, np.int32)
    nodes, previous, shared = 1, 0, 0
    for i in range(len(order)):
        begin, end = offsets[order[i]], offsets[order[i] + 1]
        if i:
            length = min(end - begin, offsets[order[i - 1] + 1] - previous)
            shared = 0
            while shared < length - 1 and values[begin + shared] == values[previous + shared]:
                shared += 1
        at = 0
        for k in range(end - begin - 1):
            if k < shared:
                at = node[previous + k]
            else:
                at = nodes
                nodes += 1
            node[begin + k] = at
        word_node[order[i]] = at
        previous = begin
    return node, word_node
