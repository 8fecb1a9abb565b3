"""`fedgram run` and `fedgram demo`: one command from users' text to a keyboard model and its report."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, get_args

import click

from fedgram.cli.commands import Command
from fedgram.cli.console import warn
from fedgram.cli.parameters import json_option
from fedgram.cli.settings import settings_options
from fedgram.core.compute import Compute
from fedgram.core.extras import check_extras
from fedgram.core.progress import Advance, Begin
from fedgram.core.settings import settings_of
from fedgram.pipeline.config import PRESETS, SIZES, Language, PopulationSection, RunConfig, preset_path, read_run_config

if TYPE_CHECKING:
    from fedgram.pipeline.verdict import Verdict
    from fedgram.pipeline.workspace import Planned, Stage

OnStage = Callable[["Stage", str | None], None]
OnDone = Callable[["Stage", float], None]
_GIVEN = ("users", "supplement", "whitelist")


def running_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What all commands that run stages ask for."""
    options: list[Callable[[Any], Any]] = [
        click.option("--until", metavar="STAGE", help="Stop after this stage."),
        click.option(
            "--dry-run",
            is_flag=True,
            help="Print the stages that would run, with the time of the last run or an estimate.",
        ),
        settings_options(Compute, "compute"),
        json_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def side_by_side(command: Callable[..., Any]) -> Callable[..., Any]:
    """For commands whose stages need no real devices."""
    return click.option(
        "--stages-at-once", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
        help="Run up to N stages at the same time, each in a process of its own. The files are the same. It is for "
        "machines with a GPU and many cores.",
    )(command)  # fmt: skip


def population_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Files in the place of the configuration's."""
    for known in reversed(settings_of(PopulationSection)):
        if known.name in _GIVEN:
            command = click.option(f"--{known.name}", help=known.help)(command)
    return command


def given_files(options: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The files that were given, by section and key; they are taken out of the options."""
    return {("population", name): path for name in _GIVEN if (path := options.pop(name)) is not None}


def _print_preset(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value:
        click.echo(preset_path(value).read_text("utf-8"), nl=False)
        ctx.exit()


@click.command(
    "run",
    cls=Command,
    examples=[
        "fedgram run demo -w demo-output --until unigrams",
        "fedgram run en_us -w run --users users.parquet --supplement supplement.txt --whitelist whitelist.txt "
        "--dry-run",
        "fedgram run --print-preset demo",
    ],
)
@click.argument("config", metavar="CONFIG.toml|PRESET")
@click.option("-w", "--workspace", required=True, type=click.Path(path_type=Path), help="Folder for the run's files.")
@population_options
@click.option(
    "--preset", type=click.Choice(SIZES), help="Another size: small takes half an hour on two cores, without a GPU."
)
@click.option(
    "--print-preset", type=click.Choice((*PRESETS, *SIZES)), is_eager=True, expose_value=False, callback=_print_preset,
    help="Print a preset, to copy and change.",
)  # fmt: skip
@side_by_side
@running_options
def command(config: str, workspace: Path, preset: str | None, as_json: bool, **options: Any) -> None:
    """Make a keyboard model from users' text, and report on it.

    The whole paper as stages: unigrams and networks from devices, the eight n-gram models of Algorithm 1, a refit to
    n-grams that devices count, the best of them packed for phones, baselines, evaluation on held-out users, and
    report/report.html. The workspace keeps the files of every stage. An interrupted run resumes; after a change, only
    the affected stages run again. The presets en_us and pt_br have the paper's networks and sizes. They need --users,
    --supplement and --whitelist, and a GPU, or --preset small. The preset demo generates its typists. Without users,
    `fedgram phone build` makes a model of public text.
    """
    execute(read_run_config(config, given_files(options), preset), workspace, as_json=as_json, **options)


@click.command(
    "demo",
    cls=Command,
    examples=["fedgram demo --until unigrams", "fedgram demo -w demo-pt --language pt_br --dry-run"],
)
@click.option(
    "-w", "--workspace", type=click.Path(path_type=Path), default=Path("demo-output"), show_default=True,
    help="Folder for the run's files.",
)  # fmt: skip
@click.option(
    "--language", type=click.Choice(get_args(Language)), default="en_us", show_default=True, help="Language to type in."
)
@side_by_side
@running_options
def demo(workspace: Path, language: Language, as_json: bool, **options: Any) -> None:
    """Run everything on generated typists, in minutes.

    This is `fedgram run demo`.
    """
    config = read_run_config("demo")
    config = replace(config, population=replace(config.population, language=language))
    execute(config, workspace, as_json=as_json, **options)


def extras_of(config: RunConfig, until: str | None, workspace: Path) -> list[str]:
    """The optional packages that a run needs; one that stops early needs those of its networks and its users only.

    Users that were read before, perhaps on another machine, are not read again.
    """
    users, is_read = config.population.users, (workspace / "users.population").is_file()
    needed = {
        "neural": True,
        "data": users is not None and not users.endswith(".population") and not is_read,
        "privacy": until is None and config.privacy.protection == "dp",
        "pieces": until is None and config.pieces.use,
        "plots": until is None,
    }
    return [extra for extra, wanted in needed.items() if wanted]


def execute(
    config: RunConfig, workspace: Path, *, until: str | None, dry_run: bool, compute: Compute, as_json: bool,
    change: "Callable[[list[Stage]], list[Stage]] | None" = None, stages_at_once: int = 1,
) -> None:  # fmt: skip
    """Run, or say what would be run, and print the result."""
    check_extras("this run", *extras_of(config, until, workspace))
    from fedgram.pipeline.run import plan_pipeline, run_pipeline
    from fedgram.pipeline.stages import stage_names

    names = stage_names(config, until)
    if dry_run:
        from fedgram.pipeline.estimates import estimate_seconds

        plan = plan_pipeline(config, workspace, until=until, change=change)
        show_plan(plan, estimate_seconds(config, compute), as_json)
        return
    began = perf_counter()
    ran: list[str] = []
    with progress(len(names), quiet=as_json) as (on_stage, on_done, begin):

        def noted(stage: "Stage", reason: str | None) -> None:
            ran.extend([stage.name] if reason else [])
            on_stage(stage, reason)

        space = run_pipeline(
            config, workspace, compute=compute, until=until, change=change, stages_at_once=stages_at_once,
            on_stage=noted, on_done=on_done, begin=begin,
        )  # fmt: skip
    result = {
        "workspace": str(workspace), "ran": ran, "seconds": round(perf_counter() - began, 1),
        "files": {
            name: about["sha256"] for noted in space.artefacts.values() for name, about in noted["files"].items()
        },
    }  # fmt: skip
    judged = _verdict(workspace) if "evaluation" in names else None
    if as_json:
        verdict = {"better": judged.better, "warnings": judged.warnings} if judged else {}
        click.echo(json.dumps(result | verdict, ensure_ascii=False))
    elif judged and until is None:
        _say_what_came_out(config, workspace, perf_counter() - began, judged)


def _verdict(workspace: Path) -> "Verdict":
    from fedgram.pipeline.verdict import verdict

    told = (json.loads((workspace / f"{x}.json").read_text("utf-8")) for x in ("final", "evaluation", "population"))
    return verdict(*told)


def _say_what_came_out(config: RunConfig, workspace: Path, seconds: float, judged: "Verdict") -> None:
    from fedgram.fgram.reader import open_model
    from fedgram.pipeline.evaluation_stages import EXAMPLES

    text = EXAMPLES[config.population.language][0]
    words = [prediction.word for prediction in open_model(workspace / "lm.fgram").predict(text.split(), 3)]
    lines = {
        "result": judged.sentence,
        "time": f"{seconds / 60:.1f} minutes",
        "report": str(workspace / "report" / "report.html"),
        "for phones": str(workspace / "lm.fgram"),
        "exports": ", ".join(str(p) for p in sorted(workspace.glob("lm.*")) if p.suffix != ".fgram") or "none",
        f"“{text} …”": " · ".join(words),
        "try it": f"fedgram phone keyboard {workspace / 'lm.fgram'}",
    }
    width = max(map(len, lines))
    for name, line in lines.items():
        click.echo(f"{name:<{width}}  {line}")
    for path in sorted(workspace.glob("distillation_[WP].json")):
        by, warnings = path.stem[-1], json.loads(path.read_text("utf-8"))["warnings"]
        warn(*(f"A_{by}_{letter}: {warning}" for letter, warning in warnings.items()))
    for warning in judged.warnings:
        click.secho(f"fedgram: WARNING: {warning}", err=True, bold=True, fg="red")


def show_plan(plan: "list[Planned]", estimates: Mapping[str, float], as_json: bool) -> None:
    """Print what a run would do, and how long it may take."""
    rows: list[dict[str, Any]] = [
        {"stage": p.stage.name, "runs": p.reason is not None, "why": p.reason, "seconds": p.seconds,
         "estimate": None if p.seconds is not None else estimates.get(p.stage.name)}
        for p in plan
    ]  # fmt: skip
    if as_json:
        click.echo(json.dumps({"stages": rows}))
        return
    for row in rows:
        took = _duration(row["seconds"]) if row["seconds"] is not None else "–"
        if row["estimate"] is not None:
            took = f"about {_duration(row['estimate'])}"
        click.echo(f"{row['stage']:<16} {took:>18}  {row['why'] or 'is done'}")
    left = sum(row["seconds"] or row["estimate"] or 0.0 for row in rows if row["runs"])
    if any(row["estimate"] is not None for row in rows):
        click.echo(f"{'in all':<16} {'about ' + _duration(left):>18}  and a few minutes for stages without an estimate")


def _duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} minutes" if seconds < 7200 else f"{seconds / 3600:,.0f} hours"


@contextmanager
def progress(stages: int, *, quiet: bool) -> Iterator[tuple[OnStage, OnDone, Begin]]:
    """Two bars on a terminal, for the run and for its current step; elsewhere one line per stage, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    bars = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    run, step = bars.add_task("", total=stages), bars.add_task("", total=None)
    running: dict[str, None] = {}  # names, in the order in which they began

    def show(line: str) -> None:
        bars.update(run, description=f"[bold]{', '.join(running)}[/]")
        if not quiet and line:
            console.print(line, highlight=False)

    def on_stage(stage: "Stage", reason: str | None) -> None:
        if reason:
            running[stage.name] = None
        else:
            bars.update(run, advance=1)
        show("" if reason else f"  {stage.name:<16}     is done")

    def on_done(stage: "Stage", seconds: float) -> None:
        del running[stage.name]
        bars.update(run, advance=1)
        show(f"[green]✓[/] {stage.name:<16} {seconds:8.1f} s")

    def begin(description: str, total: int | None = None, *, unit: str = "") -> Advance:  # noqa: ARG001
        bars.reset(step, description=description, total=total)

        def advance(amount: int, about: str | None = None, /) -> None:
            bars.update(step, advance=amount, description=about or description)

        return advance

    with bars:
        yield on_stage, on_done, begin
