"""`fedgram report`: a run's results as one HTML page and its Markdown twin."""

from dataclasses import replace
from pathlib import Path

import click

from fedgram.cli.commands import Command
from fedgram.cli.console import show
from fedgram.cli.parameters import json_option
from fedgram.core.errors import InputError
from fedgram.report.page import write_report
from fedgram.report.results import Results, read_results


@click.command(
    "report",
    cls=Command,
    examples=["fedgram report workspace -o report", "fedgram report results.json -o report --json"],
)
@click.argument("results", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", "folder", default=Path("report"), show_default=True, type=click.Path(path_type=Path),
    help="Folder for the two pages.",
)  # fmt: skip
@json_option
def command(results: Path, folder: Path, as_json: bool) -> None:
    """Write a run's results as a page.

    RESULTS is the workspace of a run or of audits, or a JSON file that docs/formats.md describes. Of a run that was
    done up to its report on another machine, run.toml and the JSON files are enough. If audits were run in a workspace,
    the page shows what they found. The folder of --output gets report.html, which needs no other file and no network,
    and report.md, which links to the figures.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(folder, "is not a folder")
    content = read_results(results) if not results.is_dir() else _of_workspace(results, folder)
    folder.mkdir(parents=True, exist_ok=True)
    page, twin = write_report(content, folder)
    show({"page": str(page), "markdown": str(twin), "bytes": page.stat().st_size}, as_json)


def _of_workspace(workspace: Path, folder: Path) -> Results:
    """The results of a run, of audits, or of both."""
    from fedgram.audit.tables import FOLDER, read_audits

    run, has_audits = workspace / "report" / "results.json", (workspace / FOLDER).is_dir()
    is_run = run.is_file() or (workspace / "run.toml").is_file()
    if not is_run and not has_audits:
        remedy = "name the workspace of a finished run, or a file"
        raise InputError(workspace, "has no report/results.json and no audits", remedy=remedy)
    if is_run and not run.is_file():
        from fedgram.pipeline.run import report_workspace

        report_workspace(workspace)
    content = read_results(run) if is_run else Results("Audits of models and mechanisms")
    if not has_audits:
        return content
    folder.mkdir(parents=True, exist_ok=True)
    tables, figures = read_audits(workspace, folder)
    return replace(content, audits=tables, figures=(*content.figures, *figures))
