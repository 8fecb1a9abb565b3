"""The words and word pairs of one user, learned on the phone; they can be shown, edited and erased.

The personal probability of word x after word u interpolates the user's pairs with the user's words (Witten-Bell).
Counts decay, so that habits may change. The keyboard uses p(x) = (1 − α)·p_base(x) + α·p_personal(x), where α =
`most`·n/(n + `patience`) and n is the count of all learned words. So whatever was learned, no word loses more nats than
the *guard* −ln(1 − `most`), and words that were not learned keep their order. A word that the base model does not know
is predicted like any other.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.errors import FedgramError
from fedgram.fgram.reader import PackedModel, Prediction, context_words
from fedgram.fgram.spelling import word_key
from fedgram.keyboard.languages import Languages
from fedgram.keyboard.layout import Layout
from fedgram.keyboard.lexicon import Spelled, spell_keys, typeable

_BEGIN = "<s>"
_VERSION = 1
_MAX_WORD = 64


@dataclass(frozen=True, slots=True)
class PersonalOptions:
    """How much is learned, and how much it counts."""

    most: float = 0.25  # the greatest α
    patience: float = 200.0  # the count at which α is half of `most`
    fading: float = 0.9995  # decay of all counts per learned word
    words: int = 2000  # the greatest number of words kept
    pairs: int = 8000  # the greatest number of pairs kept

    @property
    def guard(self) -> float:
        """The greatest loss of a word, in nats."""
        return -math.log1p(-self.most)


class TypeableWords(NamedTuple):
    """The learned words that a layout can type: their indices, the words, and their letters."""

    indices: LongArray
    words: tuple[str, ...]
    spelled: Spelled


@dataclass(frozen=True, slots=True, eq=False)
class LearnedWords:
    """The learned words in no particular order, with their keys, ids in each base model, and counts.

    `place` is the index of each word. `edition` is that of the personal model.
    """

    edition: int
    words: tuple[str, ...]
    keys: tuple[str, ...]
    ids: LongArray
    counts: FloatArray
    place: dict[str, int]
    _layouts: dict[str, TypeableWords] = field(default_factory=dict)

    def on_layout(self, layout: Layout) -> TypeableWords:
        """The words that a layout can type."""
        if layout.name not in self._layouts:
            typed = typeable(layout, self.keys)
            words, keys = tuple(self.words[i] for i in typed), [self.keys[i] for i in typed]
            self._layouts[layout.name] = TypeableWords(np.array(typed, np.int64), words, spell_keys(layout, keys))
        return self._layouts[layout.name]


class PersonalModel:
    """The user's own words on top of a packed model, or of several languages.

    A context is text as it was typed, of which only the last sentence counts, or the words since the beginning of the
    sentence.
    """

    def __init__(self, base: PackedModel | Languages, options: PersonalOptions | None = None) -> None:
        self.base = base if isinstance(base, Languages) else Languages([base])
        self.options = options or PersonalOptions()
        self._words: dict[str, float] = {}
        self._pairs: dict[str, dict[str, float]] = {}
        self._unit = 1.0  # the count of one occurrence now; it grows so that older counts decay relative to it
        self.edition = 0  # increases with every change
        self._table: LearnedWords | None = None

    def __repr__(self) -> str:
        return f"PersonalModel({len(self._words)} words)"

    def learn(self, sentence: Sequence[str], after: str | None = None) -> None:
        """Learn from a sentence that the user sent; placeholders and very long words are not learned.

        `after` is the word before it, if it is only part of a sentence.
        """
        before = after or _BEGIN
        self.edition += 1
        for word in sentence:
            if not word or len(word) > _MAX_WORD or word.startswith("<") or word.split() != [word]:
                before = _BEGIN
                continue
            self._unit /= self.options.fading
            self._words[word] = self._words.get(word, 0.0) + self._unit
            row = self._pairs.setdefault(before, {})
            row[word] = row.get(word, 0.0) + self._unit
            before = word
        self._keep_within_bounds()

    def _keep_within_bounds(self) -> None:
        if self._unit > 1e100:
            self._scale(1.0 / self._unit)
        if len(self._words) > self.options.words:
            kept = sorted(self._words, key=lambda w: (-self._words[w], w))[: self.options.words * 9 // 10]
            for word in set(self._words) - set(kept):
                self.forget(word)
        if sum(map(len, self._pairs.values())) > self.options.pairs:
            ranked = sorted((-count, u, x) for u, row in self._pairs.items() for x, count in row.items())
            for _, u, x in ranked[self.options.pairs * 9 // 10 :]:
                del self._pairs[u][x]
            self._pairs = {u: row for u, row in self._pairs.items() if row}

    def _scale(self, factor: float) -> None:
        self._words = {word: count * factor for word, count in self._words.items()}
        self._pairs = {u: {x: c * factor for x, c in row.items()} for u, row in self._pairs.items()}
        self._unit *= factor

    def learned(self) -> list[tuple[str, float]]:
        """Every learned word with its decayed count, the most used first."""
        rows = [(word, count / self._unit) for word, count in self._words.items()]
        return sorted(rows, key=lambda row: (-row[1], row[0]))

    def unknown_words(self) -> list[str]:
        """The learned words that no base model knows, also not in lower case: those that are the user's own."""
        return [word for word, _ in self.learned() if not self.base.knows(word) and not self.base.knows(word.lower())]

    def forget(self, word: str) -> bool:
        """Remove a word and all its pairs; returns whether it was there."""
        self.edition += 1
        self._pairs.pop(word, None)
        for row in self._pairs.values():
            row.pop(word, None)
        return self._words.pop(word, None) is not None

    def erase(self) -> None:
        """Forget everything."""
        self.edition += 1
        self._words, self._pairs, self._unit = {}, {}, 1.0

    @property
    def share(self) -> float:
        """α: the weight of the personal probabilities."""
        n = sum(self._words.values()) / self._unit
        return self.options.most * n / (n + self.options.patience)

    def probability(self, before: str | None, word: str) -> float:
        """p_personal(word | before); `None` is the beginning of a sentence."""
        total = sum(self._words.values())
        if not total:
            return 0.0
        row = self._pairs.get(_BEGIN if before is None else before, {})
        pairs, kinds = sum(row.values()), len(row) * self._unit
        alone = self._words.get(word, 0.0) / total
        return (row.get(word, 0.0) + kinds * alone) / (pairs + kinds) if row else alone

    def log_p(self, context: str | Sequence[str], word: str) -> float:
        """Log p(word | context) under both models together."""
        base = float(self.base.probabilities(self.base.state(context), self.base.word_ids([word]))[0])
        mixed = (1.0 - self.share) * base + self.share * self.probability(_last(context), word)
        return math.log(mixed) if mixed > 0.0 else -math.inf

    @property
    def table(self) -> LearnedWords:
        """The learned words as arrays; rebuilt after a change."""
        if self._table is None or self._table.edition != self.edition:
            words = tuple(self._words)
            ids = self.base.word_ids(words)
            counts = np.array([self._words[word] for word in words])
            place = {word: i for i, word in enumerate(words)}
            self._table = LearnedWords(self.edition, words, tuple(map(word_key, words)), ids, counts, place)
        return self._table

    def mixed(self, context: str | Sequence[str]) -> FloatArray:
        """p(word | context) under both models together, for every word of `table`."""
        table, share = self.table, self.share
        alone = table.counts / max(table.counts.sum(), 1e-300)
        before = _last(context)
        row = self._pairs.get(_BEGIN if before is None else before, {})
        learned = alone
        if row:
            kinds = len(row) * self._unit
            learned = kinds * alone
            for word, count in row.items():
                if word in table.place:
                    learned[table.place[word]] += count
            learned /= sum(row.values()) + kinds
        base = self.base.probabilities(self.base.state(context), table.ids)
        mixed: FloatArray = (1.0 - share) * base + share * learned
        return mixed

    def predict(self, context: str | Sequence[str] = (), k: int = 3, prefix: str = "") -> list[Prediction]:
        """The k most probable words under both models together, exactly.

        A word that was not learned is only among them if it is among the k best of the base model: the words before it
        there are before it here too.
        """
        share, key = self.share, word_key(prefix)
        mixed: dict[str, float] = {}
        for p in self.base.predict(context, k, prefix):
            mixed[p.word] = (1.0 - share) * math.exp(p.log_p)
        if share:
            ours, table = self.mixed(context), self.table
            if key:
                ours = np.where([its_key.startswith(key) for its_key in table.keys], ours, 0.0)
            for i in np.flatnonzero(ours >= np.sort(ours)[-min(k, len(ours))]).tolist():  # ties too
                mixed[table.words[i]] = float(ours[i])
            for word in [word for word in mixed if word in table.place]:
                mixed[word] = float(ours[table.place[word]])
        best = sorted(mixed, key=lambda word: (-mixed[word], word))[:k]
        return [Prediction(word, math.log(mixed[word])) for word in best if mixed[word] > 0.0]

    def to_json(self) -> str:
        """Everything that was learned, as JSON to store on the phone."""
        words = {word: round(count / self._unit, 6) for word, count in self._words.items()}
        pairs = {u: {x: round(c / self._unit, 6) for x, c in row.items()} for u, row in self._pairs.items()}
        return json.dumps({"fedgram-personal": _VERSION, "words": words, "pairs": pairs}, ensure_ascii=False)

    def add_json(self, text: str) -> None:
        """Add the counts that `to_json` wrote, such as those of another phone, to what was learned here."""
        other = PersonalModel(self.base, self.options)
        other.load_json(text)
        _add_counts(self._words, other._words, self._unit)
        for u, row in other._pairs.items():
            _add_counts(self._pairs.setdefault(u, {}), row, self._unit)
        self.edition += 1
        self._keep_within_bounds()

    def load_json(self, text: str) -> None:
        """Replace everything that was learned by what `to_json` wrote."""
        try:
            content = json.loads(text)
            if content["fedgram-personal"] != _VERSION:
                raise FedgramError("the personal words are of another format version; erase them")
            words = _checked(content["words"])
            pairs = {str(u): _checked(row) for u, row in dict(content["pairs"]).items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise FedgramError("the personal words cannot be read; erase them or choose another file") from None
        self._words, self._pairs, self._unit = words, pairs, 1.0
        self.edition += 1
        self._keep_within_bounds()


def _last(context: str | Sequence[str]) -> str | None:
    words = context_words(context)
    return words[-1] if words else None


def _add_counts(row: dict[str, float], more: dict[str, float], unit: float) -> None:
    for word, count in more.items():
        row[word] = row.get(word, 0.0) + unit * count


def _checked(counts: Any) -> dict[str, float]:
    result = {str(word): float(count) for word, count in dict(counts).items()}
    if any(not 0.0 <= count < 1e9 or not word or len(word) > _MAX_WORD for word, count in result.items()):
        raise ValueError
    return result
