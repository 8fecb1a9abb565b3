"""Typing and gliding in several languages at once: a keyboard per model, on one layout.

Each model reads the taps or the trail by itself. The worth of its words includes the posterior of its language (see
`languages`). A word that several models know is worth what their summed probabilities are worth.
"""

import math
from collections.abc import Sequence
from functools import cached_property

from fedgram.core.arrays import FloatArray
from fedgram.keyboard.decoder import (
    MAX_TAPS,
    Candidate,
    Keyboard,
    TapOptions,
    Typing,
    best_candidates,
    typed_candidates,
)
from fedgram.keyboard.glide import Glider
from fedgram.keyboard.languages import Languages, LanguagesState
from fedgram.keyboard.layout import Layout
from fedgram.keyboard.own_words import OwnWords, own_words
from fedgram.keyboard.personal import PersonalModel


def merge_readings(
    readings: Sequence[Sequence[Candidate]], log_posterior: FloatArray, weight: float
) -> list[Candidate]:
    """The readings of several models as those of one: worth = score + weight · ln Σ_l π_l · p_l(word).

    What was hit is offered as a literal only if it is no word of any model.
    """
    merged: dict[tuple[str, bool], Candidate] = {}
    literals = sum(row.is_literal for rows in readings for row in rows)
    for rows, log_p in zip(readings, log_posterior.tolist(), strict=True):
        for row in best_candidates(rows, len(rows)):
            if row.is_literal and literals < len(readings):
                continue
            key, worth = (row.word, row.is_complete), row.worth + weight * log_p
            if key in merged:
                other = merged[key].worth
                worth = max(worth, other) + weight * math.log1p(math.exp(-abs(worth - other) / weight))
            merged[key] = Candidate(row.word, worth, row.is_complete, row.is_literal)
    return list(merged.values())


class MultilingualKeyboard:
    """Several languages and a layout, ready to decode taps and trails; contexts are those of `Languages`."""

    def __init__(self, languages: Languages, layout: Layout, options: TapOptions | None = None) -> None:
        self.languages, self.layout, self.options = languages, layout, options or TapOptions()
        self.boards = tuple(Keyboard(model, layout, self.options) for model in languages.models)

    @cached_property
    def gliders(self) -> tuple[Glider, ...]:
        """A glider per model."""
        return tuple(Glider(board) for board in self.boards)

    def typing(self, context: str | Sequence[str] = (), personal: PersonalModel | None = None) -> "MultilingualTyping":
        """Start a new word after a context, with the words of every model and the user's own."""
        return MultilingualTyping(self, self.languages.state(context), own_words(personal, self.layout, context))

    def decode(
        self, taps: FloatArray, context: str | Sequence[str] = (), k: int = 3, personal: PersonalModel | None = None
    ) -> list[Candidate]:
        """The k most probable words for these taps, the best first."""
        word = self.typing(context, personal)
        for x, y in taps[:MAX_TAPS].tolist():
            word.tap(x, y)
        return word.candidates(k, complete=False)

    def glide(
        self, trail: FloatArray, context: str | Sequence[str] = (), k: int = 3, personal: PersonalModel | None = None
    ) -> list[Candidate]:
        """The k most probable words for a trail of (x, y) points, the best first."""
        drawn, state = self.gliders[0].draw(trail), self.languages.state(context)
        if not drawn:
            return []
        readings = [glider.readings(drawn, own, k) for glider, own in zip(self.gliders, state.states, strict=True)]
        rows = merge_readings(readings, state.log_posterior, 1.0)
        own = own_words(personal, self.layout, context)
        return self.gliders[0].with_own_words(drawn, rows, own, k) if own else best_candidates(rows, k)


class MultilingualTyping:
    """One word while it is typed: taps are added, and may be taken back."""

    def __init__(self, keyboard: MultilingualKeyboard, state: LanguagesState, own: OwnWords | None = None) -> None:
        self.keyboard, self.own, self.log_posterior = keyboard, own, state.log_posterior
        self._words = tuple(Typing(board, each) for board, each in zip(keyboard.boards, state.states, strict=True))

    @property
    def taps(self) -> list[tuple[float, float]]:
        """The taps so far."""
        return self._words[0].taps

    @property
    def literal(self) -> str:
        """The letters of the keys that were hit."""
        return self._words[0].literal

    def tap(self, x: float, y: float) -> None:
        """Add a tap; taps beyond the length of the longest words are ignored."""
        for word in self._words:
            word.tap(x, y)

    def backspace(self) -> None:
        """Take the last tap back."""
        for word in self._words:
            word.backspace()

    def candidates(self, k: int = 3, *, complete: bool = True) -> list[Candidate]:
        """The k most probable words, the best first, as `Typing.candidates`."""
        options = self.keyboard.options
        readings = [word.readings(k, complete=complete) for word in self._words]
        rows = merge_readings(readings, self.log_posterior, options.weight)
        return typed_candidates(rows, self.own, self._words[0].likelihoods, options, k, complete=complete)
