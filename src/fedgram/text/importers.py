"""Importers: from collections of people's text to messages by user.

A message is one raw text as its user typed it. `read_messages` yields the messages of all sources one by one while it
fills an `ImportReport`; only Telegram's `result.json` is read as a whole. A source is a file, a folder or a `.zip`
file, and every file in it is read by its own format (`fedgram.text.source_files`):

- `text`: the plain text of one user, named by the file, or by the folder that the file is in; a line is a message, and
  blank lines are skipped. A file that looks like a chat is refused, unless the format is given and it is no WhatsApp
  chat.
- `jsonl`, `csv`, `parquet`: see `fedgram.text.tables`.
- `whatsapp`: see `fedgram.text.whatsapp`; `telegram`, `mbox`: see `fedgram.text.chat_exports`.

Guarantees:

- Users are never mixed. A row without a user is skipped; there is no anonymous user. One name is one user in all files.
  Refused are: two user names that differ only in surrounding spaces or Unicode form, and plain text without a folder.
- Nothing is dropped silently: every file is reported as read or not read, and entries that are not messages are counted
  by reason, with the place of the first one. What an earlier file has already (overlapping exports of a chat) is
  counted as repeated.
- A file that cannot be read is refused if it is a source by itself, and reported if it is in a folder or zip.
- No text appears in a `repr`, a report or an error.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedgram.core.errors import FedgramError, InputError
from fedgram.text.chat_exports import (
    Found,
    Skipped,
    check_text,
    read_mbox,
    read_telegram,
    text_lines,
)
from fedgram.text.pseudonyms import normal_form, pseudonym
from fedgram.text.source_files import FORMATS, SourceFile, Unread, format_of, source_files
from fedgram.text.tables import read_csv, read_jsonl, read_parquet
from fedgram.text.whatsapp import is_whatsapp_export, looks_like_a_chat, read_whatsapp

_NOT_UNICODE_TEXT = re.compile("[\0\ud800-\udfff]")


class MixedUsersError(InputError):
    """A source that does not keep its users apart, so nothing of it is imported."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of one user.

    >>> Message("ann", "see you there")
    Message(user='ann')
    """

    user: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How to import.

    Attributes:
        format: The format of all files, or `auto` to recognise that of each.
        user_field: The field with the user in tables; by default one of `tables.USER_FIELDS`.
        text_field: The field with the text; by default one of `tables.TEXT_FIELDS`.
        only: Users to import, by their names in the source; by default all.
        exclude: Users to leave out.
        key: The key of the pseudonyms; without one, users keep their names.
    """

    format: str = "auto"
    user_field: str | None = None
    text_field: str | None = None
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.format not in ("auto", *FORMATS):
            raise FedgramError(f'unknown format "{self.format}"; choose one of {", ".join(FORMATS)}')
        if self.user_field is not None and self.user_field == self.text_field:
            raise FedgramError("the user and the text are in the same field; name two fields")


@dataclass(slots=True)
class FileReport:
    """One file of an import. A file with a `problem` was not read, or only up to its place.

    `left_out` counts messages that were left out by name or as repeated.
    """

    name: str
    format: str | None
    messages: int = 0
    left_out: int = 0
    problem: str | None = None
    names: set[str] = field(default_factory=set, repr=False)


@dataclass(slots=True)
class ImportReport:
    """Counts of an import; it grows while the messages are read.

    `skipped` has the number of skipped entries by reason, `first_places` the place of the first one, and `names` the
    users by normalised name.
    """

    files: list[FileReport] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    first_places: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def users(self) -> int:
        """Number of users who have at least one message."""
        return len(self.names)

    @property
    def messages(self) -> int:
        """Number of messages."""
        return sum(file.messages for file in self.files)

    @property
    def unread(self) -> list[FileReport]:
        """The files that were not read, or not to the end."""
        return [file for file in self.files if file.problem]

    def _skip(self, reason: str, place: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
        self.first_places.setdefault(reason, place)

    def _enter_user(self, user: str, place: str) -> None:
        if self.names.setdefault(normal_form(user), user) != user:
            problem = "two user names differ only in surrounding spaces or Unicode form"
            raise MixedUsersError(place, problem, remedy="spell each user's name in one way")


def read_messages(
    sources: Sequence[Path],
    options: ImportOptions = ImportOptions(),  # noqa: B008
) -> tuple[Iterator[Message], ImportReport]:
    """The messages of all sources, and the report that is filled while they are read."""
    report = ImportReport()
    return _Import(options, report).messages(sources), report


class _Import:
    """The state of an import: which users are wanted, and what was seen."""

    def __init__(self, options: ImportOptions, report: ImportReport) -> None:
        self.options, self.report = options, report
        self.only, self.exclude = set(map(normal_form, options.only)), set(map(normal_form, options.exclude))
        self.absent = self.only | self.exclude
        self.entry_of_user: dict[str, str] = {}
        self.seen: dict[bytes, int] = {}

    def messages(self, sources: Sequence[Path]) -> Iterator[Message]:
        for source in sources:
            before = len(self.report.files)
            self.entry_of_user = {}
            for file in source_files(source):
                if isinstance(file, Unread):
                    self.report.files.append(FileReport(file.name, None, problem=file.problem))
                else:
                    yield from self._file(source, file, alone=len(sources) == 1 and not file.parts)
            self._check_any(source, self.report.files[before:])
        if self.absent:
            raise FedgramError(f"no user is named {_quoted(self.absent)}; use the names of the source")
        if not self.report.messages:
            raise FedgramError("no messages are left; check --only and --exclude")

    def _check_any(self, source: Path, files: list[FileReport]) -> None:
        if any(file.format and not file.problem for file in files):
            return
        if not files:
            raise InputError(source, "is empty", remedy="give a folder or zip with messages")
        problem = f"none of its {len(files)} files could be read (first: {files[0].problem})"
        raise InputError(source, problem, remedy="see --help for the formats")

    def _file(self, source: Path, file: SourceFile, *, alone: bool) -> Iterator[Message]:
        about = FileReport(file.name, None)
        self.report.files.append(about)
        try:
            about.format = self.options.format if self.options.format != "auto" else format_of(file.path)
            if file.parts and about.format not in ("telegram", "mbox", "parquet"):
                check_text(file.path)
            yield from self._kept(self._entries(source, file, about.format), file, about, alone=alone)
            self._check_found(about, file)
        except MixedUsersError:
            raise
        except (InputError, PermissionError) as error:
            if not file.parts:
                raise
            about.problem = (f"after {about.messages:,} messages: " if about.messages else "") + _problem_of(error)

    def _check_found(self, about: FileReport, file: SourceFile) -> None:
        if not about.messages and not about.left_out:
            problem = f"contains no messages in the format {about.format}"
            counts = ", ".join(f"{reason} {count}" for reason, count in self.report.skipped.items())
            counts = f" (skipped: {counts})" if counts and not file.parts else ""
            raise InputError(file.path, problem + counts, remedy="check the format and the field names")

    def _entries(self, source: Path, file: SourceFile, format: str) -> Iterable[Found | Skipped]:
        fields = self.options.user_field, self.options.text_field
        if format in _TABLES:
            return _TABLES[format](file.path, *fields)
        if fields != (None, None) and not file.parts:
            remedy = "omit --user-field and --text-field"
            raise InputError(source, f"the format {format} has no named fields", remedy=remedy)
        return _CHATS[format](file.path) if format in _CHATS else self._text(source, file)

    def _text(self, source: Path, file: SourceFile) -> Iterator[Found | Skipped]:
        """The plain text of one user, named by the entry of the folder or zip in which the text is."""
        if not file.parts:
            remedy = "give a folder with one text file per user; text without users needs no import"
            raise InputError(source, "is plain text, which does not say who wrote it", remedy=remedy)
        if is_whatsapp_export(file.path):
            raise InputError(file.path, "is a WhatsApp chat, which has the text of several users")
        if self.options.format != "text" and looks_like_a_chat(file.path):
            problem = "looks like a chat of several users, with dates in an unknown form"
            raise InputError(file.path, problem, remedy=_CHAT_REMEDY)
        if len(file.parts) > 2:
            raise InputError(file.path, "is plain text more than one folder deep, so its user is not clear")
        entry = file.parts[0]
        user = entry if len(file.parts) == 2 else Path(entry).stem
        if (other := self.entry_of_user.setdefault(normal_form(user), entry)) != entry:
            problem = f'"{entry}" and "{other}" name the same user'
            raise MixedUsersError(source, problem, remedy="rename one, or put both into one folder")
        for number, line in text_lines(file.path):
            if line.strip():
                yield Found(user, line.rstrip("\r\n"), f"{file.path}:{number}")

    def _kept(
        self, items: Iterable[Found | Skipped], file: SourceFile, about: FileReport, *, alone: bool
    ) -> Iterator[Message]:
        """The messages among the entries of a reader; all entries are counted in the report."""
        for item in items:
            place = file.name + item.place.removeprefix(str(file.path))
            if reason := item.reason if isinstance(item, Skipped) else self._objection(item, alone=alone):
                self.report._skip(reason, place)
                about.left_out += reason in (_BY_NAME, _REPEATED)
                continue
            assert isinstance(item, Found)
            if item.user not in about.names:
                self.report._enter_user(item.user, place)
                about.names.add(item.user)
            about.messages += 1
            key = self.options.key
            yield Message(item.user if key is None else pseudonym(item.user, key), item.text)

    def _objection(self, found: Found, *, alone: bool) -> str | None:
        if not found.user.strip():
            return "no user"
        if not found.text.strip():
            return "no text"
        if _NOT_UNICODE_TEXT.search(found.text) or _NOT_UNICODE_TEXT.search(found.user):
            return "not Unicode text"
        names = {normal_form(found.user), normal_form(found.alias)}
        self.absent -= names
        if names & self.exclude or (self.only and not names & self.only):
            return _BY_NAME
        return None if alone or not found.stamp else self._repeated(found)

    def _repeated(self, found: Found) -> str | None:
        """Why a message is left out that an earlier file has; a file may repeat its own, such as two times "ok"."""
        what = "\0".join((found.user, found.stamp, found.text)).encode()
        number = len(self.report.files)
        first = self.seen.setdefault(hashlib.blake2b(what, digest_size=16).digest(), number)
        return _REPEATED if first != number else None


_BY_NAME, _REPEATED = "left out by name", "repeated from another file"
_CHAT_REMEDY = (
    "if one user wrote it, import its folder with --format text (all its files are then read as plain text); otherwise "
    "write it as CSV with the columns user and text"
)
_NOT_FOR_FOLDERS = ("set --format", "check the format")  # how the remedies begin that would change the other files
_CHATS: dict[str, Callable[[Path], Iterator[Found | Skipped]]] = {
    "whatsapp": read_whatsapp, "telegram": read_telegram, "mbox": read_mbox,
}  # fmt: skip
_TABLES: dict[str, Callable[[Path, str | None, str | None], Iterator[Found | Skipped]]] = {
    "jsonl": read_jsonl, "csv": read_csv, "parquet": read_parquet,
}  # fmt: skip


def _problem_of(error: InputError | PermissionError) -> str:
    if isinstance(error, PermissionError):
        return "may not be opened by you"
    line = f" (line {error.line})" if error.line else ""
    remedy = f"; {error.remedy}" if error.remedy and not error.remedy.startswith(_NOT_FOR_FOLDERS) else ""
    return error.problem + line + remedy


def _quoted(names: Iterable[str]) -> str:
    return " or ".join(f'"{name}"' for name in sorted(names))
