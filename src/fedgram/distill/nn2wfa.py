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
from functools import cached_property
from typing import Protocol, runtime_checkable

from fedgram.automata.approximate import adopt_topology
from fedgram.automata.build import lowercase_topology, union_topology
from fedgram.automata.compose import compose, with_unknown_as_unigram
from fedgram.automata.counting import TopologyCounts, fold_counts
from fedgram.automata.lexicon import Lexicon, spell_words
from fedgram.automata.model import NGramModel
from fedgram.automata.prune import prune_to_size
from fedgram.automata.topology import Topology
from fedgram.core.errors import FedgramError
from fedgram.distill.cap_sample_approx import cap_sample_approx, cased_counting_step, cased_topology
from fedgram.distill.capitalization import Capitalizer
from fedgram.distill.casing import casing_of
from fedgram.distill.sample_approx import ONE_WORKER, CountingOptions, Fit, count_samples, fit, plain_counting_step
from fedgram.distill.source import NGramSource, SourceModel
from fedgram.text.vocabulary import Vocabulary
from fedgram.text.wordpieces import WordPieces

_PRUNED_AT_ONCE = 0.7  # of the n-grams are left by a step
_BATCH = 1 << 17  # samples of an n-gram model, whose equal visits are counted once


class NN2WFA(Protocol):
    """A cased n-gram model of a source on the topology of another model."""

    def __call__(self, topology: NGramModel) -> Fit:
        """The model; the n-grams of `topology` are cased."""


@runtime_checkable
class SpellsItself(Protocol):
    """A source of word pieces that knows the code of every word."""

    def spell(self, words: Vocabulary) -> Lexicon:
        """The lexicon of a vocabulary over its labels."""


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
        self.capital_samples = capital_samples or samples
        lower = [lowercase_topology(model.topology, model.vocabulary) for model in topologies]
        self.words = self._known_words([words for _, words in lower])
        self.topologies = [self._word_topology(topology, words) for topology, words in lower]

    def _known_words(self, vocabularies: Sequence[Vocabulary]) -> Vocabulary:
        return Vocabulary.of(word for words in vocabularies for word in words.words)

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

    def __call__(self, topology: NGramModel) -> Fit:
        """CapSampleApprox(A_W^u, topology, A_W)."""
        source = NGramSource(self.uncased(topology).model)
        casing = casing_of(self.capitalizer, source.vocabulary)
        T = cased_topology(topology, source, casing)
        options = CountingOptions(self.options.workers, _BATCH, shard=_BATCH)
        return cap_sample_approx(source, T, casing, samples=self.capital_samples, seed=self.seed, options=options)


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

    The topology reads `<unk>` at the empty history alone (see `with_unknown_as_unigram`). `pieces` are those of the
    source, None for one that knows how words are spelled.
    """
    lexicon = source.spell(words) if isinstance(source, SpellsItself) else None
    if lexicon is None:
        if pieces is None:
            raise FedgramError("the source has no word pieces of its own, and none were given")
        lexicon = spell_words(words, pieces, source.vocabulary)
    composed = compose(lexicon, topology)
    counting = plain_counting_step(source, composed.topology, seed)
    return composed.transfer(counting.finish(count_samples(counting, samples, options)))
