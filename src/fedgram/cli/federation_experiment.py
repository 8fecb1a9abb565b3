"""`fedgram federation experiment` and `power`: two models on live devices, and what such a comparison needs."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgram.cli.commands import Command
from fedgram.cli.console import show, steps
from fedgram.cli.parameters import json_option
from fedgram.cli.settings import settings_options
from fedgram.deployment.experiment_options import ExperimentOptions, PowerOptions

if TYPE_CHECKING:
    from fedgram.deployment.experiments import Experiment
    from fedgram.deployment.folder import Folder

_MEASURES = {"top1": "top-1 %", "top3": "top-3 %", "oov_rate": "OOV %", "keystroke_savings": "taps saved %"}


@click.command(
    "experiment",
    cls=Command,
    examples=[
        "fedgram federation experiment fed --control lm.fgram --treatment other.fgram --share 1 --days 7 --once",
        "fedgram federation experiment fed --control lm.fgram --treatment other.fgram --share 1 --days 7 --once --json",
    ],
)
@click.argument("folder", metavar="DIR")
@click.option("--control", required=True, help="Packed model of the control arm: .fgram")
@click.option("--treatment", required=True, help="Packed model of the treatment arm: .fgram")
@settings_options(ExperimentOptions, "options")
@click.option("--once", is_flag=True, help="Ask the devices that are there, show the result so far, and end.")
@json_option
def experiment_command(
    folder: str, control: str, treatment: str, options: ExperimentOptions, once: bool, as_json: bool
) -> None:
    """Compare two models on live devices: each device installs the model of its arm and measures it on what is typed.

    The command runs until the experiment has ended. It may be stopped and started again; --once suits a timer. Both
    files may be the same: an A/A experiment.
    """
    from fedgram.deployment.experiments import begin_experiment, experiment_result, run_experiment
    from fedgram.deployment.flower.processes import wait_until_served
    from fedgram.deployment.flower.programs import require_flower
    from fedgram.deployment.folder import open_folder
    from fedgram.deployment.published import read_publishable
    from fedgram.deployment.publishing import roll_out

    require_flower()
    home = open_folder(folder)
    models = [(Path(path).name, read_publishable(path)) for path in (control, treatment)]
    wait_until_served(home, seconds=30)
    experiment = begin_experiment(home, models[0], models[1], options, now=time.time())
    with steps() as step:
        step.begin("Sending the models")
        roll_out(home, wait=min(5.0, home.config.rounds.idle_seconds))
        advance = step.begin("Measuring", experiment.periods + 1)
        done = [0]

        def on_pass(period: int, sums: int) -> None:
            advance(period - done[0], f"Measuring, period {period + 1} of {experiment.periods} ({sums} new sums)")
            done[0] = period

        run_experiment(home, experiment, once=once, on_pass=on_pass)
    _print(home, experiment, experiment_result(home, experiment, now=time.time()), as_json)


def _print(home: "Folder", experiment: "Experiment", result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show(result, as_json)
        return
    devices, words, untimed = result["devices"], result["words"], result["reports_without_times"]
    both = "; ".join(f"{arm}: {devices[arm]:,} devices, {words[arm]:,} words" for arm in devices)
    day = f"day {result['day']:g} of {result['days']:g}"
    noise = f"; noise of ε = {result['epsilon']:g}" if result["epsilon"] else ""
    click.echo(f"{home.config.name}, version {experiment.version}, {day}; {both}{noise}")
    if any(untimed.values()):
        click.echo("some messages have no times: their devices were measured on all of their text")
    rows = [["", "control", "treatment", "change %", "A/A check %"]]
    for name, label in _MEASURES.items():
        level = result["levels"][name]
        figures = (level["control"], level["treatment"], result["change"][name], result["aa_check"][name])
        rows.append([label, *map(_figure, figures)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip())


def _figure(figure: dict[str, Any] | None) -> str:
    if figure is None or figure["value"] is None:
        return "–"
    if figure["ci95"] is None:
        return f"{figure['value']:.2f}"
    low, high = figure["ci95"]
    return f"{figure['value']:.2f} [{low:.2f}, {high:.2f}]"


@click.command(
    "power",
    cls=Command,
    examples=[
        "fedgram federation power --effect 0.5 --words-per-device 300",
        "fedgram federation power --effect 2 --words-per-device 300 --devices 10000 --json",
    ],
)
@settings_options(PowerOptions, "options")
@click.option("--devices", type=click.IntRange(1), help="Also say how many days an experiment with so many needs.")
@json_option
def power_command(options: PowerOptions, devices: int | None, as_json: bool) -> None:
    """Say how many devices and days an experiment needs to find an effect.

    Devices are those of both arms together. More days help little once people differ more than their text does.
    """
    from fedgram.deployment.power import days_needed, power_table

    table = power_table(options)
    if as_json:
        result: dict[str, Any] = {
            "effect": options.effect, "needed": [{"days": row.days, "devices": row.devices} for row in table]
        }  # fmt: skip
        show(result | ({} if devices is None else {"days_needed": days_needed(options, devices)}), as_json)
        return
    about = {f"{row.days:g} days" if row.days > 1 else "1 day": f"{row.devices:,} devices" for row in table}
    if devices is not None:
        days = days_needed(options, devices)
        about[f"{devices:,} devices"] = "never: too few" if days is None else "1 day" if days == 1 else f"{days:,} days"
    show(about, as_json)
