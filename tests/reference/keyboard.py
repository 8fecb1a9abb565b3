"""A keyboard with three suggestions: the readable reference of the predictors."""

import math
from collections.abc import Callable
from functools import cache

from fedgram.automata.model import NGramModel
from fedgram.automata.scoring import step
from fedgram.text.normalize import PLACEHOLDERS, uncase
from fedgram.text.vocabulary import EOS, SPECIAL, UNK, Vocabulary

LogProbability = Callable[[tuple[int, ...], int], float]  # log p(word | ids of the sentence so far)


def ngram_log_probability(model: NGramModel) -> LogProbability:
    """The log p of single words, equal to the last bit to those of the predictors, so that ties are the same."""
    t = model.topology
    arrays = t.first_arc, t.label, t.dest, t.backoff, model.log_weight, model.log_backoff

    @cache
    def state(history: tuple[int, ...]) -> int:
        return step(*arrays, state(history[:-1]), history[-1])[1] if history else t.start

    @cache
    def log_probability(history: tuple[int, ...], x: int) -> float:
        return float(step(*arrays, state(history), x)[0])

    return log_probability


class Keyboard:
    def __init__(self, vocabulary: Vocabulary, log_probability: LogProbability, *, cased: bool) -> None:
        self.words, self.log_p, self.cased = vocabulary.words, log_probability, cased

    def form(self, word: str) -> str:
        return word if self.cased else uncase(word)

    def suggestions(self, history: tuple[int, ...], typed: str = "") -> list[str]:
        """The three forms to show, the best first."""
        ids = [i for i, word in enumerate(self.words) if word not in SPECIAL + PLACEHOLDERS]
        ids = [i for i in ids if uncase(self.words[i]).startswith(typed) and self.log_p(history, i) > -math.inf]
        ranked = sorted(ids, key=lambda i: (-self.log_p(history, i), i))
        return list(dict.fromkeys(self.form(self.words[i]) for i in ranked))[:3]

    def judge(self, history: tuple[int, ...], typed: str) -> tuple[float, int, int]:
        """The log p of the typed word, its place among the suggestions (3: none), and the letters it takes."""
        form = self.form(typed)
        variants = [i for i, word in enumerate(self.words) if self.form(word) == form and word not in SPECIAL]
        p = sum(math.exp(self.log_p(history, i)) for i in variants or [UNK])
        shown = self.suggestions(history)
        rank = shown.index(form) if form in shown else 3
        letters = len(uncase(typed))
        needed = next((n for n in range(letters) if form in self.suggestions(history, uncase(typed)[:n])), letters)
        return (math.log(p) if p else -math.inf), rank, needed

    def end(self, history: tuple[int, ...]) -> float:
        return self.log_p(history, EOS)
