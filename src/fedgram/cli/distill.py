"""`fedgram distill`: n-gram models from a network, or from any other source."""

import json
from pathlib import Path
from typing import Any

import click

from fedgram.automata.budget import Budget
from fedgram.automata.model import NGramModel
from fedgram.automata.scoring import score
from fedgram.cli.commands import Group, hint
from fedgram.cli.console import Steps, show, steps, warn
from fedgram.cli.parameters import (
    json_option,
    model_input,
    model_output_option,
    output_path,
    seed_option,
)
from fedgram.cli.settings import settings_options
from fedgram.cli.sizes import size
from fedgram.core.compute import Compute
from fedgram.core.errors import InputError
from fedgram.core.progress import Stopwatch
from fedgram.core.storage import atomic_write
from fedgram.distill.algorithm1 import Approximations, final_models
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.distillation import DistillationOptions, Running, distill, distill_onto, normalized
from fedgram.distill.sample_approx import Fit
from fedgram.distill.sources import as_source, join_ranks_of
from fedgram.formats.models import is_model, read_model, write_model
from fedgram.text.corpus import read_corpus
from fedgram.text.unigrams import read_unigrams
from fedgram.text.wordpieces import load_pieces

INFER = "infer"
Report = dict[str, Any]


class _DistillGroup(Group):
    """Accepts `fedgram distill SOURCE …`, as earlier versions did."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            hint("fedgram distill SOURCE", "fedgram distill model SOURCE")
            args = ["model", *args]
        return super().resolve_command(ctx, args)


@click.group(
    cls=_DistillGroup,
    examples=[
        "fedgram distill model R_W.safetensors --topology infer --samples 2000 --infer-samples 2000 -o model.arpa",
        "fedgram distill workflow --words R_W.safetensors --external A_W.arpa --samples 2000 --infer-samples 2000 "
        "-o models",
    ],
)
def group() -> None:
    """Turn a network, or any other source, into n-gram models."""


def _topology_input(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for name in value:
        if name != INFER:
            try:
                model_input(ctx, parameter, name)
            except InputError as error:
                raise InputError(name, error.problem, remedy=f"{error.remedy}, or {INFER}") from None
    return value


@group.command(
    "model",
    examples=[
        "fedgram distill model R_W.safetensors --topology infer --samples 2000 --infer-samples 2000 -o model.arpa",
        "fedgram distill model R_W.safetensors --topology A_W.arpa --casing A_W.arpa --samples 2000 -o model.arpa",
    ],
)
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
@click.option("--pieces", "pieces_path", help="Word pieces of the source; not needed for networks, which contain them.")
@settings_options(DistillationOptions, "options", without=["uncased_first", "capital_samples"])
@settings_options(Budget, "budget", without=["max_words"])
@settings_options(Compute, "compute")
@seed_option
@model_output_option
@click.option(
    "--counts", callback=output_path, help="File that keeps the counts; an interrupted count resumes from it."
)
@click.option("--test", help="Text, one sentence per line, on which models are compared before and after.")
@json_option
def model_command(
    source: str, topologies: tuple[str, ...], room: float, casing: str | None, pieces_path: str | None,
    options: DistillationOptions, budget: Budget, compute: Compute, seed: int, output: Path, counts: Path | None,
    test: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Find the n-gram model closest to SOURCE.

    SOURCE is a network (.safetensors), an n-gram model (.arpa .arpa.gz .fst .ngram), or hf:FOLDER, a causal Hugging
    Face language model in a local folder. It may be a model of words or of word pieces.

    The result has the n-grams of --topology. Sentences are sampled from SOURCE, and their probabilities are counted on
    these n-grams (SampleApprox). The result is the model with the least KL divergence from the counts. If there are
    more n-grams than --max-ngrams, it is pruned by relative entropy and fitted again.

    With `infer`, the n-grams are taken from separate samples of the source and pruned to --max-ngrams; samples of word
    pieces are first converted to words. Words of the topology that a source of word pieces cannot spell become <unk>.
    A warning is printed if more than 10 % of the n-grams were never visited by a sample, so that their probabilities
    are estimated from shorter histories.

    KL divergence and cross-entropy are in nats per sentence, over the samples: `before` of the model with averaged
    probabilities, `after` of the fitted model. Under torchrun, processes share the samples of a network.

    With --test, the perplexity of a text is printed before, by the models of --topology, and after, by the result.
    Words that a model does not know are left out, and their share is printed.
    """
    watch, ranks = Stopwatch(), join_ranks_of(source)
    with steps() as step:
        with watch.timing("reading"):
            step.begin(f"Reading {source}")
            opened = as_source(source, compute)
            pieces = load_pieces(pieces_path) if pieces_path else None
            targets = [None if name == INFER else _read(step, name) for name in topologies]
            cased = _read(step, casing) if casing else None
        found = distill_onto(
            opened, targets, options, casing=cased, max_ngrams=budget.max_ngrams, room=room, pieces=pieces, seed=seed,
            running=Running(compute, ranks, counts=counts, begin=step.begin),
        )  # fmt: skip
        if ranks.rank:
            return
        with watch.timing("writing"):
            step.begin(f"Writing {output}")
            write_model(found.model, output)
    seconds = {"reading": watch.seconds["reading"], **found.seconds, "writing": watch.seconds["writing"]}
    figures = _figures(found.fit, options.samples) | size(found.model)
    if test:
        before = {name: target for name, target in zip(topologies, targets, strict=True) if target is not None}
        figures |= _on_text(test, {**before, str(output): found.model})
    show({"model": str(output), **figures, "seconds": seconds}, as_json)
    warn(*found.warnings)


def _read(step: Steps, path: str) -> NGramModel:
    step.begin(f"Reading {path}")
    return read_model(path)


def _on_text(path: str, models: dict[str, NGramModel]) -> dict[str, Any]:
    """The perplexity of a text by each model, and the share of words that the model does not know."""
    figures: dict[str, Any] = {}
    for name, model in models.items():
        scored = score(model, read_corpus([path], model.vocabulary).sentences)
        figures[f"test_perplexity {name}"] = scored.perplexity_without_oov
        figures[f"test_oov {name}"] = scored.oov / max(scored.words, 1)
    return figures


def _figures(result: Fit, samples: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"samples": samples, "positions": round(float(result.counts.visits.sum()))}
    figures |= {"cross_entropy_before": result.before, "cross_entropy_after": result.after}
    if result.entropy is not None:
        figures |= {"kl_before": result.before - result.entropy, "kl_after": result.after - result.entropy}
    return figures | {"unvisited_states": result.unvisited, "unvisited_ngrams": result.unvisited_ngrams}


def _folder(_: click.Context, __: click.Parameter, value: str) -> Path:
    path = Path(value)
    if path.exists() and not path.is_dir():
        raise InputError(path, "is not a folder", remedy="name a folder to write to")
    return path


@group.command(
    "workflow",
    examples=[
        "fedgram distill workflow --words R_W.safetensors --external A_W.arpa --samples 2000 --infer-samples 2000 "
        "-o models",
        "fedgram distill workflow --words R_W.safetensors --external A_W.arpa --unigrams U.unigrams --samples 2000 "
        "--infer-samples 2000 --uncased-first -o models --json",
    ],
)
@click.option("--words", required=True, help="R_W: uncased source of words, as for `fedgram distill model`.")
@click.option("--pieces-model", help="R_P: uncased source of word pieces.")
@click.option("--pieces", "pieces_path", help="Its word pieces; networks carry them.")
@click.option("--external", required=True, callback=model_input, help="A_W: cased n-gram model of other text.")
@click.option("--unigrams", help="Federated word frequencies, for the final models.")
@click.option(
    "--inferred", callback=model_input, help="Cased n-gram model that takes the place of the inferred topology."
)
@settings_options(DistillationOptions, "options")
@settings_options(Budget, "budget")
@settings_options(Compute, "compute")
@seed_option
@click.option("-o", "--output", required=True, callback=_folder, help="Folder for the models and workflow.json.")
@json_option
def workflow_command(
    words: str, pieces_model: str | None, pieces_path: str | None, external: str, unigrams: str | None,
    inferred: str | None, options: DistillationOptions, budget: Budget, compute: Compute, seed: int, output: Path,
    as_json: bool,
) -> None:  # fmt: skip
    """Run Algorithm 1 of the paper: eight n-gram models from two sources.

    A_W_e, A_W_i, A_W_m and A_W_r are the source of words on the topology of A_W, on the topology that it infers itself,
    the two interpolated, and the source on the topology of that. A_P_e … A_P_r are the same by word pieces. The final
    models join A_P_r, or A_W_r without word pieces, with the federated frequencies in three ways. Counts are kept in
    the folder until all is done, so that an interrupted run resumes.
    """
    if (pieces_path and not pieces_model) or (pieces_model and is_model(pieces_model) and not pieces_path):
        raise click.UsageError("--pieces-model and --pieces go together; only networks carry their word pieces")
    output.mkdir(parents=True, exist_ok=True)
    ranks, watch = join_ranks_of(words), Stopwatch()
    report: Report = {"samples": options.samples, "seed": seed, "models": {}, "warnings": []}
    with steps() as step:
        A_W = budget.within(normalized(_read(step, external)))
        found: dict[str, Approximations] = {}
        for by, source in (("W", words), ("P", pieces_model)):
            if source is None:
                continue
            running = Running(compute, ranks, counts=output / f"counts_{by}", begin=step.begin)
            given = found["W"].inferred if by == "P" else _read(step, inferred) if inferred else None
            pieces = load_pieces(pieces_path) if pieces_path and by == "P" else None
            with watch.timing("pieces" if by == "P" else "words"):
                found[by] = distill(
                    source, A_W, options, inferred=given, budget=budget, pieces=pieces, seed=seed, running=running
                )
            if not ranks.rank:
                _save(step, found[by], by, output, report)
        if ranks.rank:
            return
        if unigrams:
            step.begin("Joining with unigrams")
            best = found.get("P", found["W"]).refitted
            for name, final in final_models(best, read_unigrams(unigrams), Capitalizer(A_W), budget).items():
                _write(final, f"final_{name}", output, report, {})
        for path in output.glob("counts_[WP]"):
            path.unlink()
        report["seconds"] = watch.seconds
        with atomic_write(output / "workflow.json") as file:
            file.write(json.dumps(report, indent=1).encode() + b"\n")
    show({"folder": str(output), **(report if as_json else _short(report))}, as_json)
    warn(*report["warnings"])


def _save(step: Steps, models: Approximations, by: str, folder: Path, report: Report) -> None:
    step.begin("Writing models")
    for letter, model in models.by_letter().items():
        fit = models.fits.get(letter)
        _write(model, f"A_{by}_{letter}", folder, report, _figures(fit, report["samples"]) if fit else {})
    report["warnings"] += [f"A_{by}_{letter}: {warning}" for letter, warning in models.warnings().items()]


def _write(model: NGramModel, name: str, folder: Path, report: Report, figures: Report) -> None:
    write_model(model, folder / f"{name}.arpa")
    report["models"][name] = {**size(model), **figures}


def _short(report: Report) -> Report:
    return {name: f"{about['ngrams']:,} n-grams" for name, about in report["models"].items()}
