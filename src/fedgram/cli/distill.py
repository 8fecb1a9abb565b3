"""`fedgram distill`: the n-gram model closest to a source, by SampleApprox and its kin."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from fedgram.automata.approximate import adopt_topology
from fedgram.automata.build import union_topology
from fedgram.automata.compose import with_unknown_as_unigram
from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.prune import prune_to_size
from fedgram.automata.topology import Topology
from fedgram.automata.trie import MAX_ORDER
from fedgram.cli.console import Steps, json_option, output_path, show, steps
from fedgram.cli.sources import DEVICES, counting_options, join_ranks_of, open_source, pieces_of
from fedgram.core.errors import InputError
from fedgram.distill.cap_sample_approx import cased_counting_step, cased_topology
from fedgram.distill.capitalization import Capitalizer
from fedgram.distill.casing import casing_of
from fedgram.distill.checkpoint import Checkpoint
from fedgram.distill.inferred_topology import InferenceOptions, infer_model
from fedgram.distill.nn2wfa import PieceNN2WFA, SpellsItself, count_by_pieces, fit_within
from fedgram.distill.sample_approx import Counting, CountingOptions, Fit, Ranks, count_samples, counting_step, fit
from fedgram.distill.source import SourceModel
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
            click.option("--samples", type=click.IntRange(1), default=1_000_000, show_default=True, help="To count."),
            click.option("--max-ngrams", type=click.IntRange(1), default=1_500_000, show_default=True, help="Budget."),
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
                help="Threads that count; the result does not depend on it.",
            ),
            click.option(
                "--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="For networks."
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
    help="Times --max-ngrams that each topology may have; what the source needs least is dropped after counting.",
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
    "--counts", callback=output_path, help="File in which counts are kept; an interrupted count goes on from it."
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

    KL divergence and cross-entropy are in nats a sentence, over the samples; `before` is the average of the source's
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
            _refuse_pieces(of_pieces, topologies)
            targets = []
            for name in topologies:
                step.begin("Inferring the topology" if name == INFER else f"Reading {name}")
                if name == INFER:
                    targets.append(infer_model(model, inference, seed=seed, casing=own))
                else:
                    targets.append(prune_to_size(renormalize(read_model(name)), inference.max_ngrams))
        checkpoint = Checkpoint(counts) if counts else None
        work = _Distillation(model, step, phases, samples, seed, workers, checkpoint, ranks)
        if of_pieces:
            if pieces:
                _check_pieces(model.vocabulary, pieces, source)
            result = work.by_pieces(model, pieces, capitalizer, targets[0])
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


def _refuse_pieces(of_pieces: bool, topologies: tuple[str, ...]) -> None:
    if of_pieces and INFER in topologies:
        raise click.UsageError("a source of word pieces cannot infer a topology of words; give one with --topology")
    if of_pieces and len(topologies) > 1:
        raise click.UsageError(
            "a source of word pieces is counted on one topology; join them with `fedgram ngram merge`"
        )


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
            with self.phases.timed("counting"):
                _ = nn2wfa.counts
            with self.phases.timed("minimizing"):
                self.step.begin("Minimising the divergence, and capitalising")
                return nn2wfa(target)
        words = target.vocabulary
        topology = with_unknown_as_unigram(target.topology, len(words))
        with self.phases.timed("counting"):
            counts = count_by_pieces(
                source, pieces, topology, words, samples=self.samples, seed=self.seed, options=self.options()
            )
        with self.phases.timed("minimizing"):
            self.step.begin("Minimising the divergence")
            return fit(counts, words)


def fit_figures(result: Fit, samples: int) -> dict[str, Any]:
    """What a fit has to say, for people and machines."""
    figures: dict[str, Any] = {"samples": samples, "positions": round(float(result.counts.visits.sum()))}
    figures |= {"cross_entropy_before": result.before, "cross_entropy_after": result.after}
    if result.entropy is not None:
        figures |= {"kl_before": result.before - result.entropy, "kl_after": result.after - result.entropy}
    return figures | {"unvisited_states": result.unvisited}


def size(model: NGramModel) -> dict[str, Any]:
    """How large a model is."""
    t = model.topology
    return {"order": t.order, "ngrams_by_order": t.arcs_by_order(), "ngrams": t.arcs, "states": t.states}
