"""The files of a source of messages: the source itself, or those in a folder or a `.zip` file; and their formats.

Every file of a folder or zip is given in the order of names, also those that cannot be read, as `Unread` with the
reason. Hidden files (`.name`, and `__MACOSX` in zips) are left out. A file of a zip is unpacked when it is its turn and
removed afterwards; only names decide what is unpacked, and names never decide where.
"""

import errno
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from fedgram.core.errors import InputError
from fedgram.core.unpacking import Meter
from fedgram.text.chat_exports import TEXT_ENDINGS
from fedgram.text.tables import parse_json
from fedgram.text.whatsapp import is_whatsapp_export

FORMATS = ("text", "jsonl", "csv", "parquet", "whatsapp", "telegram", "mbox")
_FORMAT_OF_ENDING = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet",
    ".mbox": "mbox", ".mbx": "mbox",
}  # fmt: skip
_MEDIA = (
    ".jpg", ".jpeg", ".png", ".gif", ".webp", ".heic", ".svg", ".tgs", ".mp4", ".mov", ".3gp", ".mkv", ".webm", ".opus",
    ".ogg", ".oga", ".m4a", ".mp3", ".aac", ".amr", ".wav", ".pdf", ".vcf", ".docx", ".xlsx", ".pptx", ".apk", ".css",
    ".js",
)  # fmt: skip
_BLOCK = 1 << 20
_DAMAGED = "is damaged, or packed in an unknown way"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file with messages: where its bytes are, its name for people, and its path within the folder or zip.

    `parts` is empty for a file that is a source by itself.
    """

    path: Path
    name: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that is not read, and the reason."""

    name: str
    problem: str


def source_files(source: Path) -> Iterator[SourceFile | Unread]:
    """The files of a source, one by one; a file is there until the next one is asked for."""
    if not source.exists():
        raise InputError(source, "no such file or folder")
    if source.is_dir():
        for path in sorted(path for path in source.rglob("*") if not path.is_dir()):
            parts = path.relative_to(source).parts
            if not any(map(_is_hidden, parts)):
                yield from _file_of_folder(path, parts)
    elif source.suffix.lower() == ".zip":
        yield from _zip_files(source)
    else:
        yield SourceFile(source, str(source))


def _file_of_folder(path: Path, parts: tuple[str, ...]) -> Iterator[SourceFile | Unread]:
    if path.suffix.lower() == ".zip":
        try:
            yield from _zip_files(path)
        except InputError as error:
            yield Unread(str(path), error.problem)
    elif problem := _not_readable(path.name) or ("is not an ordinary file" if not path.is_file() else None):
        yield Unread(str(path), problem)
    else:
        yield SourceFile(path, str(path), parts)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _not_readable(name: str) -> str | None:
    return "is a picture, sound, video or document" if PurePosixPath(name).suffix.lower() in _MEDIA else None


def _zip_files(path: Path) -> Iterator[SourceFile | Unread]:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        raise InputError(path, "is not a complete zip file", remedy="export or copy it again") from None
    with archive, TemporaryDirectory(prefix="fedgram-import-") as folder:
        members = {_parts(m.filename): m for m in archive.infolist() if m.filename and not m.is_dir()}
        names = sorted(parts for parts in members if parts and not any(map(_is_hidden, parts)))
        above = 1 if names and all(parts[0] == path.stem and len(parts) > 1 for parts in names) else 0
        meter = Meter(path)
        for parts in names:
            name = "/".join([str(path), *parts])
            suffix = PurePosixPath(parts[-1]).suffix.lower()
            target = Path(folder) / f"file{suffix[:12] if suffix[1:].isalnum() and suffix.isascii() else ''}"
            problem = _not_readable(parts[-1]) or _unpack(archive, members[parts], target, meter)
            if problem:
                yield Unread(name, problem)
            else:
                yield SourceFile(target, name, parts[above:])
            target.unlink(missing_ok=True)


def _parts(name: str) -> tuple[str, ...]:
    """The path of a file in a zip, without parts that would lead out of it."""
    return tuple(part for part in PurePosixPath(name.replace("\\", "/")).parts if part not in ("..", "/", "//"))


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, meter: Meter) -> str | None:
    """Unpack one file, or say why not."""
    if member.flag_bits & 1:
        return "is encrypted; unpack the zip with its password first"
    if member.filename.lower().endswith(".zip"):
        return "is a zip file within a zip file; unpack the outer one first"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # zipfile unpacks others without limit
        return "is packed in an unusual way; unpack the zip, and give the folder"
    try:
        with archive.open(member) as packed, target.open("wb") as file:
            while block := packed.read(_BLOCK):
                meter.add(len(block))
                file.write(block)
    except InputError as error:
        return f"the zip file {error.problem}; {error.remedy}"
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError):
        return _DAMAGED
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place outside the file; a full disk is the user's to mend
            raise
        return _DAMAGED
    return None


def format_of(path: Path) -> str:
    """The format of a file, by its name and the start of its content; `text` is the plain text of one user."""
    ending = path.suffix.lower()
    if ending in _FORMAT_OF_ENDING:
        return _FORMAT_OF_ENDING[ending]
    if is_whatsapp_export(path):
        return "whatsapp"
    return "text" if ending in TEXT_ENDINGS else _format_of_content(path)


def _format_of_content(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if head.startswith((b"PK\x03\x04", b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd")):
        raise InputError(path, "is a compressed file", remedy="decompress it first; only .zip files are unpacked")
    if head.startswith(b"PAR1"):
        return "parquet"
    if re.match(rb"From \S{1,1000} .{0,1000}\d\d:\d\d", head):
        return "mbox"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{"):
        value = parse_json(text.split(b"\n")[0])
        return "jsonl" if isinstance(value, dict) and not value.keys() & {"messages", "chats"} else "telegram"
    raise InputError(path, "unrecognised format", remedy=f"set --format to one of {', '.join(FORMATS)}")
