"""From taps to words: a search through the lexicon that weighs where fingers came down against what is likely to be
said.

`tap_search` keeps the beginnings of words that the taps so far may mean. A word's worth is its score, the
log-likelihood of the taps relative to perfect ones, plus the weighted log-probability of the word in its context.
Paper: §1.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.fgram.query import open_lists
from fedgram.fgram.reader import PackedModel
from fedgram.keyboard.layout import Layout
from fedgram.keyboard.lexicon import MAX_LETTERS, Lexicon, lexicon_of
from fedgram.keyboard.own_words import OwnWords, align, own_words
from fedgram.keyboard.personal import PersonalModel
from fedgram.keyboard.tap_search import ROOM, advance, best_words
from fedgram.text.vocabulary import UNK

MAX_TAPS = MAX_LETTERS + 8
Beam = tuple[IntArray, FloatArray]


@dataclass(frozen=True, slots=True)
class TapOptions:
    """How taps and words are weighed; costs are log-likelihoods."""

    sigma: float = 0.35  # of a tap around its key, in key widths
    weight: float = 0.55  # of the language model
    slip: float = -8.0  # the least a tap can be worth: some other key was hit
    insertion: float = -6.0
    deletion: float = -3.0
    transposition: float = -4.5
    completion: float = -1.0  # of every letter that was not typed
    unknown: float = -4.0  # of every letter of a word that nobody knows
    width: float = 14.0
    hypotheses: int = 200

    def costs(self) -> FloatArray:
        """The numbers as kernels take them."""
        return np.array([self.insertion, self.deletion, self.transposition, self.weight, self.width, self.slip])


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word that may have been meant, and what it is worth; `is_complete` if all its letters were typed."""

    word: str
    worth: float
    is_complete: bool = True
    is_literal: bool = False


def best_candidates(rows: Sequence[Candidate], k: int) -> list[Candidate]:
    """The k best, each word once."""
    unique = {row.word: row for row in sorted(rows, key=lambda row: row.worth)}
    return sorted(unique.values(), key=lambda row: (-round(row.worth, 9), row.word))[:k]


def mixed_candidates(
    rows: Sequence[Candidate], own: OwnWords, weight: float, *worths: FloatArray, k: int
) -> list[Candidate]:
    """A packed model's candidates, less what personal words take, and those words.

    `worths` are what taps are worth for them, typed wholly and perhaps in part.
    """
    result = [replace(row, worth=row.worth + weight * own.log_rest) for row in rows]
    for is_complete, values in zip((True, False), worths, strict=False):
        values = values + weight * own.log_p
        for i in np.argsort(-values, kind="stable")[: k + 1].tolist():
            if np.isfinite(values[i]):
                result.append(Candidate(own.words[i], float(values[i]), is_complete))
    return best_candidates(result, k)


class Keyboard:
    """A packed model and a layout, ready to decode."""

    def __init__(self, model: PackedModel, layout: Layout, options: TapOptions | None = None) -> None:
        self.model, self.layout, self.options = model, layout, options or TapOptions()
        self.lexicon: Lexicon = lexicon_of(model, layout)
        self.known = frozenset(self.lexicon.keys)
        nodes = len(self.lexicon.letter)
        self._seen, self._place = np.zeros(nodes, np.int32), np.zeros(nodes, np.int32)
        self._out, self._score, self._round = np.empty(ROOM, np.int32), np.empty(ROOM), 0

    def typing(self, context: Sequence[str] = (), personal: PersonalModel | None = None) -> "Typing":
        """A new word behind these, of the model's words and the user's own."""
        return Typing(self, self.model.state(context), own_words(personal, self.layout, context))

    def decode(
        self, taps: FloatArray, context: Sequence[str] = (), k: int = 3, personal: PersonalModel | None = None
    ) -> list[Candidate]:
        """The k words that these taps mean most probably, the best first."""
        word = self.typing(context, personal)
        for x, y in taps[:MAX_TAPS].tolist():
            word.tap(x, y)
        return word.candidates(k, complete=False)

    def search(self, beam: Beam, before: Beam, cost: FloatArray, last: FloatArray) -> Beam:
        """The hypotheses after one more tap, given those after the taps before it and what both are worth."""
        lex, self._round = self.lexicon, self._round + 1
        return advance(
            lex.letter, lex.child, lex.sibling, lex.best, *beam, *before, cost, last, self.options.costs(),
            self.options.hypotheses, self._seen, self._place, self._out, self._score, self._round,
        )  # fmt: skip


class Typing:
    """One word while it is being typed: taps come and may be taken back."""

    def __init__(self, keyboard: Keyboard, state: LongArray, own: OwnWords | None = None) -> None:
        self.keyboard, self.state, self.own = keyboard, state, own
        model = keyboard.model
        self._lists = open_lists(model.data, model.frame, model.tables, state)
        self._greatest = max(model.predict_ids(state, 1)[1], default=0.0)  # log-probability that a word has here
        self.taps: list[tuple[float, float]] = []
        self._costs: list[FloatArray] = []
        self._beams: list[Beam] = [(np.zeros(1, np.int32), np.zeros(1))]

    def tap(self, x: float, y: float) -> None:
        """A finger came down here; what goes beyond the longest words is passed over."""
        board, options = self.keyboard, self.keyboard.options
        if len(self.taps) >= MAX_TAPS:
            return
        squared = board.layout.squared_distances(np.array([[x, y]]))[0]
        cost = np.maximum(-squared / (2 * options.sigma**2), options.slip)
        before = self._beams[-2] if len(self._beams) > 1 else (np.zeros(0, np.int32), np.zeros(0))
        last = self._costs[-1] if self._costs else cost
        self.taps.append((x, y))
        self._costs.append(cost)
        self._beams.append(board.search(self._beams[-1], before, cost, last))

    def backspace(self) -> None:
        """Take the last tap back."""
        if self.taps:
            self.taps.pop()
            self._costs.pop()
            self._beams.pop()

    @property
    def literal(self) -> str:
        """The letters of the keys that were hit."""
        return self.keyboard.layout.nearest(np.array(self.taps).reshape(-1, 2))

    def candidates(self, k: int = 3, *, complete: bool = True) -> list[Candidate]:
        """The k most probable words, the best first: what a space would commit, and suggestions behind it.

        With `complete`, words that the taps only begin may be among them.
        """
        if not self.taps:
            return []
        board, options, model = self.keyboard, self.keyboard.options, self.keyboard.model
        lex = board.lexicon
        worth, words = np.empty(k), np.empty(k, np.int64)
        found = best_words(
            model.data, model.frame, model.tables, *self._lists, self._greatest, lex.child, lex.sibling,
            lex.first_word, lex.words, *self._beams[-1], options.costs(), worth, words,
        )  # fmt: skip
        rows = [
            Candidate(model.words[w], p) for w, p in zip(words[:found].tolist(), worth[:found].tolist(), strict=True)
        ]
        if complete:
            rows += self._completions(k)
        literal = self._literal_candidate()
        if literal:
            rows.append(literal)
        if not self.own:
            return best_candidates(rows, k)
        worths = align(np.array(self._costs), self.own.spelled, self.own.offsets, options.costs(), options.completion)
        return mixed_candidates(rows, self.own, options.weight, *worths[: 1 + complete], k=k)

    def _completions(self, k: int) -> list[Candidate]:
        """Longer words from the two best beginnings."""
        model, options, lex = self.keyboard.model, self.keyboard.options, self.keyboard.lexicon
        nodes, score = self._beams[-1]
        rows = []
        for i in np.argsort(-(score + options.weight * lex.best[nodes]), kind="stable")[:2].tolist():
            if not lex.depth[nodes[i]]:
                continue
            begun = lex.keys[lex.first_word[nodes[i]]][: lex.depth[nodes[i]]]
            words, log_p = model.predict_ids(self.state, k + 1, begun)
            for w, p in zip(words.tolist(), log_p.tolist(), strict=True):
                untyped = len(model.keys[w]) - len(begun)
                if untyped > 0:
                    worth = float(score[i]) + options.weight * p + options.completion * untyped
                    rows.append(Candidate(model.words[w], worth, is_complete=False))
        return rows

    def _literal_candidate(self) -> Candidate | None:
        """What was hit, if it is no word: people type names."""
        board, options = self.keyboard, self.keyboard.options
        literal = self.literal
        if literal in board.known or len(literal) < 2:
            return None
        log_p = board.model.step(self.state, UNK)[0]
        log_p = log_p if np.isfinite(log_p) else -8.0
        hit = sum(float(cost.max()) for cost in self._costs)
        worth = hit + options.weight * log_p + options.unknown * len(literal)
        return Candidate(literal, worth, is_literal=True)
