"""Arguments and options that several commands share, and the checks of paths."""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from fedgram.cli.commands import Option
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.settings import NEEDS_DP, NEEDS_NOISE
from fedgram.core.unpacking import PACKED
from fedgram.formats.models import FORMATS, READERS, WRITABLE, is_pipe, model_suffix
from fedgram.text.messages import SPLITS

_NEEDS = (NEEDS_DP, NEEDS_NOISE)  # of a ledger, where a command can be without noise
Decorator = Callable[[Any], Any]

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
seed_option = click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed.")
users_option = click.option("--users", required=True, help="Population: .parquet or .population")
unigrams_option = click.option(
    "--unigrams", required=True, help="Word frequencies, for the vocabulary: .unigrams, or lines of word, tab, count."
)
pieces_option = click.option("--pieces", help="Word pieces, for a network of word pieces.")
preset_option = click.option(
    "--preset", default="W_30K", show_default=True, help="Shape of the network; see `fedgram network presets`."
)


def whitelist_option(what: str) -> Decorator:
    """One or more word lists."""
    return click.option("--whitelist", required=True, multiple=True, help=what)


def split_option(default: str) -> Decorator:
    """Whose text is used."""
    return click.option("--split", type=click.Choice(SPLITS), default=default, show_default=True, help="Whose text.")


def output_option(what: str, callback: Callable[..., Any] | None = None) -> Decorator:
    """The file to write."""
    return click.option("-o", "--output", required=True, callback=callback or output_path, help=what)


def ledger_options(function: Any) -> Any:
    """Options of the privacy ledger and its budget; the command gets the argument `ledger`."""

    @wraps(function)
    def command(*, ledger: Path | None, budget_epsilon: float | None, budget_delta: float | None, **values: Any) -> Any:
        return function(ledger=_ledger(ledger, budget_epsilon, budget_delta), **values)

    for option in (
        click.option("--budget-delta", cls=Option, needs=_NEEDS,
                     type=click.FloatRange(0, 1, min_open=True, max_open=True), help="δ of the privacy budget."),
        click.option("--budget-epsilon", cls=Option, needs=_NEEDS, type=click.FloatRange(0, min_open=True),
                     help="ε of the privacy budget of these users: what would exceed it is not begun."),
        click.option("--ledger", cls=Option, needs=_NEEDS, callback=output_path,
                     help="File in which privacy spent on these users is recorded, over all operations."),
    ):  # fmt: skip
        command = option(command)
    return command


def _ledger(path: Path | None, epsilon: float | None, delta: float | None) -> Any:
    from fedgram.privacy.ledger import Budget, Ledger

    if (epsilon is None) != (delta is None):
        raise FedgramError("a privacy budget needs both --budget-epsilon and --budget-delta")
    budget = Budget(epsilon, delta) if epsilon is not None and delta is not None else None
    return Ledger(None, budget) if path is None else Ledger.open(path, budget)


def plots_option(what: str) -> Decorator:
    """A folder for figures."""
    return click.option("--plots", type=click.Path(file_okay=False, path_type=Path), help=what)


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


def with_suffix(*suffixes: str, what: str) -> Callable[[click.Context, click.Parameter, str], Path | None]:
    """A check that a file to write has one of these suffixes."""

    def check(ctx: click.Context, parameter: click.Parameter, value: str) -> Path | None:
        if not value.endswith(suffixes):
            raise InputError(value, f"is not a name for {what}", remedy=f"use {' or '.join(suffixes)}")
        return output_path(ctx, parameter, value)

    return check


def model_output(ctx: click.Context, parameter: click.Parameter, value: str) -> Path | None:
    """A check that a model can be written there."""
    path = output_path(ctx, parameter, value)
    model_suffix(value, WRITABLE)
    return path


def piped_model_output(ctx: click.Context, parameter: click.Parameter, value: str) -> Path | None:
    """The same, where a pipe will do, or another name if the format is given."""
    if is_pipe(value):
        return Path(value)
    return output_path(ctx, parameter, value) if ctx.params.get("format") else model_output(ctx, parameter, value)


def model_input(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """A check that a name is that of a model that can be read."""
    if value is not None and not is_pipe(value):
        model_suffix(value, tuple(READERS))
    return value


def models_input(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """A check of several names."""
    return tuple(value for value in values if model_input(ctx, parameter, value))


def model_argument(name: str) -> Decorator:
    """A model to read."""
    return click.argument(name, callback=model_input)


_SUFFIXES = "Model to write: .arpa .arpa.gz .fst .fst.txt .ngram"
model_output_option = output_option(_SUFFIXES, model_output)


format_option = click.option(
    "--format", type=click.Choice(FORMATS), is_eager=True,
    help="Format of the model, if the name of the output has no such suffix; arpa for a pipe.",
)  # fmt: skip


def piped_model_options(function: Any) -> Any:
    """The model to write, which may be a pipe, and its format if its name does not say it."""
    return output_option(f"{_SUFFIXES}; - is standard output.", piped_model_output)(format_option(function))


def bytes_of(paths: tuple[str, ...]) -> int | None:
    """The size of all files together; None if one is not an ordinary, uncompressed file."""
    files = [Path(path) for path in paths]
    plain = all(file.is_file() and file.suffix not in PACKED for file in files)
    return sum(file.stat().st_size for file in files) if plain else None
