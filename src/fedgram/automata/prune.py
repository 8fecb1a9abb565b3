"""Making a model smaller: keep some n-grams, let the others back off. Relative-entropy pruning after Stolcke (1998)."""

import numpy as np

from fedgram.automata.counting import counts_from_visits, expected_visits, summed_counts
from fedgram.automata.model import NGramModel, model_from_weights
from fedgram.automata.topology import END, Topology, arc_sources, backoff_arcs, entering_arcs
from fedgram.core.arrays import BoolArray, FloatArray, IntArray, LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import EOS

_NEVER = 1e-300


def closed_under_parents(topology: Topology, keep: BoolArray) -> BoolArray:
    """`keep`, all unigrams, and every n-gram that one of them needs: itself without its first or its last word."""
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
    """The topology of the kept arcs, which must be closed under parents; they stay in order."""
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
    result = np.zeros(len(backoff), np.int32)
    for q in range(1, len(backoff)):
        result[q] = q if is_state[q] else result[backoff[q]]
    return result


def keep_ngrams(model: NGramModel, keep: BoolArray) -> NGramModel:
    """The model with only these n-grams and what they need; their probabilities stay, backoff weights are refitted."""
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
    """The most useful n-grams, at most `max_ngrams` of them; unigrams are never dropped.

    N-grams of equal use stay or go together, so that the result does not depend on how words are numbered; with
    `split_ties` the shorter and earlier of them stay, and the budget is met exactly. See `relative_entropy_scores` for
    `expected_histories`.
    """
    unigrams = int(model.topology.first_arc[1])
    if max_ngrams < unigrams:
        raise FedgramError(
            f"cannot prune to {max_ngrams} n-grams: the vocabulary alone has {unigrams} unigrams; ask for more n-grams"
        )
    if max_ngrams >= model.topology.arcs:
        return model
    scores = relative_entropy_scores(model, expected_histories=expected_histories)
    return keep_ngrams(model, best_ngrams(scores, max_ngrams, split_ties=split_ties))


def best_ngrams(scores: FloatArray, count: int, *, split_ties: bool = False) -> BoolArray:
    """The `count` n-grams of highest score; fewer where the cut would run through equal scores, unless told to split.

    Where no n-gram scores higher than its parents, the result is closed under parents.
    """
    ranked = np.argsort(-scores, kind="stable")
    if not split_ties:
        while 0 < count < len(ranked) and _tied(scores[ranked[count - 1]], scores[ranked[count]]):
            count -= 1
    keep = np.zeros(len(scores), bool)
    keep[ranked[:count]] = True
    return keep


def _tied(better: float, worse: float) -> bool:
    return bool(np.isfinite(better) and better - worse <= 1e-9 * abs(better))  # closer than the scores' own rounding


def relative_entropy_scores(model: NGramModel, *, expected_histories: bool = False) -> FloatArray:
    """By how many nats a word the model changes if an n-gram is dropped; for an n-gram that others need, at least
    as much as for them; infinite for unigrams.

    A history's probability is the product of its words' weights, as Stolcke has it, which is little for words that
    come up mostly in longer n-grams, such as those with the capital of a first word; or if `expected_histories`, how
    often the model says it, for which the model must be normalised.
    """
    t = model.topology
    lower, entering, source = backoff_arcs(t), entering_arcs(t), arc_sources(t)
    history = _expected_log_probs(model) if expected_histories else _history_log_probs(model, entering, source)
    scores = _relative_entropy(t.first_arc, t.backoff, lower, history, model.log_weight, model.log_backoff)
    _raise_parents(scores, lower, entering, source)
    return scores


def _history_log_probs(model: NGramModel, entering: IntArray, source: IntArray) -> FloatArray:
    t = model.topology
    end = int(np.searchsorted(t.label[: t.first_arc[1]], EOS))
    return _accumulate_history(entering, source, model.log_weight, t.start, float(model.log_weight[end]))


def _expected_log_probs(model: NGramModel) -> FloatArray:
    """Log p(h) by how often the model passes through h; all its positions pass through the empty history."""
    _, through = summed_counts(counts_from_visits(model, expected_visits(model, tolerance=1e-9), 1.0))
    log_p: FloatArray = np.log(np.maximum(through / through[0], _NEVER))
    return log_p


@kernel
def _accumulate_history(
    entering: IntArray, source: IntArray, log_weight: FloatArray, start: int, log_end: float
) -> FloatArray:
    """Log p(h), word by word from the unigrams on; p(<s>) is the probability of a sentence end."""
    result = np.zeros(len(entering))
    for q in range(1, len(entering)):
        if q == start:
            result[q] = log_end
        elif entering[q] >= 0:
            result[q] = result[source[entering[q]]] + log_weight[entering[q]]
    return result


@kernel
def _relative_entropy(
    first_arc: LongArray, backoff: IntArray, lower: IntArray, log_history: FloatArray, log_weight: FloatArray,
    log_backoff: FloatArray,
) -> FloatArray:  # fmt: skip
    """−p(h)·{ p·[log p' + log α' − log p] + N·[log α' − log α] } with α' = (N + p)/(D + p')."""
    scores = np.full(len(log_weight), np.inf)
    for q in range(1, len(backoff)):
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
    for e in range(len(scores) - 1, -1, -1):
        if lower[e] >= 0:
            scores[lower[e]] = max(scores[lower[e]], scores[e])
            prefix = entering[source[e]]
            if prefix >= 0:
                scores[prefix] = max(scores[prefix], scores[e])
