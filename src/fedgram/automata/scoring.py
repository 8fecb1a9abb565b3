"""What a model says of sentences: log-probabilities and perplexity."""

from dataclasses import dataclass

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.topology import find_arc
from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import EOS, UNK


@dataclass(frozen=True, slots=True)
class Score:
    """Totals over a text; `words` includes `oov`, sentence ends are not words.

    An out-of-vocabulary word is scored as `<unk>`. If the model has no `<unk>` it cannot be scored: it is left out of
    `nats` and of the perplexity, and the next word is read without history.
    """

    sentences: int
    words: int
    oov: int
    oov_scored: bool
    nats: float

    @property
    def perplexity(self) -> float:
        """exp(nats / symbols), where every scored word and every sentence end is a symbol."""
        symbols = self.words + self.sentences - (0 if self.oov_scored else self.oov)
        return float(np.exp(self.nats / symbols)) if symbols else float("nan")


def sentence_log_probs(model: NGramModel, sentences: Ragged) -> FloatArray:
    """Log p of every sentence, its end included; ids are those of the model's vocabulary."""
    t = model.topology
    ids = sentences.values
    if len(ids) and not (ids.min() >= 0 and ids.max() < len(model.vocabulary)):
        raise InvariantError("a word's id is not one of the model's vocabulary")
    return _score(
        t.first_arc, t.label, t.dest, t.backoff, model.log_weight, model.log_backoff, t.start,
        sentences.values, sentences.offsets,
    )  # fmt: skip


def score(model: NGramModel, sentences: Ragged) -> Score:
    """Score a text."""
    return Score(
        sentences=len(sentences),
        words=len(sentences.values),
        oov=int(np.sum(sentences.values == UNK)),
        oov_scored=model.has_unknown,
        nats=-float(sentence_log_probs(model, sentences).sum()),
    )


@kernel
def step(
    first_arc: LongArray, label: IntArray, dest: IntArray, backoff: IntArray,
    log_weight: FloatArray, log_backoff: FloatArray, q: int, x: int,
) -> tuple[float, int]:  # fmt: skip
    """(log p(x|q), the state after reading x); (−inf, 0) for a label that nothing reads."""
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
def _score(
    first_arc: LongArray, label: IntArray, dest: IntArray, backoff: IntArray, log_weight: FloatArray,
    log_backoff: FloatArray, start: int, values: IntArray, offsets: LongArray,
) -> FloatArray:  # fmt: skip
    result = np.zeros(len(offsets) - 1)
    for s in range(len(offsets) - 1):
        q = start
        for i in range(offsets[s], offsets[s + 1] + 1):
            x = values[i] if i < offsets[s + 1] else EOS
            log_p, q = step(first_arc, label, dest, backoff, log_weight, log_backoff, q, x)
            if log_p > -np.inf:
                result[s] += log_p
    return result
