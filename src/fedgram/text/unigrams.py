"""Word frequencies in a file: one `word<TAB>count` a line, UTF-8; counts may be fractions."""

import math
from pathlib import Path

from fedgram.core.errors import InputError


def read_unigrams(path: str | Path) -> dict[str, float]:
    """The frequencies by word; blank lines are passed over, anything else that is not a word and a count is refused."""
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
