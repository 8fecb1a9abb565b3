"""Log-probabilities and perplexity of sentences under a model."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.topology import find_arc
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
    `nats` or the perplexity, and the next word is read at the empty history.
    """

    sentences: int
    words: int
    oov: int
    oov_scored: bool
    nats: float

    @property
    def log_p(self) -> float:
        """The natural logarithm of the text's probability."""
        return -self.nats

    @property
    def perplexity(self) -> float:
        """exp(nats / symbols), where every scored word and every sentence end is a symbol."""
        symbols = self.words + self.sentences - (0 if self.oov_scored else self.oov)
        return float(np.exp(self.nats / symbols)) if symbols else float("nan")


def sentence_log_probs(model: NGramModel, sentences: Ragged) -> FloatArray:
    """Log p of every sentence including its end; ids are those of the model's vocabulary."""
    ids = sentences.values
    if len(ids) and not (ids.min() >= 0 and ids.max() < len(model.vocabulary)):
        raise InvariantError("a word id is outside the model's vocabulary")
    return _score(weighted_arcs(model), model.topology.start, sentences.values, sentences.offsets)


def score(model: NGramModel, sentences: Ragged) -> Score:
    """Score a text."""
    return Score(
        sentences=len(sentences),
        words=len(sentences.values),
        oov=int(np.sum(sentences.values == UNK)),
        oov_scored=model.has_unknown,
        nats=-float(sentence_log_probs(model, sentences).sum()),
    )


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
def _score(arcs: WeightedArcs, start: int, values: IntArray, offsets: LongArray) -> FloatArray:
    result = np.zeros(len(offsets) - 1)
    for s in range(len(offsets) - 1):
        q = start
        for i in range(offsets[s], offsets[s + 1] + 1):
            x = values[i] if i < offsets[s + 1] else EOS
            log_p, q = step_on(arcs, q, x)
            if log_p > -np.inf:
                result[s] += log_p
    return result
