"""Reference capitalisation: every casing of a sentence is tried, and shares and ratios are quotients of sums."""

from collections import defaultdict
from itertools import product
from math import inf, log

from tests.reference.dict_model import DictModel, NGram

from fedgram.automata.model import MIN_WEIGHT, NGramModel
from fedgram.text.vocabulary import BOS, EOS, SPECIAL, Vocabulary


class CaseAwareModel(DictModel):
    """The model with case-aware backoff: a history's remaining probability is split by case."""

    def __init__(self, model: NGramModel) -> None:
        super().__init__(model)
        self.capitals = {y for y, word in enumerate(model.vocabulary.words) if word[0].isupper()}
        self.factors: dict[NGram, tuple[float, float]] = {}

    def prob(self, history: NGram, x: int) -> float:
        if (*history, x) in self.p or not history:
            return self.p.get((*history, x), 0.0)
        if history not in self.factors:
            self.factors[history] = self.split(history)
        factor = self.factors[history][x in self.capitals]
        return factor * self.backoff.get(history, 1.0) * self.prob(history[1:], x)

    def split(self, history: NGram) -> tuple[float, float]:
        """(1 - t) / (1 - s) and t / s, where s is the share of capitals in what remains, and t the new share."""
        read = [y for y in range(self.words) if (*history, y) in self.p]
        left = {y: self.prob(history[1:], y) for y in range(self.words) if y not in read and y != BOS}
        capitals = sum(p for y, p in left.items() if y in self.capitals)
        others = sum(p for y, p in left.items() if y not in self.capitals)
        if min(capitals, others) < 1e-6:
            return 1.0, 1.0
        s = capitals / (capitals + others)
        t = (sum(y in self.capitals for y in read) + 10 * s) / (len(read) + 10)
        return (1 - t) / (1 - s), t / s


def variants_by_class(vocabulary: Vocabulary) -> dict[str, list[int]]:
    classes: dict[str, list[int]] = defaultdict(list)
    for y, word in enumerate(vocabulary.words):
        classes[word if word.lower() in SPECIAL else word.lower()].append(y)
    return dict(classes)


def log_prob(model: DictModel, sentence: NGram) -> float:
    """Log p of a sentence and its end; a word that no state reads costs nothing and clears the history."""
    history: NGram = (BOS,)
    total = 0.0
    for y in (*sentence, EOS):
        p = model.prob(history, y)
        total += log(p) if p else 0.0
        history = (*history, y) if p else ()
    return total


def casings(model: DictModel, vocabulary: Vocabulary, sentence: list[str]) -> list[tuple[float, NGram]]:
    """(log p, ids) of every casing of a sentence of uncased words, best first."""
    classes = variants_by_class(vocabulary)
    every = product(*(classes[x] for x in sentence))
    return sorted(((log_prob(model, casing), casing) for casing in every), reverse=True)


def case_ratio(model: DictModel, vocabulary: Vocabulary, history: NGram, y: int) -> float:
    """r(y|h) = p(y|h) / Σ p(y'|h) over the class of y; else without history; else 1 / the size of the class."""
    [members] = [ys for ys in variants_by_class(vocabulary).values() if y in ys]
    for h in (history, ()):
        p = {member: model.prob(h, member) for member in members}
        if max(p.values(), default=-inf) > MIN_WEIGHT * (1 + 1e-9):
            return p[y] / sum(p.values())
    return 1.0 / len(members)
