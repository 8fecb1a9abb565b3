"""`fedgram evaluate`: how well models predict what held-out users type."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from fedgram.cli.commands import Command
from fedgram.cli.console import show, steps
from fedgram.cli.parameters import json_option, seed_option, split_option, users_option
from fedgram.cli.settings import settings_options
from fedgram.evaluate.comparison import COLUMNS, Comparison, EvaluationOptions, cell, evaluate
from fedgram.evaluate.models import SUFFIXES
from fedgram.formats.models import model_suffix
from fedgram.text.population import open_population

_WIDE = 130  # columns of a terminal that show every figure on one line


def model_files(_: click.Context, __: click.Parameter, value: Any) -> Any:
    """Refuse files that are not models."""
    for path in [value] if isinstance(value, str) else value or ():
        model_suffix(path, SUFFIXES)
    return value


models_argument = click.argument("models", metavar="MODEL...", nargs=-1, required=True, callback=model_files)
baseline_option = click.option("--baseline", callback=model_files, help="Model to compare the others with.")
cased_option = click.option(
    "--cased/--uncased", default=False, help="Whether capitals must be right.  [default: uncased]"
)


@click.command(
    "evaluate",
    cls=Command,
    examples=[
        "fedgram evaluate model.arpa --users users.parquet --split dev",
        "fedgram evaluate lm.fgram R_W.safetensors --users users.parquet --split dev --baseline model.arpa --json",
    ],
)
@models_argument
@users_option
@split_option("test")
@baseline_option
@cased_option
@settings_options(EvaluationOptions, "options")
@seed_option
@json_option
def command(
    models: tuple[str, ...], users: str, split: str, baseline: str | None, cased: bool, options: EvaluationOptions,
    seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Measure how well models predict held-out users' typing.

    For every MODEL, over the words that users of the split typed: top-1 and top-3 next-word accuracy (a word out of
    vocabulary is wrong), OOV rate, perplexity, sentence log-likelihood, and the share of taps that three suggestions
    save, each with a 95 % interval by the jackknife over buckets of users. With a baseline, also the relative change
    over the same users. Rates and changes are in per cent.

    Perplexity and sentence log-likelihood without OOV words (SLLᵉ) are measured over the words that all models have,
    the baseline included. They are comparable within one table, but not between tables with other models.
    """
    if options.experiment and baseline is None:
        raise click.UsageError("--experiment needs a --baseline to compare with")
    with steps() as step:
        people = open_population(users, on_rows=step.begin(f"Reading {users}"))
        found = evaluate(
            list(models), people.users(split), options, baseline=baseline, cased=cased, seed=seed, begin=step.begin
        )
    if not as_json:
        print_comparison(found, found.title.replace(" users", f" {split} users", 1))
        return
    show({"split": split, **figures_of(found), "buckets": options.buckets}, as_json)


def figures_of(found: Comparison) -> dict[str, Any]:
    """A comparison for `--json`; models are a list."""
    figures = {field.name: getattr(found, field.name) for field in fields(Comparison)}
    return {**figures, "models": [{"model": name, **found.models[name]} for name in found.models]}


def print_comparison(found: Comparison, title: str) -> None:
    """Show a comparison as a table, as wide as the terminal allows."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    gap = " ± " if console.width >= _WIDE else "\n± "
    console.print(title, highlight=False)
    names = _short_names(list(found.models))
    rows = found.rows(gap)
    table = _table(_footnote(found, any("±" in figure for row in rows for figure in row[1:])))
    for row in rows:
        table.add_row(names.get(row[0], row[0]), *row[1:])
    console.print(table)
    if found.experiment is not None:
        e = found.experiment
        table = _table(
            f"A/B experiments, {e['users_per_arm']:,} users per arm: change against the baseline's arm, in per cent; "
            f"A/A intervals cover zero in {e['aa_coverage']:.1%}"
        )
        for path, change in e["change"].items():
            table.add_row(names[path], *(cell(change[key], "+", gap) for key in COLUMNS))
        console.print(table)


def _footnote(found: Comparison, has_intervals: bool) -> str:
    """What the table's figures are, as far as it has them."""
    parts = {
        "± is half of a 95 % interval": has_intervals,
        "changes are relative, in per cent, over the same users": any("change" in f for f in found.models.values()),
        found.scope: True,
    }
    return "; ".join(part for part, applies in parts.items() if applies)


def _short_names(paths: list[str]) -> dict[str, str]:
    """The names of the files, or their whole paths where two have the same name."""
    names = [Path(path).name for path in paths]
    return {path: name if names.count(name) == 1 else path for path, name in zip(paths, names, strict=True)}


def _table(caption: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    table.add_column("model", overflow="fold")
    for title in COLUMNS.values():
        table.add_column(title, justify="right")
    return table
