"""Capitalisation spelled out: every casing of a sentence is tried, and ratios are quotients of probabilities."""

from collections import defaultdict
from itertools import product
from math import inf, log

from tests.reference.dict_model import DictModel, NGram

from fedgram.automata.model import MIN_WEIGHT
from fedgram.text.vocabulary import BOS, EOS, SPECIAL, Vocabulary


def variants_by_class(vocabulary: Vocabulary) -> dict[str, list[int]]:
    classes: dict[str, list[int]] = defaultdict(list)
    for y, word in enumerate(vocabulary.words):
        classes[word if word.lower() in SPECIAL else word.lower()].append(y)
    return dict(classes)


def log_prob(model: DictModel, sentence: NGram) -> float:
    """Log p of a sentence and its end; what nothing reads costs nothing and clears the history."""
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
