"""Several languages in one keyboard: packed models side by side, weighed word by word.

The language l of the next word is hidden. Its posterior π_l follows from the words typed so far by Bayes' rule,
π_l ∝ π_l · p_l(word | context); a word that no model knows says nothing. Before the next word the language may change,
with a small probability. The keyboard uses p(word | context) = Σ_l π_l · p_l(word | context). With one model, this is
that model.

A context is text as it was typed, or its words, in which `</s>` ends a sentence. Each model sees the last sentence
only; the posterior remembers the sentences before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.fgram.frame import FileArrays
from fedgram.fgram.query import step
from fedgram.fgram.reader import MAX_PREDICTIONS, PackedModel, Prediction
from fedgram.text.normalize import is_ended, normalize
from fedgram.text.vocabulary import EOS, SPECIAL, UNK

MEMORY = 64  # words of the context that decide the language
LOG_UNKNOWN = -8.0  # the log-probability of an unknown word under a model without <unk>
_END = SPECIAL[EOS]


@dataclass(frozen=True, slots=True)
class LanguageOptions:
    """How readily the keyboard believes that the language has changed."""

    switch: float = 0.02  # probability of a change between two words
    sentence_switch: float = 0.05  # probability of a change between two sentences
    unknown: float = -12.0  # the log-probability of one unknown word among all unknown words


class LanguagesState(NamedTuple):
    """What decides the next word: the state of each model, and the log-posterior of each language."""

    states: tuple[LongArray, ...]
    log_posterior: FloatArray


def typed_history(context: str | Sequence[str]) -> Sequence[str]:
    """The words of a context, with `</s>` after each finished sentence.

    >>> typed_history("Hi there! See you")
    ['Hi', 'there', '</s>', 'See', 'you']
    """
    if not isinstance(context, str):
        return context
    words = [word for sentence in normalize(context) for word in (*sentence, _END)]
    return words if is_ended(context) else words[:-1]


class Languages:
    """One or more packed models, each with the posterior probability of its language."""

    def __init__(self, models: Sequence[PackedModel], options: LanguageOptions | None = None) -> None:
        if not models:
            raise FedgramError("a keyboard needs at least one model")
        self.models, self.options = tuple(models), options or LanguageOptions()
        self._uniform = np.full(len(self.models), -math.log(len(self.models)))

    def state(self, context: str | Sequence[str] = ()) -> LanguagesState:
        """The state after a context."""
        words = typed_history(context)
        if len(self.models) == 1:
            return LanguagesState((self.models[0].state(words),), self._uniform)
        state = self.start()
        for word in words[-MEMORY:]:
            state = self.advance(state, word)
        return state

    def start(self) -> LanguagesState:
        """The state before the first word: all languages are equally likely."""
        return LanguagesState(tuple(model.state() for model in self.models), self._uniform)

    def advance(self, state: LanguagesState, word: str) -> LanguagesState:
        """The state after one more word, or after the end of a sentence, `</s>`."""
        options = self.options
        if word == _END:
            return LanguagesState(self.start().states, self._change(state.log_posterior, options.sentence_switch))
        steps = [self._step(model, own, word) for model, own in zip(self.models, state.states, strict=True)]
        known = any(model.known_id(word) != UNK for model in self.models)
        evidence = np.array([log_p if known else 0.0 for log_p, _ in steps])
        return LanguagesState(
            tuple(after for _, after in steps), self._change(state.log_posterior + evidence, options.switch)
        )

    def _step(self, model: PackedModel, state: LongArray, word: str) -> tuple[float, LongArray]:
        """(log p of a word as evidence of the language, the next state)."""
        word_id = model.known_id(word)
        log_p, after = model.step(state, word_id)
        log_p = log_p if math.isfinite(log_p) else LOG_UNKNOWN
        return log_p + (self.options.unknown if word_id == UNK else 0.0), after

    def _change(self, log_weights: FloatArray, switch: float) -> FloatArray:
        """The normalised log-posterior, after a possible change of the language."""
        weights = np.exp(log_weights - log_weights.max())
        changed: FloatArray = np.log((1.0 - switch) * weights / weights.sum() + switch / len(weights))
        return changed

    def posterior(self, context: str | Sequence[str] = ()) -> FloatArray:
        """The probability of each language for the next word."""
        posterior: FloatArray = np.exp(self.state(context).log_posterior)
        return posterior

    def knows(self, word: str) -> bool:
        """Whether a model has the word as it is written."""
        return any(model.word_id(word) != UNK for model in self.models)

    def word_ids(self, words: Sequence[str]) -> LongArray:
        """The ids of words, a row per model; that of `<unk>` for unknown words."""
        return np.array([[model.word_id(word) for word in words] for model in self.models], np.int64)

    def probabilities(self, state: LanguagesState, word_ids: LongArray) -> FloatArray:
        """p(word | state) of words given by `word_ids`; 0 for words that no model knows."""
        total = np.zeros(word_ids.shape[1])
        for model, own, log_weight, ids in zip(self.models, *state, word_ids, strict=True):
            total += np.where(ids == UNK, 0.0, np.exp(log_weight + _log_probs(model.arrays, own, ids)))
        return total

    def predict(self, context: str | Sequence[str] = (), k: int = 3, prefix: str = "") -> list[Prediction]:
        """The k most probable words after a context that start with a typed prefix, exactly."""
        if len(self.models) == 1:
            return self.models[0].predict(typed_history(context), k, prefix)
        return self.predict_from(self.state(context), k, prefix)

    def predict_from(self, state: LanguagesState, k: int = 3, prefix: str = "") -> list[Prediction]:
        """The k most probable words in a state that start with a typed prefix, exactly.

        The best of each model are merged. Words beyond them are at most as probable as the last ones of the models
        together, so more are asked for until that no longer reaches the k-th.
        """
        count = k
        while True:
            found = [
                model.predict_ids(own, count, prefix) for model, own in zip(self.models, state.states, strict=True)
            ]
            rows, beyond = self._merged(state, found, count)
            best = sorted(rows, key=lambda row: (-row.log_p, row.word))[:k]
            exact = beyond == 0.0 or (len(best) == k and math.exp(best[-1].log_p) >= beyond)
            if exact or count == MAX_PREDICTIONS:
                return best
            count = min(2 * count, MAX_PREDICTIONS)

    def _merged(
        self, state: LanguagesState, found: list[tuple[LongArray, FloatArray]], count: int
    ) -> tuple[list[Prediction], float]:
        """(the words that the models found, the greatest probability that any other word may have)."""
        words = sorted({m.word(w) for m, (ids, _) in zip(self.models, found, strict=True) for w in ids.tolist()})
        p = self.probabilities(state, self.word_ids(words)) if words else np.zeros(0)
        beyond = sum(
            math.exp(weight + log_p[-1])
            for weight, (_, log_p) in zip(state.log_posterior.tolist(), found, strict=True)
            if len(log_p) == count
        )
        rows = [Prediction(word, math.log(x)) for word, x in zip(words, p.tolist(), strict=True) if x > 0.0]
        return rows, beyond


@kernel
def _log_probs(arrays: FileArrays, state: LongArray, ids: LongArray) -> FloatArray:
    """Log p of many words in one state."""
    result, after = np.empty(len(ids)), np.zeros_like(state)
    for i in range(len(ids)):
        result[i] = step(arrays, state, ids[i], after)
    return result
