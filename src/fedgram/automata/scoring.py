"""Log-probabilities and perplexity of sentences under a model."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.topology import find_arc, state_lengths
from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.corpus import corpus_of, read_corpus
from fedgram.text.vocabulary import EOS, UNK


class WeightedArcs(NamedTuple):
    """The arrays of a model as one argument for kernels, in the order in which `step` takes them.

    The first four are those of the topology, `log_weight` is per arc and `log_backoff` per state.
    """

    first_arc: LongArray
    label: IntArray
    dest: IntArray
    backoff: IntArray
    log_weight: FloatArray
    log_backoff: FloatArray


def weighted_arcs(model: NGramModel) -> WeightedArcs:
    """The arrays of a model as one argument for kernels."""
    return WeightedArcs(*model.topology.arrays, model.log_weight, model.log_backoff)


@dataclass(frozen=True, slots=True)
class Score:
    """Totals over a text. `words` includes `oov`, the out-of-vocabulary words; sentence ends are not words.

    An out-of-vocabulary word is scored as `<unk>`. A model without `<unk>` cannot score it: the word does not count in
    `nats` or the perplexity, and the next word is read at the empty history. `oov_nats` is the part of `nats` that
    out-of-vocabulary words have.
    """

    sentences: int
    words: int
    oov: int
    oov_scored: bool
    nats: float
    oov_nats: float = 0.0

    @property
    def log_p(self) -> float:
        """The natural logarithm of the text's probability."""
        return -self.nats

    @property
    def perplexity(self) -> float:
        """exp(nats / symbols), where every scored word and every sentence end is a symbol."""
        symbols = self.words + self.sentences - (0 if self.oov_scored else self.oov)
        return float(np.exp(self.nats / symbols)) if symbols else float("nan")

    @property
    def perplexity_without_oov(self) -> float:
        """The perplexity of words in the vocabulary and sentence ends; unknown words count as history only."""
        symbols = self.words + self.sentences - self.oov
        return float(np.exp((self.nats - self.oov_nats) / symbols)) if symbols else float("nan")


def _check_ids(model: NGramModel, sentences: Ragged) -> None:
    ids = sentences.values
    if len(ids) and not (ids.min() >= 0 and ids.max() < len(model.vocabulary)):
        raise InvariantError("a word id is outside the model's vocabulary")


def sentence_log_probs(model: NGramModel, sentences: Ragged) -> FloatArray:
    """Log p of every sentence including its end; ids are those of the model's vocabulary."""
    _check_ids(model, sentences)
    return _score(weighted_arcs(model), model.topology.start, sentences.values, sentences.offsets)[0]


def score(model: NGramModel, sentences: Ragged) -> Score:
    """Score a text."""
    _check_ids(model, sentences)
    log_p, oov_log_p = _score(weighted_arcs(model), model.topology.start, sentences.values, sentences.offsets)
    return Score(
        sentences=len(sentences),
        words=len(sentences.values),
        oov=int(np.sum(sentences.values == UNK)),
        oov_scored=model.has_unknown,
        nats=-float(log_p.sum()),
        oov_nats=-float(oov_log_p.sum()),
    )


def word_log_probs(model: NGramModel, sentences: Ragged) -> tuple[FloatArray, IntArray]:
    """Log p of every word and sentence end, and the length of the n-gram that gave it; −inf and 0 if none did."""
    _check_ids(model, sentences)
    start, depth = model.topology.start, state_lengths(model.topology)
    return _score_words(weighted_arcs(model), start, depth, sentences.values, sentences.offsets)


def score_text(model: NGramModel, text: str | Path | Iterable[str]) -> Score:
    """Score a file with one sentence per line, or sentences."""
    words = model.vocabulary
    corpus = read_corpus([text], words) if isinstance(text, str | Path) else corpus_of(text, words)
    return score(model, corpus.sentences)


@kernel
def step(
    first_arc: LongArray, label: IntArray, dest: IntArray, backoff: IntArray,
    log_weight: FloatArray, log_backoff: FloatArray, q: int, x: int,
) -> tuple[float, int]:  # fmt: skip
    """(log p(x|q), the state after reading x); (−inf, 0) if no state on q's backoff path reads x."""
    total = 0.0
    while True:
        e = find_arc(label, first_arc[q], first_arc[q + 1], x)
        if e >= 0:
            return total + log_weight[e], dest[e]
        if backoff[q] < 0:
            return -np.inf, 0
        total += log_backoff[q]
        q = backoff[q]


@kernel
def step_on(a: WeightedArcs, q: int, x: int) -> tuple[float, int]:
    """`step` with the arrays as one argument."""
    return step(a.first_arc, a.label, a.dest, a.backoff, a.log_weight, a.log_backoff, q, x)


@kernel
def _score(arcs: WeightedArcs, start: int, values: IntArray, offsets: LongArray) -> tuple[FloatArray, FloatArray]:
    """Log p of every sentence, and the part of it that unknown words have."""
    result, unknown = np.zeros(len(offsets) - 1), np.zeros(len(offsets) - 1)
    for s in range(len(offsets) - 1):
        q = start
        for i in range(offsets[s], offsets[s + 1] + 1):
            x = values[i] if i < offsets[s + 1] else EOS
            log_p, q = step_on(arcs, q, x)
            if log_p > -np.inf:
                result[s] += log_p
                if x == UNK:
                    unknown[s] += log_p
    return result, unknown


@kernel
def _score_words(
    arcs: WeightedArcs, start: int, depth: IntArray, values: IntArray, offsets: LongArray
) -> tuple[FloatArray, IntArray]:
    symbols = len(values) + len(offsets) - 1
    result, length = np.empty(symbols), np.zeros(symbols, np.int32)
    at = 0
    for s in range(len(offsets) - 1):
        q = start
        for i in range(offsets[s], offsets[s + 1] + 1):
            x = values[i] if i < offsets[s + 1] else EOS
            read = q
            while read >= 0 and find_arc(arcs.label, arcs.first_arc[read], arcs.first_arc[read + 1], x) < 0:
                read = arcs.backoff[read]
            length[at] = depth[read] + 1 if read >= 0 else 0
            result[at], q = step_on(arcs, q, x)
            at += 1
    return result, length
