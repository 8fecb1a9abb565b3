"""The words that a server already has: what devices count, and what they leave out when new words are discovered."""

from collections.abc import Iterable
from pathlib import Path

from fedgram.core.errors import InputError
from fedgram.text.normalize import uncase
from fedgram.text.vocabulary import Vocabulary, read_vocabulary


def read_whitelist(*paths: str | Path) -> Vocabulary:
    """The words of one or more files, one word per line, in lower case; a word in several files counts once."""
    return _lower_case(read_vocabulary(*paths), ", ".join(map(str, paths)))


def as_whitelist(given: Vocabulary | Iterable[str] | str | Path) -> Vocabulary:
    """A whitelist from a vocabulary, some words, or a file."""
    if isinstance(given, str | Path):
        return read_whitelist(given)
    return _lower_case(given if isinstance(given, Vocabulary) else Vocabulary.of(given), "whitelist")


def _lower_case(words: Vocabulary, place: str) -> Vocabulary:
    if capitals := sum(uncase(word) != word for word in words.words):
        remedy = "write the whitelist in lower case: devices count uncased words"
        raise InputError(place, f"{capitals} words are not in lower case", remedy=remedy)
    return words
