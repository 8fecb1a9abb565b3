"""Weights of a mixture of models, fitted to text by expectation-maximisation.

The log-likelihood Σ_t log Σ_i λ_i·p_i(x_t|h_t) of a text is concave in the weights λ. A step of EM gives every model
the mean of its posterior λ_i·p_i / Σ_j λ_j·p_j, which never lowers the likelihood and keeps the weights a distribution.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.scoring import WeightedArcs, step_on, weighted_arcs
from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.text.corpus import Corpus
from fedgram.text.vocabulary import EOS, UNK, Vocabulary

TOLERANCE = 1e-10
MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class FittedWeights:
    """Weights that sum to 1, the number of EM steps, and the perplexity of the text before (equal weights) and after.

    Words that no model knows are left out.
    """

    weights: tuple[float, ...]
    steps: int
    symbols: int
    perplexity_before: float
    perplexity: float


def joint_vocabulary(models: Sequence[NGramModel]) -> Vocabulary:
    """The words of all models, in their order."""
    return Vocabulary.of(word for model in models for word in model.vocabulary.words)


def fit_weights(
    models: Sequence[NGramModel], text: Corpus, *, on_step: Callable[[int], object] | None = None
) -> FittedWeights:
    """The weights of the linear mixture that make the text most likely.

    The text is over the models' joint vocabulary. As in the mixture itself, a model gives the probability 0 to a word
    that only another model knows; a word that no model knows is `<unk>` to all of them.
    """
    p = np.stack([_probabilities(renormalize(model), text) for model in models], axis=1)
    p = p[p.max(axis=1) > 0]
    if not len(p):
        raise FedgramError("the models know no word of the text; check that they are of one language and case")
    weights = np.full(len(models), 1.0 / len(models))
    before, steps = float(np.log(p @ weights).mean()), 0
    while steps < MAX_STEPS:
        moved = _posterior_means(p, weights)
        steps += 1
        change = float(np.abs(moved - weights).max())
        weights = moved
        if on_step:
            on_step(1)
        if change < TOLERANCE:
            break
    after = float(np.log(p @ weights).mean())
    fitted = tuple(float(w) for w in weights / weights.sum())
    return FittedWeights(fitted, steps, len(p), float(np.exp(-before)), float(np.exp(-after)))


def _probabilities(model: NGramModel, text: Corpus) -> FloatArray:
    """p(x|h) of every word and sentence end of the text."""
    known = np.array([model.vocabulary.index.get(word, -1) for word in text.vocabulary.words], np.int32)
    known[UNK] = UNK if model.has_unknown else -1
    ids = known[text.sentences.values]
    result: FloatArray = np.exp(_log_probs(weighted_arcs(model), model.topology.start, ids, text.sentences.offsets))
    return result


@kernel
def _log_probs(arcs: WeightedArcs, start: int, values: IntArray, offsets: LongArray) -> FloatArray:
    result = np.empty(len(values) + len(offsets) - 1)
    at = 0
    for s in range(len(offsets) - 1):
        q = start
        for i in range(offsets[s], offsets[s + 1] + 1):
            x = values[i] if i < offsets[s + 1] else EOS
            if x < 0:
                result[at], q = -np.inf, 0
            else:
                result[at], q = step_on(arcs, q, x)
            at += 1
    return result


@kernel
def _posterior_means(p: FloatArray, weights: FloatArray) -> FloatArray:
    total = np.zeros(len(weights))
    for t in range(len(p)):
        mixed = 0.0
        for i in range(len(weights)):
            mixed += weights[i] * p[t, i]
        for i in range(len(weights)):
            total[i] += weights[i] * p[t, i] / mixed
    return total / len(p)
