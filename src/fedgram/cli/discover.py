"""`fedgram federated discover`: words outside the whitelist that many devices have."""

from pathlib import Path
from time import perf_counter
from typing import Any

import click

from fedgram.cli.commands import Command
from fedgram.cli.console import show, steps, warn
from fedgram.cli.parameters import (
    json_option,
    ledger_options,
    output_option,
    seed_option,
    split_option,
    users_option,
    whitelist_option,
)
from fedgram.cli.settings import settings_options
from fedgram.core.storage import atomic_write
from fedgram.federated.discovery.discover import DiscoveredWords, discover
from fedgram.federated.discovery.options import DiscoveryOptions
from fedgram.federated.whitelist import read_whitelist
from fedgram.privacy.noise import SeededRandomness
from fedgram.text.population import open_population


@click.command(
    "discover",
    cls=Command,
    examples=[
        "fedgram federated discover --users users.parquet --whitelist whitelist.txt --epsilon 4 --delta 1e-10 "
        "-o found.txt",
        "fedgram federated discover --users users.parquet --whitelist whitelist.txt --whitelist words.txt "
        "--words-per-device 5 --secure-aggregation -o found.txt --json",
    ],
)
@users_option
@whitelist_option("Words that are known already, in lower case, one per line; may be given more than once.")
@settings_options(DiscoveryOptions, "options")
@split_option("train")
@seed_option
@click.option(
    "--noise-seed", type=click.IntRange(0),
    help="Draw the noise from this seed, for experiments: the result is repeatable, but not private.",
)  # fmt: skip
@ledger_options
@output_option("Word list to write: one word per line, the most frequent first.")
@json_option
def command(
    users: str, whitelist: tuple[str, ...], options: DiscoveryOptions, split: str, seed: int, noise_seed: int | None,
    ledger: Any, output: Path, as_json: bool,
) -> None:  # fmt: skip
    """Discover words outside the whitelist on simulated devices, with differential privacy.

    Each device contributes one of its words. The words are found character by character: at each level the server names
    the prefixes that survived, devices say how their word continues, and only what enough devices have survives. The
    output says how many holders a word needs. A small population may have no such word; the file is then empty. The
    file can be a second whitelist of `fedgram federated unigrams collect`.
    """
    began = perf_counter()
    with steps() as step:
        known = read_whitelist(*whitelist)
        people = open_population(users, on_rows=step.begin(f"Reading {users}"))
        randomness = None if noise_seed is None else SeededRandomness(noise_seed)
        found = discover(
            people.users(split), known, options, seed=seed, randomness=randomness,
            ledger=ledger.asked_at(options.delta), begin=step.begin,
        )  # fmt: skip
    with atomic_write(output) as file:
        file.write("".join(f"{word}\n" for word in found.words).encode())
    show({"list": str(output), **_figures(found, options), "seconds": round(perf_counter() - began, 3)}, as_json)
    if found.reason:
        warn(f"no word was found: {found.reason}")


def _figures(found: DiscoveredWords, options: DiscoveryOptions) -> dict[str, Any]:
    guarantee = found.guarantee
    figures = {
        "words": len(found.words), "method": options.method, "devices": found.devices,
        "holders_needed": found.holders_needed, "requirement": found.requirement, "longest": found.longest,
        "epsilon": guarantee.epsilon, "delta": guarantee.delta, **guarantee.origin,
    }  # fmt: skip
    for name in ("reports", "candidates", "prefixes"):
        figures[f"{name}_by_level"] = [getattr(level, name) for level in found.levels]
    return {**figures, "reason": found.reason} if found.reason else figures
