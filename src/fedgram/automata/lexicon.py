"""The lexicon M: a sequential transducer from word pieces to words.

The code of a word is the sequence of its pieces, and M is the trie of all codes. Node 0 is the root. The arcs of node v
are `first_arc[v]:first_arc[v+1]`, sorted by the piece they read. An arc inside a word leads to the next node and has no
output (`output` −1). The arc of a word's last piece puts out the word and leads back to the root.

Only the last piece of a code is final. So no code is a prefix of another, M is deterministic, and each word y is put
out at exactly one node q_y by one piece x_y. Nodes are numbered in preorder: codes in lexicographic order pass their
nodes in increasing order. Paper: §6.
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
    """M over a vocabulary of words and one of pieces; made by `lexicon_from_codes` or `spell_words`.

    Attributes:
        first_arc, piece, dest, output: The trie; the module docstring describes it.
        word_node: q_y per word; −1 for a word without a code.
        word_piece: x_y per word; −1 for a word without a code.
        node_piece: The piece that leads to each node; −1 for the root.
        path: The nodes that each word's code passes, without the root.
        order: The words that have codes, in the lexicographic order of their codes.
        is_final: Whether each piece ends a word.
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
        """The size of the vocabulary, including words without a code."""
        return len(self.word_node)

    @property
    def pieces(self) -> int:
        """The size of the vocabulary of pieces."""
        return len(self.is_final)

    def code(self, word: int) -> tuple[int, ...]:
        """The pieces of a word; empty for a word without a code."""
        if self.word_node[word] < 0:
            return ()
        return (*self.node_piece[self.path[word]].tolist(), int(self.word_piece[word]))

    def __repr__(self) -> str:
        return f"Lexicon({len(self.order)} of {self.words} words, {self.pieces} pieces, {self.nodes} nodes)"


def spell_words(words: Vocabulary, pieces: WordPieces, labels: Vocabulary) -> Lexicon:
    """The lexicon of a vocabulary spelled with an inventory of pieces. `labels` gives the ids of the pieces.

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
    """The lexicon in which row y of `codes` is the code of word y. An empty row, or one with `<unk>`, is not a code.

    Raises:
        InvariantError: If two codes are equal, or if the last piece of a code is not its only final piece.
    """
    final = np.array(is_final, np.bool_)
    values = codes.values
    row = np.repeat(np.arange(len(codes)), np.diff(codes.offsets))
    is_last, has_code = _check_codes(codes, row, final)
    order = _code_order(codes, row, has_code)
    node, word_node = _number_nodes(values, codes.offsets, order)
    word_piece = np.full(len(codes), -1, np.int32)
    word_piece[order] = values[codes.offsets[order + 1] - 1]
    inner = np.flatnonzero(~is_last & has_code[row])
    path_offsets = np.concatenate([[0], np.cumsum(np.bincount(row[inner], minlength=len(codes)))]).astype(np.int64)
    # Each node except the root is entered by one arc, from the node before it, and each word has an arc of its own.
    nodes, first = np.unique(node[inner], return_index=True)
    entered = inner[first]
    before = np.where(entered == codes.offsets[row[entered]], ROOT, node[entered - 1])
    source = np.concatenate([before, word_node[order]])
    piece = np.concatenate([values[entered], word_piece[order]])
    arcs = np.lexsort((piece, source))
    return Lexicon(
        first_arc=np.searchsorted(source[arcs], np.arange(len(nodes) + 2)).astype(np.int64),
        piece=piece[arcs],
        dest=np.concatenate([nodes, np.full(len(order), ROOT, np.int32)])[arcs],
        output=np.concatenate([np.full(len(nodes), -1, np.int32), order])[arcs],
        word_node=word_node,
        word_piece=word_piece,
        node_piece=np.concatenate([[-1], values[entered]]).astype(np.int32),
        path=Ragged(node[inner], path_offsets),
        order=order,
        is_final=final,
    )


def _check_codes(codes: Ragged, row: LongArray, final: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Whether each position is the last of its row, and whether each row is a code; `row` is the row of a position."""
    values, lengths = codes.values, np.diff(codes.offsets)
    if len(values) and not (values.min() >= 0 and values.max() < len(final)):
        raise InvariantError("Lexicon: a code has a piece that is not in the inventory")
    has_code = (lengths > 0) & (np.bincount(row, values == UNK, len(codes)) == 0)
    is_last = np.zeros(len(values), bool)
    is_last[codes.offsets[1:][lengths > 0] - 1] = True
    if bool(np.any((final[values] != is_last) & has_code[row])):
        raise InvariantError("Lexicon: the last piece of a code, and only the last, must end a word")
    return is_last, has_code


def _code_order(codes: Ragged, row: LongArray, has_code: BoolArray) -> IntArray:
    """The rows that are codes, in lexicographic order; `row` is the row of each position."""
    matrix = np.full((len(codes), int(np.diff(codes.offsets).max(initial=1))), -1, np.int32)
    matrix[row, np.arange(len(codes.values)) - codes.offsets[row]] = codes.values
    rows = np.lexsort(matrix.T[::-1])
    order: IntArray = rows[has_code[rows]].astype(np.int32)
    if bool(np.any(np.all(matrix[order[1:]] == matrix[order[:-1]], axis=1))):
        raise InvariantError("Lexicon: two words have the same code")
    return order


@kernel
def _number_nodes(values: IntArray, offsets: LongArray, order: IntArray) -> tuple[IntArray, IntArray]:
    """For each position of a code, the node after it (the root after the last); and q_y for each word."""
    node, word_node = np.zeros(len(values), np.int32), np.full(len(offsets) - 1, -1, np.int32)
    nodes, previous, shared = 1, 0, 0
    for i in range(len(order)):
        begin, end = offsets[order[i]], offsets[order[i] + 1]
        if i:
            length = min(end - begin, offsets[order[i - 1] + 1] - previous)
            shared = 0
            while shared < length - 1 and values[begin + shared] == values[previous + shared]:
                shared += 1
        at = ROOT
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
