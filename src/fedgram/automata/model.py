"""N-gram models and n-gram counts: a topology with numbers on it.

Invariants of `NGramModel` (checked in full by `properties`); natural logarithms, float64:

- N1  all weights are finite, and those of arcs are ≤ 0.
- N2  at every state the probabilities of all labels sum to 1 ± 1e-9.
- N3  w_q[φ] = (1 − Σ_{x∈L[q]} w_q[x]) / (1 − Σ_{x∈L[q]} p(x | backoff q)).

A model read from a foreign file keeps the file's numbers, which may satisfy N2 and N3 only to the file's precision;
`renormalize` establishes them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.automata.topology import Topology, backoff_arcs
from fedgram.core.arrays import FloatArray, IntArray, LongArray, frozen
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.core.lazy import lazy
from fedgram.text.vocabulary import SPECIAL, UNK, Vocabulary

MIN_LOG = -99.0  # the weight of what has no probability left; OpenGrm's "effective zero"
MIN_WEIGHT = float(np.exp(MIN_LOG))


@dataclass(frozen=True, slots=True, eq=False)
class NGramModel:
    """A probability model on a topology; `log_backoff[0]` is 0 and means nothing."""

    topology: Topology
    vocabulary: Vocabulary
    log_weight: FloatArray
    log_backoff: FloatArray

    def __post_init__(self) -> None:
        if len(self.log_weight) != self.topology.arcs or len(self.log_backoff) != self.topology.states:
            raise InvariantError("NGramModel: weights and topology differ in size")
        if not (np.isfinite(self.log_weight).all() and np.isfinite(self.log_backoff).all()):
            raise InvariantError("NGramModel: a weight is not finite")
        if len(self.log_weight) and self.log_weight.max() > 0:
            raise InvariantError("NGramModel: a probability is greater than 1")
        frozen(self.log_weight)
        frozen(self.log_backoff)

    @property
    def has_unknown(self) -> bool:
        """Whether `<unk>` has a probability; if not, the vocabulary is closed."""
        return has_unknown(self.topology)

    def __repr__(self) -> str:
        words = len(self.vocabulary) - len(SPECIAL)
        return f"NGramModel(order {self.topology.order}, {self.topology.arcs:,} n-grams, {words:,} words)"

    @classmethod
    def train(
        cls, text: str | Path | Iterable[str], *, order: int = 3, smoothing: str = "modified-kneser-ney",
        vocab: str | Path | Iterable[str] | None = None, max_ngrams: int | None = None, **settings: Any,
    ) -> "NGramModel":  # fmt: skip
        """Train a model on text.

        Args:
            text: A file with one sentence per line and words separated by blanks (may be packed), or sentences.
            order: Length of the longest n-gram.
            smoothing: katz, witten-bell, absolute, kneser-ney or modified-kneser-ney.
            vocab: The words to use, or a file with one word per line; everything else becomes `<unk>`.
            max_ngrams: Prune to at most this many n-grams.
            settings: `higher_order_words`, `min_count` and `open_vocabulary`, as for `fedgram ngram train`.
        """
        settings |= {"order": order, "smoothing": smoothing, "vocab": vocab, "max_ngrams": max_ngrams}
        model: NGramModel = lazy(".automata.training:train_on")(text, **settings)
        return model

    def score(self, sentence: str) -> float:
        """The natural logarithm of a sentence's probability, its end included; unknown words are `<unk>`.

        Without `<unk>` in the vocabulary, unknown words are left out.
        """
        log_p: float = lazy(".automata.scoring:score_text")(self, [sentence]).log_p
        return log_p

    def perplexity(self, text: str | Path | Iterable[str]) -> float:
        """The perplexity per word and sentence end of a file with one sentence per line, or of sentences."""
        perplexity: float = lazy(".automata.scoring:score_text")(self, text).perplexity
        return perplexity

    def sample(self, n: int = 10, *, seed: int = 0) -> list[str]:
        """Sentences drawn from the model."""
        sentences: list[str] = lazy(".automata.sampling:sample_texts")(self, n, seed=seed)
        return sentences

    def prune(self, max_ngrams: int) -> "NGramModel":
        """The model with its most useful n-grams (by relative entropy), at most `max_ngrams`; unigrams stay."""
        pruned: NGramModel = lazy(".automata.prune:prune_to_size")(renormalize(self), max_ngrams)
        return pruned


@dataclass(frozen=True, slots=True, eq=False)
class NGramCounts:
    """How often each n-gram of a topology occurs; counts may be fractions."""

    topology: Topology
    vocabulary: Vocabulary
    count: FloatArray

    def __post_init__(self) -> None:
        if len(self.count) != self.topology.arcs:
            raise InvariantError("NGramCounts: counts and topology differ in size")
        if not np.isfinite(self.count).all() or (len(self.count) and self.count.min() < 0):
            raise InvariantError("NGramCounts: a count is negative or not finite")
        frozen(self.count)


def has_unknown(topology: Topology) -> bool:
    """Whether the unigram state reads `<unk>`."""
    return bool(topology.first_arc[1] > 0 and topology.label[0] == UNK)


def model_from_weights(topology: Topology, vocabulary: Vocabulary, weight: FloatArray) -> NGramModel:
    """The model with these arc probabilities, and the backoff weights that N2 and N3 demand.

    The unigrams are scaled to sum to 1. A state's arcs are scaled down where they sum to more than 1, and scaled to
    exactly 1 where nothing is left to back off to.
    """
    weight = np.maximum(weight, MIN_WEIGHT)
    log_backoff = _fit_backoffs(topology.first_arc, topology.label, topology.backoff, backoff_arcs(topology), weight)
    return NGramModel(topology, vocabulary, np.minimum(np.log(weight), 0.0), log_backoff)


def renormalize(model: NGramModel) -> NGramModel:
    """The same arc probabilities, with N2 and N3 established."""
    return model_from_weights(model.topology, model.vocabulary, np.exp(model.log_weight))


@kernel
def uncovered(first_arc: LongArray, label: IntArray, q: int, below: int, weight: FloatArray) -> float:
    """The weight of the arcs of state `below` whose labels q does not read."""
    total, e = 0.0, first_arc[q]
    for f in range(first_arc[below], first_arc[below + 1]):
        if e < first_arc[q + 1] and label[e] == label[f]:
            e += 1
        else:
            total += weight[f]
    return total


@kernel
def _fit_backoffs(
    first_arc: LongArray, label: IntArray, backoff: IntArray, lower: IntArray, weight: FloatArray
) -> FloatArray:
    """Log w_q[φ] of N3 for every state; scales `weight` in place where N2 could not hold otherwise."""
    states = len(backoff)
    rest = np.zeros(states)  # 1 − Σ_{L[q]} w_q
    log_backoff = np.zeros(states)
    for q in range(states):
        begin, end = first_arc[q], first_arc[q + 1]
        total, lower_total = 0.0, 0.0
        for e in range(begin, end):
            total += weight[e]
            if q:
                lower_total += weight[lower[e]]
        room = 0.0
        if q:
            room = 1.0 - lower_total
            if room < 1e-3:  # the difference has cancelled: add up what is not in L[q] instead
                room = rest[backoff[q]] + uncovered(first_arc, label, q, backoff[q], weight)
        if total > 1.0 or room <= 1e-30:
            for e in range(begin, end):
                weight[e] /= total
            total = 1.0
        rest[q] = 1.0 - total
        if q:
            log_backoff[q] = np.log(rest[q] / room) if rest[q] > 0.0 and room > 0.0 else MIN_LOG
            log_backoff[q] = max(log_backoff[q], MIN_LOG)
    return log_backoff
