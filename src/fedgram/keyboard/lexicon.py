"""The words that can be typed on a layout, as a trie over their keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.jit import kernel
from fedgram.fgram.reader import PackedModel
from fedgram.fgram.spelling import FIRST_WORD
from fedgram.keyboard.layout import Layout

MAX_LETTERS = 32


class Trie(NamedTuple):
    """The nodes of a trie; node 0 is the root.

    Attributes:
        letter: The layout's letter that leads to each node.
        depth: The number of letters from the root.
        child: The first child, or −1. It has the greatest `best` of its siblings.
        sibling: The next sibling in falling order of `best`, or −1.
        best: The greatest log-probability, without context, of a word at the node or below it.
        first_word: The words whose key ends at a node are `word_id[first_word[node]:first_word[node + 1]]`.
        word_id: The ids of all words in the alphabetical order of their keys.
    """

    letter: IntArray
    depth: IntArray
    child: IntArray
    sibling: IntArray
    best: FloatArray
    first_word: IntArray
    word_id: IntArray


class Spelled(NamedTuple):
    """The keys of words as the layout's letters: word w has the letters `letter[offsets[w]:offsets[w + 1]]`."""

    letter: IntArray
    offsets: LongArray


@dataclass(frozen=True, slots=True, eq=False)
class Lexicon:
    """A trie of words, and the keys of its words in the order of `trie.word_id`."""

    trie: Trie
    keys: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.keys)


def typeable(layout: Layout, keys: Sequence[str]) -> list[int]:
    """The indices of the keys that a layout can type."""
    letters = frozenset(layout.letters)
    return [i for i, key in enumerate(keys) if 0 < len(key) <= MAX_LETTERS and letters.issuperset(key)]


def spell_keys(layout: Layout, keys: Sequence[str]) -> Spelled:
    """Keys that the layout can type, as its letters."""
    rank = {letter: n for n, letter in enumerate(layout.letters)}
    offsets = np.concatenate([[0], np.cumsum([len(key) for key in keys])]).astype(np.int64)
    return Spelled(np.array([rank[c] for key in keys for c in key], np.int32), offsets)


def make_lexicon(layout: Layout, keys: Sequence[str], word_ids: Sequence[int], log_p: Sequence[float]) -> Lexicon:
    """The lexicon of words with these keys and log-probabilities; those that the layout cannot type are left out."""
    typed = sorted(typeable(layout, keys), key=lambda i: keys[i])
    kept = tuple(keys[i] for i in typed)
    weights = np.array([log_p[i] for i in typed], np.float64)
    spelled = spell_keys(layout, kept)
    trie = _build(spelled, np.array([word_ids[i] for i in typed], np.int32), weights, _count_nodes(spelled))
    for array in trie:
        array.setflags(write=False)
    return Lexicon(trie, kept)


def lexicon_of(model: PackedModel, layout: Layout) -> Lexicon:
    """The lexicon of the words of a packed model."""
    word_ids = range(FIRST_WORD, len(model))
    return make_lexicon(layout, model.keys[FIRST_WORD:], word_ids, model.log_unigrams()[FIRST_WORD:].tolist())


@kernel
def _count_nodes(spelled: Spelled) -> int:
    """The number of nodes of the trie of these words, which are in alphabetical order."""
    letter, offsets = spelled
    nodes = 1
    for w in range(len(offsets) - 1):
        shared, length = 0, offsets[w + 1] - offsets[w]
        if w > 0:
            most = min(length, offsets[w] - offsets[w - 1])
            while shared < most and letter[offsets[w - 1] + shared] == letter[offsets[w] + shared]:
                shared += 1
        nodes += length - shared
    return nodes


@kernel
def _build(spelled: Spelled, word_id: IntArray, weights: FloatArray, nodes: int) -> Trie:
    """The trie of words in alphabetical order. Nodes are numbered in the order in which the words reach them."""
    offsets, words = spelled.offsets, len(spelled.offsets) - 1
    letter, depths = np.full(nodes, -1, np.int32), np.zeros(nodes, np.int32)
    child, sibling = np.full(nodes, -1, np.int32), np.full(nodes, -1, np.int32)
    best, first_word = np.full(nodes, -np.inf), np.full(nodes + 1, words, np.int32)
    trie = Trie(letter, depths, child, sibling, best, first_word, word_id)
    path = np.zeros(MAX_LETTERS + 1, np.int32)
    made, depth = 1, 0
    first_word[0] = 0
    for w in range(words):
        shared, length = 0, offsets[w + 1] - offsets[w]
        while shared < min(length, depth) and letter[path[shared + 1]] == spelled.letter[offsets[w] + shared]:
            shared += 1
        for k in range(shared, length):
            parent = path[k]
            letter[made] = spelled.letter[offsets[w] + k]
            sibling[made], child[parent] = child[parent], made
            first_word[made] = w
            path[k + 1], depths[made] = made, k + 1
            made += 1
        depth = length
        for k in range(length + 1):
            best[path[k]] = max(best[path[k]], weights[w])
    for node in range(nodes):
        _sort_children(trie, node)
    return trie


@kernel
def _sort_children(trie: Trie, node: int) -> None:
    """Sort the children of a node by falling `best`, with an insertion sort."""
    sibling, best = trie.sibling, trie.best
    head, next_ = -1, trie.child[node]
    while next_ >= 0:
        current, next_ = next_, sibling[next_]
        if head < 0 or best[current] > best[head]:
            sibling[current], head = head, current
        else:
            place = head
            while sibling[place] >= 0 and best[sibling[place]] >= best[current]:
                place = sibling[place]
            sibling[current], sibling[place] = sibling[place], current
    trie.child[node] = head
