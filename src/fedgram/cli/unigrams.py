"""`fedgram unigrams`: the federated unigram distribution."""

import json
import math
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from fedgram.cli.console import json_option, output_path, secure_option, show, steps
from fedgram.core.errors import InputError
from fedgram.core.storage import atomic_write
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.convergence import Convergence, measure_convergence
from fedgram.federated.job import Job
from fedgram.federated.rounds import Progress, RunOptions, run_rounds
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.text.normalize import uncase
from fedgram.text.population import SPLITS, open_population
from fedgram.text.unigrams import UnigramCounts, read_unigram_counts, read_unigrams, write_unigrams
from fedgram.text.vocabulary import Vocabulary, read_vocabulary


def clip_value(_: click.Context, __: click.Parameter, value: str) -> float:
    """A limit: a number greater than 0, or inf."""
    try:
        clip = float(value)
    except ValueError:
        clip = math.nan
    if not clip > 0:
        raise click.BadParameter(f"{value!r} is not a number greater than 0, nor inf")
    return clip


def _unigrams_output(ctx: click.Context, parameter: click.Parameter, value: str) -> Path | None:
    if not value.endswith(".unigrams"):
        raise InputError(value, "has no suffix of unigram counts", remedy="use .unigrams")
    return output_path(ctx, parameter, value)


def _text_output(ctx: click.Context, parameter: click.Parameter, value: str) -> Path | None:
    if value.endswith(".unigrams"):
        raise InputError(value, "is the suffix of uncased counts", remedy="use .tsv for cased ones")
    return output_path(ctx, parameter, value)


@click.group()
def group() -> None:
    """Collect word frequencies from devices, with a limit on what each may contribute."""


@group.command("collect")
@click.option("--users", required=True, help="Population: .parquet or .arrow")
@click.option("--whitelist", required=True, help="Words to count, lower-case, one a line.")
@click.option(
    "--clip",
    default="1000",
    show_default=True,
    callback=clip_value,
    help="λ: most words a device counts for, or inf.",
)
@click.option("--devices-per-round", type=click.IntRange(1), default=500, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=300, show_default=True)
@click.option(
    "--participations",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Rounds that one device may take part in; 0: any number, so that few users stand for many.",
)
@click.option(
    "--over-selection", type=click.FloatRange(1), default=1.3, show_default=True, help="Devices asked a report needed."
)
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.1, show_default=True)
@secure_option
@click.option("--split", type=click.Choice(SPLITS), default="train", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--capacity", type=click.IntRange(1), default=200_000, show_default=True, help="Unigrams a keyboard model may hold."
)
@click.option("-o", "--output", required=True, callback=_unigrams_output, help="Counts to write: .unigrams")
@click.option(
    "--plots", type=click.Path(file_okay=False, path_type=Path), help="Folder for the two figures and their numbers."
)
@json_option
def collect_command(
    users: str, whitelist: str, clip: float, devices_per_round: int, rounds: int, participations: int,
    over_selection: float, dropout: float, secure_aggregation: bool, split: str, seed: int, capacity: int, output: Path,
    plots: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Count a whitelist's words on simulated devices.

    The collection ends after --rounds, or earlier when every device has taken part as often as it may.
    """
    began = perf_counter()
    masking = SecureSettings() if secure_aggregation else None
    options = RunOptions(rounds, RoundPlan(devices_per_round, over_selection), masking)
    with steps() as step:
        words = _lower_case(read_vocabulary(whitelist), whitelist)
        people = open_population(users, on_rows=step.begin(f"Reading {users}"))
        task = UnigramTask(words, clip=clip)
        job = Job(task, seed, participations or None)
        fleet = SimulatedFleet(job, people, people.clients(split), dropout=dropout)
        advance = step.begin("Collecting", rounds)
        run = run_rounds(
            job, fleet, options, tell=lambda event, _: advance(1) if event == "round committed" else None
        )  # fmt: skip
        step.begin("Measuring convergence")
        counts = task.counts(run.state)
        _refuse_nothing(counts, whitelist)
        convergence = measure_convergence(run.state.rounds)
        write_unigrams(output, counts)
        if plots:
            _draw(convergence, plots, words, capacity)
    result: dict[str, Any] = {
        "unigrams": str(output), "clip": _shown(clip, as_json), "rounds": counts.rounds,
        "reports": counts.clients, **_story(run.progress, secure=secure_aggregation), "whitelist": len(words) - 3,
        "unique": convergence.unique[-1], "z": convergence.z[-1],
        "moving_average": convergence.moving_average[-1], "seconds": round(perf_counter() - began, 3),
    }  # fmt: skip
    show({**result, "by_round": _by_round(convergence)} if as_json else result, as_json)


def _story(progress: Progress, *, secure: bool) -> dict[str, Any]:
    """What happened in the rounds; `participations` is how often the same device took part."""
    tally = progress.tally
    story = {
        "participations": progress.most, "asked": tally.asked, "dropped": tally.failed["dropped out"],
        "late": tally.late, "refused": tally.refused.total(),
    }  # fmt: skip
    if secure:
        traffic = {"bytes_up": tally.bytes_received, "bytes_down": tally.bytes_sent}
        story |= {"abandoned_rounds": progress.abandoned, **traffic}
    return story


def _refuse_nothing(counts: UnigramCounts, whitelist: str) -> None:
    if not counts.weight.any():
        raise InputError(whitelist, "holds no word that a device has", remedy="check the language")


def _lower_case(words: Vocabulary, path: str) -> Vocabulary:
    capitals = sum(uncase(word) != word for word in words.words)
    if capitals:
        remedy = "write the whitelist in lower case: devices count uncased words"
        raise InputError(path, f"{capitals} words are not in lower case", remedy=remedy)
    return words


def _shown(clip: float, as_json: bool) -> float | str | None:
    """JSON has no infinity."""
    return (None if as_json else "inf") if math.isinf(clip) else clip


def _by_round(convergence: Convergence) -> dict[str, Any]:
    return {
        "z": convergence.z,
        "unique": convergence.unique,
        "new": convergence.new,
        "moving_average": convergence.moving_average,
    }


def _draw(convergence: Convergence, folder: Path, words: Vocabulary, capacity: int) -> None:
    from fedgram.report.figures import draw_distribution_convergence, draw_tail_words

    folder.mkdir(parents=True, exist_ok=True)
    draw_distribution_convergence(convergence, folder / "distribution-convergence.png")
    draw_tail_words(convergence, folder / "tail-words.png", capacity=capacity, whitelist=len(words) - 3)
    with atomic_write(folder / "convergence.json") as file:
        file.write(json.dumps(_by_round(convergence)).encode())


@group.command("capitalize")
@click.argument("unigrams")
@click.argument("model")
@click.option(
    "-o", "--output", required=True, callback=_text_output, help="Text to write: a word, a tab and a count a line."
)
@json_option
def capitalize_command(unigrams: str, model: str, output: Path, as_json: bool) -> None:
    """Split counts over the cased forms of words.

    A cased n-gram MODEL says how each lower-case word is written.
    """
    from fedgram.distill.casing.capitalization import Capitalizer, capitalize_unigrams
    from fedgram.formats.models import read_model

    with steps() as step:
        step.begin(f"Reading {model}")
        capitalizer = Capitalizer(read_model(model))
        step.begin("Capitalising")
        frequency = read_unigrams(unigrams)
        cased = capitalize_unigrams(frequency, capitalizer)
        with atomic_write(output) as file:
            for word, count in sorted(cased.items(), key=lambda item: (-item[1], item[0])):
                file.write(f"{word}\t{count:.10g}\n".encode())
    show({"unigrams": str(output), "words": len(frequency), "cased_words": len(cased)}, as_json)


@group.command("info")
@click.argument("unigrams")
@click.option("-n", "--top", type=click.IntRange(0), default=10, show_default=True, help="Most frequent words to show.")
@json_option
def info_command(unigrams: str, top: int, as_json: bool) -> None:
    """Say what was collected, and the most frequent words."""
    counts = read_unigram_counts(unigrams)
    frequency = counts.frequency()
    total = sum(frequency.values())
    result: dict[str, Any] = {
        "unigrams": unigrams, "clip": _shown(counts.clip, as_json), "rounds": counts.rounds,
        "reports": counts.clients, "words": len(frequency), "total": total,
    }  # fmt: skip
    best = list(frequency.items())[:top]
    if as_json:
        show({**result, "top": best}, as_json)
        return
    show(result, as_json)
    for word, count in best:
        click.echo(f"  {count / total:8.4%}  {word}")
