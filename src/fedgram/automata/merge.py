"""Merging two models or two counts, and changing the unigrams of a model."""

from collections.abc import Iterable, Mapping

import numpy as np

from fedgram.automata.build import ngrams_of, relabel, topology_from_ngrams
from fedgram.automata.counting import conditional_log_weights, image_states
from fedgram.automata.model import NGramCounts, NGramModel, has_unknown, model_from_weights, renormalize
from fedgram.automata.topology import Topology, arc_sources, entering_arcs
from fedgram.core.arrays import FloatArray, IntArray, Ragged, sum_by
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import EOS, SPECIAL, UNK, Vocabulary

METHODS = ("linear", "bayes")


def merge(a: NGramModel, b: NGramModel, *, weight: float = 0.5, method: str = "linear") -> NGramModel:
    """The mixture of two models on the union of their n-grams; their vocabularies may differ.

    p(w|h) = λ·p_a(w|h) + (1−λ)·p_b(w|h) for every n-gram hw of either model. Each model uses its own backoff, and the
    probability of a word that it does not know is 0. With the linear method, λ is `weight`. With the Bayesian method,
    `weight` is the prior of a, and λ(h) ∝ weight·p_a(h) is the posterior probability that a produced the history.
    """
    if method not in METHODS:
        raise FedgramError(f"unknown merging method {method!r}; choose one of {', '.join(METHODS)}")
    if not 0.0 <= weight <= 1.0:
        raise FedgramError(f"the merging weight must be between 0 and 1, not {weight}")
    a, b = renormalize(a), renormalize(b)
    if weight in (0.0, 1.0):
        return a if weight else b
    vocabulary, topology, _ = _unite(a, b)
    share = np.full(topology.states, weight)
    log_p, histories = [], []
    for model in (a, b):
        known = np.array([model.vocabulary.index.get(word, -1) for word in vocabulary.words], np.int32)
        image = image_states(topology, model, known)
        log_p.append(conditional_log_weights(topology, model, image, known))
        histories.append(_history_likelihoods(topology, log_p[-1]))
    if method == "bayes":
        share = _posterior(weight, *histories)
    by_arc = share[arc_sources(topology)]
    return model_from_weights(topology, vocabulary, by_arc * np.exp(log_p[0]) + (1.0 - by_arc) * np.exp(log_p[1]))


def _posterior(weight: float, log_a: FloatArray, log_b: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        log_odds = (np.log(weight) + np.maximum(log_a, -1e4)) - (np.log1p(-weight) + np.maximum(log_b, -1e4))
    share: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(log_odds, -700.0, 700.0)))
    return share


def _history_likelihoods(topology: Topology, log_p: FloatArray) -> FloatArray:
    """Log p(h): the sum of the log-probabilities of the words of h; that of `<s>` is 0."""
    return _accumulate(entering_arcs(topology), arc_sources(topology), log_p)


@kernel
def _accumulate(entering: IntArray, source: IntArray, log_p: FloatArray) -> FloatArray:
    result = np.zeros(len(entering))
    for q in range(1, len(entering)):
        if entering[q] >= 0:
            result[q] = result[source[entering[q]]] + log_p[entering[q]]
    return result


def merge_counts(a: NGramCounts, b: NGramCounts, *, weight_a: float = 1.0, weight_b: float = 1.0) -> NGramCounts:
    """The weighted sum of counts on the union of the n-grams and vocabularies."""
    if not (weight_a >= 0.0 and weight_b >= 0.0):
        raise FedgramError("the weights of counts must be at least 0")
    vocabulary, topology, (arc_a, arc_b) = _unite(a, b)
    count = weight_a * sum_by(arc_a, a.count, topology.arcs)
    return NGramCounts(topology, vocabulary, count + weight_b * sum_by(arc_b, b.count, topology.arcs))


def _unite(
    a: NGramModel | NGramCounts, b: NGramModel | NGramCounts
) -> tuple[Vocabulary, Topology, tuple[IntArray, IntArray]]:
    """The union of the vocabularies, a's words first; the union of the n-grams; and the new arcs of a and b."""
    vocabulary = Vocabulary.of([*a.vocabulary.words, *b.vocabulary.words])
    ngrams_a, ngrams_b = ngrams_of(a.topology), ngrams_of(b.topology)
    new_id = np.array(vocabulary.encode(b.vocabulary.words), np.int32)
    runs = Ragged.concatenate([ngrams_a, Ragged(new_id[ngrams_b.values], ngrams_b.offsets)])
    either_open = has_unknown(a.topology) or has_unknown(b.topology)
    built = topology_from_ngrams(runs, len(vocabulary), open_vocabulary=either_open)
    return vocabulary, built.topology, (built.arc[: len(ngrams_a)], built.arc[len(ngrams_a) :])


def renumber(model: NGramModel, vocabulary: Vocabulary) -> NGramModel:
    """The same model over a vocabulary with the same words in another order."""
    new_id = np.array([vocabulary.index[word] for word in model.vocabulary.words], np.int32)
    built = relabel(model.topology, new_id, len(vocabulary))
    weight = np.empty(built.topology.arcs)
    weight[built.arc] = np.exp(model.log_weight)
    return model_from_weights(built.topology, vocabulary, weight)


def replace_unigrams(model: NGramModel, frequency: Mapping[str, float], *, weight: float = 1.0) -> NGramModel:
    """The model with its unigrams in proportion to `frequency`; new words are added as unigrams.

    The sentence end, `<unk>` and all longer n-grams keep their probabilities. Words of the model that have no frequency
    get the smallest positive one. With a `weight` below 1, the unigrams are mixed with the model's own. Paper: §3.
    """
    if not 0.0 <= weight <= 1.0:
        raise FedgramError(f"the weight of the unigrams must be between 0 and 1, not {weight}")
    given = _frequencies(frequency)
    if not any(word in model.vocabulary for word in given):
        raise FedgramError("the unigrams share no word with the model's vocabulary; check language and case")
    model = _with_words(renormalize(model), given)
    t, own = model.topology, np.exp(model.log_weight)
    labels = t.label[: t.first_arc[1]]
    least = min(given.values())
    new = np.array([given.get(model.vocabulary.words[x], least) for x in labels.tolist()])
    kept = (labels == EOS) | (labels == UNK)
    new[kept] = 0.0
    new *= (1.0 - own[: len(labels)][kept].sum()) / new.sum()
    new[kept] = own[: len(labels)][kept]
    mixed = weight * new + (1.0 - weight) * own[: len(labels)]
    return model_from_weights(t, model.vocabulary, np.concatenate([mixed, own[len(labels) :]]))


def split_unknown(model: NGramModel, frequency: Mapping[str, float]) -> NGramModel:
    """The model with the new words of `frequency`, which share the probability of the unigram `<unk>` in proportion.

    Everything else stays the same: the unigrams of a KL minimum are probabilities given a backoff, and marginal
    frequencies would be worse. `<unk>` keeps as much probability as the rarest of the new words.
    """
    if not model.has_unknown:
        raise FedgramError("the model has no <unk> to share with new words; train it with an open vocabulary")
    tail = {word: f for word, f in _frequencies(frequency).items() if word not in model.vocabulary}
    if not tail:
        return renormalize(model)
    model = _with_words(renormalize(model), tail)
    t, own = model.topology, np.exp(model.log_weight)
    new = np.array([tail.get(model.vocabulary.words[x], 0.0) for x in t.label[: t.first_arc[1]].tolist()])
    new[UNK] = min(tail.values())
    unigrams = np.where(new > 0, new / new.sum() * own[UNK], own[: len(new)])
    return model_from_weights(t, model.vocabulary, np.concatenate([unigrams, own[len(new) :]]))


def _frequencies(frequency: Mapping[str, float]) -> dict[str, float]:
    """The positive frequencies of ordinary words."""
    if not all(np.isfinite(f) and f >= 0 for f in frequency.values()):
        raise FedgramError("word frequencies must be finite and at least 0")
    return {word: f for word, f in frequency.items() if f > 0 and word not in SPECIAL}


def _with_words(model: NGramModel, words: Iterable[str]) -> NGramModel:
    """The model over a vocabulary with these words added; their probability is almost 0."""
    vocabulary = Vocabulary.of([*model.vocabulary.words, *words])
    if len(vocabulary) == len(model.vocabulary):
        return model
    ngrams = ngrams_of(model.topology)
    built = topology_from_ngrams(ngrams, len(vocabulary), open_vocabulary=model.has_unknown)
    weight = np.zeros(built.topology.arcs)
    weight[built.arc] = np.exp(model.log_weight)
    return model_from_weights(built.topology, vocabulary, weight)
