"""The n-grams of a model by the number of devices that typed them.

An n-gram that one device typed, and that no public text has, shows what one person wrote. Words are compared without
their capitals unless told otherwise, and a word that the model does not have is read as `<unk>`, as devices do.

The distinct n-grams form a tree of prefixes. `_Level` n holds the sorted keys (node of the first n − 1 words, word), so
that all n-grams of n words of a text are found by one search per position, and sorted once per order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.topology import Topology, ngram_matrix
from fedgram.core.arrays import BoolArray, IntArray, LongArray, Ragged, frozen
from fedgram.core.errors import InvariantError
from fedgram.text.corpus import Corpus
from fedgram.text.normalize import uncase
from fedgram.text.population import Users
from fedgram.text.vocabulary import BOS, EOS, SPECIAL, UNK, Vocabulary

BINS = (0, 1, 2, 10, 100)  # the smallest number of devices of each column


def bin_names() -> tuple[str, ...]:
    """The columns of a table by devices.

    >>> bin_names()
    ('0', '1', '2–9', '10–99', '≥ 100')
    """
    inner = [str(low) if high == low + 1 else f"{low}–{high - 1}" for low, high in pairwise(BINS)]
    return (*inner, f"≥ {BINS[-1]}")


@dataclass(frozen=True, slots=True, eq=False)
class NGramDevices:
    """By n-gram of a model: its length, the number of devices that typed it, and whether a public text has it."""

    length: IntArray
    devices: LongArray
    is_public: BoolArray | None

    def __post_init__(self) -> None:
        sizes = {len(self.length), len(self.devices), len(self.is_public) if self.is_public is not None else -1}
        if len(sizes - {-1}) != 1:
            raise InvariantError("every n-gram needs a length and a number of devices")
        for array in (self.length, self.devices):
            frozen(array)

    @property
    def single(self) -> BoolArray:
        """Which n-grams exactly one device typed, and the public text, if there is one, does not have."""
        alone: BoolArray = self.devices == 1
        return alone if self.is_public is None else alone & ~self.is_public

    def below(self, least: int) -> BoolArray:
        """Which n-grams of two or more words some devices typed, but fewer than `least`, and no public text has."""
        few: BoolArray = (self.devices > 0) & (self.devices < least) & (self.length > 1)
        return few if self.is_public is None else few & ~self.is_public

    def table(self) -> list[dict[str, Any]]:
        """The number of n-grams by order, and in each order by devices; with a public text, those it has apart."""
        rows = []
        for order in range(1, int(self.length.max(initial=0)) + 1):
            of_order = self.length == order
            row: dict[str, Any] = {"order": order, "ngrams": int(of_order.sum()), "devices": self._binned(of_order)}
            if self.is_public is not None:
                row["public"] = self._binned(of_order & self.is_public)
                row["not_public"] = self._binned(of_order & ~self.is_public)
            row["single_device"] = int((of_order & self.single).sum())
            rows.append(row)
        return rows

    def _binned(self, chosen: BoolArray) -> dict[str, int]:
        place = np.searchsorted(BINS, self.devices[chosen], side="right") - 1
        return dict(zip(bin_names(), np.bincount(place, minlength=len(BINS)).tolist(), strict=True))


def devices_by_ngram(
    model: NGramModel, users: Users, public: Corpus | None = None, *, cased: bool = False
) -> NGramDevices:
    """The number of users' devices that typed each n-gram of a model, and whether a public text has it."""
    ids = _Ids(model.vocabulary, cased=cased)
    tree = _Tree(model.topology, ids)
    population = users.population
    code = ids.of(population.words)
    rows = Ragged.concatenate([population.sentences(client) for client in users.clients.tolist()])
    owner = np.repeat(np.arange(len(users)), np.diff(population.first_sentence)[users.clients])
    devices = tree.owners(Ragged(code[rows.values], rows.offsets), owner.astype(np.int64), len(users))
    is_public = None
    if public is not None:
        text = Ragged(ids.of(public.vocabulary.words)[public.sentences.values], public.sentences.offsets)
        is_public = tree.owners(text, np.zeros(len(text), np.int64), 1) > 0
    return NGramDevices(tree.length, devices, is_public)


def spelled(model: NGramModel, chosen: BoolArray) -> list[str]:
    """Some n-grams of a model as text, longest first."""
    words, (matrix, length) = model.vocabulary.words, ngram_matrix(model.topology)
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(-length[rows], kind="stable")]
    return [" ".join(words[x] for x in matrix[e, : length[e]].tolist()) for e in rows.tolist()]


class _Ids:
    """Words of a model, those that differ in capitals alone under one number."""

    def __init__(self, vocabulary: Vocabulary, *, cased: bool) -> None:
        self._cased = cased
        self._number = {word: i for i, word in enumerate(SPECIAL)}
        of_word = [self._number.setdefault(self._form(word), len(self._number)) for word in vocabulary.words]
        self.of_model = np.array(of_word, np.int64)
        self.count = len(self._number)

    def _form(self, word: str) -> str:
        return word if self._cased else uncase(word)

    def of(self, words: Sequence[str]) -> IntArray:
        """The numbers of words of a text; marks of sentences are not words."""
        found = [self._number.get(self._form(word), UNK) for word in words]
        return np.array([UNK if x in (BOS, EOS) else x for x in found], np.int32)


class _Tree:
    """The n-grams of a topology as a tree of prefixes; `length` is by arc."""

    def __init__(self, topology: Topology, ids: _Ids) -> None:
        matrix, self.length = ngram_matrix(topology)
        self._words, node = ids.count, np.zeros(len(matrix), np.int64)
        self._levels: list[LongArray] = []
        self._end = np.zeros(len(matrix), np.int64)  # of each arc, the node of its last word
        for n in range(matrix.shape[1]):
            longer = np.flatnonzero(self.length > n)
            key = node[longer] * self._words + ids.of_model[matrix[longer, n]]
            keys, node[longer] = np.unique(key, return_inverse=True)
            self._levels.append(keys)
            ends = longer[self.length[longer] == n + 1]
            self._end[ends] = node[ends]

    def owners(self, sentences: Ragged, owner: LongArray, owners: int) -> LongArray:
        """By arc, the number of owners of sentences that have its n-gram."""
        token, sentence = _with_marks(sentences)
        of_position, result = owner[sentence], np.zeros(len(self.length), np.int64)
        node, start = np.zeros(len(token), np.int64), np.arange(len(token))
        for n, keys in enumerate(self._levels):
            inside = start + n < len(token)
            start, node = start[inside], node[inside]
            same = sentence[start] == sentence[start + n]
            start, node = start[same], node[same]
            key = node * self._words + token[start + n]
            place = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            found = keys[place] == key
            start, node = start[found], place[found]
            pairs = np.unique(node * owners + of_position[start])
            by_node = np.bincount(pairs // owners, minlength=len(keys))
            ends = self.length == n + 1
            result[ends] = by_node[self._end[ends]]
        return result


def _with_marks(sentences: Ragged) -> tuple[LongArray, LongArray]:
    """The ids of sentences with `<s>` before and `</s>` after each, and the sentence of each position."""
    count = len(sentences)
    offsets = sentences.offsets + 2 * np.arange(count + 1)
    token = np.full(int(offsets[-1]), EOS, np.int64)
    token[offsets[:-1]] = BOS
    sentence = np.repeat(np.arange(count), np.diff(offsets))
    inside = np.arange(len(token)) - 1 - 2 * sentence
    is_word = np.ones(len(token), bool)
    is_word[offsets[:-1]] = False
    is_word[offsets[1:] - 1] = False
    token[is_word] = sentences.values[inside[is_word]]
    return token, sentence.astype(np.int64)
