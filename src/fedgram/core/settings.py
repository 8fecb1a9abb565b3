"""Settings: frozen dataclasses whose fields say what they mean, which values they take, and their defaults.

One definition serves everywhere: a section of a TOML file (`core/toml_config.py`), the options of a command
(`cli/settings.py`), and the arguments of a function. Values are checked when the dataclass is made, however that
happens.

A field is `bool`, `int`, `float` (a whole number will do), `str`, `tuple[int, ...]` and the like, `Literal[...]` (one
of these), or `X | None`. `Annotated[int, Between(1, 7)]` bounds a number. Numbers are finite unless their bounds say
otherwise. Every field has a default.
"""

import math
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedgram.core.errors import InvariantError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of a number, or of every number of an array; the ends are allowed unless `above` is given.

    With `infinite` the number may be `inf`, which means no limit.
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


AtLeastOne = Annotated[int, Between(1)]
Positive = Annotated[float, Between(above=0)]
Limit = Annotated[float, Between(above=0, infinite=True)]
Share = Annotated[float, Between(0, 1)]


class SettingError(InvariantError):
    """A value that a setting does not take."""

    def __init__(self, name: str, problem: str) -> None:
        self.name, self.problem = name, problem
        super().__init__(f"{name} {problem}")


@dataclass(frozen=True, slots=True)
class Needs:
    """Another setting without which a setting has no effect: it must have one of `values`, or not be its default.

    `otherwise` says what is missing without it. With `in_files=False` it may also be met by another section of a file.
    """

    name: str
    values: tuple[str, ...] = ()
    otherwise: str = "no noise is added"
    in_files: bool = True

    def is_met(self, value: Any, default: Any) -> bool:
        """Whether a value of the other setting will do."""
        return value in self.values if self.values else value != default


NEEDS_DP = Needs("protection", ("dp",))
NEEDS_NOISE = Needs("noise", ("poisson", "blt"))


def without_effect(
    given: Mapping[str, tuple[Needs, ...]], others: Mapping[str, tuple[Any, Any]]
) -> tuple[tuple[str, ...], Needs] | None:
    """The given settings that have no effect, and what they need; None if all have one.

    `others` has the values and defaults of settings by name. What it does not have is not needed.
    """
    for needed in dict.fromkeys(needed for needs in given.values() for needed in needs):
        if needed.name in others and not needed.is_met(*others[needed.name]):
            return tuple(name for name, needs in given.items() if needed in needs), needed
    return None


def setting(default: T, help: str, *, formerly: str | tuple[str, ...] = (), needs: Needs | None = None) -> T:
    """A field of a settings class: its default, and one line that says what it means.

    `formerly` are earlier names, which TOML files and commands still accept. Without what it `needs`, the setting has
    no effect, and files and commands that give it are refused.
    """
    formerly = (formerly,) if isinstance(formerly, str) else formerly
    return field(default=default, metadata={"help": help, "formerly": formerly, "needs": (needs,) if needs else ()})


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of one field."""

    name: str
    hint: Any
    bounds: Between | None
    optional: bool
    default: Any
    help: str
    formerly: tuple[str, ...]
    needs: tuple[Needs, ...]

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        return _wanted(self.hint) + (f" {self.bounds}" if self.bounds is not None else "")

    def checked(self, value: Any) -> Any:
        """The value in its own type, or a `SettingError`."""
        if value is None and self.optional:
            return None
        value = _plain(value)
        fits = _fits(value, self.hint, infinite=self.bounds is not None and self.bounds.infinite)
        if fits and self.bounds is not None:
            fits = all(self.bounds.holds(v) for v in (value if isinstance(value, list | tuple) else [value]))
        if not fits:
            raise SettingError(self.name, f"must be {self.wanted}, not {_shown(value)}")
        if get_origin(self.hint) is tuple:
            return tuple(float(v) if get_args(self.hint)[0] is float else v for v in value)
        return float(value) if self.hint is float else value


class Settings:
    """The base of settings classes: checks every value. A class with rules of its own calls this check first."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check all values, and bring them into their own types."""
        for known in settings_of(type(self)):
            object.__setattr__(self, known.name, known.checked(getattr(self, known.name)))


def settings_of(kind: type) -> tuple[Setting, ...]:
    """The fields of a settings class, without those that are settings classes themselves."""
    known: Any = kind
    return _settings_of(known)


@cache
def _settings_of(kind: Any) -> tuple[Setting, ...]:
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for known in fields(kind):
        hint, bounds, optional = hints[known.name], None, False
        if get_origin(hint) in (Union, types.UnionType):
            hint, optional = next(part for part in get_args(hint) if part is not type(None)), True
        if get_origin(hint) is Annotated:
            hint, bounds = get_args(hint)
        if is_dataclass(hint):
            continue
        about = known.metadata
        found.append(
            Setting(
                known.name, hint, bounds, optional, known.default, about.get("help", ""), about.get("formerly", ()),
                about.get("needs", ()),
            )
        )  # fmt: skip
    return tuple(found)


def chosen(kind: type[T], options: T | None, settings: dict[str, Any]) -> T:
    """Settings from either of two ways to give them to a function: an object, or its fields as keywords."""
    if options is None:
        known = {name.name for name in settings_of(kind)}
        if unknown := sorted(settings.keys() - known):
            raise TypeError(f"unknown setting {unknown[0]!r}; {kind.__name__} has {', '.join(sorted(known))}")
        return kind(**settings)
    if settings:
        raise TypeError(f"give either a {kind.__name__} or its fields, not both")
    return options


def _fits(value: Any, hint: Any, *, infinite: bool) -> bool:
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is tuple:
        part = get_args(hint)[0]
        return (
            isinstance(value, list | tuple) and len(value) > 0 and all(_fits(v, part, infinite=infinite) for v in value)
        )
    if hint is float:
        finite = type(value) in (int, float) and abs(value) <= sys.float_info.max
        return finite or (infinite and type(value) is float and value == math.inf)
    return type(value) is hint


def _plain(value: Any) -> Any:
    """The value, with the numbers of numpy as those of Python."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _wanted(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"an array, each {_wanted(get_args(hint)[0])}"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[hint]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a section"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
