"""A model in the form that simple keyboards use: expected counts of n-grams, and words with their next words.

The unigrams of a smoothed model are not word frequencies (Kneser-Ney counts the contexts of a word). So occurrences are
computed from the whole model: C(x, q) over its sentences, plus the occurrences of all longer n-grams. Word lists leave
out placeholders such as `<url>`, sentence marks, and words with characters that the file formats do not allow.
"""

from dataclasses import dataclass

import numpy as np

from fedgram.automata.approximate import count_source
from fedgram.automata.model import NGramModel
from fedgram.automata.topology import arc_sources, backoff_arcs, entering_arcs, state_lengths
from fedgram.core.arrays import FloatArray, LongArray, frozen
from fedgram.text.vocabulary import SPECIAL

MOST_FREQUENT, LEAST_FREQUENT = 255, 15
_LEAST = 1e-30


@dataclass(frozen=True, slots=True, eq=False)
class WordPairs:
    """Words by descending probability, each with its best next words; all have log-probabilities."""

    words: tuple[str, ...]
    log_p: FloatArray
    following: tuple[tuple[tuple[int, float], ...], ...]
    """The next words of each word as (index, log p), by descending probability."""

    def frequency(self, log_p: float) -> int:
        """A log-probability on the scale 0–255: 255 for probability 1, 15 for the rarest word, linear in between."""
        rarest = min(float(self.log_p[-1]), -1.0)
        scaled = MOST_FREQUENT - (MOST_FREQUENT - LEAST_FREQUENT) * log_p / rarest
        return int(np.clip(round(scaled), LEAST_FREQUENT, MOST_FREQUENT))


def occurrences(model: NGramModel) -> FloatArray:
    """The expected number of occurrences of each n-gram per sentence."""
    t = model.topology
    result = count_source(model, t).counts.arc.copy()
    lower, level = backoff_arcs(t), state_lengths(t)[arc_sources(t)]
    for n in range(int(level.max()), 0, -1):
        arcs = np.flatnonzero(level == n)
        np.add.at(result, lower[arcs], result[arcs])
    return np.maximum(result, _LEAST)


def expected_counts(model: NGramModel, size: int) -> LongArray:
    """The expected count of each n-gram in a text of `size` words and sentence ends, at least 1."""
    found = occurrences(model)
    scale = size / found[: model.topology.first_arc[1]].sum()
    counts: LongArray = np.maximum(np.rint(found * scale), 1).astype(np.int64)
    return counts


def word_pairs(model: NGramModel, *, bigrams: int, words: int | None = None) -> WordPairs:
    """At most `words` words of the model, with at most `bigrams` next words each."""
    t, names = model.topology, model.vocabulary.words
    count, ids = occurrences(model), t.label[: t.first_arc[1]]
    frequency = np.zeros(len(names))
    frequency[ids] = count[: len(ids)]
    plain = np.array([_is_plain(name) for name in names])
    kept = ids[plain[ids]]
    kept = kept[np.lexsort((kept, -frequency[kept]))][: words or len(kept)]
    index = np.full(len(names), -1, np.int64)
    index[kept] = np.arange(len(kept))
    entering = entering_arcs(t)
    singles = np.flatnonzero((state_lengths(t) == 1) & (entering >= 0))
    state = np.full(len(names), -1, np.int64)
    state[t.label[entering[singles]]] = singles
    following: list[tuple[tuple[int, float], ...]] = []
    for word in kept.tolist():
        q = state[word]
        arcs = np.arange(t.first_arc[q], t.first_arc[q + 1]) if q >= 0 else np.zeros(0, np.int64)
        arcs = arcs[index[t.label[arcs]] >= 0]
        best = arcs[np.argsort(-count[arcs], kind="stable")][:bigrams]
        log_p = np.minimum(np.log(count[best] / frequency[word]), 0.0)
        following.append(tuple(zip(index[t.label[best]].tolist(), log_p.tolist(), strict=True)))
    log_unigram = np.log(frequency[kept] / frequency.sum())
    return WordPairs(tuple(names[i] for i in kept.tolist()), frozen(log_unigram), tuple(following))


def _is_plain(word: str) -> bool:
    return word not in SPECIAL and not word.startswith("<") and not any(c in ",=\\" or ord(c) < 32 for c in word)
