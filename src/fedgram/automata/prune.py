"""Making a model smaller: relative-entropy pruning after Stolcke (1998). Dropped n-grams are read by backing off."""

from numbers import Integral

import numpy as np

from fedgram.automata.counting import counts_from_visits, expected_visits, summed_counts
from fedgram.automata.model import NGramModel, model_from_weights
from fedgram.automata.topology import END, Topology, arc_sources, backoff_arcs, entering_arcs
from fedgram.core.arrays import BoolArray, FloatArray, IntArray, LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import EOS

_MIN_HISTORY = 1e-300  # the probability of a history that the model never produces


def closed_under_parents(topology: Topology, keep: BoolArray) -> BoolArray:
    """`keep`, plus all unigrams and all parents: every kept n-gram without its first and without its last word."""
    keep = keep.copy()
    keep[: topology.first_arc[1]] = True
    _close(keep, backoff_arcs(topology), entering_arcs(topology), arc_sources(topology))
    return keep


@kernel
def _close(keep: BoolArray, lower: IntArray, entering: IntArray, source: IntArray) -> None:
    for e in range(len(keep) - 1, -1, -1):
        if keep[e]:
            if lower[e] >= 0:
                keep[lower[e]] = True
            if entering[source[e]] >= 0:
                keep[entering[source[e]]] = True


def subtopology(topology: Topology, keep: BoolArray) -> Topology:
    """The topology of the kept arcs, in the same order. They must be closed under parents."""
    t = topology
    is_state = np.add.reduceat(np.append(keep, False), np.minimum(t.first_arc[:-1], t.arcs)) > 0
    is_state &= np.diff(t.first_arc) > 0
    is_state[[0, t.start]] = True
    number = np.cumsum(is_state) - 1
    suffix_state = _longest_kept_suffix(is_state, t.backoff)
    dest = t.dest[keep]
    per_state = np.bincount(arc_sources(t)[keep], minlength=t.states)[is_state]
    backoff = t.backoff[is_state]
    return Topology(
        np.concatenate([[0], np.cumsum(per_state)]).astype(np.int64),
        t.label[keep],
        np.where(dest == END, END, number[suffix_state[np.maximum(dest, 0)]]).astype(np.int32),
        np.where(backoff < 0, -1, number[suffix_state[np.maximum(backoff, 0)]]).astype(np.int32),
        start=int(number[t.start]),
    )


@kernel
def _longest_kept_suffix(is_state: BoolArray, backoff: IntArray) -> IntArray:
    """For each state, the first state on its backoff path that is kept."""
    result = np.zeros(len(backoff), np.int32)
    for q in range(1, len(backoff)):
        result[q] = q if is_state[q] else result[backoff[q]]
    return result


def keep_ngrams(model: NGramModel, keep: BoolArray) -> NGramModel:
    """The model with only these n-grams and their parents, with the same probabilities and new backoff weights."""
    keep = closed_under_parents(model.topology, keep)
    return model_from_weights(subtopology(model.topology, keep), model.vocabulary, np.exp(model.log_weight[keep]))


def prune_to_threshold(model: NGramModel, theta: float) -> NGramModel:
    """Drop the n-grams whose removal raises the model's perplexity by less than a factor of 1 + θ."""
    if not theta >= 0:
        raise FedgramError(f"the pruning threshold must be at least 0, not {theta}")
    return keep_ngrams(model, relative_entropy_scores(model) >= np.log1p(theta))


def prune_to_size(
    model: NGramModel, max_ngrams: int, *, split_ties: bool = False, expected_histories: bool = False
) -> NGramModel:
    """The model with its highest-scoring n-grams, at most `max_ngrams` of them; unigrams are never dropped.

    N-grams of equal score are kept or dropped together, so the result does not depend on the numbering of the words.
    With `split_ties` the shorter and earlier of them are kept, so that exactly `max_ngrams` remain. See
    `relative_entropy_scores` for `expected_histories`.
    """
    unigrams = int(model.topology.first_arc[1])
    if not isinstance(max_ngrams, Integral):
        raise FedgramError(f"max_ngrams must be a whole number of n-grams, not {max_ngrams!r}")
    if max_ngrams < unigrams:
        raise FedgramError(
            f"cannot prune to {max_ngrams} n-grams: the vocabulary has {unigrams} unigrams; allow at least that many"
        )
    if max_ngrams >= model.topology.arcs:
        return model
    scores = relative_entropy_scores(model, expected_histories=expected_histories)
    return keep_ngrams(model, best_ngrams(scores, max_ngrams, split_ties=split_ties))


def best_ngrams(scores: FloatArray, count: int, *, split_ties: bool = False) -> BoolArray:
    """The `count` n-grams with the highest scores; fewer if the cut falls between equal scores, unless `split_ties`.

    If no n-gram scores higher than its parents, the result is closed under parents.
    """
    ranked = np.argsort(-scores, kind="stable")
    if not split_ties:
        while 0 < count < len(ranked) and _tied(scores[ranked[count - 1]], scores[ranked[count]]):
            count -= 1
    keep = np.zeros(len(scores), bool)
    keep[ranked[:count]] = True
    return keep


def _tied(better: float, worse: float) -> bool:
    return bool(np.isfinite(better) and better - worse <= 1e-9 * abs(better))  # within the scores' rounding error


def relative_entropy_scores(model: NGramModel, *, expected_histories: bool = False) -> FloatArray:
    """The change of the model in nats per word if an n-gram is dropped.

    The score of an n-gram is at least that of every n-gram it is a parent of. The score of a unigram is infinite.

    The probability of a history is the product of the weights of its words, as in Stolcke's paper. This is too small
    for words that occur mostly in longer n-grams, such as the capitalised first word of a sentence. With
    `expected_histories` it is the expected frequency of the history; the model must then be normalised.
    """
    t = model.topology
    lower, entering, source = backoff_arcs(t), entering_arcs(t), arc_sources(t)
    history = _expected_log_probs(model) if expected_histories else _history_log_probs(model, entering, source)
    scores = _relative_entropy(t.first_arc, lower, history, model.log_weight, model.log_backoff)
    _raise_parents(scores, lower, entering, source)
    return scores


def _history_log_probs(model: NGramModel, entering: IntArray, source: IntArray) -> FloatArray:
    t = model.topology
    end = int(np.searchsorted(t.label[: t.first_arc[1]], EOS))
    return _accumulate_history(entering, source, model.log_weight, t.start, float(model.log_weight[end]))


def _expected_log_probs(model: NGramModel) -> FloatArray:
    """Log p(h) as the share of the model's visits that pass through h; all pass through the empty history."""
    _, through = summed_counts(counts_from_visits(model, expected_visits(model, tolerance=1e-9), 1.0))
    log_p: FloatArray = np.log(np.maximum(through / through[0], _MIN_HISTORY))
    return log_p


@kernel
def _accumulate_history(
    entering: IntArray, source: IntArray, log_weight: FloatArray, start: int, log_end: float
) -> FloatArray:
    """Log p(h) as a sum over the words of h; p(<s>) is the probability of a sentence end."""
    result = np.zeros(len(entering))
    for q in range(1, len(entering)):
        if q == start:
            result[q] = log_end
        elif entering[q] >= 0:
            result[q] = result[source[entering[q]]] + log_weight[entering[q]]
    return result


@kernel
def _relative_entropy(
    first_arc: LongArray, lower: IntArray, log_history: FloatArray, log_weight: FloatArray, log_backoff: FloatArray
) -> FloatArray:
    """−p(h)·{ p·[log p' + log α' − log p] + N·[log α' − log α] } with α' = (N + p)/(D + p').

    p = p(w|h) and p' = p(w|h') are the probabilities of the n-gram and of its backoff, α and α' the backoff weights of
    h with and without the n-gram. N = 1 − Σ p and D = 1 − Σ p' are sums over all n-grams of h.
    """
    scores = np.full(len(log_weight), np.inf)
    for q in range(1, len(log_backoff)):
        N, D = 1.0, 1.0
        for e in range(first_arc[q], first_arc[q + 1]):
            N -= np.exp(log_weight[e])
            D -= np.exp(log_weight[lower[e]])
        N, D = max(N, 0.0), max(D, 0.0)
        for e in range(first_arc[q], first_arc[q + 1]):
            p, p_lower = np.exp(log_weight[e]), np.exp(log_weight[lower[e]])
            log_alpha = np.log((N + p) / (D + p_lower))
            change = p * (log_weight[lower[e]] + log_alpha - log_weight[e]) + N * (log_alpha - log_backoff[q])
            scores[e] = -np.exp(log_history[q]) * change
    return scores


@kernel
def _raise_parents(scores: FloatArray, lower: IntArray, entering: IntArray, source: IntArray) -> None:
    """Raise the score of every parent to that of its n-grams, longest n-grams first."""
    for e in range(len(scores) - 1, -1, -1):
        if lower[e] >= 0:
            scores[lower[e]] = max(scores[lower[e]], scores[e])
            prefix = entering[source[e]]
            if prefix >= 0:
                scores[prefix] = max(scores[prefix], scores[e])
