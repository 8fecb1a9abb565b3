"""What commands share: progress on the terminal, results for people or machines, and checked output paths."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fedgram.core.errors import InputError

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")

secure_option = click.option(
    "--secure-aggregation",
    is_flag=True,
    help="Mask every update, so that the server sees nothing but their sum; the result is the same.",
)


class Steps:
    """The step that is going on, shown on a terminal with its time, and with a bar where its size is known."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task: Any = None

    def begin(self, description: str, total: int | None = None, *, unit: str = "") -> Callable[[int], None]:
        """Show the next step, with its speed if a unit is named; returns what to call with the progress made."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = task = self._progress.add_task(description, total=total, unit=unit)
        return lambda amount: self._progress.update(task, advance=amount)

    def describe(self, description: str) -> None:
        """Say something else of the step that is going on."""
        if self._task is not None:
            self._progress.update(self._task, description=description)


@contextmanager
def steps() -> Iterator[Steps]:
    """Progress on standard error while the block runs; nothing is shown where that is not a terminal."""
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
        """Units a second."""

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


def show(result: Mapping[str, Any], as_json: bool) -> None:
    """Print a result: one JSON object, or a line a value."""
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
        return
    width = max(len(name) for name in result)
    for name, value in result.items():
        click.echo(f"{name.replace('_', ' '):<{width}}  {_readable(value)}")


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


def output_path(_: click.Context, __: click.Parameter, value: str | None) -> Path | None:
    """Check before the work starts that a file can be written there."""
    if value is None:
        return None
    path = Path(value)
    if path.is_dir():
        raise InputError(path, "is a folder", remedy="name a file to write")
    if not path.parent.is_dir():
        if path.parent.exists():
            raise InputError(path.parent, "is not a folder", remedy="name a file in a folder")
        raise InputError(path, "its folder does not exist", remedy=f"make it first: mkdir -p {path.parent}")
    if not path.exists() and not os.access(path.parent, os.W_OK):
        raise InputError(path.parent, "cannot be written to", remedy="choose another folder")
    return path


def bytes_of(paths: tuple[str, ...]) -> int | None:
    """The size of all files together; None if one is not an ordinary, uncompressed file."""
    files = [Path(path) for path in paths]
    plain = all(file.is_file() and file.suffix != ".gz" for file in files)
    return sum(file.stat().st_size for file in files) if plain else None
