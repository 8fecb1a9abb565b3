"""Essay-BR: essays of students from two sites, as CSV files with a column `essay`.

The column is a list of paragraphs, written as a Python literal. The author is not named, so each essay is a user.
"""

import ast
import csv
import hashlib
import io
import sys
from collections.abc import Iterator

from benchmarks.real_text.checkouts import Checkout
from benchmarks.real_text.cleaning import Message

REPOSITORY = "rafaelanchieta/essay"


def messages(checkout: Checkout) -> Iterator[Message]:
    """The paragraphs of the essays of all versions of the split files; an essay that occurs again is left out."""
    seen: set[str] = set()
    for _, content in checkout.read_all_versions("essay-br/splits", ".csv"):
        for paragraphs in essays(content.decode("utf-8-sig")):
            name = hashlib.sha256("\n".join(paragraphs).encode()).hexdigest()
            if name not in seen:
                seen.add(name)
                yield from (Message(name, paragraph) for paragraph in paragraphs)


def essays(content: str) -> Iterator[list[str]]:
    """The paragraphs of each essay of a CSV file. Rows whose essay is not a list of strings are left out."""
    csv.field_size_limit(sys.maxsize)
    for row in csv.DictReader(io.StringIO(content, newline="")):
        try:
            paragraphs = ast.literal_eval(row.get("essay") or "[]")
        except (ValueError, SyntaxError):
            continue
        if isinstance(paragraphs, list):
            yield [p for p in paragraphs if isinstance(p, str) and p.strip()]
