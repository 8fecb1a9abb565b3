"""Distilling a source into n-gram models: the operations behind the commands, the stages of a run, and the library.

- `distill`: Algorithm 1 for one source: the models on the topology of an external model, on the topology that the
  source infers itself, the two interpolated, and the source on the topology of that.
- `distill_onto`: one model, on topologies that are given or inferred.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

from fedgram.automata.approximate import adopt_topology
from fedgram.automata.budget import Budget
from fedgram.automata.build import union_topology
from fedgram.automata.compose import with_unknown_as_unigram
from fedgram.automata.merge import merge
from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.properties import normalization_error
from fedgram.automata.prune import prune_to_size
from fedgram.automata.topology import Topology
from fedgram.automata.trie import MAX_ORDER
from fedgram.core.compute import Compute
from fedgram.core.progress import Begin, Stopwatch, silent
from fedgram.core.settings import AtLeastOne, Between, Settings, chosen, setting
from fedgram.distill.algorithm1 import Approximations, generate
from fedgram.distill.casing.cap_sample_approx import cased_counting_step, cased_topology
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_words import casing_of
from fedgram.distill.checkpoint import Checkpoint
from fedgram.distill.inferred_topology import InferenceOptions, infer_model, infer_word_model
from fedgram.distill.nn2wfa import NN2WFA, PieceNN2WFA, UncasedWordNN2WFA, WordNN2WFA, count_by_pieces, fit_within
from fedgram.distill.sample_approx import (
    ALONE,
    Counting,
    CountingOptions,
    Fit,
    Ranks,
    count_samples,
    counting_step,
    fit,
)
from fedgram.distill.source import SourceModel
from fedgram.distill.sources import Source, as_source, counting_options, pieces_of
from fedgram.distill.spelling import SpellsItself, spellable_words
from fedgram.formats.artefact import read_ngram, write_ngram
from fedgram.text.vocabulary import Vocabulary
from fedgram.text.wordpieces import WordPieces

_NORMALIZED = 1e-9


@dataclass(frozen=True, slots=True)
class DistillationOptions(Settings):
    """How a source is sampled (Algorithm 1, §4 and §7.2 of the paper)."""

    samples: AtLeastOne = setting(1_000_000, "Number of sampled sentences to count.")
    infer_samples: AtLeastOne = setting(1_000_000, "Number of sampled sentences to infer a topology from.")
    order: Annotated[int, Between(1, MAX_ORDER)] = setting(4, "Length of the longest n-gram of an inferred topology.")
    uncased_first: bool = setting(
        False,
        "Count a network of words without capitals, and add capitals to the n-gram models afterwards, as for word "
        "pieces. Much faster on a GPU.",
    )
    capital_samples: AtLeastOne | None = setting(
        None, "Number of samples of an uncased n-gram model that give it capitals; by default, as many as --samples."
    )


@dataclass(frozen=True, slots=True)
class Running:
    """How a distillation runs; none of this changes the result.

    Attributes:
        compute: Where networks run, and the threads that count.
        ranks: The processes that share the samples.
        folder: Keeps counts and the inferred topology, so that an interrupted distillation resumes.
        counts: The file of the counts, if it is not in the folder.
        begin: Progress callback.
    """

    compute: Compute = field(default_factory=Compute)
    ranks: Ranks = ALONE
    folder: Path | None = None
    counts: Path | None = None
    begin: Begin = silent

    def counting(self, source: SourceModel, samples: int) -> CountingOptions:
        """How samples of a source are counted."""
        path = self.counts or (self.folder / "counts" if self.folder else None)
        advance = self.begin("Counting samples", samples // self.ranks.size, unit="samples")
        kept = Checkpoint(path) if path else None
        return counting_options(source, self.compute.cores, kept, advance, self.ranks)


def distill(
    source: Source,
    external: NGramModel,
    options: DistillationOptions | None = None,
    *,
    inferred: NGramModel | None = None,
    budget: Budget | None = None,
    pieces: WordPieces | None = None,
    room: float = 1.0,
    seed: int = 0,
    running: Running | None = None,
    **settings: Any,
) -> Approximations:
    """Turn a source into cased n-gram models: Algorithm 1 of the paper for one source.

    Args:
        source: A network, an n-gram model, or the name of one: `.safetensors`, `.arpa`, …, `hf:FOLDER`; of uncased
            words, or of word pieces.
        external: A_W, a cased n-gram model of other text, which gives the capitals too.
        options: How to sample; its fields may be given as keywords instead.
        inferred: A cased model in place of the inferred topology.
        budget: The size limit of every model.
        pieces: The word pieces of a source that does not carry them.
        room: With more than 1, the result has a `wide` model too, on a topology inferred with so many times the
            n-grams of the budget.
        seed: Of the samples.
        running: Threads, processes, checkpoints and progress.
    """
    options = chosen(DistillationOptions, options, settings)
    running, budget = running or Running(), budget or Budget()
    model, external = as_source(source, running.compute), budget.within(normalized(external))
    nn2wfa, inferred = prepare_nn2wfa(
        model, external, options, inferred=inferred, budget=budget, pieces=pieces_of(model, pieces), room=room,
        seed=seed, running=running,
    )  # fmt: skip
    models = generate(nn2wfa, external, inferred, budget)
    return replace(models, wide=nn2wfa.widest()) if room > 1 else models


def prepare_nn2wfa(
    source: SourceModel, external: NGramModel, options: DistillationOptions, *, inferred: NGramModel | None,
    budget: Budget, pieces: WordPieces | None, seed: int, running: Running, room: float = 1.0, rules: bool = True,
) -> tuple[NN2WFA, NGramModel]:  # fmt: skip
    """NN2WFA of a source, which counts when it is first used, and the inferred topology; `rules`: see `Capitalizer`.

    With `room`, so many times the n-grams of an inferred topology are counted.
    """
    capitalizer, of_pieces = Capitalizer(external, rules=rules), pieces is not None or isinstance(source, SpellsItself)
    topologies = [external]
    if inferred is None:
        kept = running.folder / "inferred.ngram" if running.folder else None
        if kept is None or not kept.exists():
            running.begin("Inferring a topology")
            inference = _inference(options, int(room * budget.max_ngrams), running)
            inferred = _infer(source, pieces, inference, seed=seed, capitalizer=capitalizer)
            if kept:
                write_ngram(inferred, kept)
        if kept:
            inferred = read_ngram(kept)
        assert inferred is not None
        topologies.append(inferred)
        inferred = prune_to_size(inferred, budget.max_ngrams)
    topologies.append(inferred)
    counting: dict[str, Any] = {
        "samples": options.samples, "seed": seed, "options": running.counting(source, options.samples)
    }  # fmt: skip
    if not of_pieces and not options.uncased_first:
        return WordNN2WFA(source, capitalizer, topologies, **counting), inferred
    kind, capitals = PieceNN2WFA if of_pieces else UncasedWordNN2WFA, options.capital_samples
    return kind(source, capitalizer, topologies, pieces=pieces, capital_samples=capitals, **counting), inferred


def normalized(model: NGramModel) -> NGramModel:
    """The model itself if its probabilities sum to 1 at every state, else renormalised."""
    return model if normalization_error(model) <= _NORMALIZED else renormalize(model)


def _inference(options: DistillationOptions, max_ngrams: int, running: Running) -> InferenceOptions:
    return InferenceOptions(
        options.infer_samples, options.order, max_ngrams, workers=running.compute.cores, ranks=running.ranks
    )


def _infer(
    source: SourceModel, pieces: WordPieces | None, inference: InferenceOptions, *, seed: int,
    capitalizer: Capitalizer | None,
) -> NGramModel:  # fmt: skip
    """The pruned model of the source's samples, with capitals if there is a capitalizer."""
    if pieces is not None or isinstance(source, SpellsItself):
        return infer_word_model(source, pieces, inference, seed=seed, capitalizer=capitalizer)
    casing = casing_of(capitalizer, source.vocabulary) if capitalizer else None
    return infer_model(source, inference, seed=seed, casing=casing)


@dataclass(frozen=True, slots=True, eq=False)
class Distilled:
    """A distilled model, how well it fits, what people should know of it, and how long each phase took."""

    fit: Fit
    unspelled: int
    seconds: Mapping[str, float]

    @property
    def model(self) -> NGramModel:
        """The n-gram model."""
        return self.fit.model

    @property
    def warnings(self) -> list[str]:
        """Sentences for people."""
        found = [self.fit.warning] if self.fit.warning else []
        if self.unspelled:
            problem = "of the topology's words cannot be spelled with the source's word pieces and become <unk>"
            found.append(f"{self.unspelled:,} {problem}")
        return found

    def __repr__(self) -> str:
        return f"Distilled({self.model}, cross-entropy {self.fit.after:.4f} nats per sentence)"


def distill_onto(
    source: Source,
    topologies: Sequence[NGramModel | None],
    options: DistillationOptions | None = None,
    *,
    casing: NGramModel | None = None,
    max_ngrams: int = Budget().max_ngrams,
    room: float = 1.0,
    pieces: WordPieces | None = None,
    seed: int = 0,
    running: Running | None = None,
    **settings: Any,
) -> Distilled:
    """Find the n-gram model closest to a source that has the n-grams of some topologies.

    Args:
        source: A network, an n-gram model, or the name of one; of words, or of word pieces.
        topologies: Models whose n-grams the result has; None infers them from samples of the source.
        options: How to sample; its fields may be given as keywords instead.
        casing: A cased n-gram model that gives an uncased source its capitals.
        max_ngrams: The size limit of the result.
        room: The size limit of each topology before pruning, as a multiple of `max_ngrams`.
        pieces: The word pieces of a source that does not carry them.
        seed: Of the samples.
        running: Threads, processes, checkpoints and progress.
    """
    options, running = chosen(DistillationOptions, options, settings), running or Running()
    model, watch = as_source(source, running.compute), Stopwatch()
    pieces = pieces_of(model, pieces)
    capitalizer = Capitalizer(normalized(casing)) if casing is not None else None
    with watch.timing("topology"):
        inference = _inference(options, int(room * max_ngrams), running)
        targets = []
        for topology in topologies:
            if topology is None:
                running.begin("Inferring the topology")
                targets.append(_infer(model, pieces, inference, seed=seed, capitalizer=capitalizer))
            else:
                targets.append(prune_to_size(normalized(topology), inference.max_ngrams))
    work = _OneModel(model, pieces, capitalizer, options.samples, seed, running, watch)
    result, unspelled = work.fit(targets)
    if result.model.topology.arcs > max_ngrams:
        with watch.timing("minimizing"):
            running.begin("Pruning, and fitting again")
            result = fit_within(result, max_ngrams)
    return Distilled(result, unspelled, watch.seconds)


@dataclass(frozen=True, slots=True)
class _OneModel:
    """Counts and fits one model, by words or by word pieces, with or without capitals."""

    source: SourceModel
    pieces: WordPieces | None
    capitalizer: Capitalizer | None
    samples: int
    seed: int
    running: Running
    watch: Stopwatch

    def fit(self, targets: list[NGramModel]) -> tuple[Fit, int]:
        """The fit on all topologies together, and how many of their words the source cannot spell."""
        if self.pieces is not None or isinstance(self.source, SpellsItself):
            target = reduce(merge, targets)
            return self._cased_by_pieces(target) if self.capitalizer else self._by_pieces(target)
        if self.capitalizer:
            casing = casing_of(self.capitalizer, self.source.vocabulary)
            cased = _joined([cased_topology(t, self.source, casing) for t in targets], len(casing.vocabulary))
            return self._counted(cased_counting_step(self.source, casing, cased, self.seed), casing.vocabulary), 0
        words, unknown = self.source.vocabulary, self.source.has_unknown
        adopted = [adopt_topology(t.topology, t.vocabulary, words, open_vocabulary=unknown) for t in targets]
        return self._counted(counting_step(self.source, _joined(adopted, len(words)), self.seed), words), 0

    def _options(self) -> CountingOptions:
        return self.running.counting(self.source, self.samples)

    def _counted(self, counting: Counting, vocabulary: Vocabulary) -> Fit:
        """SampleApprox, or CapSampleApprox."""
        with self.watch.timing("counting"):
            counted = count_samples(counting, self.samples, self._options())
        with self.watch.timing("minimizing"):
            self.running.begin("Minimising the divergence")
            return fit(counting.finish(counted), vocabulary, entropy=counted.source_entropy)

    def _cased_by_pieces(self, target: NGramModel) -> tuple[Fit, int]:
        """NN2WFA_P."""
        assert self.capitalizer is not None
        nn2wfa = PieceNN2WFA(
            self.source, self.capitalizer, [target], pieces=self.pieces, samples=self.samples, seed=self.seed,
            options=self._options(),
        )  # fmt: skip
        with self.watch.timing("counting"):
            _ = nn2wfa.counts
        with self.watch.timing("minimizing"):
            self.running.begin("Minimising the divergence, and adding capitals")
            return nn2wfa(target), nn2wfa.unspelled

    def _by_pieces(self, target: NGramModel) -> tuple[Fit, int]:
        """The counts on B = M ∘ A, brought back to the topology A."""
        words = spellable_words(self.source, self.pieces, target.vocabulary)
        adopted = adopt_topology(target.topology, target.vocabulary, words, open_vocabulary=True)
        topology = with_unknown_as_unigram(adopted, len(words))
        with self.watch.timing("counting"):
            counts = count_by_pieces(
                self.source, self.pieces, topology, words, samples=self.samples, seed=self.seed,
                options=self._options(),
            )  # fmt: skip
        with self.watch.timing("minimizing"):
            self.running.begin("Minimising the divergence")
            return fit(counts, words), len(target.vocabulary) - len(words)


def _joined(topologies: list[Topology], words: int) -> Topology:
    return topologies[0] if len(topologies) == 1 else union_topology(topologies, words)[0]
