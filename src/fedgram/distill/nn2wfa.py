"""NN2WFA: from an uncased network to cased n-gram models, by words or by word pieces.

Both ways count once, on a topology that holds all those asked for later: S(x, q) does not depend on the topology, so
that the counts on a large one, folded onto one within it, are those that SampleApprox would have taken there from the
same samples.

- `WordNN2WFA` is CapSampleApprox of a network of words.
- `PieceNN2WFA` lower-cases the topology, reads it piece by piece (B = M ∘ A), lets the network of word pieces count on
  it, brings the counts back to words, takes their KL minimum, and gives this uncased word model its capitals by
  CapSampleApprox, with samples of that model.
- `UncasedWordNN2WFA` does the same for a network of words, without pieces: it counts where the network computes, so
  that a GPU has all of the work.

Paper: Algorithm 1, NN2WFA_W and NN2WFA_P.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil
from typing import Protocol

import numpy as np

from fedgram.automata.approximate import adopt_topology
from fedgram.automata.build import lowercase_topology, union_topology
from fedgram.automata.compose import compose, with_unknown_as_unigram
from fedgram.automata.counting import TopologyCounts, fold_counts, image_states
from fedgram.automata.lowercase import lowercase_model
from fedgram.automata.model import NGramModel
from fedgram.automata.prune import prune_to_size
from fedgram.automata.topology import Topology, find_arc
from fedgram.automata.transfer import transfer_counts
from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.distill.casing.cap_sample_approx import cap_sample_approx, cased_counting_step, cased_topology
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_words import Casing, casing_of
from fedgram.distill.sample_approx import (
    ONE_WORKER,
    PRIOR_VISITS,
    CountingOptions,
    Fit,
    count_samples,
    fit,
    plain_counting_step,
)
from fedgram.distill.source import NGramSource, SourceModel
from fedgram.distill.spelling import spell, spellable_words
from fedgram.text.vocabulary import Vocabulary
from fedgram.text.wordpieces import WordPieces

_PRUNED_AT_ONCE = 0.7  # of the n-grams are left by a step
_BATCH = 1 << 17  # most samples of an n-gram model to count together: equal visits are counted once


class NN2WFA(Protocol):
    """A cased n-gram model of a source on the topology of another model; it counts once, when first used."""

    @property
    def counts(self) -> "Counts":
        """The counts on the union of all topologies."""

    def __call__(self, topology: NGramModel) -> Fit:
        """The model; the n-grams of `topology` are cased."""

    def widest(self) -> NGramModel:
        """The uncased model on the union of all topologies."""


class Counts:
    """Counts on a large topology, folded onto any topology within it."""

    def __init__(self, counts: TopologyCounts, vocabulary: Vocabulary) -> None:
        self.counts, self.vocabulary = counts, vocabulary

    def on(self, topology: Topology) -> TopologyCounts:
        """The same counts on a topology over the same vocabulary."""
        large = self.counts.topology
        union, (_, arc) = union_topology([large, topology], len(self.vocabulary))
        if union.arcs != large.arcs:
            raise FedgramError("a topology has n-grams that were not counted")
        return fold_counts(self.counts, topology, arc)


def fit_within(wide: Fit, max_ngrams: int) -> Fit:
    """The fit on a large topology pruned by relative entropy, step by step, each fitted to the same counts.

    What an n-gram is worth depends on what it backs off to, which is another model when many n-grams are gone.
    """
    counts, result = Counts(wide.counts, wide.model.vocabulary), wide
    while result.model.topology.arcs > max_ngrams:
        fewer = max(max_ngrams, int(result.model.topology.arcs * _PRUNED_AT_ONCE))
        pruned = prune_to_size(result.model, fewer, split_ties=True)
        result = fit(counts.on(pruned.topology), pruned.vocabulary, entropy=wide.entropy)
    return result


class WordNN2WFA:
    """NN2WFA_W: CapSampleApprox(R, topology, A_W), counted once on the union of all `topologies`."""

    def __init__(
        self,
        source: SourceModel,
        capitalizer: Capitalizer,
        topologies: Sequence[NGramModel],
        *,
        samples: int,
        seed: int,
        options: CountingOptions = ONE_WORKER,
    ) -> None:
        self.source, self.casing = source, casing_of(capitalizer, source.vocabulary)
        self.samples, self.seed, self.options = samples, seed, options
        self.topologies = [cased_topology(model, source, self.casing) for model in topologies]

    @cached_property
    def counts(self) -> Counts:
        """On the union."""
        large, _ = union_topology(self.topologies, len(self.casing.vocabulary))
        counting = cased_counting_step(self.source, self.casing, large, self.seed)
        counted = counting.finish(count_samples(counting, self.samples, self.options))
        return Counts(counted, self.casing.vocabulary)

    def __call__(self, topology: NGramModel) -> Fit:
        """CapSampleApprox on one topology."""
        return fit(self.counts.on(cased_topology(topology, self.source, self.casing)), self.casing.vocabulary)

    def widest(self) -> NGramModel:
        """The model on the union, without its capitals."""
        return lowercase_model(fit(self.counts.counts, self.casing.vocabulary).model)


class PieceNN2WFA:
    """NN2WFA_P: the same by a network of word pieces, counted once on M ∘ the union of all lower-cased topologies."""

    def __init__(
        self,
        source: SourceModel,
        capitalizer: Capitalizer,
        topologies: Sequence[NGramModel],
        *,
        pieces: WordPieces | None = None,
        samples: int,
        capital_samples: int | None = None,
        seed: int,
        options: CountingOptions = ONE_WORKER,
    ) -> None:
        self.source, self.pieces, self.capitalizer = source, pieces, capitalizer
        self.samples, self.seed, self.options = samples, seed, options
        self.capital_samples, self.unspelled = capital_samples or samples, 0
        lower = [lowercase_topology(model.topology, model.vocabulary) for model in topologies]
        self.words = self._known_words([words for _, words in lower])
        self.topologies = [self._word_topology(topology, words) for topology, words in lower]

    def _known_words(self, vocabularies: Sequence[Vocabulary]) -> Vocabulary:
        words = Vocabulary.of(word for words in vocabularies for word in words.words)
        known = spellable_words(self.source, self.pieces, words)
        self.unspelled = len(words) - len(known)
        return known

    def _word_topology(self, topology: Topology, words: Vocabulary) -> Topology:
        adopted = adopt_topology(topology, words, self.words, open_vocabulary=True)
        return with_unknown_as_unigram(adopted, len(self.words))

    @cached_property
    def counts(self) -> Counts:
        """On the union."""
        large, _ = union_topology(self.topologies, len(self.words))
        return Counts(self._count(large), self.words)

    def _count(self, topology: Topology) -> TopologyCounts:
        """C_A from C_B."""
        return count_by_pieces(
            self.source, self.pieces, topology, self.words, samples=self.samples, seed=self.seed, options=self.options
        )

    def uncased(self, topology: NGramModel) -> Fit:
        """A_W^u: the uncased word model on the lower-cased topology."""
        T = self._word_topology(*lowercase_topology(topology.topology, topology.vocabulary))
        return fit(self.counts.on(T), self.words)

    def widest(self) -> NGramModel:
        """The model on the union."""
        return fit(self.counts.counts, self.words).model

    def __call__(self, topology: NGramModel) -> Fit:
        """CapSampleApprox(A_W^u, topology, A_W)."""
        return self.capitalized(topology, self.capitalizer)

    def capitalized(self, topology: NGramModel, capitalizer: Capitalizer) -> Fit:
        """CapSampleApprox(A_W^u, topology, p_cap), where p_cap is the model of the capitaliser."""
        uncased = self.uncased(topology)
        source = NGramSource(uncased.model)
        casing = casing_of(capitalizer, source.vocabulary)
        T = cased_topology(topology, source, casing)
        cores = self.options.cores or self.options.workers
        batch = min(_BATCH, ceil(self.capital_samples / cores))
        options = CountingOptions(cores, batch, shard=batch)
        cased = cap_sample_approx(source, T, casing, samples=self.capital_samples, seed=self.seed, options=options)
        asked = _asked_uncased(cased.counts.topology, casing, uncased)
        return replace(cased, counts=replace(cased.counts, asked=asked))


def _asked_uncased(cased: Topology, casing: Casing, uncased: Fit) -> FloatArray | None:
    """How often the source was asked for each n-gram of a cased topology: as often as for the n-gram in lower case."""
    counts = uncased.counts
    if counts.asked is None:
        return None
    image = image_states(cased, uncased.model, casing.uncased_id)
    u = counts.topology
    arc = _arcs_read(cased.first_arc, casing.uncased_id[cased.label], image, u.first_arc, u.label, u.backoff)
    return counts.asked[arc]


@kernel
def _arcs_read(
    first_arc: LongArray, label: IntArray, image: IntArray, u_first_arc: LongArray, u_label: IntArray,
    u_backoff: IntArray,
) -> IntArray:  # fmt: skip
    """The arc that reads each label from the image of its state."""
    arcs = np.zeros(len(label), np.int32)
    for q in range(len(image)):
        for e in range(first_arc[q], first_arc[q + 1]):
            found, at = -1, image[q]
            while found < 0 and at >= 0:
                found = find_arc(u_label, u_first_arc[at], u_first_arc[at + 1], label[e])
                at = u_backoff[at]
            arcs[e] = found
    return arcs


class UncasedWordNN2WFA(PieceNN2WFA):
    """NN2WFA_W by way of the uncased word model, counted once on the union of all lower-cased topologies."""

    def _known_words(self, vocabularies: Sequence[Vocabulary]) -> Vocabulary:  # noqa: ARG002
        return self.source.vocabulary

    def _word_topology(self, topology: Topology, words: Vocabulary) -> Topology:
        return adopt_topology(topology, words, self.words, open_vocabulary=self.source.has_unknown)

    def _count(self, topology: Topology) -> TopologyCounts:
        counting = plain_counting_step(self.source, topology, self.seed)
        return counting.finish(count_samples(counting, self.samples, self.options))


def count_by_pieces(
    source: SourceModel,
    pieces: WordPieces | None,
    topology: Topology,
    words: Vocabulary,
    *,
    samples: int,
    seed: int,
    options: CountingOptions = ONE_WORKER,
) -> TopologyCounts:
    """Counts of a source of word pieces on a topology of words: on B = M ∘ A, brought back to A.

    The topology reads `<unk>` at the empty history alone (see `with_unknown_as_unigram`), and its words should be
    those of `spellable_words`: one that the source cannot spell is not counted. `pieces` are those of the source, None
    for one that knows how words are spelled.
    """
    composed = compose(spell(source, pieces, words), topology)
    counting = plain_counting_step(source, composed.topology, seed)
    counts = counting.finish(count_samples(counting, samples, options))
    return transfer_counts(composed, counts, prior_visits=PRIOR_VISITS)
