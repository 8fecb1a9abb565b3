"""Sentence log-likelihood and perplexity. Paper: §7.1.

    SLL   = Σ_i log p(x_i | x_1 … x_{i−1})          an OOV word scored as <unk>
    SLL^e = the same without the terms of OOV words

Both are sums over the words of a sentence, without its end, averaged over sentences. Perplexity is per symbol: each
word and each sentence end is a symbol, and an OOV word is scored as `<unk>`. A model without `<unk>` cannot score OOV
words; they are then left out of both the sum and the count, as in `fedgram ngram perplexity`. Such values are
comparable only between models with the same OOV words.

In uncased evaluation, p is the probability of the uncased word, the sum over its cased variants: a cased model is not
penalised for predicting capitals. The history stays as it was typed.
"""

import numpy as np

from fedgram.core.arrays import BoolArray, FloatArray, sum_by
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.predictor import Judgement
from fedgram.evaluate.typed_text import UNKNOWN, TypedText


def perplexity(text: TypedText, judgement: Judgement) -> Measure:
    """The exponential of the mean −log p per symbol, per user."""
    scored, ended = np.isfinite(judgement.log_prob), np.isfinite(judgement.end_log_prob)
    nats = -_sums(text, judgement.log_prob, scored)
    nats -= sum_by(text.sentence_user[ended], judgement.end_log_prob[ended], text.users)
    symbols = sum_by(text.user, scored.astype(float), text.users)
    symbols += sum_by(text.sentence_user, ended.astype(float), text.users)
    return Measure(nats, symbols, exponential=True)


def sentence_log_likelihood(text: TypedText, judgement: Judgement, *, with_oov: bool) -> Measure:
    """SLL, or SLL^e without OOV words, in nats per sentence, per user."""
    scored = np.isfinite(judgement.log_prob)
    if not with_oov:
        scored &= text.target != UNKNOWN
    sentences = np.bincount(text.sentence_user, minlength=text.users).astype(float)
    return Measure(_sums(text, judgement.log_prob, scored), sentences)


def _sums(text: TypedText, log_prob: FloatArray, scored: BoolArray) -> FloatArray:
    return sum_by(text.user[scored], log_prob[scored], text.users)
