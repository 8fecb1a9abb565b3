"""How long work says what it is doing: a callback that begins a step, and returns what to call with progress made."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol


class Advance(Protocol):
    """Shows progress in a step: the amount that was done, and if given, a new description of the step."""

    def __call__(self, amount: int, description: str | None = None, /) -> object:
        """Show it."""


class Begin(Protocol):
    """Begins a step. `total` is its size where it is known, `unit` what is counted where its speed is of interest."""

    def __call__(self, description: str, total: int | None = None, *, unit: str = "") -> Advance:
        """Show the step; the result is called with every bit of progress."""


def silent(description: str, total: int | None = None, *, unit: str = "") -> Advance:  # noqa: ARG001
    """Show nothing."""
    return lambda *_: None


class Stopwatch:
    """The seconds that each phase took, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Time a phase; several of one name add up."""
        began = perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + perf_counter() - began, 3)
