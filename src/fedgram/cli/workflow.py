"""`fedgram workflow`: Algorithm 1 of the paper, from two networks and a supplemental model to models for a keyboard."""

import json
from pathlib import Path
from typing import Any

import click

from fedgram.automata.model import NGramModel, renormalize
from fedgram.cli.console import Steps, json_option, show, steps
from fedgram.cli.distill import Phases, fit_figures, model_input, sampling_options, size, warn
from fedgram.core.errors import InputError
from fedgram.core.storage import atomic_write
from fedgram.distill.algorithm1 import Approximations, Budget, final_models, generate
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_words import casing_of
from fedgram.distill.checkpoint import Checkpoint
from fedgram.distill.inferred_topology import InferenceOptions, infer_model
from fedgram.distill.nn2wfa import PieceNN2WFA, UncasedWordNN2WFA, WordNN2WFA
from fedgram.distill.source import SourceModel
from fedgram.distill.sources import counting_options, join_ranks_of, open_source
from fedgram.formats.models import read_model, write_model
from fedgram.text.unigrams import read_unigrams
from fedgram.text.wordpieces import load_pieces

Report = dict[str, Any]


def _folder(_: click.Context, __: click.Parameter, value: str) -> Path:
    path = Path(value)
    if path.exists() and not path.is_dir():
        raise InputError(path, "is not a folder", remedy="name a folder to write to")
    return path


@click.command("workflow")
@click.option("--words", required=True, help="R_W: uncased source of words, as for `fedgram distill`.")
@click.option("--pieces-model", help="R_P: uncased source of word pieces.")
@click.option("--pieces", "pieces_path", help="Its word pieces, as `fedgram pieces train` writes them.")
@click.option("--external", required=True, callback=model_input, help="A_W: cased n-gram model of other text.")
@click.option("--unigrams", help="Federated word frequencies, for the final models.")
@click.option(
    "--inferred", callback=model_input, help="Cased n-gram model that takes the place of the inferred topology."
)
@click.option(
    "--uncased-first", is_flag=True,
    help="Count R_W without capitals, where it computes, and give the n-gram models their capitals afterwards, as is "
    "done for word pieces. Much faster on a GPU.",
)  # fmt: skip
@sampling_options
@click.option("--max-unigrams", type=click.IntRange(1), default=200_000, show_default=True, help="Budget of words.")
@click.option("-o", "--output", required=True, callback=_folder, help="Folder for the models and workflow.json.")
@json_option
def command(
    words: str, pieces_model: str | None, pieces_path: str | None, external: str, unigrams: str | None,
    inferred: str | None, uncased_first: bool, samples: int,
    max_ngrams: int, order: int, infer_samples: int, seed: int, workers: int, device: str, max_unigrams: int,
    output: Path, as_json: bool,
) -> None:  # fmt: skip
    """Run Algorithm 1: eight n-gram models from two sources.

    A_W_e, A_W_i, A_W_m and A_W_r are the source of words on the topology of A_W, on the topology that it infers itself,
    the two interpolated, and the source on the topology of that; A_P_e … A_P_r are the same by word pieces. The final
    models join A_P_r, or A_W_r without word pieces, with the federated frequencies in three ways. Counts are kept in
    the folder until all is done, so that an interrupted run goes on from them.
    """
    if (pieces_model is None) != (pieces_path is None):
        raise click.UsageError("--pieces-model and --pieces go together")
    output.mkdir(parents=True, exist_ok=True)
    phases, budget, ranks = Phases(), Budget(max_ngrams, max_unigrams), join_ranks_of(words)
    report: Report = {"samples": samples, "seed": seed, "models": {}, "warnings": []}
    with steps() as step:
        with phases.timed("reading"):
            step.begin("Reading models")
            R_W = open_source(words, device=device)
            A_W = budget.within(renormalize(read_model(external)))
            frequency = read_unigrams(unigrams) if unigrams else None
        capitalizer = Capitalizer(A_W)
        with phases.timed("inferring"):
            step.begin("Inferring a topology")
            inference = InferenceOptions(
                samples=infer_samples, order=order, max_ngrams=max_ngrams, workers=workers, ranks=ranks
            )
            if inferred:
                I_W = read_model(inferred)
            else:
                I_W = infer_model(R_W, inference, seed=seed, casing=casing_of(capitalizer, R_W.vocabulary))

        def counting(letter: str, source: SourceModel) -> dict[str, Any]:
            advance = step.begin(f"Counting samples of R_{letter}", samples // ranks.size, unit="samples")
            checkpoint = Checkpoint(output / f"counts_{letter}")
            options = counting_options(source, workers, checkpoint, advance, ranks)
            return {"samples": samples, "seed": seed, "options": options}

        with phases.timed("words"):
            nn2wfa = UncasedWordNN2WFA if uncased_first else WordNN2WFA
            W = generate(nn2wfa(R_W, capitalizer, [A_W, I_W], **counting("W", R_W)), A_W, I_W, budget)
        if not ranks.rank:
            _save(step, W, "W", output, report)
        last = W
        if pieces_model and pieces_path:
            R_P, pieces = open_source(pieces_model, device=device), load_pieces(pieces_path)
            with phases.timed("pieces"):
                by_pieces = PieceNN2WFA(R_P, capitalizer, [A_W, W.inferred], pieces=pieces, **counting("P", R_P))
                last = generate(by_pieces, A_W, W.inferred, budget)
            if not ranks.rank:
                _save(step, last, "P", output, report)
        if ranks.rank:
            return
        if frequency:
            with phases.timed("final"):
                step.begin("Joining with unigrams")
                for name, final in final_models(last.refitted, frequency, capitalizer, budget).items():
                    _write(final, f"final_{name}", output, report, {})
        for path in output.glob("counts_[WP]"):
            path.unlink()
        report["seconds"] = phases.seconds
        with atomic_write(output / "workflow.json") as file:
            file.write(json.dumps(report, indent=1).encode() + b"\n")
    show({"folder": str(output), **(report if as_json else _short(report))}, as_json)
    warn(*report["warnings"])


def _save(step: Steps, models: Approximations, by: str, folder: Path, report: Report) -> None:
    step.begin("Writing models")
    for letter, model in models.by_letter().items():
        fit = models.fits.get(letter)
        _write(model, f"A_{by}_{letter}", folder, report, fit_figures(fit, report["samples"]) if fit else {})
    report["warnings"] += [f"A_{by}_{letter}: {warning}" for letter, warning in models.warnings().items()]


def _write(model: NGramModel, name: str, folder: Path, report: Report, figures: Report) -> None:
    write_model(model, folder / f"{name}.arpa")
    report["models"][name] = {**size(model), **figures}


def _short(report: Report) -> Report:
    return {name: f"{about['ngrams']:,} n-grams" for name, about in report["models"].items()}
