"""`fedgram distill`: the n-gram model closest to a source, by SampleApprox and its kin."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from fedgram.automata.approximate import adopt_topology
from fedgram.automata.build import union_topology
from fedgram.automata.compose import with_unknown_as_unigram
from fedgram.automata.merge import merge
from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.prune import prune_to_size
from fedgram.automata.topology import Topology
from fedgram.automata.trie import MAX_ORDER
from fedgram.cli.console import Steps, json_option, output_path, show, steps
from fedgram.core.errors import InputError
from fedgram.distill.casing.cap_sample_approx import cased_counting_step, cased_topology
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_words import casing_of
from fedgram.distill.checkpoint import Checkpoint
from fedgram.distill.inferred_topology import InferenceOptions, infer_model, infer_word_model
from fedgram.distill.nn2wfa import PieceNN2WFA, count_by_pieces, fit_within
from fedgram.distill.sample_approx import Counting, CountingOptions, Fit, Ranks, count_samples, counting_step, fit
from fedgram.distill.source import SourceModel
from fedgram.distill.sources import DEVICES, counting_options, join_ranks_of, open_source, pieces_of
from fedgram.distill.spelling import SpellsItself, spellable_words
from fedgram.formats.models import READERS, WRITABLE, model_suffix, read_model, write_model
from fedgram.text.vocabulary import SPECIAL, Vocabulary
from fedgram.text.wordpieces import WordPieces

INFER = "infer"


def model_output(ctx: click.Context, parameter: click.Parameter, value: str) -> Path | None:
    """A model that can be written."""
    path = output_path(ctx, parameter, value)
    model_suffix(value, WRITABLE)
    return path


def model_input(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """A model that can be read, by its name."""
    if value is not None:
        model_suffix(value, tuple(READERS))
    return value


def _topology_input(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for name in value:
        if name != INFER:
            model_input(ctx, parameter, name)
    return value


@dataclass
class Phases:
    """The seconds that each phase took, by name."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time a phase; several of one name add up."""
        began = perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + perf_counter() - began, 3)


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What all distilling commands ask for."""
    for option in reversed(
        [
            click.option(
                "--samples",
                type=click.IntRange(1),
                default=1_000_000,
                show_default=True,
                help="Number of sampled sentences to count.",
            ),
            click.option(
                "--max-ngrams",
                type=click.IntRange(1),
                default=1_500_000,
                show_default=True,
                help="Maximum number of n-grams of a model.",
            ),
            click.option(
                "--order",
                type=click.IntRange(1, MAX_ORDER),
                default=4,
                show_default=True,
                help="Longest n-gram of an inferred topology.",
            ),
            click.option(
                "--infer-samples",
                type=click.IntRange(1),
                default=1_000_000,
                show_default=True,
                help="Samples from which a topology is inferred.",
            ),
            click.option("--seed", type=int, default=7, show_default=True, help="Seed of the samples."),
            click.option(
                "--workers",
                type=click.IntRange(1),
                default=os.cpu_count() or 1,
                show_default="all cores",
                help="Number of threads; does not change the result.",
            ),
            click.option(
                "--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Where networks run."
            ),
        ]
    ):
        command = option(command)
    return command


@click.command("distill")
@click.argument("source")
@click.option(
    "--topology", "topologies", required=True, multiple=True, callback=_topology_input,
    help="Model whose n-grams the result has, or `infer` to infer them from samples. May be given more than once.",
)  # fmt: skip
@click.option(
    "--room", type=click.FloatRange(1), default=1.0, show_default=True,
    help="Size limit of each topology before pruning, as a multiple of --max-ngrams.",
)  # fmt: skip
@click.option("--casing", callback=model_input, help="Cased n-gram model that gives an uncased source its capitals.")
@click.option(
    "--pieces",
    "pieces_path",
    help="Word pieces of the source; networks carry them.",
)
@sampling_options
@click.option(
    "-o", "--output", required=True, callback=model_output, help="Model to write: .arpa .arpa.gz .fst .fst.txt .ngram"
)
@click.option(
    "--counts", callback=output_path, help="File that keeps the counts; an interrupted count resumes from it."
)
@json_option
def command(
    source: str, topologies: tuple[str, ...], room: float, casing: str | None, pieces_path: str | None, samples: int,
    max_ngrams: int, order: int, infer_samples: int, seed: int, workers: int, device: str, output: Path,
    counts: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Find the n-gram model closest to SOURCE.

    SOURCE is a model that can be sampled and asked for probabilities: a network (.safetensors) or an n-gram model
    (.arpa .arpa.gz .fst .ngram), of words or, with --pieces, of word pieces; or hf:FOLDER, a causal language model of
    Hugging Face's in a local folder, read by the word pieces of its own tokenizer. Under torchrun the samples of a
    network are shared among the processes. The result has the n-grams of --topology. It is found by SampleApprox:
    sampled sentences leave their probabilities on the topology's arcs, and the model with the least KL divergence from
    them is taken. Where the topologies have more n-grams than --max-ngrams, that model is pruned by relative entropy,
    and fitted again to the same counts.

    With `infer`, the n-grams are taken from separate samples of the source and pruned to --max-ngrams; samples of word
    pieces are first converted to words. Words of the topology that a source of word pieces cannot spell become <unk>.
    A warning is printed if more than 10 % of the n-grams were never visited by a sample, so that their probabilities
    are estimated from shorter histories.

    KL divergence and cross-entropy are in nats per sentence, over the samples; `before` is the average of the source's
    probabilities, `after` the KL minimum.
    """
    phases, ranks = Phases(), join_ranks_of(source)
    with steps() as step:
        with phases.timed("reading"):
            step.begin(f"Reading {source}")
            model = open_source(source, device=device)
            pieces = pieces_of(model, pieces_path)
            capitalizer = Capitalizer(renormalize(read_model(casing))) if casing else None
        with phases.timed("topology"):
            of_pieces = pieces is not None or isinstance(model, SpellsItself)
            own = casing_of(capitalizer, model.vocabulary) if capitalizer and not of_pieces else None
            inference = InferenceOptions(
                samples=infer_samples, order=order, max_ngrams=int(room * max_ngrams), workers=workers, ranks=ranks
            )
            if pieces:
                _check_pieces(model.vocabulary, pieces, source)
            targets = []
            for name in topologies:
                step.begin("Inferring the topology" if name == INFER else f"Reading {name}")
                if name == INFER and of_pieces:
                    targets.append(infer_word_model(model, pieces, inference, seed=seed, capitalizer=capitalizer))
                elif name == INFER:
                    targets.append(infer_model(model, inference, seed=seed, casing=own))
                else:
                    targets.append(prune_to_size(renormalize(read_model(name)), inference.max_ngrams))
        checkpoint = Checkpoint(counts) if counts else None
        work = _Distillation(model, step, phases, samples, seed, workers, checkpoint, ranks)
        if of_pieces:
            result = work.by_pieces(model, pieces, capitalizer, reduce(merge, targets))
        elif own:
            cased = _joined([cased_topology(t, model, own) for t in targets], len(own.vocabulary))
            result = work.fitted(cased_counting_step(model, own, cased, seed), own.vocabulary)
        else:
            result = work.by_words(model, targets)
        if result.model.topology.arcs > max_ngrams:
            with phases.timed("minimizing"):
                step.begin("Pruning, and fitting again")
                result = fit_within(result, max_ngrams)
        if ranks.rank:
            return
        with phases.timed("writing"):
            step.begin(f"Writing {output}")
            write_model(result.model, output)
    figures = fit_figures(result, samples) | size(result.model)
    show({"model": str(output), **figures, "seconds": phases.seconds}, as_json)
    warn(result.warning, work.warning)


def warn(*warnings: str | None) -> None:
    """Print those that there are on standard error, one per line."""
    for warning in filter(None, warnings):
        click.echo(f"fedgram: warning: {warning}", err=True)


def _joined(topologies: list[Topology], words: int) -> Topology:
    return topologies[0] if len(topologies) == 1 else union_topology(topologies, words)[0]


def _check_pieces(labels: Vocabulary, pieces: WordPieces, source: str) -> None:
    others = len(set(labels.words[len(SPECIAL) :]) - set(pieces.pieces))
    if others:
        remedy = "train it on text that `fedgram pieces encode` wrote with the same pieces"
        raise InputError(source, f"{others} of its labels are not word pieces of --pieces", remedy=remedy)


@dataclass
class _Distillation:
    """Counts and fits, and says so."""

    source: SourceModel
    step: Steps
    phases: Phases
    samples: int
    seed: int
    workers: int
    checkpoint: Checkpoint | None
    ranks: Ranks
    warning: str | None = None

    def options(self) -> CountingOptions:
        advance = self.step.begin("Counting samples", self.samples // self.ranks.size, unit="samples")
        return counting_options(self.source, self.workers, self.checkpoint, advance, self.ranks)

    def fitted(self, counting: Counting, vocabulary: Vocabulary) -> Fit:
        """Count, then minimise."""
        with self.phases.timed("counting"):
            counted = count_samples(counting, self.samples, self.options())
        with self.phases.timed("minimizing"):
            self.step.begin("Minimising the divergence")
            return fit(counting.finish(counted), vocabulary, entropy=counted.source_entropy)

    def by_words(self, source: SourceModel, targets: list[NGramModel]) -> Fit:
        """SampleApprox."""
        words = source.vocabulary
        adopted = [adopt_topology(t.topology, t.vocabulary, words, open_vocabulary=source.has_unknown) for t in targets]
        return self.fitted(counting_step(source, _joined(adopted, len(words)), self.seed), words)

    def by_pieces(
        self, source: SourceModel, pieces: WordPieces | None, capitalizer: Capitalizer | None, target: NGramModel
    ) -> Fit:
        """NN2WFA_P with capitals, else the counts on B brought back to the topology."""
        if capitalizer:
            nn2wfa = PieceNN2WFA(
                source, capitalizer, [target], pieces=pieces,
                samples=self.samples, seed=self.seed, options=self.options(),
            )  # fmt: skip
            self.warning = _left_out(nn2wfa.unspelled)
            with self.phases.timed("counting"):
                _ = nn2wfa.counts
            with self.phases.timed("minimizing"):
                self.step.begin("Minimising the divergence, and capitalising")
                return nn2wfa(target)
        words = spellable_words(source, pieces, target.vocabulary)
        self.warning = _left_out(len(target.vocabulary) - len(words))
        adopted = adopt_topology(target.topology, target.vocabulary, words, open_vocabulary=True)
        topology = with_unknown_as_unigram(adopted, len(words))
        with self.phases.timed("counting"):
            counts = count_by_pieces(
                source, pieces, topology, words, samples=self.samples, seed=self.seed, options=self.options()
            )
        with self.phases.timed("minimizing"):
            self.step.begin("Minimising the divergence")
            return fit(counts, words)


def _left_out(unspelled: int) -> str | None:
    if not unspelled:
        return None
    return f"{unspelled:,} of the topology's words cannot be spelled with the source's word pieces and become <unk>"


def fit_figures(result: Fit, samples: int) -> dict[str, Any]:
    """What a fit has to say, for people and machines."""
    figures: dict[str, Any] = {"samples": samples, "positions": round(float(result.counts.visits.sum()))}
    figures |= {"cross_entropy_before": result.before, "cross_entropy_after": result.after}
    if result.entropy is not None:
        figures |= {"kl_before": result.before - result.entropy, "kl_after": result.after - result.entropy}
    return figures | {"unvisited_states": result.unvisited, "unvisited_ngrams": result.unvisited_ngrams}


def size(model: NGramModel) -> dict[str, Any]:
    """How large a model is."""
    t = model.topology
    return {"order": t.order, "ngrams_by_order": t.arcs_by_order(), "ngrams": t.arcs, "states": t.states}
