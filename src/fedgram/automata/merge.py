"""Merging models or counts, and changing the unigrams of a model."""

from collections.abc import Iterable, Mapping, Sequence

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


def merge(
    *models: NGramModel, weight: float | None = None, weights: Sequence[float] | None = None, method: str = "linear"
) -> NGramModel:
    """The mixture of two or more models on the union of their n-grams; their vocabularies may differ.

    p(w|h) = Σ λ_i·p_i(w|h) for every n-gram hw of any model. Each model uses its own backoff, and the probability of a
    word that it does not know is 0. With the linear method, λ are the weights. With the Bayesian method, the weights
    are priors, and λ_i(h) ∝ weight_i·p_i(h) is the posterior probability that model i produced the history.

    Args:
        models: Two or more models.
        weight: The weight of the first of two models; the default is equal weights.
        weights: The weights of all models; they are scaled to sum to 1.
        method: One of `METHODS`.
    """
    if method not in METHODS:
        raise FedgramError(f"unknown merging method {method!r}; choose one of {', '.join(METHODS)}")
    shares = _shares(len(models), weight, weights)
    pairs = [(renormalize(model), share) for model, share in zip(models, shares, strict=True) if share > 0]
    if len(pairs) == 1:
        return pairs[0][0]
    used = [model for model, _ in pairs]
    vocabulary, topology, _ = _unite(*used)
    log_p = []
    for model in used:
        known = np.array([model.vocabulary.index.get(word, -1) for word in vocabulary.words], np.int32)
        image = image_states(topology, model, known)
        log_p.append(conditional_log_weights(topology, model, image, known))
    share = np.repeat(np.array([[share] for _, share in pairs]), topology.states, axis=1)
    if method == "bayes":
        share = _posterior(share, np.stack([_history_likelihoods(topology, one) for one in log_p]))
    source = arc_sources(topology)
    mixed = np.zeros(topology.arcs)
    for own, one in zip(share, log_p, strict=True):
        mixed += own[source] * np.exp(one)
    return model_from_weights(topology, vocabulary, mixed)


def _shares(models: int, weight: float | None, weights: Sequence[float] | None) -> list[float]:
    """The weight of each model, with the sum 1."""
    if models < 2:
        raise FedgramError("there must be at least two models to merge")
    if weight is not None:
        if models != 2 or weights is not None:
            raise FedgramError("a single weight is for two models; give the weights of all models instead")
        if not 0.0 <= weight <= 1.0:
            raise FedgramError(f"the merging weight must be between 0 and 1, not {weight}")
        return [weight, 1.0 - weight]
    given = [1.0] * models if weights is None else [float(w) for w in weights]
    if len(given) != models:
        raise FedgramError(f"there are {models} models, but {len(given)} weights")
    if not all(0.0 <= w < np.inf for w in given) or not sum(given) > 0.0:
        raise FedgramError("the merging weights must be at least 0, and one of them more")
    return [w / sum(given) for w in given]


def _posterior(prior: FloatArray, log_histories: FloatArray) -> FloatArray:
    """λ_i(h) ∝ prior_i·p_i(h), per model and history."""
    log_joint = np.log(prior) + np.maximum(log_histories, -1e4)
    odds = np.exp(log_joint - log_joint.max(axis=0))
    share: FloatArray = odds / odds.sum(axis=0)
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


def _unite(*parts: NGramModel | NGramCounts) -> tuple[Vocabulary, Topology, list[IntArray]]:
    """The union of the vocabularies, the first one's words first; the union of n-grams; and the new arcs of each."""
    vocabulary = Vocabulary.of(word for part in parts for word in part.vocabulary.words)
    runs = []
    for part in parts:
        ngrams, new_id = ngrams_of(part.topology), np.array(vocabulary.encode(part.vocabulary.words), np.int32)
        runs.append(Ragged(new_id[ngrams.values], ngrams.offsets))
    any_open = any(has_unknown(part.topology) for part in parts)
    built = topology_from_ngrams(Ragged.concatenate(runs), len(vocabulary), open_vocabulary=any_open)
    return vocabulary, built.topology, np.split(built.arc, np.cumsum([len(run) for run in runs])[:-1])


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
