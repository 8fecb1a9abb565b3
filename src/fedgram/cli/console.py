"""What commands print: progress on the terminal, and results for people or machines."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from fedgram.core.progress import Advance


class Steps:
    """The current step, shown on a terminal with its time, and with a bar if its size is known."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task: Any = None

    def begin(self, description: str, total: int | None = None, *, unit: str = "") -> Advance:
        """Show the next step, with its speed if a unit is named; returns what to call with the progress made.

        Progress of an earlier step, which is no longer shown, is ignored.
        """
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = task = self._progress.add_task(description, total=total, unit=unit)

        def advance(amount: int, about: str | None = None, /) -> None:
            if task == self._task:
                self._progress.update(task, advance=amount, description=about or description)

        return advance


@contextmanager
def steps() -> Iterator[Steps]:
    """Progress on standard error while the block runs, if that is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class SpeedColumn(ProgressColumn):
        """Units per second."""

        def render(self, task: Task) -> Text:
            unit, speed = task.fields.get("unit", ""), task.finished_speed or task.speed
            return Text(f"{speed:,.0f} {unit}/s" if unit and speed else "")

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        SpeedColumn(),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Steps(progress)


def show(result: Mapping[str, Any], as_json: bool, *, err: bool = False) -> None:
    """Print a result: one JSON object, or one line per value. With `err`, on standard error."""
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False), err=err)
        return
    width = max(len(name) for name in result)
    for name, value in result.items():
        click.echo(f"{name.replace('_', ' '):<{width}}  {_readable(value)}", err=err)


def _readable(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) >= 1e-3 or value == 0 else f"{value:.3g}"
    if isinstance(value, list):
        return "  ".join(_readable(item) for item in value)
    return str(value)


def warn(*warnings: str) -> None:
    """Print warnings on standard error, one per line."""
    for warning in warnings:
        click.echo(f"fedgram: warning: {warning}", err=True)
