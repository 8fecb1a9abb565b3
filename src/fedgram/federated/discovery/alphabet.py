"""The characters of words that can be discovered, and their codes.

Code 0 is the end of a word. The other codes are characters. The server chooses the alphabet from its whitelist, which
is public, so the alphabet says nothing about devices. A word with another character is never sent.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from string import ascii_lowercase, digits

import numpy as np

from fedgram.core.arrays import IntArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.text.normalize import uncase

END = 0
MAX_CHARACTERS = 120
_INSIDE_WORDS = "'-" + digits  # besides letters, what the normaliser keeps in a word


@dataclass(frozen=True, slots=True)
class Alphabet:
    """Distinct characters; character i has the code i + 1.

    >>> letters = Alphabet("abc")
    >>> letters.codes("cab"), letters.codes("cat"), len(letters)
    ([3, 1, 2, 0], [], 4)
    """

    characters: str
    _code: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        code = {character: i for i, character in enumerate(self.characters, 1)}
        if not 0 < len(code) == len(self.characters) <= MAX_CHARACTERS or "\n" in code:
            raise InvariantError(f"Alphabet: needs 1 to {MAX_CHARACTERS} distinct characters")
        object.__setattr__(self, "_code", code)

    @classmethod
    def of(cls, words: Iterable[str]) -> "Alphabet":
        """Digits, apostrophe, hyphen and the characters of these words, the most common if there are too many.

        If one of the letters a to z occurs, all of them are included.
        """
        spelled = chain.from_iterable(word for word in words if not word.startswith("<"))  # `<number>` is not spelled
        common = [c for c, _ in Counter(spelled).most_common()]
        latin = ascii_lowercase if set(ascii_lowercase) & set(common) else ""
        chosen = dict.fromkeys([*_INSIDE_WORDS, *latin, *common])
        return cls("".join(sorted([*chosen][:MAX_CHARACTERS])))

    def __len__(self) -> int:
        """The number of codes, the end of a word included."""
        return len(self.characters) + 1

    def codes(self, word: str) -> list[int]:
        """The codes of a word with the end of the word; none if a character is not in the alphabet."""
        codes = [self._code.get(character, END) for character in word]
        return [] if END in codes else [*codes, END]

    def text(self, codes: Iterable[int]) -> str:
        """The characters of codes, up to the end of the word."""
        return "".join(self.characters[code - 1] for code in codes if code != END)


def encode_words(words: Sequence[str], alphabet: Alphabet, known: frozenset[str], longest: int) -> Ragged:
    """A row of codes for each word that may be discovered, an empty row for every other word.

    A word may be discovered if its lower case is not `known`, has at most `longest` characters, and all of them are in
    the alphabet. Placeholders such as `<number>` are not words.
    """
    rows: list[list[int]] = []
    for word in words:
        lower = uncase(word)
        rows.append([] if len(lower) > longest or lower in known else alphabet.codes(lower))
    return Ragged.from_rows(rows)


def split_words(codes: IntArray) -> Ragged:
    """The words in the codes of a device's text: every word ends with `END`."""
    ends = np.flatnonzero(codes == END) + 1
    return Ragged(codes, np.concatenate([[0], ends]).astype(np.int64))
