"""Word forms: which words count as the same, and which words a keyboard can suggest.

A *form* is the version of a word that is compared with the typed word: the word itself in cased evaluation, u(y) in
uncased evaluation. All words of the vocabulary with the same form are its variants. Candidates are forms that a person
types letter by letter; `<unk>`, `<s>`, `</s>` and placeholders such as `<number>` are not candidates.

Prefixes ignore case, as on keyboards, so the letters of a form are always those of u(y). Candidates are ranked by their
letters in alphabetical order, so all words with a prefix are a range of ranks. Each prefix of a candidate is a node of
a tree: node n has the ranks `node_first[n]:node_end[n]`, and the first i + 1 letters of form f are the node
`nodes[first_letter[f] + i]`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import BoolArray, FloatArray, IntArray, LongArray, Ragged, frozen
from fedgram.core.jit import kernel
from fedgram.text.normalize import PLACEHOLDERS, uncase
from fedgram.text.vocabulary import SPECIAL, Vocabulary


class Prefixes(NamedTuple):
    """The prefixes of all candidates; see the module's description. `rank` is −1 for other forms."""

    rank: IntArray
    first_letter: LongArray
    nodes: IntArray
    node_first: IntArray
    node_end: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class WordForms:
    """The forms of a vocabulary, numbered in the order of their first variants; 0, 1, 2 are the special words.

    `index` maps a form to its id; `likeliest` maps a lower-case spelling to the most likely word with that spelling.
    """

    vocabulary: Vocabulary
    cased: bool
    index: dict[str, int]
    likeliest: dict[str, int]
    form: IntArray
    variants: Ragged
    candidate: BoolArray
    prefixes: Prefixes

    @classmethod
    def of(cls, vocabulary: Vocabulary, *, cased: bool, weight: FloatArray | None = None) -> "WordForms":
        """The forms of these words. `weight` is the likelihood of each word; without it, earlier words are more likely.

        >>> forms = WordForms.of(Vocabulary.of(["new", "New", "york"]), cased=False)
        >>> forms.form.tolist(), [row.tolist() for row in forms.variants]
        ([0, 1, 2, 3, 3, 4], [[0], [1], [2], [3, 4], [5]])
        """
        index: dict[str, int] = {}
        form = np.array([index.setdefault(form_of(w, cased=cased), len(index)) for w in vocabulary.words], np.int32)
        order = np.argsort(form, kind="stable").astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(form, minlength=len(index)))]).astype(np.int64)
        candidate = np.array([is_candidate(w) for w in index], bool)
        for array in (form, order, offsets, candidate):
            frozen(array)
        likeliest: dict[str, int] = {}
        for i in np.argsort(-weight, kind="stable").tolist() if weight is not None else range(len(vocabulary)):
            if is_candidate(vocabulary.words[i]):
                likeliest.setdefault(uncase(vocabulary.words[i]), i)
        prefixes = _prefixes(list(index), candidate)
        return cls(vocabulary, cased, index, likeliest, form, Ragged(order, offsets), candidate, prefixes)

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"WordForms({len(self)} {'cased' if self.cased else 'uncased'} forms of {self.vocabulary})"


def form_of(word: str, *, cased: bool) -> str:
    """The form of a word."""
    return word if cased else uncase(word)


def shared_forms(vocabularies: Iterable[Vocabulary], *, cased: bool) -> frozenset[str]:
    """𝒱: the forms that all vocabularies have, without the special words.

    >>> sorted(shared_forms([Vocabulary.of(["New", "york", "a"]), Vocabulary.of(["new", "York"])], cased=False))
    ['new', 'york']
    """
    forms = [{form_of(word, cased=cased) for word in v.words[len(SPECIAL) :]} for v in vocabularies]
    return frozenset(set.intersection(*forms))


def is_candidate(word: str) -> bool:
    """Whether a keyboard can suggest the word."""
    return word not in SPECIAL and word not in PLACEHOLDERS


def _prefixes(forms: list[str], candidate: BoolArray) -> Prefixes:
    letters = [uncase(word) if candidate[i] else "" for i, word in enumerate(forms)]
    ranked = sorted(np.flatnonzero(candidate).tolist(), key=lambda i: letters[i])
    rank = np.full(len(forms), -1, np.int32)
    rank[ranked] = np.arange(len(ranked), dtype=np.int32)
    first_letter = np.concatenate([[0], np.cumsum([len(word) for word in letters])]).astype(np.int64)
    text = np.frombuffer("".join(letters).encode("utf-32-le"), np.uint32)
    nodes, node_first, node_end = _tree(np.array(ranked, np.int32), first_letter, text)
    for array in (rank, first_letter, nodes, node_first, node_end):
        frozen(array)
    return Prefixes(rank, first_letter, nodes, node_first, node_end)


@kernel
def _tree(ranked: IntArray, first_letter: LongArray, text: NDArray[np.uint32]) -> tuple[IntArray, IntArray, IntArray]:
    """Build the tree: a word shares the nodes of the common prefix with the word before it; its others are new."""
    nodes = np.zeros(len(text), np.int32)
    node_first, node_end = np.zeros(len(text), np.int32), np.zeros(len(text), np.int32)
    count = 0
    for r in range(len(ranked)):
        begin, end = first_letter[ranked[r]], first_letter[ranked[r] + 1]
        other = first_letter[ranked[r - 1]] if r else np.int64(0)
        shared = r > 0
        limit = first_letter[ranked[r - 1] + 1] if r else np.int64(0)
        for i in range(end - begin):
            shared = bool(shared and other + i < limit and text[begin + i] == text[other + i])
            if shared:
                nodes[begin + i] = nodes[other + i]
            else:
                nodes[begin + i] = count
                node_first[count] = r
                count += 1
            node_end[nodes[begin + i]] = r + 1
    return nodes, node_first[:count].copy(), node_end[:count].copy()
