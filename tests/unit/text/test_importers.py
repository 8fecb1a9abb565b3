"""Messages by user from folders, the detection of formats, and what every import guarantees."""

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.text.importing import SECRET, read, refused, write

from fedgram.core.errors import FedgramError
from fedgram.text.importers import ImportOptions, Message, read_messages
from fedgram.text.source_files import FORMATS, format_of

# Folders.


def test_folder_with_a_file_per_user(tmp_path: Path) -> None:
    write(tmp_path / "ann.txt", "\ufeffhello there\n\n  how are you \r\nlast")
    write(tmp_path / "bob.smith.md", "hi\n")
    write(tmp_path / "carl.text", "\n\n")
    write(tmp_path / ".hidden.txt", "no\n")
    found, report = read(tmp_path)
    assert found == [("ann", "hello there"), ("ann", "  how are you "), ("ann", "last"), ("bob.smith", "hi")]
    assert (report.messages, report.users, report.skipped) == (4, 2, {})
    assert [(Path(file.name).name, file.format) for file in report.files if not file.problem] == [
        ("ann.txt", "text"), ("bob.smith.md", "text")
    ]  # fmt: skip
    assert [file.problem for file in report.unread] == ["contains no messages in the format text"]


def test_folder_with_a_folder_per_user(tmp_path: Path) -> None:
    write(tmp_path / "ann" / "1.txt", "one\n")
    write(tmp_path / "ann" / "2.md", "two\n")
    write(tmp_path / "ann" / ".3.txt", "no\n")
    write(tmp_path / "bob.txt", "hi\n")
    found, report = read(tmp_path)
    assert found == [("ann", "one"), ("ann", "two"), ("bob", "hi")]
    assert report.users == 2


def test_files_of_another_kind_are_named(tmp_path: Path) -> None:
    write(tmp_path / "ann.txt", "one\n")
    write(tmp_path / "photo.jpg", "x")
    write(tmp_path / "ann.doc", "x")
    write(tmp_path / "bob" / "deeper" / "a.txt", "x")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    found, report = read(tmp_path)
    assert found == [("ann", "one")]
    assert {Path(file.name).name: file.problem for file in report.unread} == {
        "ann.doc": "unrecognised format",
        "a.txt": "is plain text more than one folder deep, so its user is not clear",
        "gone.txt": "is not an ordinary file",
        "photo.jpg": "is a picture, sound, video or document",
    }


@pytest.mark.parametrize(
    "names",
    [
        ("ann.txt", "ann/a.txt"),
        ("ann.txt", "ann.md"),
        ("ann.txt", "ann .txt"),
        (unicodedata.normalize("NFC", "josé") + ".txt", unicodedata.normalize("NFD", "josé") + "/a.txt"),
    ],
)
def test_two_entries_of_one_user_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        write(tmp_path / name, SECRET)
    assert "name the same user" in str(refused(tmp_path))


def test_chat_among_files_of_one_user_each_is_read_by_its_own_format(tmp_path: Path) -> None:
    write(tmp_path / "ann.txt", "one")
    write(tmp_path / "chat.txt", f"31/12/2020 22:15 - Ann: {SECRET}\n31/12/2020 22:16 - Bob: yes\n")
    found, report = read(tmp_path)
    assert found == [("ann", "one"), ("Ann", SECRET), ("Bob", "yes")]
    assert [file.format for file in report.files] == ["text", "whatsapp"]
    found, report = read(tmp_path, format="text")
    assert found == [("ann", "one")]
    assert [file.problem for file in report.unread] == ["is a WhatsApp chat, which has the text of several users"]


@pytest.mark.parametrize("name", ["ann.txt", "ann.md"])
def test_single_text_file_is_refused(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / name, f"{SECRET}\n")
    for options in ({}, {"format": "text"}):
        assert "give a folder with one text file per user" in str(refused(source, **options))


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    assert "is empty; give a folder" in str(refused(tmp_path))


# All formats.


@pytest.mark.parametrize("other", ["ann ", "\tann", "\u00a0ann"])
def test_user_names_that_nearly_agree_are_refused(tmp_path: Path, other: str) -> None:
    rows = [{"user": name, "text": SECRET} for name in ("ann", "bob", other)]
    source = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    error = refused(source)
    assert str(error).startswith(f"{source}:3: two user names differ only")


def test_equal_names_in_other_unicode_forms_are_refused(tmp_path: Path) -> None:
    names = [unicodedata.normalize(form, "josé") for form in ("NFC", "NFD")]
    source = write(tmp_path / "a.csv", "user,text\n" + "".join(f"{name},{SECRET}\n" for name in names))
    assert "two user names differ only" in str(refused(source))


def test_no_repr_shows_text(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", f'{{"user": "ann", "text": "{SECRET}"}}\n{SECRET}\n{{"text": "{SECRET}"}}\n')
    messages, report = read_messages([source])
    message = next(messages)
    assert message == Message("ann", SECRET)
    assert SECRET not in repr(message) + str(message)
    assert list(messages) == []
    assert SECRET not in repr(report)
    assert "ann" not in repr(report)
    assert (report.messages, report.users) == (1, 1)
    assert report.first_places == {"not JSON": f"{source}:2", "no user field": f"{source}:3"}


def test_messages_are_read_one_by_one(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", '{"user": "ann", "text": "hi"}\n' * 3)
    messages, report = read_messages([source])
    assert report.messages == 0
    next(messages)
    assert report.messages == 1


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (f"{SECRET}\nol\xe9\n".encode("latin-1"), "is not UTF-8 text"),
        (f"{SECRET}\n\0\n".encode(), "is not text: it contains a NUL byte"),
    ],
)
def test_files_that_are_not_text_are_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    path = write(tmp_path / name, "")
    head = b"user,text\n" if name == "a.csv" else b"\n"
    path.write_bytes(head + content)
    error = refused(path)
    assert (error.problem, error.line) == (problem, 3)


@pytest.mark.parametrize("head", ["", "01/02/2020, 10:00 - Ann: "])
def test_files_of_a_folder_that_are_not_text_are_counted(tmp_path: Path, head: str) -> None:
    for name in ("ann", "cat"):
        write(tmp_path / f"{name}.txt", f"{head}hello {name}\n")
    (tmp_path / "bob.txt").write_bytes(f"{head}hi\nol\xe9\n".encode("latin-1"))
    (tmp_path / "dan.txt").write_bytes(f"{head}hi\n\0\n".encode())
    (tmp_path / "eve.txt").write_bytes(f"{head}hi\n".encode("utf-16"))
    messages, report = read_messages([tmp_path])
    assert [message.text for message in messages] == ["hello ann", "hello cat"]
    assert {file.format for file in report.files[:-1]} == {"whatsapp" if head else "text"}
    assert [(Path(file.name).name, file.problem) for file in report.unread] == [
        ("bob.txt", "is not UTF-8 text (line 2); convert it to UTF-8"),
        ("dan.txt", "is not text: it contains a NUL byte (line 2); convert it to UTF-8"),
        ("eve.txt", "is UTF-16 text; convert it to UTF-8"),
    ]
    for name in ("ann", "cat"):
        (tmp_path / f"{name}.txt").unlink()
    assert "none of its 3 files could be read (first: is not UTF-8 text (line 2); convert" in str(refused(tmp_path))


def test_unknown_format_and_missing_source_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedgramError, match='unknown format "xml"; choose one of text, jsonl'):
        ImportOptions("xml")
    for options in ({}, {"format": "csv"}):
        assert "no such file" in str(refused(tmp_path / "none", **options))


TELEGRAM = '{\n "name": "x",\n "messages": []\n}'
MBOX = "From ann@example.org Mon Jan  1 10:00:00 2020\nFrom: ann@example.org\n\nhi\n"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", "", "jsonl"),
        ("a.NDJSON", "", "jsonl"),
        ("a.json", '{"user": "ann", "text": "hi"}\n', "jsonl"),
        ("a.csv", "", "csv"),
        ("a.tsv", "", "csv"),
        ("a.parquet", "", "parquet"),
        ("result.json", TELEGRAM, "telegram"),
        ("result.json", TELEGRAM.replace("\n", ""), "telegram"),
        ("chat.txt", "31/12/2020 22:15 - Ann: hi\n", "whatsapp"),
        ("chat", "\ufeff\u200e[31.12.20, 22:15:30] Ann: hi\n", "whatsapp"),
        ("Sent", MBOX, "mbox"),
        ("a.mbox", "", "mbox"),
    ],
)
def test_detect_format(tmp_path: Path, name: str, content: str, expected: str) -> None:
    assert format_of(write(tmp_path / name, content)) == expected
    assert expected in FORMATS


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.write_bytes(b"PK\x03\x04abc"), "is a compressed file; decompress it first"),
        (lambda path: path.write_bytes(b"\x1f\x8babc"), "is a compressed file; decompress it first"),
        (lambda path: path.write_bytes(SECRET.encode()), "unrecognised format; set --format to one of text"),
        (lambda path: path.write_bytes(b""), "unrecognised format"),
    ],
)
def test_unrecognised_formats_are_refused(tmp_path: Path, make: Callable[[Path], int], problem: str) -> None:
    make(tmp_path / "a.data")
    assert problem in str(refused(tmp_path / "a.data"))
