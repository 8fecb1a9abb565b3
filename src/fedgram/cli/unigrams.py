"""`fedgram federated unigrams`: word frequencies from devices."""

import json
import math
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from fedgram.automata.budget import Budget
from fedgram.cli.commands import Group
from fedgram.cli.console import show, steps
from fedgram.cli.parameters import (
    json_option,
    ledger_options,
    model_argument,
    output_option,
    output_path,
    plots_option,
    seed_option,
    split_option,
    users_option,
    whitelist_option,
    with_suffix,
)
from fedgram.cli.settings import settings_options
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.lazy import lazy
from fedgram.core.storage import atomic_write
from fedgram.distill.casing.capitalization import Capitalizer, capitalize_unigrams
from fedgram.federated.collect_unigrams import CollectedUnigrams, UnigramOptions, collect_unigrams
from fedgram.federated.convergence import Convergence
from fedgram.federated.whitelist import read_whitelist
from fedgram.formats.models import read_model
from fedgram.privacy.ledger import ledger_facts
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.population import open_population
from fedgram.text.unigrams import read_unigram_counts, read_unigrams, write_unigrams
from fedgram.text.vocabulary import SPECIAL


@click.group(
    cls=Group,
    examples=[
        "fedgram federated unigrams collect --users users.parquet --whitelist whitelist.txt -o U.unigrams",
        "fedgram federated unigrams info U.unigrams",
    ],
)
def group() -> None:
    """Collect word frequencies from devices, with a limit on what each may contribute."""


@group.command(
    "collect",
    examples=[
        "fedgram federated unigrams collect --users users.parquet --whitelist whitelist.txt -o U.unigrams",
        "fedgram federated unigrams collect --users users.parquet --whitelist whitelist.txt --clip 100 "
        "--devices-per-round 20 --rounds 4 -o U.unigrams --json",
        "fedgram federated unigrams collect --users users.parquet --whitelist whitelist.txt --protection dp "
        "--simulated 1000000 --ledger privacy.json -o U.unigrams",
    ],
)
@users_option
@whitelist_option("Words to count, in lower case, one per line; may be given more than once.")
@settings_options(UnigramOptions, "options")
@settings_options(PrivacyOptions, "privacy", without=["min_devices", "network_devices"])
@ledger_options
@split_option("train")
@seed_option
@click.option(
    "--capacity", type=click.IntRange(1), default=Budget().max_words, show_default=True,
    help="Number of unigrams that a keyboard model may hold, shown in a figure.",
)  # fmt: skip
@output_option("Counts to write: .unigrams", with_suffix(".unigrams", what="unigram counts"))
@plots_option("Folder for the two figures and their numbers.")
@json_option
def collect_command(
    users: str, whitelist: tuple[str, ...], options: UnigramOptions, privacy: PrivacyOptions, ledger: Any, split: str,
    seed: int, capacity: int, output: Path, plots: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Count a whitelist's words on simulated devices.

    The collection ends after --rounds, or earlier when every device has taken part as often as it may. With
    --protection dp every device counts once, and the sum of all gets noise; otherwise the sums are exact. There is then
    nothing to draw, as the sums of single rounds are not released.
    """
    began = perf_counter()
    if privacy.is_dp and plots:
        raise FedgramError("with --protection dp the sums of single rounds are not known; leave --plots out")
    with steps() as step:
        known = read_whitelist(*whitelist)
        words = len(known) - len(SPECIAL)
        people = open_population(users, on_rows=step.begin(f"Reading {users}"))
        counts = collect_unigrams(
            people.users(split), known, options, privacy=privacy, seed=seed, ledger=ledger.asked_at(privacy.delta),
            begin=step.begin,
        )  # fmt: skip
        write_unigrams(output, counts)
        convergence = counts.convergence
        if plots and convergence:
            _draw(convergence, plots, words, capacity)
    result: dict[str, Any] = {
        "unigrams": str(output), "clip": _shown(options.clip, as_json), "rounds": counts.rounds,
        "reports": counts.clients, **_rounds(counts, masked=options.secure_aggregation), "whitelist": words,
        **_quality(counts, privacy, ledger), "seconds": round(perf_counter() - began, 3),
    }  # fmt: skip
    show({**result, "by_round": _by_round(convergence)} if as_json and convergence else result, as_json)


def _quality(counts: CollectedUnigrams, privacy: PrivacyOptions, ledger: Any) -> dict[str, Any]:
    """How many words were found and how far they converged; with noise, what it cost."""
    found = counts.convergence
    if found is not None:
        return {"unique": found.unique[-1], "z": found.z[-1], "moving_average": found.moving_average[-1]}
    facts = ledger_facts(ledger, privacy.delta)
    real = {"real_epsilon": facts["real_epsilon"]} if facts["simulated"] else {}
    spent = {name: facts[name] for name in ("epsilon", "delta", "zcdp", "simulated")}
    return {"unique": len(counts.frequency()), "generator": privacy.randomness.name, **spent, **real}


def _rounds(counts: CollectedUnigrams, *, masked: bool) -> dict[str, Any]:
    """What happened in the rounds; `participations` is how often the same device took part, at most."""
    progress, tally = counts.progress, counts.progress.tally
    about = {
        "participations": progress.most, "invited": tally.invited, "dropped": tally.failed["dropped out"],
        "late": tally.late, "refused": tally.refused.total(),
    }  # fmt: skip
    if masked:
        traffic = {"bytes_up": tally.bytes_received, "bytes_down": tally.bytes_sent}
        about |= {"abandoned_rounds": progress.abandoned, **traffic}
    return about


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


def _draw(convergence: Convergence, folder: Path, words: int, capacity: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    figures = ".report.figures:"
    lazy(figures + "draw_distribution_convergence")(convergence, folder / "distribution-convergence.png")
    lazy(figures + "draw_tail_words")(convergence, folder / "tail-words.png", capacity=capacity, whitelist=words)
    with atomic_write(folder / "convergence.json") as file:
        file.write(json.dumps(_by_round(convergence)).encode())


def _text_output(ctx: click.Context, parameter: click.Parameter, value: str) -> Path | None:
    if value.endswith(".unigrams"):
        raise InputError(value, "is a name for uncased counts", remedy="use .tsv for cased ones")
    return output_path(ctx, parameter, value)


@group.command(
    "capitalize",
    examples=[
        "fedgram federated unigrams capitalize U.unigrams A_W.arpa -o cased.tsv",
        "fedgram federated unigrams capitalize U.unigrams A_W.arpa -o cased.tsv --json",
    ],
)
@click.argument("unigrams")
@model_argument("model")
@output_option("Text to write: lines of word, tab, count.", _text_output)
@json_option
def capitalize_command(unigrams: str, model: str, output: Path, as_json: bool) -> None:
    """Distribute counts over the cased forms of words, by a cased n-gram MODEL."""
    with steps() as step:
        step.begin(f"Reading {model}")
        capitalizer = Capitalizer(read_model(model))
        step.begin("Adding capitals")
        frequency = read_unigrams(unigrams)
        cased = capitalize_unigrams(frequency, capitalizer)
        with atomic_write(output) as file:
            for word, count in sorted(cased.items(), key=lambda item: (-item[1], item[0])):
                file.write(f"{word}\t{count:.10g}\n".encode())
    show({"unigrams": str(output), "words": len(frequency), "cased_words": len(cased)}, as_json)


@group.command(
    "info",
    examples=["fedgram federated unigrams info U.unigrams", "fedgram federated unigrams info U.unigrams -n 3 --json"],
)
@click.argument("unigrams")
@click.option("-n", "--top", type=click.IntRange(0), default=10, show_default=True, help="Number of words to show.")
@json_option
def info_command(unigrams: str, top: int, as_json: bool) -> None:
    """Describe what was collected, and show the most frequent words."""
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
