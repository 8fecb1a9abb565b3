"""The whitelist: the lower-case words of a language that devices may report, most frequent first.

A word of wordfreq's list stays if a spelling dictionary has it, or if it is frequent all the same, as names and slang
are. No text of users is used.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.real_text.checkouts import Checkout
from benchmarks.real_text.spelling import read_hunspell, read_words
from benchmarks.real_text.word_frequencies import read_frequencies

from fedgram.core.errors import FedgramError

PACKAGES = {"en_us": ("wamerican-large", "wamerican-huge"), "pt_br": ("wbrazilian", "hunspell-pt-br")}
MAX_LETTERS = 30


class Alphabet(NamedTuple):
    """What a word may look like, and when it stays without being in a dictionary."""

    letters: str
    single: str
    min_zipf: float

    def allows(self, word: str) -> bool:
        """Whether the word has letters of the language only, with apostrophes and hyphens inside."""
        if len(word) == 1:
            return word in self.single
        return len(word) <= MAX_LETTERS and bool(re.fullmatch(rf"{self.letters}+(?:['-]{self.letters}+)*", word))


ENGLISH = Alphabet("[a-z]", "abcdefghijklmnopqrstuvwxyz", 2.4)
PORTUGUESE = Alphabet("[a-zàáâãçéêíóôõúü]", "aeoàéó", 2.7)


def build(language: str, checkout: Checkout, debs: Path) -> list[str]:
    """The whitelist of a language from wordfreq's checkout and the unpacked Debian packages."""
    dictionaries = debs / "usr" / "share"
    missing = [d for d in ("dict", "hunspell")[: 2 if language == "pt_br" else 1] if not (dictionaries / d).is_dir()]
    if missing:
        names = " ".join(PACKAGES[language])
        remedy = f"run: apt-get download {names}, then dpkg-deb -x each package into {debs}"
        raise FedgramError(f"{dictionaries / missing[0]}: there is no such folder; {remedy}")
    if language == "en_us":
        large = read_words(dictionaries / "dict" / "american-english-large")
        known = large | read_words(dictionaries / "dict" / "american-english-huge")
        chosen = list(frequent_words(read_frequencies(checkout, "large_en"), ENGLISH, known.__contains__))
        rest = {word for word in large if ENGLISH.allows(word) and not word.endswith("'s")}
        return chosen + sorted(rest - set(chosen))
    listed = read_words(dictionaries / "dict" / "brazilian")
    rules = read_hunspell(dictionaries / "hunspell" / "pt_BR.dic")
    english = read_frequencies(checkout, "large_en")
    frequency = read_frequencies(checkout, "large_pt")

    def is_known(word: str) -> bool:
        return word in listed or word in rules or word.capitalize() in rules

    return list(frequent_words(frequency, PORTUGUESE, is_known, foreign=english))


def frequent_words(
    frequency: Mapping[str, float],
    alphabet: Alphabet,
    is_known: Callable[[str], bool],
    foreign: Mapping[str, float] | None = None,
) -> Iterator[str]:
    """The words that are known, or frequent and not ten times as frequent in the foreign language."""
    for word, zipf in frequency.items():
        if not alphabet.allows(word):
            continue
        is_foreign = foreign is not None and foreign.get(word, 0.0) > zipf + 1
        if is_known(word) or (zipf >= alphabet.min_zipf and not is_foreign):
            yield word
