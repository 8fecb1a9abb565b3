"""`fedgram refit`: a distilled model fitted to what devices count on their own text."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.topology import Topology
from fedgram.automata.trie import MAX_ORDER
from fedgram.cli.console import Steps, json_option, output_path, secure_option, show, steps
from fedgram.cli.distill import model_input, model_output, size
from fedgram.cli.unigrams import clip_value
from fedgram.core.errors import InputError
from fedgram.distill.refit.counted_ngrams import counting_settings, read_counted, write_counted
from fedgram.distill.refit.federated_refit import (
    ATTEMPTS,
    CountedNGrams,
    Passes,
    Prior,
    RefitOptions,
    count_on_devices,
    refit_to_counts,
)
from fedgram.distill.refit.ngram_collection import Limits
from fedgram.distill.refit.ngram_growth import Growth
from fedgram.distill.refit.pair_sketch import SketchSize
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.simulation import SimulatedFleet
from fedgram.formats.models import read_model, write_model
from fedgram.text.normalize import uncase
from fedgram.text.population import SPLITS, open_population

_PRIOR, _GROWTH, _LIMITS = Prior(), Growth(), Limits()


@click.command("refit")
@click.argument("model", callback=model_input)
@click.option("--users", required=True, help="Population: .parquet or .arrow")
@click.option("--split", type=click.Choice(SPLITS), default="train", show_default=True)
@click.option(
    "--clip", default=f"{_LIMITS.labels:.0f}", show_default=True, callback=clip_value,
    help="λ: most words a device counts in a pass, or inf.",
)  # fmt: skip
@click.option(
    "--ngram-clip", default="inf", show_default=True, callback=clip_value,
    help="Most that a device counts at one n-gram.",
)  # fmt: skip
@click.option("--devices-per-round", type=click.IntRange(1), default=500, show_default=True)
@click.option(
    "--over-selection", type=click.FloatRange(1), default=1.3, show_default=True, help="Devices asked a report needed."
)
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.1, show_default=True)
@secure_option
@click.option("--pairs/--no-pairs", default=True, show_default=True, help="Look for pairs of words that devices have.")
@click.option("--grow", type=click.IntRange(0, 9), default=_GROWTH.passes, show_default=True,
              help="Passes in which longer n-grams that became likely are counted too.")  # fmt: skip
@click.option("--order", type=click.IntRange(1, MAX_ORDER), default=_GROWTH.order, show_default=True,
              help="Longest n-gram that is proposed to devices.")  # fmt: skip
@click.option("--least", type=click.IntRange(1), default=_GROWTH.least, show_default=True,
              help="Devices that must have a pair, and occurrences of what grows.")  # fmt: skip
@click.option("--prior", type=click.FloatRange(0, 1e9, min_open=True), default=_PRIOR.visits, show_default=True,
              help="β: visits of MODEL that are added at every history.")  # fmt: skip
@click.option("--max-ngrams", type=click.IntRange(1), default=1_500_000, show_default=True, help="Budget.")
@click.option("--seed", type=int, default=7, show_default=True, help="Seed of cohorts, and of what devices leave out.")
@click.option(
    "--counts",
    callback=output_path,
    help="File of the devices' counts; if it exists, with the same settings, they are not asked.",
)
@click.option(
    "-o", "--output", required=True, callback=model_output, help="Model to write: .arpa .arpa.gz .fst .fst.txt .ngram"
)
@json_option
def command(
    model: str, users: str, split: str, clip: float, ngram_clip: float, devices_per_round: int, over_selection: float,
    dropout: float, secure_aggregation: bool, pairs: bool, grow: int, order: int, least: int, prior: float,
    max_ngrams: int, seed: int, counts: Path | None, output: Path, as_json: bool,
) -> None:  # fmt: skip
    """Fit MODEL to what simulated devices count on their own text.

    MODEL is an uncased n-gram model that the server has, as `fedgram distill` makes it of a network. Devices mark pairs
    of words in a sketch, from which the server learns those that several of them have; then they count the n-grams of
    MODEL and these, and in further passes the longer ones that became likely. They send sums of at most --clip words,
    and no text. The server fits the n-grams' probabilities to the counts, with MODEL as the prior, and prunes them.
    """
    began = perf_counter()
    options = RefitOptions(
        Limits(clip, ngram_clip), RoundPlan(devices_per_round, over_selection, attempts=ATTEMPTS),
        SketchSize() if pairs else None,
        Growth(passes=grow, shortest=3 if pairs else 2, order=order, least=least), Prior(visits=prior), max_ngrams,
        SecureSettings() if secure_aggregation else None,
    )  # fmt: skip
    with steps() as step:
        step.begin(f"Reading {model}")
        given = renormalize(read_model(model))
        _refuse_capitals(given, model)
        asked = {"seed": seed, "split": split, "users": _digest(users), "dropout": dropout}
        settings = counting_settings(given, options, **asked) if counts else {}
        if counts and counts.exists():
            step.begin(f"Reading {counts}")
            counted = read_counted(counts, given, settings)
        else:
            counted = _count(given, users, split, options, seed, dropout, step)
            if counts:
                write_counted(counts, counted, settings)
        step.begin("Refitting")
        refitted = refit_to_counts(given, counted, options)
        step.begin(f"Writing {output}")
        write_model(refitted, output)
    show({"model": str(output), **_figures(counted), **size(refitted), "seconds": _since(began)}, as_json)


def _digest(path: str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _count(
    model: NGramModel, users: str, split: str, options: RefitOptions, seed: int, dropout: float, step: Steps
) -> CountedNGrams:
    people = open_population(users, on_rows=step.begin(f"Reading {users}"))
    clients, advance = people.clients(split), step.begin("Asking devices")

    def on_pass(what: str, topology: Topology | None) -> None:
        nonlocal advance
        number = f"{topology.arcs:,} " if topology else ""
        advance = step.begin(f"Counting {number}{what}", len(clients), unit="devices")

    def tell(event: str, about: Mapping[str, Any]) -> None:
        if event == "round summed":
            advance(about["reports"])

    passes = Passes(
        lambda job: SimulatedFleet(job, people, clients, dropout=dropout, as_bytes=True), options, seed=seed,
        on_pass=on_pass, tell=tell,
    )  # fmt: skip
    return count_on_devices(model, passes, options)


def _refuse_capitals(model: NGramModel, path: str) -> None:
    capitals = sum(uncase(word) != word for word in model.vocabulary.words)
    if capitals:
        remedy = "refit the uncased model, and capitalise it then: fedgram distill --casing"
        raise InputError(path, f"{capitals} of its words are not in lower case", remedy=remedy)


def _figures(counted: CountedNGrams) -> dict[str, Any]:
    passes = counted.passes
    return {
        "reports": [p["reports"] for p in passes], "rounds": [p["rounds"] for p in passes],
        "bytes_a_report": [round(p["bytes_received"] / max(p["reports"], 1)) for p in passes],
        "words_counted": int(counted.count.sum()), "ngrams_counted": counted.topology.arcs,
    }  # fmt: skip


def _since(began: float) -> float:
    return round(perf_counter() - began, 3)
