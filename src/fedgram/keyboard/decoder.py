"""Decoding taps: a search of the lexicon that weighs the positions of the taps against the language model.

`tap_search` keeps the prefixes that the taps so far may mean. The worth of a word is its score, the log-likelihood of
the taps relative to perfect ones, plus the weighted log-probability of the word in its context. Paper: §1.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.fgram.query import open_lists
from fedgram.fgram.reader import PackedModel
from fedgram.keyboard.languages import LOG_UNKNOWN
from fedgram.keyboard.layout import Layout
from fedgram.keyboard.lexicon import MAX_LETTERS, Lexicon, lexicon_of
from fedgram.keyboard.own_words import OwnWords, align, own_words
from fedgram.keyboard.personal import PersonalModel
from fedgram.keyboard.ranked import Ranked
from fedgram.keyboard.tap_search import Beam, ContextModel, TapCosts, Workspace, advance, best_words
from fedgram.text.vocabulary import UNK

MAX_TAPS = MAX_LETTERS + 8


@dataclass(frozen=True, slots=True)
class TapOptions:
    """The weights of taps and words; costs are log-likelihoods."""

    sigma: float = 0.35  # standard deviation of a tap around its key, in key widths
    weight: float = 0.55  # of the language model
    slip: float = -8.0  # the least log-likelihood of a tap: another key was hit
    insertion: float = -6.0
    deletion: float = -3.0
    transposition: float = -4.5
    completion: float = -1.0  # per letter that was not typed
    unknown: float = -4.0  # per letter of an unknown word
    width: float = 14.0  # of the beam, in worth
    hypotheses: int = 200

    def costs(self) -> TapCosts:
        """The numbers that kernels need."""
        return TapCosts(
            self.insertion, self.deletion, self.transposition, self.completion, self.weight, self.width, self.hypotheses
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word that may have been meant, and its worth.

    `is_complete` if all its letters were typed; `is_literal` if it is the letters that were hit and no known word.
    """

    word: str
    worth: float
    is_complete: bool = True
    is_literal: bool = False


def best_candidates(rows: Sequence[Candidate], k: int) -> list[Candidate]:
    """The k best candidates, each word once."""
    unique = {row.word: row for row in sorted(rows, key=lambda row: row.worth)}
    return sorted(unique.values(), key=lambda row: (-round(row.worth, 9), row.word))[:k]


def mixed_candidates(
    rows: Sequence[Candidate], own: OwnWords, weight: float, *scores: FloatArray, k: int
) -> list[Candidate]:
    """The k best of a packed model's candidates and the user's own words.

    `scores` are those of the own words, typed in full and (optionally) in part.
    """
    result = [replace(row, worth=row.worth + weight * own.log_rest) for row in rows]
    for is_complete, score in zip((True, False), scores, strict=False):
        worth = score + weight * own.log_p
        for i in np.argsort(-worth, kind="stable")[: k + 1].tolist():
            if np.isfinite(worth[i]):
                result.append(Candidate(own.words[i], float(worth[i]), is_complete))
    return best_candidates(result, k)


def typed_candidates(
    rows: Sequence[Candidate], own: OwnWords | None, likelihoods: Sequence[FloatArray], options: TapOptions, k: int, *,
    complete: bool,
) -> list[Candidate]:  # fmt: skip
    """The k best of packed models' readings of some taps, and of the user's own words."""
    if not own or not likelihoods:
        return best_candidates(rows, k)
    scores = align(np.array(likelihoods), own.spelled, options.costs())
    return mixed_candidates(rows, own, options.weight, *scores[: 1 + complete], k=k)


class Keyboard:
    """A packed model and a layout, ready to decode taps.

    A context is text as it was typed, of which only the last sentence counts, or the words since the beginning of the
    sentence.
    """

    def __init__(self, model: PackedModel, layout: Layout, options: TapOptions | None = None) -> None:
        self.model, self.layout, self.options = model, layout, options or TapOptions()
        self.lexicon: Lexicon = lexicon_of(model, layout)
        self.known = frozenset(self.lexicon.keys)
        self._work, self._taps = Workspace.of(len(self.lexicon.trie.letter)), 0

    def typing(self, context: str | Sequence[str] = (), personal: PersonalModel | None = None) -> "Typing":
        """Start a new word after a context, with the model's words and the user's own."""
        return Typing(self, self.model.state(context), own_words(personal, self.layout, context))

    def decode(
        self, taps: FloatArray, context: str | Sequence[str] = (), k: int = 3, personal: PersonalModel | None = None
    ) -> list[Candidate]:
        """The k most probable words for these taps, the best first."""
        word = self.typing(context, personal)
        for x, y in taps[:MAX_TAPS].tolist():
            word.tap(x, y)
        return word.candidates(k, complete=False)

    def search(self, beam: Beam, before: Beam, tap: FloatArray, last: FloatArray) -> Beam:
        """The hypotheses after one more tap, given those after the last two taps.

        `tap` and `last` are the log-likelihoods of the new tap and of the last one for each letter.
        """
        self._taps += 1
        return advance(self.lexicon.trie, beam, before, (tap, last), self.options.costs(), self._work, self._taps)


class Typing:
    """One word while it is typed: taps are added, and may be taken back."""

    def __init__(self, keyboard: Keyboard, state: LongArray, own: OwnWords | None = None) -> None:
        self.keyboard, self.state, self.own = keyboard, state, own
        model = keyboard.model
        greatest = float(max(model.predict_ids(state, 1)[1], default=0.0))
        self._context = ContextModel(model.arrays, open_lists(model.arrays, state), greatest)
        self.taps: list[tuple[float, float]] = []
        self.likelihoods: list[FloatArray] = []  # of each tap, for each letter
        self._beams = [Beam(np.zeros(1, np.int32), np.zeros(1))]

    def tap(self, x: float, y: float) -> None:
        """Add a tap; taps beyond the length of the longest words are ignored."""
        board, options = self.keyboard, self.keyboard.options
        if len(self.taps) >= MAX_TAPS:
            return
        squared = board.layout.squared_distances(np.array([[x, y]]))[0]
        tap = np.maximum(-squared / (2 * options.sigma**2), options.slip)
        before = self._beams[-2] if len(self._beams) > 1 else Beam(np.zeros(0, np.int32), np.zeros(0))
        last = self.likelihoods[-1] if self.likelihoods else tap
        self.taps.append((x, y))
        self.likelihoods.append(tap)
        self._beams.append(board.search(self._beams[-1], before, tap, last))

    def backspace(self) -> None:
        """Take the last tap back."""
        if self.taps:
            self.taps.pop()
            self.likelihoods.pop()
            self._beams.pop()

    @property
    def literal(self) -> str:
        """The letters of the keys that were hit."""
        return self.keyboard.layout.nearest(np.array(self.taps).reshape(-1, 2))

    def candidates(self, k: int = 3, *, complete: bool = True) -> list[Candidate]:
        """The k most probable words, the best first: the word that a space would commit, and suggestions.

        With `complete`, they may include words that the taps are only a prefix of.
        """
        rows = self.readings(k, complete=complete)
        return typed_candidates(rows, self.own, self.likelihoods, self.keyboard.options, k, complete=complete)

    def readings(self, k: int = 3, *, complete: bool = True) -> list[Candidate]:
        """The model's own words for the taps, in no particular order: at least the k best."""
        if not self.taps:
            return []
        board, words, best = self.keyboard, self.keyboard.model.words, Ranked.of(k)
        best_words(self._context, board.lexicon.trie, self._beams[-1], board.options.costs(), best)
        rows = [Candidate(words[word_id], worth) for word_id, worth in best.rows()]
        if complete:
            rows += self._completions(k)
        literal = self._literal_candidate()
        return [*rows, literal] if literal else rows

    def _completions(self, k: int) -> list[Candidate]:
        """Longer words that start with one of the two best prefixes."""
        model, options, lexicon = self.keyboard.model, self.keyboard.options, self.keyboard.lexicon
        trie, (node, score) = lexicon.trie, self._beams[-1]
        rows = []
        for i in np.argsort(-(score + options.weight * trie.best[node]), kind="stable")[:2].tolist():
            depth = trie.depth[node[i]]
            if not depth:
                continue
            prefix = lexicon.keys[trie.first_word[node[i]]][:depth]
            word_ids, log_p = model.predict_ids(self.state, k + 1, prefix)
            for w, p in zip(word_ids.tolist(), log_p.tolist(), strict=True):
                untyped = len(model.keys[w]) - len(prefix)
                if untyped > 0:
                    worth = float(score[i]) + options.weight * p + options.completion * untyped
                    rows.append(Candidate(model.words[w], worth, is_complete=False))
        return rows

    def _literal_candidate(self) -> Candidate | None:
        """The letters that were hit, if they are no known word: people type names."""
        board, options = self.keyboard, self.keyboard.options
        literal = self.literal
        if literal in board.known or len(literal) < 2:
            return None
        log_p = board.model.step(self.state, UNK)[0]
        log_p = log_p if np.isfinite(log_p) else LOG_UNKNOWN
        hit = sum(float(tap.max()) for tap in self.likelihoods)
        worth = hit + options.weight * log_p + options.unknown * len(literal)
        return Candidate(literal, worth, is_literal=True)
