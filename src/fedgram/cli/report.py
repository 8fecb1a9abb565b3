"""`fedgram report`: a run's results as one HTML page and its Markdown twin."""

from pathlib import Path

import click

from fedgram.cli.commands import Command
from fedgram.cli.console import show
from fedgram.cli.parameters import json_option
from fedgram.core.errors import InputError
from fedgram.report.page import write_report
from fedgram.report.results import read_results


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

    RESULTS is the workspace of a run, or a JSON file that docs/formats.md describes. Of a run that was done up to its
    report on another machine, run.toml and the JSON files are enough. The folder of --output gets
    report.html, which needs no other file and no network, and report.md, which links to the figures.
    """
    if results.is_dir():
        run, results = results, results / "report" / "results.json"
        if not results.is_file() and not (run / "run.toml").is_file():
            raise InputError(
                run, "has no report/results.json", remedy="name the workspace of a finished run, or a file"
            )
        if not results.is_file():
            from fedgram.pipeline.run import report_workspace

            report_workspace(run)
    if folder.exists() and not folder.is_dir():
        raise InputError(folder, "is not a folder")
    content = read_results(results)
    folder.mkdir(parents=True, exist_ok=True)
    page, twin = write_report(content, folder)
    show({"page": str(page), "markdown": str(twin), "bytes": page.stat().st_size}, as_json)
