"""The words that can be typed on a layout, as a trie over their keys.

Node 0 is the root; `letter[node]` is the layout's letter that leads to it and `depth[node]` how many do, children are
linked from `child` through `sibling`, the most promising first. `best[node]` is the greatest log-probability, without
context, of a word below it: what a search may hope for. The words whose key ends at a node are
`words[first_word[node]:first_word[node + 1]]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray, frozen
from fedgram.core.jit import kernel
from fedgram.fgram.reader import PackedModel
from fedgram.fgram.spelling import FIRST_WORD
from fedgram.keyboard.layout import Layout

MAX_LETTERS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Lexicon:
    """Words, numbered as their maker likes, by what is typed for them."""

    letter: IntArray
    depth: IntArray
    child: IntArray
    sibling: IntArray
    best: FloatArray
    first_word: IntArray
    words: IntArray
    keys: tuple[str, ...]
    """The keys of `words`, in that order: that of the alphabet."""

    def __len__(self) -> int:
        return len(self.words)


def make_lexicon(layout: Layout, keys: Sequence[str], words: Sequence[int], log_p: Sequence[float]) -> Lexicon:
    """The lexicon of words with these keys and log-probabilities; those the layout cannot type are left out."""
    letters = set(layout.letters)
    typed = [i for i, key in enumerate(keys) if 0 < len(key) <= MAX_LETTERS and letters.issuperset(key)]
    rank = {letter: n for n, letter in enumerate(layout.letters)}
    typed.sort(key=lambda i: keys[i])
    kept = [keys[i] for i in typed]
    offsets = np.concatenate([[0], np.cumsum([len(key) for key in kept])]).astype(np.int64)
    spelled = np.array([rank[c] for key in kept for c in key], np.int32)
    numbers, weights = np.array([words[i] for i in typed], np.int32), np.array([log_p[i] for i in typed], np.float64)
    nodes = _count_nodes(spelled, offsets)
    letter, depth, child, sibling, best, first_word = _build(spelled, offsets, weights, nodes)
    for array in (letter, depth, child, sibling, first_word, numbers):
        frozen(array)
    return Lexicon(letter, depth, child, sibling, frozen(best), first_word, numbers, tuple(kept))


def lexicon_of(model: PackedModel, layout: Layout) -> Lexicon:
    """The lexicon of a packed model's words, by id."""
    ids = range(FIRST_WORD, len(model))
    return make_lexicon(layout, model.keys[FIRST_WORD:], ids, model.log_unigrams()[FIRST_WORD:].tolist())


@kernel
def _count_nodes(spelled: IntArray, offsets: LongArray) -> int:
    nodes = 1
    for w in range(len(offsets) - 1):
        shared, length = 0, offsets[w + 1] - offsets[w]
        if w > 0:
            most = min(length, offsets[w] - offsets[w - 1])
            while shared < most and spelled[offsets[w - 1] + shared] == spelled[offsets[w] + shared]:
                shared += 1
        nodes += length - shared
    return nodes


@kernel
def _build(
    spelled: IntArray, offsets: LongArray, weights: FloatArray, nodes: int
) -> tuple[IntArray, IntArray, IntArray, IntArray, FloatArray, IntArray]:
    """The trie of words in alphabetical order; nodes are numbered in the order in which the list comes to them."""
    letter, child = np.full(nodes, -1, np.int32), np.full(nodes, -1, np.int32)
    depths = np.zeros(nodes, np.int32)
    sibling, best = np.full(nodes, -1, np.int32), np.full(nodes, -np.inf)
    first_word = np.full(nodes + 1, len(offsets) - 1, np.int32)
    path = np.zeros(MAX_LETTERS + 1, np.int32)
    made, depth = 1, 0
    first_word[0] = 0
    for w in range(len(offsets) - 1):
        shared, length = 0, offsets[w + 1] - offsets[w]
        while shared < min(length, depth) and letter[path[shared + 1]] == spelled[offsets[w] + shared]:
            shared += 1
        for k in range(shared, length):
            parent = path[k]
            letter[made] = spelled[offsets[w] + k]
            sibling[made], child[parent] = child[parent], made
            first_word[made] = w
            path[k + 1], depths[made] = made, k + 1
            made += 1
        depth = length
        for k in range(length + 1):
            best[path[k]] = max(best[path[k]], weights[w])
    for node in range(nodes):
        _sort_children(node, child, sibling, best)
    return letter, depths, child, sibling, best, first_word


@kernel
def _sort_children(node: int, child: IntArray, sibling: IntArray, best: FloatArray) -> None:
    """Insertion sort of a node's children, the most promising first."""
    head, next_ = -1, child[node]
    while next_ >= 0:
        current, next_ = next_, sibling[next_]
        if head < 0 or best[current] > best[head]:
            sibling[current], head = head, current
        else:
            place = head
            while sibling[place] >= 0 and best[sibling[place]] >= best[current]:
                place = sibling[place]
            sibling[current], sibling[place] = sibling[place], current
    child[node] = head
