"""Nested frozen dataclasses from TOML, strictly.

A section is a dataclass, a key is a field, and the field's type is what the key must be: `bool`, `int`, `float` (a
whole number will do), `str`, `tuple[int, ...]` and the like (an array), `Literal[...]` (one of these), `X | None`
(may be left out), or another dataclass (a section below). `Annotated[int, Between(1, 7)]` bounds a number. Numbers are
finite unless their bounds say otherwise. Every field has a default. What does not fit is refused by the key's full
name; an unknown key with the nearest one that there is.
"""

import difflib
import hashlib
import json
import math
import sys
import tomllib
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedgram.core.errors import InputError, InvariantError

T = TypeVar("T")
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of a number, or of every number of an array; the ends are allowed unless `above` is given.

    With `infinite` the number may be `inf`: what is no limit at all.
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None
    infinite: bool = False

    def holds(self, value: float) -> bool:
        """Whether a value is within."""
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
        )

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f"from {self.low:g} to {self.high:g}"
        parts = [
            f"{sign} {bound:g}"
            for sign, bound in (("at least", self.low), ("above", self.above), ("at most", self.high))
            if bound is not None
        ]
        return " and ".join(parts)


def read_config(path: str | Path, kind: type[T]) -> T:
    """Read a file as the dataclass `kind`."""
    with Path(path).open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise InputError(path, "is not a configuration: it has more than 1 MiB")
    try:
        table = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise InputError(path, f"is not UTF-8 text (byte {error.start})") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(path, f"is not TOML: {error}") from None
    return from_table(table, kind, path)


def from_table(table: Mapping[str, Any], kind: type[T], path: str | Path = "configuration") -> T:
    """A dataclass from what a TOML parser gives; `path` is what errors name."""
    return _section(table, kind, "", path, known_keys(kind))


def known_keys(kind: Any, prefix: str = "") -> list[str]:
    """The full names of all keys and sections."""
    result = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        result.append(prefix + name)
        if is_dataclass(hint):
            result += known_keys(hint, f"{prefix}{name}.")
    return result


def _section(table: Any, kind: type[T], prefix: str, path: str | Path, known: list[str]) -> T:
    if not isinstance(table, Mapping):
        raise InputError(path, f"{prefix.rstrip('.')} must be a section, not {_shown(table)}")
    hints = get_type_hints(kind, include_extras=True)
    for name in table:
        if name not in hints:
            raise InputError(path, f"unknown key {prefix}{name}", remedy=_nearest(prefix, name, known))
    values = {
        name: _section(value, hints[name], f"{prefix}{name}.", path, known)
        if is_dataclass(hints[name])
        else _value(value, hints[name], prefix + name, path)
        for name, value in table.items()
    }
    try:
        return kind(**values)
    except InvariantError as error:  # what the fields of a section demand of each other
        raise InputError(path, f"{prefix.rstrip('.') or 'the configuration'}: {error}") from None


def _nearest(prefix: str, name: str, known: list[str]) -> str:
    """The key with the same name in another section, or that with the most similar name in this one, or in another."""
    here = [key for key in known if key.startswith(prefix) and "." not in key[len(prefix) :]]
    for keys, cutoff in ((known, 1.0), (here, 0.6), (known, 0.6)):
        if near := difflib.get_close_matches(name, [key.split(".")[-1] for key in keys], 1, cutoff):
            return f"did you mean {next(key for key in keys if key.split('.')[-1] == near[0])}?"
    return f"use one of {', '.join(here)}"


def _value(value: Any, hint: Any, key: str, path: str | Path) -> Any:
    bounds: Between | None = None
    if get_origin(hint) is Annotated:
        hint, bounds = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
        if get_origin(hint) is Annotated:
            hint, bounds = get_args(hint)
    wanted, fits = _wanted(hint), _fits(value, hint, infinite=bounds is not None and bounds.infinite)
    if bounds is not None:
        wanted += f" {bounds}"
        fits = fits and all(bounds.holds(v) for v in (value if isinstance(value, list) else [value]))
    if not fits:
        raise InputError(path, f"{key} must be {wanted}, not {_shown(value)}")
    if get_origin(hint) is tuple:
        return tuple(float(v) if get_args(hint)[0] is float else v for v in value)
    return float(value) if hint is float else value


def _fits(value: Any, hint: Any, *, infinite: bool) -> bool:
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is tuple:
        part = get_args(hint)[0]
        return isinstance(value, list) and len(value) > 0 and all(_fits(v, part, infinite=infinite) for v in value)
    if hint is float:
        finite = type(value) in (int, float) and abs(value) <= sys.float_info.max
        return finite or (infinite and type(value) is float and value == math.inf)
    return type(value) is hint


def _wanted(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"an array, each {_wanted(get_args(hint)[0])}"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[hint]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a section"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def digest(config: Any) -> str:
    """SHA-256 of a configuration or a section: of its values, defaults included, not of how they were written."""
    values = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
    return hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def to_toml(config: Any) -> str:
    """The whole configuration, defaults included, as TOML that reads back as the same."""
    return _to_toml(config, "").lstrip("\n")


def _to_toml(config: Any, prefix: str) -> str:
    names = [field.name for field in fields(config)]
    plain = [name for name in names if not is_dataclass(getattr(config, name)) and getattr(config, name) is not None]
    text = f"\n[{prefix[:-1]}]\n" if prefix and plain else ""
    text += "".join(f"{name} = {_toml_value(getattr(config, name))}\n" for name in plain)
    return text + "".join(
        _to_toml(getattr(config, name), f"{prefix}{name}.") for name in names if is_dataclass(getattr(config, name))
    )


def _toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
