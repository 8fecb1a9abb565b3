"""Capitals of unknown words: a word that Δ lacks is capitalised as the words of Δ with the same ending are.

The share of capitals among the words with an ending of at most four letters is estimated with the share of the next
shorter ending as its prior. The prior of the empty ending is 1/2.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np

_LETTERS = 4
_PRIOR = 5.0  # a shorter ending counts like so many words; tuned on sentences 5, 15, 25 … of the supplements


def suffix_logits(words: Iterable[str]) -> dict[str, float]:
    """The log odds of a capital for every suffix of at most four letters of the words.

    >>> logits = suffix_logits(["Anton", "Milton", "nation"])
    >>> logits["ton"] > logits["on"] > logits["ion"]
    True
    """
    total: Counter[str] = Counter()
    capitals: Counter[str] = Counter()
    for word in words:
        suffixes = _suffixes(word.lower())
        total.update(suffixes)
        if word[:1].isupper():
            capitals.update(suffixes)
    share = {"": 0.5}
    for suffix in sorted(total, key=len):
        share[suffix] = (capitals[suffix] + _PRIOR * share[suffix[1:]]) / (total[suffix] + _PRIOR)
    return {suffix: float(np.log(p / (1.0 - p))) for suffix, p in share.items()}


def capital_logit(logits: dict[str, float], word: str) -> float:
    """The log odds of a capital for a lower-case word, by its longest known suffix."""
    return next(logits[suffix] for suffix in _suffixes(word) if suffix in logits)


def _suffixes(word: str) -> list[str]:
    """The suffixes of at most four letters, the longest first and the empty one last."""
    return [word[i:] for i in range(max(0, len(word) - _LETTERS), len(word) + 1)]
