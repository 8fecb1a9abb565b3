"""Sentence log-likelihood and perplexity. Paper: §7.1.

    SLL   = Σ_i log p(x_i | x_1 … x_{i−1})          an OOV word scored as <unk>
    SLL^e = the same without the words outside 𝒱

Both are sums over the words of a sentence, without its end, averaged over sentences. Perplexity is per symbol, where
the symbols are the words of 𝒱 and the sentence ends. 𝒱 is the same for all models that are compared: the words that
every one of them has (`typed_text`). A model that lacks a word is therefore not spared it while others pay for it.

Words outside 𝒱 are read as history, and only SLL scores them. A model without `<unk>` cannot score its OOV words, so
SLL leaves them out, and is comparable only between models with the same OOV words. A word of 𝒱 to which a model gives
no probability costs −log p = 99 nats.

In uncased evaluation, p is the probability of the uncased word, the sum over its cased variants: a cased model is not
penalised for predicting capitals. The history stays as it was typed.

A user's sum of nats is rounded to a multiple of `GRID`. So sums over users are exact in any order, and devices that
send their own sums in fixed point give the same figures as an evaluation of the same users in one place.
"""

import numpy as np

from fedgram.automata.model import MIN_LOG
from fedgram.core.arrays import BoolArray, FloatArray, sum_by
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.predictor import Judgement
from fedgram.evaluate.typed_text import TypedText

GRID = 2.0**-24  # nats


def perplexity(text: TypedText, judgement: Judgement) -> Measure:
    """The exponential of the mean −log p per word of 𝒱 and sentence end, per user."""
    ended = np.isfinite(judgement.end_log_prob)
    nats = -_sums(text, np.maximum(judgement.log_prob, MIN_LOG), text.in_shared)
    nats -= sum_by(text.sentence_user[ended], judgement.end_log_prob[ended], text.users)
    symbols = sum_by(text.user, text.in_shared.astype(float), text.users)
    symbols += sum_by(text.sentence_user, ended.astype(float), text.users)
    return Measure(_on_grid(nats), symbols, exponential=True)


def sentence_log_likelihood(text: TypedText, judgement: Judgement, *, with_oov: bool) -> Measure:
    """SLL, or SLL^e over the words of 𝒱, in nats per sentence, per user."""
    log_prob = np.where(text.in_shared, np.maximum(judgement.log_prob, MIN_LOG), judgement.log_prob)
    scored = np.isfinite(log_prob) if with_oov else text.in_shared
    sentences = np.bincount(text.sentence_user, minlength=text.users).astype(float)
    return Measure(_on_grid(_sums(text, log_prob, scored)), sentences)


def _sums(text: TypedText, log_prob: FloatArray, scored: BoolArray) -> FloatArray:
    return sum_by(text.user[scored], log_prob[scored], text.users)


def _on_grid(nats: FloatArray) -> FloatArray:
    return np.rint(nats / GRID) * GRID
