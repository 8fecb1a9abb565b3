"""SampleApprox with an n-gram model as its source: one n-gram model approximated on the topology of another.

The distribution of the source depends only on its state, so it is enough to count visits to states: exactly, by
solving for their expectation, or by sampling sentences.
"""

from dataclasses import dataclass

import numpy as np

from fedgram.automata.build import ngrams_of, topology_from_ngrams, union_topology
from fedgram.automata.counting import (
    TopologyCounts,
    counts_from_visits,
    cross_entropy,
    expected_visits,
    express_on,
    fold_counts,
)
from fedgram.automata.kl_minimize import minimize_kl, summed_model
from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.sampling import sampled_visits
from fedgram.automata.topology import Topology
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.text.vocabulary import UNK, Vocabulary

METHODS = ("kl-min", "summed")


@dataclass(frozen=True, slots=True, eq=False)
class SourceCounts:
    """Counts of a source model on a topology, and the source's entropy and number of symbols, both per sentence."""

    counts: TopologyCounts
    entropy: float
    symbols: float


@dataclass(frozen=True, slots=True, eq=False)
class Approximation:
    """A model and its exact distance from the source: KL = cross-entropy − entropy, in nats per sentence."""

    model: NGramModel
    source: SourceCounts
    cross_entropy: float

    @property
    def kl(self) -> float:
        """The divergence D(source ‖ model) in nats per sentence."""
        return self.cross_entropy - self.source.entropy


def approximate(
    source: NGramModel, topology: Topology, *, method: str = "kl-min", samples: int | None = None, seed: int = 0
) -> Approximation:
    """The model on `topology` closest to the source (`kl-min`), or the source averaged over it (`summed`).

    The topology must be over the source's vocabulary (see `adopt_topology`). Counts are exact expectations unless a
    number of samples is given.
    """
    if method not in METHODS:
        raise FedgramError(f"unknown method {method!r}; choose one of {', '.join(METHODS)}")
    counted = count_source(source, topology, samples=samples, seed=seed)
    if method == "summed":
        model = summed_model(counted.counts, source.vocabulary)
    else:
        model = minimize_kl(counted.counts, source.vocabulary, prior_visits=0.0 if samples is None else 1.0)
    if samples is not None:  # the KL divergence is from the source itself, not from the samples
        counted = count_source(source, topology)
    return Approximation(model, counted, cross_entropy(counted.counts, model))


def count_source(source: NGramModel, topology: Topology, *, samples: int | None = None, seed: int = 0) -> SourceCounts:
    """Count the source on the topology, exactly or by sampling."""
    if samples is not None and samples < 1:
        raise FedgramError(f"the number of samples must be at least 1, not {samples}")
    source = renormalize(source)
    union, (_, own) = union_topology([source.topology, topology], len(source.vocabulary))
    refined = express_on(source, union)
    if samples is None:
        counts = counts_from_visits(refined, expected_visits(refined), 1.0)
    else:
        counts = counts_from_visits(refined, sampled_visits(refined, samples, seed=seed), float(samples))
    return SourceCounts(
        fold_counts(counts, topology, own),
        entropy=cross_entropy(counts, refined),
        symbols=float(counts.visits.sum() / counts.sentences),
    )


def adopt_topology(topology: Topology, own: Vocabulary, words: Vocabulary, *, open_vocabulary: bool) -> Topology:
    """The topology, which is over the vocabulary `own`, over the vocabulary `words` of a source.

    N-grams with words that the source does not know are dropped. The source's other words are added as unigrams.
    """
    new_id = np.array([words.index.get(word, -1) for word in own.words], np.int32)
    if not open_vocabulary:
        new_id[UNK] = -1
    ngrams = ngrams_of(topology)
    ids = new_id[ngrams.values]
    keep = np.logical_and.reduceat(ids >= 0, ngrams.offsets[:-1]) if len(ids) else np.zeros(0, bool)
    kept = Ragged(ids, ngrams.offsets).select(keep)
    return topology_from_ngrams(kept, len(words), open_vocabulary=open_vocabulary).topology
