"""`fedgram evaluate`: how well models predict what held-out users type."""

from pathlib import Path
from typing import Any

import click

from fedgram.cli.console import json_option, show, steps
from fedgram.evaluate.evaluation import Evaluation, evaluate
from fedgram.evaluate.jackknife import BUCKETS
from fedgram.evaluate.models import open_predictor, predictor_suffix
from fedgram.evaluate.summary import summarize, summarize_experiment
from fedgram.text.population import SPLITS, open_population

_COLUMNS = {
    "top1": "top-1 %", "top3": "top-3 %", "oov_rate": "OOV %", "perplexity": "perplexity", "sll_e": "SLLᵉ",
    "keystroke_savings": "taps saved %",
}  # fmt: skip
_WIDE = 130  # columns of a terminal that hold every figure on one line


def _models(_: click.Context, __: click.Parameter, value: Any) -> Any:
    for path in [value] if isinstance(value, str) else value or ():
        predictor_suffix(path)
    return value


@click.command("evaluate")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, callback=_models)
@click.option("--users", required=True, help="Population: .parquet or .arrow")
@click.option("--split", type=click.Choice(SPLITS), default="test", show_default=True)
@click.option("--baseline", callback=_models, help="Model to compare the others with.")
@click.option("--cased/--uncased", default=False, help="Whether capitals must be right.  [default: uncased]")
@click.option(
    "--buckets", type=click.IntRange(2), default=BUCKETS, show_default=True,
    help="Buckets of users, for the jackknife's 95 % intervals.",
)  # fmt: skip
@click.option("--experiment", is_flag=True, help="Also simulate an A/B experiment against the baseline.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the experiment's arms.")
@json_option
def command(
    models: tuple[str, ...], users: str, split: str, baseline: str | None, cased: bool, buckets: int, experiment: bool,
    seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Measure how well models predict held-out users' typing.

    For every MODEL, over the words that users of the split typed: top-1 and top-3 next-word accuracy (a word out of
    vocabulary is wrong), OOV rate, perplexity, sentence log-likelihood, and the taps that three suggestions save, each
    with a 95 % interval by the jackknife over buckets of users. With a baseline, also the relative change over the same
    users. Capitals are those of the user; uncased, they do not matter. Rates and changes are in per cent.
    """
    if experiment and baseline is None:
        raise click.UsageError("--experiment needs a --baseline to compare with")
    paths = list(dict.fromkeys([*([baseline] if baseline else []), *models]))
    evaluations: dict[str, Evaluation] = {}
    with steps() as step:
        people = open_population(users, on_rows=step.begin(f"Reading {users}"))
        clients = people.clients(split)
        for path in paths:
            step.begin(f"Reading {path}")
            predictor = open_predictor(path, cased=cased)
            advance = step.begin(f"Evaluating {path}", len(clients))
            evaluations[path] = evaluate(predictor, people, clients, on_users=advance)
        first = evaluations[paths[0]]
        result: dict[str, Any] = {
            "split": split, "users": len(clients), "words": first.words, "cased": cased, "buckets": buckets,
            "baseline": baseline, "models": [],
        }  # fmt: skip
        for path, evaluation in evaluations.items():
            old = evaluations[baseline] if baseline and path != baseline else None
            result["models"].append({"model": path, **summarize(evaluation, old, buckets=buckets)})
        if experiment and baseline:
            step.begin("Simulating experiments")
            others = {path: e for path, e in evaluations.items() if path != baseline}
            result["experiment"] = summarize_experiment(evaluations[baseline], others, seed=seed, buckets=buckets)
    show(result, as_json) if as_json else _print(result)


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console

    case = "cased" if result["cased"] else "uncased"
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    gap = " ± " if console.width >= _WIDE else "\n± "
    console.print(
        f"{result['users']:,} {result['split']} users, {result['words']:,} typed words, {case}", highlight=False
    )
    names = _short_names([model["model"] for model in result["models"]])
    table = _table("± is half of a 95 % interval; changes are relative, in per cent, over the same users")
    for model in result["models"]:
        _add(table, names[model["model"]], model, "", gap)
        if "change" in model:
            _add(table, "  change", model["change"], "+", gap)
    console.print(table)
    if "experiment" in result:
        e = result["experiment"]
        table = _table(
            f"A/B experiments, {e['users_per_arm']:,} users an arm: change against the baseline's arm, in per cent; "
            f"A/A intervals cover zero in {e['aa_coverage']:.1%}"
        )
        for path, change in e["change"].items():
            _add(table, names[path], change, "+", gap)
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
    for title in _COLUMNS.values():
        table.add_column(title, justify="right")
    return table


def _add(table: Any, name: str, figures: dict[str, Any], sign: str, gap: str) -> None:
    table.add_row(name, *(_cell(figures[key], sign, gap) for key in _COLUMNS))


def _cell(figure: dict[str, Any], sign: str, gap: str) -> str:
    if figure["value"] is None:
        return "–"
    value = f"{figure['value']:{sign}.2f}"
    if figure["ci95"] is None:
        return value
    low, high = figure["ci95"]
    return f"{value}{gap}{(high - low) / 2:.2f}"
