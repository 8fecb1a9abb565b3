"""Word frequencies: federated counts in a `.unigrams` artefact, or any `word<TAB>count` list in UTF-8 text."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import FloatArray, frozen
from fedgram.core.errors import InputError, InvariantError
from fedgram.core.storage import Artefact, limit_from_json, limit_to_json, read_artefact, write_artefact
from fedgram.text.vocabulary import SPECIAL, Vocabulary, vocabulary_from_bytes, vocabulary_to_bytes

KIND, VERSION = "unigrams", 1


@dataclass(frozen=True, slots=True, eq=False)
class UnigramCounts:
    """U of a collection over a vocabulary, with the devices and rounds it took and its clipping threshold λ.

    Counts of one vocabulary and one λ can be added; addition has a zero and does not depend on the order.
    """

    vocabulary: Vocabulary
    weight: FloatArray
    clients: int
    rounds: int
    clip: float

    def __post_init__(self) -> None:
        if len(self.weight) != len(self.vocabulary):
            raise InvariantError("UnigramCounts: counts and vocabulary differ in size")
        if self.weight.min(initial=0.0) < 0 or not np.isfinite(self.weight).all():
            raise InvariantError("UnigramCounts: a count is negative or not finite")
        frozen(self.weight)

    def __add__(self, other: "UnigramCounts") -> "UnigramCounts":
        if self.vocabulary.digest != other.vocabulary.digest or self.clip != other.clip:
            raise InvariantError("unigrams of different whitelists or thresholds cannot be added")
        return UnigramCounts(
            self.vocabulary,
            self.weight + other.weight,
            self.clients + other.clients,
            self.rounds + other.rounds,
            self.clip,
        )

    def frequency(self) -> dict[str, float]:
        """The words that occurred, with their counts: most frequent first, in the whitelist's order among equals."""
        ranked = np.argsort(-self.weight, kind="stable")
        words, weight = self.vocabulary.words, self.weight.tolist()
        return {words[i]: weight[i] for i in ranked.tolist() if weight[i] > 0 and i >= len(SPECIAL)}


def write_unigrams(path: str | Path, counts: UnigramCounts) -> str:
    """Write federated counts as an artefact; returns its digest."""
    fields = {"clients": counts.clients, "rounds": counts.rounds, "clip": limit_to_json(counts.clip)}
    arrays: dict[str, NDArray[Any]] = {"words": vocabulary_to_bytes(counts.vocabulary), "weight": counts.weight}
    return write_artefact(path, Artefact(KIND, VERSION, fields, arrays))


def read_unigram_counts(path: str | Path) -> UnigramCounts:
    """Read federated counts."""
    artefact = read_artefact(path, kind=KIND, version=VERSION)
    try:
        arrays, fields = artefact.arrays, artefact.fields
        clip = float(limit_from_json(fields["clip"]))
        vocabulary = vocabulary_from_bytes(arrays["words"])
        if arrays["weight"].ndim != 1 or arrays["words"].dtype != np.uint8:
            raise InvariantError("an array has another shape or type")
        weight = arrays["weight"].astype(np.float64)
        return UnigramCounts(vocabulary, weight, int(fields["clients"]), int(fields["rounds"]), clip)
    except (KeyError, TypeError, ValueError, OverflowError, InvariantError) as error:
        raise InputError(path, f"does not hold unigram counts: {error}") from None


def read_unigrams(path: str | Path) -> Mapping[str, float]:
    """The frequencies by word, of an artefact or a text; anything that is not a word and a count is refused."""
    with Path(path).open("rb") as file:
        is_artefact = str(path).endswith(".unigrams") or b"\0" in file.read(8)
    return read_unigram_counts(path).frequency() if is_artefact else _read_text(path)


def _read_text(path: str | Path) -> dict[str, float]:
    try:
        text = Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(path, f"is not UTF-8 text (byte {error.start})") from None
    result: dict[str, float] = {}
    for number, line in enumerate(text.split("\n"), 1):
        columns = line.split()
        if not columns:
            continue
        try:
            word, count = columns
            value = float(count)
        except ValueError:
            remedy = "write one word, a tab and its count a line"
            raise InputError(path, "not a word and a count", line=number, remedy=remedy) from None
        if not (math.isfinite(value) and value >= 0):
            raise InputError(path, "the count is negative or not finite", line=number)
        if word in result:
            raise InputError(path, "the word occurs twice", line=number)
        result[word] = value
    if not result:
        raise InputError(path, "holds no words", remedy="write one word, a tab and its count a line")
    return result
