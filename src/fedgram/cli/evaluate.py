"""`fedgram evaluate`: how well models predict what held-out users type."""

from dataclasses import asdict
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


def _models(_: click.Context, __: click.Parameter, value: Any) -> Any:
    for path in [value] if isinstance(value, str) else value or ():
        model_suffix(path, SUFFIXES)
    return value


@click.command(
    "evaluate",
    cls=Command,
    examples=[
        "fedgram evaluate model.arpa --users users.parquet --split dev",
        "fedgram evaluate lm.fgram R_W.safetensors --users users.parquet --split dev --baseline model.arpa --json",
    ],
)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, callback=_models)
@users_option
@split_option("test")
@click.option("--baseline", callback=_models, help="Model to compare the others with.")
@click.option("--cased/--uncased", default=False, help="Whether capitals must be right.  [default: uncased]")
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
        _print(found, split)
        return
    figures = asdict(found)
    named = [{"model": name, **figures["models"][name]} for name in found.models]
    show({"split": split, **figures, "buckets": options.buckets, "models": named}, as_json)


def _print(found: Comparison, split: str) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    gap = " ± " if console.width >= _WIDE else "\n± "
    console.print(found.title.replace(" users", f" {split} users", 1), highlight=False)
    names = _short_names(list(found.models))
    table = _table(
        f"± is half of a 95 % interval; changes are relative, in per cent, over the same users; {found.scope}"
    )
    for row in found.rows(gap):
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
