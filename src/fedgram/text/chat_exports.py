"""Readers for the exports of chat and mail programs: Telegram Desktop and mbox (WhatsApp: `fedgram.text.whatsapp`).

A reader goes through its source once and yields each entry in order: `Found` for text that a user wrote, or `Skipped`
for anything else, with the reason. Both give the place, as `file:line`, or as `file:message 7` where a line number does
not help. `fedgram.text.importers` decides which entries become messages, so no reader drops anything silently. Text is
private: no `repr` and no error shows it.

Text by other people is left out where it can be recognised: forwarded messages, posts in the name of a channel, and
quoted or forwarded mail. User names stay as they are in the export. A name in a WhatsApp export comes from the address
book of the phone that exported the chat, so exports of one import should come from the same phone.
"""

import codecs
import json
import mailbox
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from email import message_from_bytes
from email.errors import InvalidBase64LengthDefect
from email.message import Message as Mail
from email.utils import getaddresses
from pathlib import Path
from typing import Any

from fedgram.core.errors import InputError

MAX_LINE_BYTES = 1 << 26
TEXT_ENDINGS = (".txt", ".text", ".md")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class Found:
    """Text that a user wrote, unchanged; the user and the text may still be empty.

    `alias` is another name of the user in the source. `stamp` is what makes a message the same one in two exports of a
    chat, such as its time.
    """

    user: str
    text: str = field(repr=False)
    place: str
    alias: str = ""
    stamp: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Skipped:
    """An entry that is not a message, and the reason."""

    reason: str
    place: str


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a UTF-8 text file, including line ends; only a line feed ends a line."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES):
            number += 1
            if len(raw) == MAX_LINE_BYTES:
                raise InputError(path, "has a line over 64 MiB", line=number, remedy="split the line")
            if number == 1 and raw.startswith(_UTF16):
                raise InputError(path, "is UTF-16 text", remedy="convert it to UTF-8")
            if b"\0" in raw:
                raise InputError(path, "is not text: it contains a NUL byte", line=number, remedy="convert it to UTF-8")
            try:
                line = raw.removeprefix(b"\xef\xbb\xbf").decode() if number == 1 else raw.decode()
            except UnicodeDecodeError:
                raise InputError(path, "is not UTF-8 text", line=number, remedy="convert it to UTF-8") from None
            yield number, line


def check_text(path: Path) -> None:
    """Refuse a file that is not UTF-8 text to its end."""
    for _ in text_lines(path):
        pass


# Telegram Desktop: result.json, either one chat or the whole account.


def read_telegram(path: Path) -> Iterator[Found | Skipped]:
    """The entries of Telegram Desktop's `result.json`, which is read as a whole."""
    for number, message in enumerate(_telegram_messages(path), 1):
        yield _telegram_message(message, f"{path}:message {number}")


def _telegram_messages(path: Path) -> Iterator[Any]:
    try:
        export = json.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError(path, "is not UTF-8 text", remedy="export it again as JSON") from None
    except json.JSONDecodeError as error:
        raise InputError(path, "is not JSON", line=error.lineno, remedy="export it again as JSON") from None
    except (ValueError, RecursionError):
        raise InputError(path, "is not readable as JSON", remedy="export it again as JSON") from None
    chats: list[Any] = [export]
    if isinstance(export, dict) and "messages" not in export:
        groups = [export.get("chats"), export.get("left_chats")]
        chats = [chat for group in groups if isinstance(group, dict) for chat in _list(group.get("list"))]
    found = [chat["messages"] for chat in chats if isinstance(chat, dict) and isinstance(chat.get("messages"), list)]
    if not found:
        remedy = "export the chat from Telegram Desktop as JSON, or write one JSON object per line (jsonl)"
        raise InputError(path, "is not an export of Telegram Desktop: it has no list of messages", remedy=remedy)
    return (message for messages in found for message in messages)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _telegram_message(message: Any, place: str) -> Found | Skipped:
    if not isinstance(message, dict):
        return Skipped("not a JSON object", place)
    if message.get("type") != "message":
        return Skipped("service message" if message.get("type") == "service" else "unknown kind of message", place)
    if message.get("forwarded_from") is not None:
        return Skipped("forwarded message", place)
    identity, name = message.get("from_id"), message.get("from")
    user = identity if identity is not None else name
    if isinstance(user, bool) or not isinstance(user, str | int | None):
        return Skipped("the user is neither a string nor an integer", place)
    if isinstance(identity, str) and identity.startswith(("channel", "chat")):
        return Skipped("posted in the name of a channel", place)
    parts = message.get("text")
    pieces = parts if isinstance(parts, list) else [parts]
    texts = [piece.get("text") if isinstance(piece, dict) else piece for piece in pieces]
    strings = [text for text in texts if isinstance(text, str)]
    if len(strings) < len(texts):
        return Skipped("the text is not a string", place)
    alias = name if isinstance(name, str) else ""
    stamp = f"{message.get('date')} {message.get('id')}"
    return Found("" if user is None else str(user), "".join(strings), place, alias, stamp)


# Mail. Text that the sender did not type is removed: quotations, the line that introduces them, signatures, and
# everything below the header of a mail that was answered or forwarded without quotation marks. Python's parser takes
# quadratic time for some mails and fails on others, so what is extreme is skipped, and counted.

_HEADERS = ("From", "Content-Type", "Content-Disposition", "Content-Transfer-Encoding")
_MAX_HEADER = 10_000
_MAX_MULTIPARTS = 30
_MAX_INTRODUCTION = 1_000
_NOT_OF_MAIL = ("punycode", "idna")  # Python's encodings of host names, which it decodes in quadratic time
_INTRODUCTION = re.compile(
    r"\s*(?:On\b.*\bwrote|Em\b.*\bescreveu|El\b.*\bescribió|Le\b.*\ba écrit|Il\b.*\bha scritto|Am\b.*\bschrieb\b.*)"
    r"\s?:\s*"
)
_BELOW_IS_ANOTHERS = re.compile(
    r"-{2,}\s*(?:Original Message|Forwarded message|Mensagem original|Mensagem encaminhada|Ursprüngliche Nachricht"
    r"|Weitergeleitete Nachricht|Message d'origine|Message transféré|Mensaje original|Messaggio originale)\s*-{2,}"
    r"|Begin forwarded message:"
    r"|(?:From|De|Von): .+\n(?:Sent|Date|To|Enviad[oa]|Data|Para|Gesendet|Datum|An|Envoyé): .+",
    re.IGNORECASE,
)


def read_mbox(source: Path) -> Iterator[Found | Skipped]:
    """The mails of an mbox file; the user is the sender's address in lower case."""
    with source.open("rb") as file:
        if not file.readline(1 << 12).startswith(b"From "):
            problem = 'is not an mbox file: it does not start with "From "'
            raise InputError(source, problem, line=1, remedy="export the mailbox as mbox")
    with closing(mailbox.mbox(source, create=False)) as box:
        for number, key in enumerate(box.iterkeys(), 1):
            yield _mail(box.get_bytes(key), f"{source}:message {number}")


def _mail(content: bytes, place: str) -> Found | Skipped:
    if content.lower().count(b"multipart/") > _MAX_MULTIPARTS:
        return Skipped("too many parts in parts", place)
    try:
        return _parsed_mail(message_from_bytes(content), place)
    except (AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return Skipped("not a valid mail", place)


def _parsed_mail(mail: Mail, place: str) -> Found | Skipped:
    headers = (str(value) for part in mail.walk() for name in _HEADERS for value in part.get_all(name, []))
    if any(len(value) > _MAX_HEADER for value in headers):
        return Skipped("a header of more than 10,000 characters", place)
    senders, names = _senders(mail)
    if len(senders) > 1:
        return Skipped("more than one sender", place)
    part = _plain_part(mail)
    if part is None:
        return Skipped("no text/plain part", place)
    payload = part.get_payload(decode=True)
    charset = part.get_content_charset("utf-8")
    try:
        if codecs.lookup(charset).name in _NOT_OF_MAIL:
            raise LookupError
        text = payload.decode(charset) if isinstance(payload, bytes) else ""
    except (ValueError, LookupError):
        return Skipped("text in an unknown or broken encoding", place)
    if any(isinstance(defect, InvalidBase64LengthDefect) for defect in part.defects):
        return Skipped("text in an unknown or broken encoding", place)
    stamp = str(mail.get("Message-ID", ""))
    return Found("".join(senders), _own_words(text), place, " ".join(names), stamp)


def _senders(mail: Mail) -> tuple[set[str], set[str]]:
    """The addresses and names in the From lines, also as mailing list archives write them: `ann at example.org`."""
    lines = [str(line) for line in mail.get_all("From", [])]
    lines = [line if "@" in line else re.sub(r"^\s*(\S+) at (\S+)", r"\1@\2", line) for line in lines]
    found = [(name, address.lower()) for name, address in getaddresses(lines) if "@" in address]
    return {address for _, address in found}, {name for name, _ in found}


def _plain_part(mail: Mail) -> Mail | None:
    """The first text/plain part that is not an attachment; enclosed mails are not searched."""
    if mail.get_content_maintype() == "multipart":
        parts = (_plain_part(part) for part in _list(mail.get_payload()))
        return next((part for part in parts if part is not None), None)
    is_body = mail.get_content_type() == "text/plain" and mail.get_content_disposition() != "attachment"
    return mail if is_body else None


def _own_words(text: str) -> str:
    """The text without quotations and their introductions, up to a signature mark or another mail's header."""
    lines = text.replace("\r\n", "\n").split("\n")
    kept, may_end_in_introduction = list[str](), False
    for number, line in enumerate(lines):
        if line == "-- " or _BELOW_IS_ANOTHERS.match("\n".join(lines[number : number + 2])):
            break
        if line.startswith(">"):
            _drop_blank_lines(kept)
            may_end_in_introduction = may_end_in_introduction and _drop_introduction(kept)  # looked for once
        else:
            kept.append(line)
            may_end_in_introduction = may_end_in_introduction or bool(line.strip())
    return "\n".join(kept).strip()


def _drop_blank_lines(lines: list[str]) -> None:
    while lines and not lines[-1].strip():
        lines.pop()


def _drop_introduction(lines: list[str]) -> bool:
    """Drop the line or lines at the end that introduce a quotation; whether there were any."""
    for count in (1, 2, 3):
        if count > len(lines) or sum(map(len, lines[-count:])) > _MAX_INTRODUCTION:
            return False
        if _INTRODUCTION.fullmatch(" ".join(lines[-count:])):
            del lines[-count:]
            return True
    return False
