"""Readers for tables of messages: JSON Lines, CSV and Parquet, with a user and a text field.

A reader goes through its file once and yields each row in order, as `Found` or `Skipped`
(`fedgram.text.chat_exports`).

- JSON Lines: one object per line. The first object with both fields sets their names.
- CSV: a header row with a user and a text column; commas, semicolons or tabs; quoted fields may span lines.
- Parquet: a user and a text column, read in batches.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedgram.core.errors import InputError
from fedgram.text.chat_exports import Found, Skipped, text_lines
from fedgram.text.parquet import parquet_batches, parquet_schema

USER_FIELDS = ("user", "user_id", "author", "client_id", "sender", "from")
TEXT_FIELDS = ("text", "message", "body", "content")
NOT_JSON = object()


def _find_field(names: Sequence[str], wanted: str | None, known: Sequence[str]) -> str | None:
    if wanted is not None:
        return wanted if wanted in names else None
    return next((name for word in known for name in names if name.strip().lower() == word), None)


def _required_field(path: Path, names: Sequence[str], kind: str, wanted: str | None, known: Sequence[str]) -> str:
    found = _find_field(names, wanted, known)
    if found is None:
        what = f'column "{wanted}"' if wanted is not None else f"{kind} column"
        raise InputError(path, f"has no {what}", remedy=f"set --{kind}-field, or name the column {' or '.join(known)}")
    if names.count(found) > 1:
        raise InputError(path, f"has two {kind} columns with the same name", remedy="rename one")
    return found


def _row(user: object, text: object, place: str) -> Found | Skipped:
    if isinstance(user, bool) or not isinstance(user, str | int | None):
        return Skipped("the user is neither a string nor an integer", place)
    if not isinstance(text, str | None):
        return Skipped("the text is not a string", place)
    return Found("" if user is None else str(user), text or "", place)


def parse_json(line: str | bytes) -> Any:
    """The JSON value, or `NOT_JSON`; an exception would contain the text, so none is raised."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return NOT_JSON


def read_jsonl(path: Path, user_field: str | None, text_field: str | None) -> Iterator[Found | Skipped]:
    """The rows of a JSON Lines file."""
    user, text = None, None
    for number, line in text_lines(path):
        if not line.strip():
            continue
        place, value = f"{path}:{number}", parse_json(line)
        if not isinstance(value, dict):
            yield Skipped("not JSON" if value is NOT_JSON else "not a JSON object", place)
            continue
        if user is None or text is None:
            user = _find_field(list(value), user_field, USER_FIELDS)
            text = _find_field(list(value), text_field, TEXT_FIELDS)
        if user not in value:
            yield Skipped("no user field", place)
        elif text not in value:
            yield Skipped("no text field", place)
        else:
            yield _row(value[user], value[text], place)


def read_csv(path: Path, user_field: str | None, text_field: str | None) -> Iterator[Found | Skipped]:
    """The rows of a CSV file."""
    lines = text_lines(path)
    _, header = next(lines, (0, ""))
    delimiter, names = _header(header, user_field, text_field)
    user = names.index(_required_field(path, names, "user", user_field, USER_FIELDS))
    text = names.index(_required_field(path, names, "text", text_field, TEXT_FIELDS))
    reader = csv.reader((line for _, line in lines), delimiter=delimiter, strict=True)
    begun = 2
    while True:
        try:
            row = next(reader, None)
        except csv.Error:
            problem = "a quoted field is not closed or is longer than 128 KiB"
            raise InputError(path, problem, line=begun, remedy="double the quotes inside quoted fields") from None
        if row is None:
            return
        place, begun = f"{path}:{begun}", reader.line_num + 2
        if len(row) == len(names):
            yield _row(row[user], row[text].replace("\r\n", "\n"), place)
        elif row:
            yield Skipped("wrong number of columns", place)


def _header(line: str, user_field: str | None, text_field: str | None) -> tuple[str, list[str]]:
    """The delimiter for which the header has both fields, or else the most columns; and the column names."""
    candidates = []
    for delimiter in (",", ";", "\t"):
        try:
            names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter, strict=True), [])]
        except csv.Error:
            names = []
        fields = _find_field(names, user_field, USER_FIELDS), _find_field(names, text_field, TEXT_FIELDS)
        candidates.append((None not in fields, len(names), delimiter, names))
    _, _, delimiter, names = max(candidates)
    return delimiter, names


def read_parquet(path: Path, user_field: str | None, text_field: str | None) -> Iterator[Found | Skipped]:
    """The rows of a Parquet file."""
    schema = parquet_schema(path)
    user = _required_field(path, schema.names, "user", user_field, USER_FIELDS)
    text = _required_field(path, schema.names, "text", text_field, TEXT_FIELDS)
    _check_types(path, schema.field(user).type, schema.field(text).type)
    number = 0
    for users, texts in parquet_batches(path, [user, text]):
        for name, message in zip(users, texts, strict=True):
            number += 1
            yield _row(name, message, f"{path}:row {number}")


def _check_types(path: Path, user_type: Any, text_type: Any) -> None:
    """Refuse types that cannot name a user exactly: as floating-point numbers, two long integers may become equal."""
    user, text = (str(kind.value_type) if hasattr(kind, "index_type") else str(kind) for kind in (user_type, text_type))
    if not re.fullmatch(r"(large_)?string(_view)?|u?int\d+", user):
        raise InputError(path, f"the user column has the type {user}", remedy="convert it to strings or integers")
    if not re.fullmatch(r"(large_)?string(_view)?", text):
        raise InputError(path, f"the text column has the type {text}", remedy="convert it to strings")
