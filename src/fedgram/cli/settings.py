"""Command-line options from settings classes: the names, defaults, bounds and help texts are those of the fields."""

import math
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Literal, get_args, get_origin

import click

from fedgram.cli.commands import Option
from fedgram.core.settings import Setting, SettingError, settings_of


def settings_options(
    kind: type, name: str, *, without: Iterable[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command one option per field of a settings class; it gets the settings as the argument `name`.

    Fields in `without` have no option.
    """
    known = [setting for setting in settings_of(kind) if setting.name not in set(without)]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def command(**values: Any) -> Any:
            own = {setting.name: values.pop(f"{name}_{setting.name}") for setting in known}
            return function(**values, **{name: kind(**own)})

        for setting in reversed(known):
            command = _option(setting, name)(command)
        return command

    return decorate


def _option(setting: Setting, prefix: str) -> Callable[[Any], Any]:
    flag = f"--{setting.name.replace('_', '-')}"
    formerly = tuple(f"--{old.replace('_', '-')}" for old in setting.formerly)
    names = (f"{flag}/--no-{flag[2:]}" if setting.hint is bool else flag, f"{prefix}_{setting.name}")
    kind: Any = bool if setting.hint is bool else _SettingType(setting)
    text = f"{setting.help}  [{'; '.join(_notes(setting))}]".removesuffix("  []")
    return click.option(
        *names, cls=Option, type=kind, default=setting.default, help=text, formerly=formerly, needs=setting.needs
    )


def _notes(setting: Setting) -> list[str]:
    notes, default = [], setting.default
    if default is not None and setting.hint is not bool:
        notes.append(f"default: {_shown(default)}")
    elif default is not None:
        notes.append(f"default: {'yes' if default else 'no'}")
    if setting.bounds is not None:
        notes.append(str(setting.bounds))
    return notes


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


class _SettingType(click.ParamType[Any]):
    """Reads text as the value of a setting."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        literal = get_args(setting.hint) if get_origin(setting.hint) is Literal else None
        kind = {int: "INTEGER", float: "NUMBER", str: "TEXT"}.get(setting.hint, "A,B,…")
        self.name = f"[{'|'.join(literal)}]" if literal else kind

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002
        """What stands for the value in a help text."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, checked."""
        try:
            return self.setting.checked(_parsed(value, self.setting.hint) if isinstance(value, str) else value)
        except SettingError as error:
            problem = error.problem
        except ValueError:
            problem = f"must be {self.setting.wanted}, not {value!r}"
        return self.fail(problem.replace("an array, each", "a list separated by commas, each"), param, ctx)


def _parsed(text: str, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        return [_parsed(part, get_args(hint)[0]) for part in text.split(",")]
    if hint is int:
        return int(text)
    if hint is float:
        number = float(text)
        if math.isnan(number):
            raise ValueError
        return number
    return text
