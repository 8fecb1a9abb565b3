"""`fedgram federated evaluate`: models compared on simulated devices, which send sums."""

from typing import Any

import click

from fedgram.cli.commands import Command
from fedgram.cli.console import show, steps
from fedgram.cli.evaluate import (
    baseline_option,
    cased_option,
    figures_of,
    models_argument,
    print_comparison,
)
from fedgram.cli.parameters import json_option, seed_option, split_option, users_option
from fedgram.cli.settings import settings_options
from fedgram.evaluate.on_devices import DeviceComparison, DeviceEvaluationOptions, evaluate_on_devices
from fedgram.text.population import open_population


@click.command(
    "evaluate",
    cls=Command,
    examples=[
        "fedgram federated evaluate model.arpa --users users.parquet --split dev",
        "fedgram federated evaluate lm.fgram R_W.safetensors --users users.parquet --split dev --baseline model.arpa "
        "--secure-aggregation --buckets 3 --json",
    ],
)
@models_argument
@users_option
@split_option("test")
@baseline_option
@cased_option
@settings_options(DeviceEvaluationOptions, "options")
@seed_option
@json_option
def command(
    models: tuple[str, ...], users: str, split: str, baseline: str | None, cased: bool,
    options: DeviceEvaluationOptions, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Evaluate models on simulated devices that keep their text, as `fedgram evaluate` does.

    Every device scores all models on its own text and sends the sums: hits, typed words, OOV words, log-likelihoods and
    saved taps. The figures are those of `fedgram evaluate` for the same users. The devices of a round are a bucket of
    the jackknife, so the server learns one sum per bucket.
    """
    with steps() as step:
        people = open_population(users, on_rows=step.begin(f"Reading {users}"))
        found = evaluate_on_devices(
            list(models), people.users(split), options, baseline=baseline, cased=cased, arm=split, seed=seed,
            begin=step.begin,
        )  # fmt: skip
    show_on_devices(found, split, as_json)


def show_on_devices(found: DeviceComparison, arm: str, as_json: bool) -> None:
    """Show a comparison on devices, and what the devices were sent and have sent."""
    if not as_json:
        print_comparison(found, found.title.replace(" device", f" {arm} device", 1))
        return
    show({"split": arm, **figures_of(found), "buckets": found.buckets, **_traffic(found)}, as_json)


def _traffic(found: DeviceComparison) -> dict[str, Any]:
    assert found.progress is not None
    tally = found.progress.tally
    noise = {"privacy": dict(found.privacy)} if found.privacy else {}
    return {
        **noise, "invited": tally.invited, "reports": tally.reports, "empty": tally.empty,
        "refused": sum(tally.refused.values()), "abandoned_rounds": found.progress.abandoned,
        "bytes_up": tally.bytes_received, "bytes_down": tally.bytes_sent,
    }  # fmt: skip
