"""The words of a model and their ids.

Ids are dense. Three are fixed: `<unk>` is 0, `<s>` is 1, `</s>` is 2. The backoff label φ and ε are not words and have
no ids. Two artefacts may be combined only if the digests of their vocabularies match.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import ByteArray
from fedgram.core.errors import InputError, InvariantError

UNK, BOS, EOS = 0, 1, 2
SPECIAL = ("<unk>", "<s>", "</s>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """An ordered set of words. Build it with `Vocabulary.of`, which adds the special words.

    >>> v = Vocabulary.of(["new", "york"])
    >>> len(v), v["york"], v["paris"], v.words[3]
    (5, 4, 0, 'new')
    """

    words: tuple[str, ...]
    index: dict[str, int] = field(init=False, repr=False, compare=False)
    digest: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.words[:3] != SPECIAL:
            raise InvariantError("Vocabulary: ids 0, 1, 2 must be <unk>, <s>, </s>")
        index = {word: i for i, word in enumerate(self.words)}
        if len(index) != len(self.words):
            raise InvariantError("Vocabulary: a word occurs twice")
        if any(not word or word.split() != [word] for word in self.words):
            raise InvariantError("Vocabulary: a word is empty or contains white space")
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "digest", hashlib.sha256("\n".join(self.words).encode()).hexdigest())

    @classmethod
    def of(cls, words: Iterable[str]) -> "Vocabulary":
        """The special words followed by these words; duplicates and special words among them are skipped."""
        return cls(tuple(dict.fromkeys([*SPECIAL, *words])))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, word: str) -> int:
        return self.index.get(word, UNK)

    def __contains__(self, word: str) -> bool:
        return word in self.index

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} words, {self.digest[:8]})"

    def encode(self, words: Sequence[str]) -> list[int]:
        """The ids of the words; `<unk>` for words that are not in the vocabulary."""
        return [self[word] for word in words]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The words of the ids."""
        return [self.words[i] for i in ids]


def lines_to_bytes(lines: Iterable[str]) -> ByteArray:
    """Strings as an array of bytes, one per line. None may be empty or contain a line feed."""
    return np.frombuffer("\n".join(lines).encode(), np.uint8)


def lines_from_bytes(data: NDArray[Any]) -> tuple[str, ...]:
    """The strings that `lines_to_bytes` wrote."""
    return tuple(data.tobytes().decode().split("\n")) if len(data) else ()


def vocabulary_to_bytes(vocabulary: Vocabulary) -> ByteArray:
    """The words as an array of bytes, one word per line."""
    return lines_to_bytes(vocabulary.words)


def vocabulary_from_bytes(data: NDArray[Any]) -> Vocabulary:
    """The vocabulary that `vocabulary_to_bytes` wrote."""
    return Vocabulary(lines_from_bytes(data))


def read_vocabulary(path: str | Path, *more: str | Path) -> Vocabulary:
    """Read a vocabulary file: UTF-8, one word per line; blank lines are skipped.

    Words keep the order of the file. A line with a blank inside a word, and a duplicate word, are refused. The
    words of more files follow; what they repeat of earlier files is skipped, and one of the files may be empty.
    """
    words = [word for file in (path, *more) for word in _read_words(file)]
    if not words:
        raise InputError(path, "contains no words", remedy="write one word per line")
    return Vocabulary.of(words)


def _read_words(path: str | Path) -> Iterable[str]:
    seen: dict[str, int] = {}
    try:
        text = Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(path, f"is not UTF-8 text (byte {error.start})", remedy="convert it to UTF-8") from None
    for number, line in enumerate(text.split("\n"), 1):
        word = line.strip()
        if not word or word in SPECIAL:
            continue
        if word.split() != [word] or "\0" in word:
            raise InputError(path, "more than one word on a line", line=number, remedy="write one word per line")
        if word in seen:
            raise InputError(path, f"the word of line {seen[word]} occurs again", line=number, remedy="remove it")
        seen[word] = number
    return seen
