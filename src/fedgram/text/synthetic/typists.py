"""A synthetic population: typists who draw sentences from a phrase grammar and type them as people do.

Each typist has favourite topics, a heavy-tailed number of sentences, and habits: some never capitalise the start of a
sentence, many write names in lower case, mistype words, drop accents, use slang or omit the final mark. Everything is
a function of the seed and the typist's number, so any part of a population can be generated on its own.

The distribution of the intended sentences is known exactly: averaged over typists, topics have the grammar's shares, so
a clean sentence has the probability `Grammar.log_prob`. With `Habits.careful()` typists type exactly these sentences.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from fedgram.core.arrays import FloatArray
from fedgram.core.errors import FedgramError
from fedgram.core.random import stream, stream_key
from fedgram.text.synthetic.grammar import Grammar, load_grammar

_NEIGHBOURS = {
    key: row[max(i - 1, 0) : i] + row[i + 1 : i + 2]
    for row in ("qwertyuiop", "asdfghjkl", "zxcvbnm")
    for i, key in enumerate(row)
}
_MARKS = ("?", "!")
_TOPIC_FOCUS = 6.0  # the smaller, the fewer topics per typist
_MEDIAN_SENTENCES, _SENTENCE_SPREAD, _MOST_SENTENCES = 16.0, 1.1, 2000


@dataclass(frozen=True, slots=True)
class Habits:
    """How one typist types: the probability of each habit."""

    lower_start: float
    lower_name: float
    typo: float
    slang: float
    no_accent: float
    full_stop: float
    keep_mark: float

    @classmethod
    def careful(cls) -> "Habits":
        """A typist who types exactly the intended sentences."""
        return cls(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0)

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "Habits":
        """One of three kinds: almost no capitals (30 %), most capitals (40 %), nearly all capitals (30 %)."""
        kind = rng.random()
        lower_start, lower_name = (0.97, 0.92) if kind < 0.3 else (0.1, 0.35) if kind < 0.7 else (0.02, 0.15)
        return cls(
            lower_start,
            lower_name,
            typo=float(rng.beta(1.2, 60.0)),
            slang=float(rng.beta(1.0, 5.0)),
            no_accent=float(rng.beta(0.5, 2.0)),
            full_stop=float(rng.beta(0.6, 1.2)),
            keep_mark=float(rng.beta(3.0, 1.0)),
        )


class SyntheticPopulation:
    """The typists of one language and seed."""

    def __init__(
        self, language: str, *, seed: int, habits: Habits | None = None, grammar: Grammar | None = None
    ) -> None:
        self.grammar = grammar or load_grammar(language)
        self.seed = seed
        self.habits = habits
        self.slang = _read_slang(language)

    def messages(self, typist: int) -> Iterator[str]:
        """All messages of this typist, one at a time."""
        rng = stream(self.seed, "typist", typist)
        habits = self.habits or Habits.draw(rng)
        count = rng.lognormal(np.log(_MEDIAN_SENTENCES), _SENTENCE_SPREAD)
        count = int(min(max(count, 2.0), _MOST_SENTENCES))
        interest = rng.dirichlet(_TOPIC_FOCUS * self.grammar.topic_share)
        topics = rng.choice(len(interest), count, p=interest).astype(np.int32)
        key = stream_key(self.seed, "sentences", typist)
        for sentence in self.grammar.sentences(topics, key):
            words = [self.grammar.words[i] for i in sentence]
            if words:
                yield self._type(words, habits, rng)

    def rows(self, typists: int, first: int = 0) -> Iterator[tuple[str, str, str | None]]:
        """The rows (user, text, split) of a population file; without a split, it follows from the user's name."""
        if typists < 1:
            raise FedgramError(f"a population needs at least 1 user, not {typists}")
        for typist in range(first, first + typists):
            name = f"u{typist:07d}"
            for text in self.messages(typist):
                yield name, text, None

    def clean_sentences(self, count: int, *, topic_share: FloatArray | None = None) -> Iterator[list[str]]:
        """Clean sentences for the server, independent of the typists'; `topic_share` replaces the grammar's shares."""
        share = self.grammar.topic_share if topic_share is None else topic_share / topic_share.sum()
        topics = stream(self.seed, "supplement topics").choice(len(share), count, p=share).astype(np.int32)
        for sentence in self.grammar.sentences(topics, stream_key(self.seed, "supplement")):
            words = [self.grammar.words[i] for i in sentence if self.grammar.words[i] not in _MARKS]
            if words:
                yield [_capital(words[0]), *words[1:]]

    def _type(self, words: list[str], habits: Habits, rng: np.random.Generator) -> str:
        mark = words.pop() if words[-1] in _MARKS else ""
        if habits.slang and rng.random() < 0.9:
            words = self._slangy(words, habits.slang, rng)
        u = rng.random((len(words), 3)).tolist()
        typed = [self._type_word(w, i == 0, habits, u[i], rng) for i, w in enumerate(words)]
        if mark:
            mark = mark if rng.random() < habits.keep_mark else ""
        elif rng.random() < habits.full_stop:
            mark = "."
        return " ".join(typed) + mark

    def _type_word(self, word: str, starts: bool, habits: Habits, u: list[float], rng: np.random.Generator) -> str:
        if word[0].isupper() and u[0] < habits.lower_name:
            word = word.lower()
        if starts and not word[0].isupper() and u[0] >= habits.lower_start:
            word = _capital(word)
        if u[1] < habits.no_accent and not word.isascii():
            word = "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))
        if u[2] < habits.typo and len(word) > 2:
            word = _mistype(word, rng)
        return word

    def _slangy(self, words: list[str], rate: float, rng: np.random.Generator) -> list[str]:
        result, i = [], 0
        while i < len(words):
            for n in (4, 3, 2, 1):
                typed = self.slang.get(tuple(words[i : i + n])) if i + n <= len(words) else None
                if typed and rng.random() < rate:
                    result += typed.split()
                    i += n
                    break
            else:
                result.append(words[i])
                i += 1
        return result


def _capital(word: str) -> str:
    return word[0].upper() + word[1:]


def _mistype(word: str, rng: np.random.Generator) -> str:
    """Drop a letter, double it, swap it with the next, or replace it by a neighbouring key."""
    i, kind = int(rng.integers(1, len(word) - 1)), rng.integers(4)
    if kind == 0:
        return word[:i] + word[i + 1 :]
    if kind == 1:
        return word[:i] + word[i] + word[i:]
    if kind == 2:
        return word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    near = _NEIGHBOURS.get(word[i].lower(), "")
    return word[:i] + near[int(rng.integers(len(near)))] + word[i + 1 :] if near else word


def _read_slang(language: str) -> dict[tuple[str, ...], str]:
    text = (files("fedgram.text.synthetic") / "phrases" / f"{language}.slang").read_text("utf-8")
    pairs = (line.split("\t") for line in text.splitlines() if "\t" in line and not line.startswith("#"))
    return {tuple(written.split()): typed for written, typed in pairs}
