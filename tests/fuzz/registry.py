"""Targets of fuzzing: a parser, valid files to begin with, and their mutation."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

Mutation = Callable[[Random, bytes], bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """A parser: the suffix of its files, how to make valid ones in a folder, their mutation, and the parser itself.

    `share` is its part of all mutations, relative to the others; slow parsers have a small one.
    """

    suffix: str
    seeds: Callable[[Path], list[bytes]]
    mutate: Mutation
    read: Callable[[Path], object]
    share: float = 1.0
    needs: str | None = None


TARGETS: dict[str, Target] = {}


def target(suffix: str, mutate: Mutation, seeds: Any, **about: Any) -> Callable[[Callable[[Path], object]], None]:
    """Add a function as a target of its own name; `seeds` may be the files, or a function of a folder."""

    def add(read: Callable[[Path], object]) -> None:
        make = (
            seeds if callable(seeds) else lambda _: [seed.encode() if isinstance(seed, str) else seed for seed in seeds]
        )
        TARGETS[read.__name__] = Target(suffix, make, mutate, read, **about)

    return add


def has(needs: str | None) -> bool:
    """Whether what a target needs is installed: a program, or a package."""
    return needs is None or shutil.which(needs) is not None or find_spec(needs) is not None
