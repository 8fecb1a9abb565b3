"""Spelling dictionaries: word lists, and Hunspell's dictionaries with suffix and prefix rules."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fedgram.core.errors import InputError


class Rule(NamedTuple):
    """A form is a stem without `strip`, with `add` in its place; the stem must have the flag and match."""

    flag: str
    strip: str
    condition: str


@dataclass(frozen=True)
class Hunspell:
    """The flags by stem, and the rules by what they add."""

    stems: dict[str, str]
    suffixes: dict[str, list[Rule]]
    prefixes: dict[str, list[Rule]]

    def __contains__(self, word: str) -> bool:
        """Whether the word is a stem with at most one prefix and one suffix."""
        return any(True for _ in self._stems(word)) or any(
            rule.flag in self.stems[stem]
            for cut in range(1, len(word))
            for rule in self.prefixes.get(word[:cut], ())
            if _matches(rf"^(?:{rule.condition})", base := rule.strip + word[cut:])
            for stem in self._stems(base)
        )

    def _stems(self, word: str) -> Iterator[str]:
        """The stems of which the word is a form without a prefix."""
        if word in self.stems:
            yield word
        for cut in range(len(word)):
            for rule in self.suffixes.get(word[cut:], ()):
                stem = word[:cut] + rule.strip
                if rule.flag in self.stems.get(stem, "") and _matches(rf"(?:{rule.condition})$", stem):
                    yield stem


def _matches(condition: str, stem: str) -> bool:
    return bool(_compiled(condition).search(stem))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def read_words(path: Path) -> frozenset[str]:
    """The words of a list, one per line, in lower case."""
    return frozenset(word.lower() for word in _lines(path))


def read_hunspell(dictionary: Path) -> Hunspell:
    """A dictionary `.dic` with the rules `.aff` beside it; flags must be single characters."""
    stems: dict[str, str] = {}
    for line in islice(_lines(dictionary), 1, None):  # the first line is the number of stems
        stem, _, flags = line.split("\t")[0].partition("/")
        stems[stem] = stems.get(stem, "") + flags.strip()
    suffixes: dict[str, list[Rule]] = {}
    prefixes: dict[str, list[Rule]] = {}
    for line in _lines(dictionary.with_suffix(".aff")):
        parts = line.split()
        if parts[0] == "FLAG" and parts[1] != "UTF-8":
            raise InputError(dictionary.with_suffix(".aff"), f"flags of the kind {parts[1]} are not supported")
        if parts[0] in ("SFX", "PFX") and len(parts) >= 5:
            _, flag, strip, add, condition = parts[:5]
            rules = suffixes if parts[0] == "SFX" else prefixes
            added = add.partition("/")[0].replace("0", "")
            rules.setdefault(added, []).append(Rule(flag, strip.replace("0", ""), condition))
    return Hunspell(stems, suffixes, prefixes)


def _lines(path: Path) -> Iterator[str]:
    for line in path.read_text("utf-8-sig").splitlines():
        if line.strip():
            yield line.strip()
