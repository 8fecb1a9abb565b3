"""TOML files as nested dataclasses of settings, strictly.

A section is a dataclass, a key is a field (`core/settings.py`). A section that a file leaves out has the defaults of
the dataclass around it. A value that does not fit is refused by the key's full name; an unknown key with the nearest
known one.
"""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.settings import SettingError, settings_of, without_effect

T = TypeVar("T")
_MAX_BYTES = 1 << 18
_MAX_DOTS = 100  # a key of many parts takes quadratic time


def read_config(path: str | Path, kind: type[T], *, over: T | None = None) -> T:
    """Read a file as the dataclass `kind`; keys that it leaves out have their defaults, or their values in `over`."""
    with Path(path).open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise InputError(path, "is not a configuration: it has more than 256 KiB")
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.count(b".") > _MAX_DOTS:
            raise InputError(path, f"has more than {_MAX_DOTS} dots on a line", line=number, remedy="split the line")
    try:
        table = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise InputError(path, f"is not UTF-8 text (byte {error.start})") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(path, f"is not TOML: {error}") from None
    except ValueError:
        raise InputError(path, "has a number of too many digits, or a date that does not exist") from None
    return from_table(table, kind, path, over=over)


def from_table(
    table: Mapping[str, Any], kind: type[T], path: str | Path = "configuration", *, over: T | None = None
) -> T:
    """A dataclass from what a TOML parser gives; `path` is what errors name."""
    default = kind() if over is None else over
    return _section(table, default, "", path, known_keys(default))


def known_keys(config: Any, prefix: str = "") -> list[str]:
    """The full names of all keys and sections."""
    result = []
    for known in fields(config):
        result.append(prefix + known.name)
        if is_dataclass(section := getattr(config, known.name)):
            result += known_keys(section, f"{prefix}{known.name}.")
    return result


def _section(table: Any, default: T, prefix: str, path: str | Path, known: list[str]) -> T:
    """The section with a table's values in place of its defaults."""
    if not isinstance(table, Mapping):
        raise InputError(path, f"{prefix.rstrip('.')} must be a section, not {table!r:.40}")
    assert is_dataclass(default)
    names = {field.name for field in fields(default)}
    renamed = {old: s.name for s in settings_of(type(default)) for old in s.formerly}
    values: dict[str, Any] = {}
    for given, value in table.items():
        name = renamed.get(given, given)
        if name not in names or name in values:
            raise InputError(path, f"unknown key {prefix}{given[:80]}", remedy=_nearest(prefix, given, known))
        section = getattr(default, name)
        values[name] = _section(value, section, f"{prefix}{name}.", path, known) if is_dataclass(section) else value
    try:
        result: T = replace(default, **values)  # type: ignore[type-var]
    except SettingError as error:
        raise InputError(path, f"{prefix}{error}") from None
    except FedgramError as error:  # what the fields of a section demand of each other
        raise InputError(path, f"{prefix.rstrip('.') or 'the configuration'}: {error}") from None
    _refuse_idle(result, set(values), prefix, path)
    return result


def _refuse_idle(section: Any, given: set[str], prefix: str, path: str | Path) -> None:
    """Refuse keys that have no effect, unless the file states the value of what they need: then it is meant so."""
    known = settings_of(type(section))
    needs = {s.name: tuple(n for n in s.needs if n.in_files) for s in known if s.name in given}
    if idle := without_effect(
        needs, {s.name: (getattr(section, s.name), s.default) for s in known if s.name not in given}
    ):
        names, needed = idle
        wanted = f"{prefix}{needed.name}" + (f" = {' or '.join(map(repr, needed.values))}" if needed.values else "")
        verb = "need" if len(names) > 1 else "needs"
        given_names = " and ".join(prefix + name for name in names)
        raise InputError(path, f"{given_names} {verb} {wanted}; without it {needed.otherwise}")


def _nearest(prefix: str, name: str, known: list[str]) -> str:
    """The key with the same name in another section, or that with the most similar name in this one, or in another."""
    here = [key for key in known if key.startswith(prefix) and "." not in key[len(prefix) :]]
    for keys, cutoff in ((known, 1.0), (here, 0.6), (known, 0.6)):
        if near := difflib.get_close_matches(name, [key.split(".")[-1] for key in keys], 1, cutoff):
            return f"did you mean {next(key for key in keys if key.split('.')[-1] == near[0])}?"
    return f"use one of {', '.join(here)}"


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
