"""`fedgram federation evaluate`: models compared on the devices of one arm of a federation."""

from typing import TYPE_CHECKING

import click

from fedgram.cli.commands import Command
from fedgram.cli.console import steps
from fedgram.cli.evaluate import baseline_option, cased_option, models_argument
from fedgram.cli.federated_evaluate import show_on_devices
from fedgram.cli.parameters import json_option, seed_option
from fedgram.cli.settings import settings_options
from fedgram.core.errors import InputError
from fedgram.evaluate.on_devices import DeviceComparison, DeviceEvaluationOptions
from fedgram.text.messages import SPLITS

if TYPE_CHECKING:
    from fedgram.deployment.folder import Folder


@click.command(
    "evaluate",
    cls=Command,
    examples=[
        "fedgram federation evaluate fed lm.fgram --arm train",
        "fedgram federation evaluate fed other.fgram --baseline lm.fgram --arm train --json",
    ],
)
@click.argument("folder", metavar="DIR")
@models_argument
@click.option("--arm", type=click.Choice(SPLITS), default="test", show_default=True, help="Arm whose devices evaluate.")
@baseline_option
@cased_option
@settings_options(DeviceEvaluationOptions, "options", without=["dropout", "secure_aggregation"])
@seed_option
@json_option
def evaluate_command(
    folder: str, models: tuple[str, ...], arm: str, baseline: str | None, cased: bool,
    options: DeviceEvaluationOptions, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Evaluate models on the federation's devices, which keep their text, as `fedgram evaluate` does.

    It is run on the server's machine, while `federation serve` runs there. Devices of the arm download the models,
    score them on their own text, and send masked sums. Every device takes part once for the same models. The devices of
    a round are a bucket of the jackknife, at least as many as the federation masks with. An interrupted evaluation
    resumes; repeated with the same settings, it adds devices that were away.
    """
    from fedgram.deployment.evaluation import evaluate_on_federation
    from fedgram.deployment.federation_devices import Servers
    from fedgram.deployment.flower.processes import wait_until_served
    from fedgram.deployment.flower.programs import require_flower
    from fedgram.deployment.folder import open_folder

    require_flower()
    home = open_folder(folder)
    _check_arm(home, arm)
    wait_until_served(home, seconds=30)
    with steps() as step:
        found = evaluate_on_federation(
            Servers(home), list(models), options, baseline=baseline, cased=cased, arm=arm, seed=seed, begin=step.begin
        )  # fmt: skip
    if not as_json:
        click.echo(_who_reported(found))
    show_on_devices(found, arm, as_json)


def _who_reported(found: DeviceComparison) -> str:
    """How many devices were invited, how many reported, and what happened to the others."""
    assert found.progress is not None
    tally = found.progress.tally
    others = {"late": tally.late, **tally.failed, **{f"refused ({why})": n for why, n in tally.refused.items()}}
    counts = [f"{n:,} {what}" for what, n in {"invited": tally.invited, "reported": tally.reports}.items()]
    return ", ".join([*counts, *(f"{n:,} {what}" for what, n in others.items() if n)])


def _check_arm(home: "Folder", arm: str) -> None:
    from fedgram.deployment.arms import ArmShares

    if not ArmShares(home.config.dev_share, home.config.test_share).of(arm) > 0:
        remedy = f"give devices that join from now on {arm}_share in federation.toml, or choose another --arm"
        raise InputError(home.path, f"has no devices in the {arm} arm", remedy=remedy)
