"""One level of a prefix tree as a federated task: devices say which known prefixes their words extend, and how.

The server names the prefixes that survived so far, all of one length. A candidate is a prefix followed by the next
characters of a word; the number of candidates is the number of prefixes times |alphabet|^characters. A device sends a
vector over all candidates: 1 for the candidate that its word has, or nothing if its word has none of the prefixes. With
several words per device, the vector is scaled to norm 1. So at each level a device sends a vector of norm at most 1.

A device answers each level of a collection once (`Job.question` leaves out the prefixes), and a collection has
`levels` levels. All its vectors together have norm √levels at most, whatever prefixes the server names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.federated.counting import CountingTask
from fedgram.federated.discovery.alphabet import END, Alphabet, encode_words, split_words
from fedgram.federated.discovery.chosen_words import choose, device_key, word_hashes
from fedgram.federated.task import Update, device_of
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.text.population import ClientDataset
from fedgram.text.vocabulary import (
    Vocabulary,
    lines_from_bytes,
    lines_to_bytes,
    vocabulary_from_bytes,
    vocabulary_to_bytes,
)

COUNT = "count"
MAX_CANDIDATES = 1 << 24  # a device refuses a longer vector
MAX_WORDS_PER_DEVICE = 100
_FRACTION_BITS = 24


@dataclass(frozen=True, slots=True)
class Collection:
    """What all levels of a collection share.

    The first level adds `first` characters to the empty prefix, each later level adds one. `choice` is the seed of the
    choice of words on devices.
    """

    known: Vocabulary
    alphabet: Alphabet
    levels: int
    first: int
    words_per_device: int
    choice: int

    def __post_init__(self) -> None:
        if not (self.levels >= 1 <= self.first and 1 <= self.words_per_device <= MAX_WORDS_PER_DEVICE):
            raise InvariantError("Collection: levels, characters or words per device are out of range")

    @property
    def longest(self) -> int:
        """The maximum length of a word: the last character of the last level is the end of the word."""
        return self.first + self.levels - 2

    def depth(self, level: int) -> int:
        """The number of characters of the prefixes that a level extends."""
        return 0 if level == 0 else self.first + level - 1


class PrefixLevel(CountingTask):
    """A level of a collection as a `FederatedTask`; levels are numbered from 0."""

    name = "discovery"
    adaptive = ("prefixes", "choice")

    def __init__(self, collection: Collection, level: int, prefixes: Sequence[str]) -> None:
        self.collection, self.level, self.prefixes = collection, level, tuple(prefixes)
        self.characters = collection.first if level == 0 else 1
        if not 0 <= level < collection.levels:
            raise InvariantError(f"level {level + 1} of {collection.levels} levels does not exist")
        if not self.prefixes or any(len(prefix) != collection.depth(level) for prefix in self.prefixes):
            raise InvariantError(f"level {level + 1} needs prefixes of {collection.depth(level)} characters")
        candidates = len(self.prefixes) * self.extensions
        if candidates > MAX_CANDIDATES:
            raise InvariantError(f"{candidates} candidates are more than {MAX_CANDIDATES}")
        self.size: Mapping[str, int] = {COUNT: candidates}
        one = collection.words_per_device == 1
        self.bits = 0 if one else _FRACTION_BITS
        self.bounds = UpdateBounds(1.0, (NormLimit((COUNT,), 1.0),), entry=1.0, non_negative=(COUNT,), whole=one)

    @property
    def extensions(self) -> int:
        """The number of ways to extend a prefix at this level."""
        return int(len(self.collection.alphabet) ** self.characters)

    def settings(self) -> Record:
        """The collection, the level and its prefixes."""
        c = self.collection
        fields = {
            "alphabet": c.alphabet.characters, "levels": c.levels, "first": c.first, "level": self.level,
            "words_per_device": c.words_per_device, "choice": c.choice,
        }  # fmt: skip
        prefixes = lines_to_bytes(self.prefixes) if self.level else np.zeros(0, np.uint8)
        return Record(fields, {"known": vocabulary_to_bytes(c.known), "prefixes": prefixes})

    @classmethod
    def from_settings(cls, settings: Record) -> "PrefixLevel":
        """The task with these settings."""
        f, level = settings.fields, int(settings.fields["level"])
        known, alphabet = vocabulary_from_bytes(settings.arrays["known"]), Alphabet(str(f["alphabet"]))
        numbers = (int(f[name]) for name in ("levels", "first", "words_per_device", "choice"))
        prefixes = lines_from_bytes(settings.arrays["prefixes"]) if level else ("",)
        return cls(Collection(known, alphabet, *numbers), level, prefixes)

    def encode(self, words: Sequence[str]) -> Ragged:
        """A row of codes for each word outside the whitelist."""
        c = self.collection
        return encode_words(words, c.alphabet, frozenset(c.known.index), c.longest)

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:  # noqa: ARG002
        """The candidates of the words that a device contributes."""
        words = split_words(data.sentences.values)
        key = device_key(self.collection.choice, device_of(rng))
        chosen = choose(word_hashes(words.values, words.offsets), key, self.collection.words_per_device)
        found = self.candidates([words[place].tolist() for place in chosen.tolist()])
        index, values = device_vector(found[found >= 0], self.bits)
        return Update(self.size, {COUNT: index}, {COUNT: values}, weight=1.0)

    @cached_property
    def _places(self) -> Mapping[tuple[int, ...], int]:
        alphabet = self.collection.alphabet
        return {tuple(alphabet.codes(prefix)[:-1]): i for i, prefix in enumerate(self.prefixes)}

    def candidates(self, words: Sequence[Sequence[int]]) -> LongArray:
        """The candidate of each word, given by its codes; −1 if the word has ended or has none of the prefixes."""
        depth, found = self.collection.depth(self.level), np.full(len(words), -1, np.int64)
        for i, codes in enumerate(words):
            place = self._places.get(tuple(codes[:depth]), -1) if len(codes) > depth else -1
            if place >= 0:
                following = codes[depth : depth + self.characters]
                padded = [*following, *[END] * (self.characters - len(following))]
                found[i] = place * self.extensions + self._number(padded)
        return found

    def _number(self, codes: Sequence[int]) -> int:
        number = 0
        for code in codes:
            number = number * len(self.collection.alphabet) + code
        return number

    def extended(self, candidate: int) -> tuple[str, bool]:
        """The text of a candidate, and whether it is a whole word; the text is empty if no word can have it."""
        place, number = divmod(candidate, self.extensions)
        codes: list[int] = []
        for _ in range(self.characters):
            number, code = divmod(number, len(self.collection.alphabet))
            codes.insert(0, code)
        text = self.collection.alphabet.text(codes)
        if END in codes[: len(text)]:  # something follows the end of the word
            return "", False
        return self.prefixes[place] + text, END in codes


def device_vector(candidates: LongArray, bits: int) -> tuple[LongArray, FloatArray]:
    """What a device whose words have these candidates sends: where, and how much; its norm is 1 or slightly less.

    Values are rounded down to multiples of 2^-bits, so that the sum rounds nothing up.
    """
    index, count = np.unique(candidates, return_counts=True)
    norm = np.sqrt(float((count * count).sum()))
    return index, np.floor(count / norm * 2.0**bits) * 2.0**-bits if len(index) else np.zeros(0)
