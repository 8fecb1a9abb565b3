"""Importers: from collections of people's text to messages by user.

A message is one raw text as its user typed it, with the user's name as the source has it. `read_messages` yields the
messages one by one while it fills an `ImportReport`; only Telegram's `result.json` is read as a whole.

- `folder`: one text file per user, or one folder of text files per user; a line is a message, and blank lines are
  skipped. A file that is not UTF-8 text is skipped as a whole.
- `jsonl`: one JSON object per line, with a user and a text field. The first object with both fields sets their names.
- `csv`: a header row with a user and a text column; commas, semicolons or tabs; quoted fields may span lines.
- `parquet`: a user and a text column, read in batches.
- `whatsapp`, `telegram`, `mbox`: see `fedgram.text.chat_exports`.

Guarantees:

- Users are never mixed. A row without a user is skipped; there is no anonymous user. Refused are: two user names that
  differ only in surrounding spaces or Unicode form, a chat of several users in a folder with one file per user, and a
  CSV file with an unclosed quote, because its rows cannot be separated.
- Nothing is dropped silently: entries that are not messages are counted by reason, with the place of the first one.
- No text appears in a `repr`, a report or an error.
"""

import csv
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgram.core.errors import InputError
from fedgram.text.chat_exports import (
    TEXT_ENDINGS,
    Found,
    Skipped,
    chat_files,
    is_text_file,
    is_whatsapp_export,
    read_mbox,
    read_telegram,
    read_whatsapp,
    text_lines,
    unreadable,
)
from fedgram.text.parquet import parquet_batches, parquet_schema

FORMATS = ("folder", "jsonl", "csv", "parquet", "whatsapp", "telegram", "mbox")
USER_FIELDS = ("user", "user_id", "author", "client_id", "sender", "from")
TEXT_FIELDS = ("text", "message", "body", "content")
_FORMAT_OF_ENDING = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet",
    ".mbox": "mbox", ".mbx": "mbox",
}  # fmt: skip
_NOT_JSON = object()
_NOT_UNICODE_TEXT = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of one user.

    >>> Message("ann", "see you there")
    Message(user='ann')
    """

    user: str
    text: str = field(repr=False)


@dataclass(slots=True)
class ImportReport:
    """Counts of an import; it grows while the messages are read.

    `skipped` has the number of skipped entries by reason, `first_places` the place of the first one, and `names` the
    users by normalised name.
    """

    format: str
    messages: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    first_places: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def users(self) -> int:
        """Number of users who have at least one message."""
        return len(self.names)

    def summary(self) -> str:
        """The report on one line.

        >>> ImportReport("jsonl", 2, {"no user": 1}, {"no user": "a.jsonl:3"}, {"ann": "ann"}).summary()
        'messages: 2, users: 1; skipped: no user 1 (first at a.jsonl:3)'
        """
        reasons = [f"{reason} {count} (first at {self.first_places[reason]})" for reason, count in self.skipped.items()]
        return f"messages: {self.messages}, users: {self.users}; skipped: {', '.join(reasons) or 'nothing'}"

    def _skip(self, reason: str, place: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
        self.first_places.setdefault(reason, place)

    def _enter_user(self, user: str, place: str) -> None:
        if self.names.setdefault(_normal_form(user), user) != user:
            problem = "two user names differ only in surrounding spaces or Unicode form"
            raise InputError(place, problem, remedy="spell each user's name in one way")


def read_messages(
    source: Path, *, format: str = "auto", user_field: str | None = None, text_field: str | None = None
) -> tuple[Iterator[Message], ImportReport]:
    """The messages of a source, and the report that is filled while they are read.

    A source of the wrong kind is refused at once. Invalid content, and a source without any message, are refused while
    reading.

    Args:
        source: A file, or a folder where the format allows one.
        format: One of `FORMATS`, or `auto` to detect it.
        user_field: The field with the user in jsonl, csv and parquet; by default one of `USER_FIELDS`.
        text_field: The field with the text; by default one of `TEXT_FIELDS`.
    """
    chosen = detect_format(source) if format == "auto" else format
    _check_source(source, chosen)
    report = ImportReport(chosen)
    if chosen in _READERS:
        if user_field is not None or text_field is not None:
            remedy = "omit --user-field and --text-field"
            raise InputError(source, f"the format {chosen} has no named fields", remedy=remedy)
        return _messages(_READERS[chosen](source), source, report), report
    if user_field is not None and user_field == text_field:
        raise InputError(source, "the user and the text are in the same field", remedy="name two fields")
    return _messages(_FIELD_READERS[chosen](source, user_field, text_field), source, report), report


def detect_format(source: Path) -> str:
    """Detect the format of a source from its name and the start of its content."""
    _check_exists(source)
    if source.is_dir():
        if (source / "result.json").is_file():
            return "telegram"
        files = chat_files(source)
        return "whatsapp" if files and all(map(is_whatsapp_export, files)) else "folder"
    ending = source.suffix.lower()
    if ending in _FORMAT_OF_ENDING:
        return _FORMAT_OF_ENDING[ending]
    if is_whatsapp_export(source):
        return "whatsapp"
    if ending in TEXT_ENDINGS:
        problem = "is neither a WhatsApp export nor a folder"
        raise InputError(source, problem, remedy="give a folder with one text file per user")
    return _format_of_content(source)


def _format_of_content(source: Path) -> str:
    with source.open("rb") as file:
        head = file.read(1 << 16)
    if head.startswith((b"PK\x03\x04", b"\x1f\x8b")):
        raise InputError(source, "is a compressed file", remedy="decompress it first")
    if head.startswith(b"PAR1"):
        return "parquet"
    if re.match(rb"From \S+ .*\d\d:\d\d", head):
        return "mbox"
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        value = _parse_json(head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n")[0])
        return "jsonl" if isinstance(value, dict) and not value.keys() & {"messages", "chats"} else "telegram"
    raise InputError(source, "unrecognised format", remedy=f"set --format to one of {', '.join(FORMATS)}")


def _check_exists(source: Path) -> None:
    if not source.exists():
        raise InputError(source, "no such file or folder")


def _check_source(source: Path, format: str) -> None:
    if format not in FORMATS:
        raise InputError(source, f'unknown format "{format}"', remedy=f"choose one of {', '.join(FORMATS)}")
    _check_exists(source)
    if format == "folder" and not source.is_dir():
        raise InputError(source, "is not a folder", remedy="give a folder with one text file per user")
    if source.is_dir() and format not in ("folder", "whatsapp", "telegram"):
        raise InputError(source, f"is a folder; the format {format} is read from a file", remedy="give one file")


def _messages(items: Iterable[Found | Skipped], source: Path, report: ImportReport) -> Iterator[Message]:
    """The messages among the entries of a reader; all entries are counted in the report."""
    known: set[str] = set()
    for item in items:
        if isinstance(item, Found) and (reason := _objection(item)):
            item = Skipped(reason, item.place)
        if isinstance(item, Skipped):
            report._skip(item.reason, item.place)
            continue
        if item.user not in known:
            report._enter_user(item.user, item.place)
            known.add(item.user)
        report.messages += 1
        yield Message(item.user, item.text)
    if report.messages == 0:
        counts = ", ".join(f"{reason} {count}" for reason, count in report.skipped.items())
        problem = f"contains no messages in the format {report.format}" + (f" (skipped: {counts})" if counts else "")
        raise InputError(source, problem, remedy="check the format and the field names")


def _objection(found: Found) -> str | None:
    if not found.user.strip():
        return "no user"
    if not found.text.strip():
        return "no text"
    if _NOT_UNICODE_TEXT.search(found.text) or _NOT_UNICODE_TEXT.search(found.user):
        return "not Unicode text"
    return None


def _normal_form(name: str) -> str:
    return unicodedata.normalize("NFC", name).strip()


# One file, or one folder of files, per user.


def _users_of(folder: Path) -> list[tuple[str, list[Path]]]:
    """The users of a folder with their files, which need not be text files; hidden entries are left out."""
    users = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            users.append((entry.name, [path for path in sorted(entry.iterdir()) if not path.name.startswith(".")]))
        else:
            users.append((entry.stem, [entry]))
    return users


def _read_folder(source: Path) -> Iterator[Found | Skipped]:
    users = _users_of(source)
    first: dict[str, Path] = {}
    for user, files in users:
        texts = list(filter(is_text_file, files))
        if not texts:
            continue
        entry = texts[0] if texts[0].parent == source else texts[0].parent
        if (other := first.setdefault(_normal_form(user), entry)) != entry:
            problem = f'"{entry.name}" and "{other.name}" name the same user'
            raise InputError(source, problem, remedy="rename one, or put both into one folder")
    for user, files in users:
        for file in files:
            if is_text_file(file):
                yield from _read_text(user, file)
            else:
                yield Skipped("not a text file (.txt, .text, .md)", str(file))


def _read_text(user: str, path: Path) -> Iterator[Found | Skipped]:
    if is_whatsapp_export(path):
        problem = "is a WhatsApp chat, which has the text of several users"
        raise InputError(path, problem, remedy="move it, and import it with the format whatsapp")
    if skipped := unreadable(path):
        yield skipped
        return
    for number, line in text_lines(path):
        if line.strip():
            yield Found(user, line.rstrip("\r\n"), f"{path}:{number}")


# Rows with a user and a text field.


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


def _parse_json(line: str | bytes) -> Any:
    """The JSON value, or `_NOT_JSON`; an exception would contain the text, so none is raised."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _read_jsonl(path: Path, user_field: str | None, text_field: str | None) -> Iterator[Found | Skipped]:
    user, text = None, None
    for number, line in text_lines(path):
        if not line.strip():
            continue
        place, value = f"{path}:{number}", _parse_json(line)
        if not isinstance(value, dict):
            yield Skipped("not JSON" if value is _NOT_JSON else "not a JSON object", place)
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


def _read_csv(path: Path, user_field: str | None, text_field: str | None) -> Iterator[Found | Skipped]:
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


def _read_parquet(path: Path, user_field: str | None, text_field: str | None) -> Iterator[Found | Skipped]:
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


_READERS: dict[str, Callable[[Path], Iterator[Found | Skipped]]] = {
    "folder": _read_folder, "whatsapp": read_whatsapp, "telegram": read_telegram, "mbox": read_mbox,
}  # fmt: skip
_FIELD_READERS: dict[str, Callable[[Path, str | None, str | None], Iterator[Found | Skipped]]] = {
    "jsonl": _read_jsonl, "csv": _read_csv, "parquet": _read_parquet,
}  # fmt: skip
