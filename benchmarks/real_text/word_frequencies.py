"""Word frequencies of wordfreq's lists, read from its checkout, and the language of a line.

A list is a gzipped MessagePack array in wordfreq's format cBpack: a header, then for each centibel below certainty the
array of the words with that frequency. A frequency is given on the Zipf scale: the base-10 logarithm per 10⁹ words.
"""

import gzip
from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.real_text.checkouts import Checkout
from benchmarks.real_text.cleaning import words

from fedgram.core.errors import InputError

REPOSITORY = "rspeer/wordfreq"
LANGUAGES = ("de", "en", "es", "fr", "it", "pt")
_TOLERANCE = 0.3  # of a mean frequency: many words belong to several languages


def read_frequencies(checkout: Checkout, name: str) -> dict[str, float]:
    """The Zipf frequency by word, most frequent first; `name` is such as `large_en`."""
    path = f"wordfreq/data/{name}.msgpack.gz"
    return frequencies(gzip.decompress(checkout.read_one(path)), path)


def frequencies(content: bytes, path: str) -> dict[str, float]:
    """The frequencies of an unpacked list."""
    try:
        header, *levels = _Unpacker(content).value()
        if (header["format"], header["version"]) != ("cB", 1):
            raise ValueError
        return {word: 9.0 - centibels / 100 for centibels, level in enumerate(levels) for word in level}
    except (ValueError, KeyError, TypeError, IndexError):
        raise InputError(path, "is not a word list of wordfreq") from None


class _Unpacker:
    """The types of MessagePack that occur in word lists: arrays, maps, strings and small integers."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def value(self) -> Any:
        kind = self._take(1)[0]
        if kind < 0x80:
            return kind
        if 0x80 <= kind < 0x90:
            return {self.value(): self.value() for _ in range(kind & 0x0F)}
        if 0x90 <= kind < 0xA0:
            return [self.value() for _ in range(kind & 0x0F)]
        if 0xA0 <= kind < 0xC0:
            return self._take(kind & 0x1F).decode()
        if kind in (0xD9, 0xDA, 0xDB):
            return self._take(self._number(1 << (kind - 0xD9))).decode()
        if kind in (0xDC, 0xDD):
            return [self.value() for _ in range(self._number(2 << (kind - 0xDC)))]
        raise ValueError(f"type {kind:#x} does not occur in word lists")

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def _take(self, size: int) -> bytes:
        if size > len(self.content) - self.place:
            raise ValueError("the list is cut short")
        self.place += size
        return self.content[self.place - size : self.place]


class Languages(NamedTuple):
    """Frequencies by word, by language."""

    frequency: Mapping[str, Mapping[str, float]]

    def is_word(self, text: str) -> bool:
        """Whether the text is a word of English or Portuguese."""
        return any(text in self.frequency[language] for language in ("en", "pt"))

    def reads_as(self, language: str, line: str) -> bool:
        """Whether the line's words are about as frequent in this language as in the one where they are most frequent.

        A line in which most words are unknown is not text of the language.
        """
        found = [word.lower() for word in words(line)]
        if not found:
            return False
        mean = {name: sum(f.get(w, 0.0) for w in found) / len(found) for name, f in self.frequency.items()}
        return mean[language] >= max(mean.values()) - _TOLERANCE and mean[language] > 2.5


def read_languages(checkout: Checkout) -> Languages:
    """The frequent words of each language."""
    return Languages({name: read_frequencies(checkout, f"small_{name}") for name in LANGUAGES})
