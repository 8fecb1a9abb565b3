"""Messages by user from folders and tables, and what every import guarantees."""

import contextlib
import csv
import json
import traceback
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from fedgram.core.errors import InputError
from fedgram.text.importers import FORMATS, ImportReport, Message, detect_format, read_messages

SECRET = "zanzibar"


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def _read(source: Path, **options: str) -> tuple[list[tuple[str, str]], ImportReport]:
    messages, report = read_messages(source, **options)
    return [(message.user, message.text) for message in messages], report


def _refused(source: Path, **options: str) -> InputError:
    with pytest.raises(InputError) as caught:
        _read(source, **options)
    assert "\n" not in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return caught.value


# Folders.


def test_folder_with_a_file_per_user(tmp_path: Path) -> None:
    _write(tmp_path / "ann.txt", "\ufeffhello there\n\n  how are you \r\nlast")
    _write(tmp_path / "bob.smith.md", "hi\n")
    _write(tmp_path / "carl.text", "\n\n")
    _write(tmp_path / ".hidden.txt", "no\n")
    found, report = _read(tmp_path)
    assert found == [("ann", "hello there"), ("ann", "  how are you "), ("ann", "last"), ("bob.smith", "hi")]
    assert (report.format, report.messages, report.users, report.skipped) == ("folder", 4, 2, {})


def test_folder_with_a_folder_per_user(tmp_path: Path) -> None:
    _write(tmp_path / "ann" / "1.txt", "one\n")
    _write(tmp_path / "ann" / "2.md", "two\n")
    _write(tmp_path / "ann" / ".3.txt", "no\n")
    _write(tmp_path / "bob.txt", "hi\n")
    found, report = _read(tmp_path)
    assert found == [("ann", "one"), ("ann", "two"), ("bob", "hi")]
    assert report.users == 2


def test_files_of_another_kind_are_counted(tmp_path: Path) -> None:
    _write(tmp_path / "ann.txt", "one\n")
    _write(tmp_path / "photo.jpg", "x")
    _write(tmp_path / "ann.pdf", "x")
    _write(tmp_path / "bob" / "deeper" / "a.txt", "x")
    found, report = _read(tmp_path)
    assert found == [("ann", "one")]
    assert report.skipped == {"not a text file (.txt, .text, .md)": 3}
    assert report.first_places == {"not a text file (.txt, .text, .md)": str(tmp_path / "ann.pdf")}


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
        _write(tmp_path / name, SECRET)
    assert "would be the same user" in str(_refused(tmp_path))


def test_chat_among_files_of_one_user_each_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "ann.txt", SECRET)
    _write(tmp_path / "chat.txt", f"31/12/2020 22:15 - Ann: {SECRET}\n31/12/2020 22:16 - Bob: yes\n")
    assert detect_format(tmp_path) == "folder"
    error = _refused(tmp_path)
    assert error.path == str(tmp_path / "chat.txt")
    assert "several users" in error.problem


@pytest.mark.parametrize("name", ["ann.txt", "ann.md"])
def test_single_text_file_is_refused(tmp_path: Path, name: str) -> None:
    source = _write(tmp_path / name, f"{SECRET}\n")
    for options in ({}, {"format": "folder"}):
        assert "one file holds one user's text; give a folder with a file per user" in str(_refused(source, **options))


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    assert "holds no messages as folder" in str(_refused(tmp_path))


# JSON lines.


def test_jsonl(tmp_path: Path) -> None:
    lines = [
        '{"user": "ann", "text": "one\\ntwo", "stars": 3}',
        "",
        '{"user": 17, "text": "hi"}',
        f'{{"user": "ann", "text": "{SECRET}"',
        f'["{SECRET}"]',
        '{"author": "ann", "text": "hi"}',
        '{"user": "ann", "message": "hi"}',
        '{"user": "", "text": "hi"}',
        '{"user": null, "text": "hi"}',
        '{"user": 1.5, "text": "hi"}',
        '{"user": true, "text": "hi"}',
        '{"user": "ann", "text": " "}',
        '{"user": "ann", "text": ["hi"]}',
        '{"user": "ann", "text": "\\ud83d"}',
        '{"user": "ann", "text": "a\\u0000b"}',
        "[" * 100_000,
        "9" * 5000,
    ]
    source = _write(tmp_path / "a.jsonl", "\n".join(lines))
    found, report = _read(source)
    assert found == [("ann", "one\ntwo"), ("17", "hi")]
    assert report.skipped == {
        "not JSON": 3, "not a JSON object": 1, "no user field": 1, "no text field": 1, "no user": 2, "no text": 1,
        "the user is neither a name nor a whole number": 2, "the text is not a string": 1, "not Unicode text": 2,
    }  # fmt: skip
    assert report.first_places["not JSON"] == f"{source}:4"
    assert report.first_places["no user"] == f"{source}:8"
    assert sum(report.skipped.values()) + report.messages == sum(map(bool, lines))


@pytest.mark.parametrize("user", ["user", "user_id", "author", "client_id", "sender", "from", "Author"])
@pytest.mark.parametrize("text", ["text", "message", "body", "content", "TEXT"])
def test_recognised_fields(tmp_path: Path, user: str, text: str) -> None:
    jsonl = _write(tmp_path / "a.jsonl", json.dumps({"id": 1, user: "ann", text: "hi"}))
    table = _write(tmp_path / "a.csv", f"id,{user},{text}\n1,ann,hi\n")
    assert _read(jsonl)[0] == _read(table)[0] == [("ann", "hi")]


def test_named_fields(tmp_path: Path) -> None:
    source = _write(tmp_path / "a.jsonl", '{"user": "x", "who": "ann", "said": "hi", "text": "no"}\n')
    assert _read(source, user_field="who", text_field="said")[0] == [("ann", "hi")]
    assert _read(source, text_field="said")[0] == [("x", "hi")]
    assert "no user field 1" in str(_refused(source, user_field="whom"))
    assert "same field" in str(_refused(source, user_field="text", text_field="text"))


def test_fields_cannot_be_named_for_a_chat(tmp_path: Path) -> None:
    _write(tmp_path / "ann.txt", "hi\n")
    assert "cannot be named" in str(_refused(tmp_path, user_field="who"))


def test_file_without_any_json_is_refused(tmp_path: Path) -> None:
    source = _write(tmp_path / "a.jsonl", f"{SECRET}\n{SECRET}\n")
    error = _refused(source)
    assert str(error).startswith(f"{source}: holds no messages as jsonl (skipped: not JSON 2); ")


ROWS = st.lists(st.tuples(st.sampled_from(["ann", "bob", "çem"]), st.text(min_size=1)), min_size=1)


def _accounted(source: Path) -> tuple[list[tuple[str, str]], int]:
    messages, report = read_messages(source)
    found: list[tuple[str, str]] = []
    with contextlib.suppress(InputError):
        found.extend((message.user, message.text) for message in messages)
    return found, len(found) + sum(report.skipped.values())


@given(ROWS)
def test_jsonl_loses_nothing(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    source = tmp_path_factory.mktemp("lines") / "a.jsonl"
    _write(source, "broken\n" + "\n".join(json.dumps({"user": u, "text": t}) for u, t in rows) + "\n")
    expected = [row for row in rows if row[1].strip() and "\0" not in row[1]]
    assert _accounted(source) == (expected, len(rows) + 1)


@given(ROWS, st.sampled_from([",", ";", "\t"]))
def test_csv_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], delimiter: str
) -> None:
    source = tmp_path_factory.mktemp("table") / "a.csv"
    rows = [(user, text.replace("\0", "").replace("\r\n", "\n")) for user, text in rows]
    with source.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([("user", "text"), *rows])
    assert _accounted(source) == ([row for row in rows if row[1].strip()], len(rows))


# CSV.


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv(tmp_path: Path, delimiter: str) -> None:
    rows = [
        ["date", "User", "note,", "text"],
        ["1", "ann", "", '"one\r\ntwo, three; ""four"""'],
        ["", "", "", "no user"],
        ["too", "few"],
        ["1", "bob", "", f'"a{delimiter}b"'],
        ["1", "bob", "", ""],
    ]
    rows[0][2] = '"note,"'
    source = _write(tmp_path / "a.csv", "\ufeff" + "\r\n".join(delimiter.join(row) for row in rows) + "\r\n\r\n")
    found, report = _read(source)
    assert found == [("ann", 'one\ntwo, three; "four"'), ("bob", f"a{delimiter}b")]
    assert report.skipped == {"no user": 1, "wrong number of columns": 1, "no text": 1}
    assert report.first_places == {
        "no user": f"{source}:4", "wrong number of columns": f"{source}:5", "no text": f"{source}:7"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "has no user column"),
        (f"ann,{SECRET}\nbob,hi\n", "has no user column"),
        (f"user,words\nann,{SECRET}\n", "has no text column"),
        (f"user,text,user\nann,{SECRET},bob\n", "has two user columns of the same name"),
        (f'user,text\nann,hi\nann,"{SECRET}\nbob,hi\n', "the quotes of a field do not close"),
        (f'user,text\nann,hi\nann,"{SECRET}" hi\nbob,hi\n', "the quotes of a field do not close"),
        ("user,text\n", "holds no messages as csv"),
        (f"user,text\n ,{SECRET}\n", "holds no messages as csv (skipped: no user 1)"),
    ],
)
def test_broken_csv_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    error = _refused(_write(tmp_path / "a.csv", content))
    assert error.problem.startswith(problem)
    assert error.line == (3 if "quotes" in problem else None)


# Parquet.


def _table(path: Path, **columns: object) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet(tmp_path: Path) -> None:
    users = ["ann", None, "", "bob", "bob"]
    texts = ["hi", SECRET, SECRET, None, "two\nlines"]
    found, report = _read(_table(tmp_path / "a.parquet", sender=users, body=texts, other=list(range(5))))
    assert found == [("ann", "hi"), ("bob", "two\nlines")]
    assert report.skipped == {"no user": 2, "no text": 1}
    assert report.first_places["no user"] == f"{tmp_path / 'a.parquet'}:row 2"


def test_parquet_with_coded_and_numbered_users(tmp_path: Path) -> None:
    coded = _table(tmp_path / "a", user=pyarrow.array(["ann", "bob"]).dictionary_encode(), text=["hi", "yo"])
    assert detect_format(coded) == "parquet"
    assert _read(coded)[0] == [("ann", "hi"), ("bob", "yo")]
    numbered = _table(
        tmp_path / "b.parquet", who=[2**60, 2**60 + 1], text=pyarrow.array(["a", "b"]).cast("large_string")
    )
    assert _read(numbered, user_field="who")[0] == [(str(2**60), "a"), (str(2**60 + 1), "b")]


def test_broken_parquet_is_refused(tmp_path: Path) -> None:
    assert "has no text column" in str(_refused(_table(tmp_path / "a.parquet", user=["a"], words=[SECRET])))
    assert 'has no column "who"' in str(_refused(_table(tmp_path / "b.parquet", text=["a"]), user_field="who"))
    assert "of type double" in str(_refused(_table(tmp_path / "c.parquet", user=[1.0, None], text=["a", "b"])))
    assert "of type int64" in str(_refused(_table(tmp_path / "d.parquet", user=["a"], text=[1])))
    coded = pyarrow.array([1.5]).dictionary_encode()
    assert "of type double" in str(_refused(_table(tmp_path / "e.parquet", user=coded, text=["a"])))
    binary = _table(tmp_path / "f.parquet", user=["a"], text=pyarrow.array([SECRET.encode()]))
    assert "of type binary" in str(_refused(binary))
    assert "not a whole parquet file" in str(_refused(_write(tmp_path / "g.parquet", SECRET)))
    whole = _table(tmp_path / "h.parquet", user=["a"], text=["b"]).read_bytes()
    (tmp_path / "h.parquet").write_bytes(whole[:-20])
    assert "not a whole parquet file" in str(_refused(tmp_path / "h.parquet"))


# All formats.


@pytest.mark.parametrize("other", ["ann ", "\tann", "\u00a0ann"])
def test_user_names_that_nearly_agree_are_refused(tmp_path: Path, other: str) -> None:
    rows = [{"user": name, "text": SECRET} for name in ("ann", "bob", other)]
    source = _write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    error = _refused(source)
    assert str(error).startswith(f"{source}:3: two user names differ only")


def test_equal_names_in_other_unicode_forms_are_refused(tmp_path: Path) -> None:
    names = [unicodedata.normalize(form, "josé") for form in ("NFC", "NFD")]
    source = _write(tmp_path / "a.csv", "user,text\n" + "".join(f"{name},{SECRET}\n" for name in names))
    assert "two user names differ only" in str(_refused(source))


def test_text_is_in_no_repr(tmp_path: Path) -> None:
    source = _write(tmp_path / "a.jsonl", f'{{"user": "ann", "text": "{SECRET}"}}\n{SECRET}\n{{"text": "{SECRET}"}}\n')
    messages, report = read_messages(source)
    message = next(messages)
    assert message == Message("ann", SECRET)
    assert SECRET not in repr(message) + str(message)
    assert list(messages) == []
    assert SECRET not in repr(report) + report.summary()
    assert "ann" not in repr(report)
    assert report.summary() == (
        f"messages: 1, users: 1; skipped: not JSON 1 (first at {source}:2), no user field 1 (first at {source}:3)"
    )


def test_messages_are_read_one_by_one(tmp_path: Path) -> None:
    source = _write(tmp_path / "a.jsonl", '{"user": "ann", "text": "hi"}\n' * 3)
    messages, report = read_messages(source)
    assert report.messages == 0
    next(messages)
    assert report.messages == 1


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (f"{SECRET}\nol\xe9\n".encode("latin-1"), "is not UTF-8 text"),
        (f"{SECRET}\n\0\n".encode(), "is not text: it holds a NUL byte"),
    ],
)
def test_files_that_are_no_text_are_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    path = _write(tmp_path / name, "")
    head = b"user,text\n" if name == "a.csv" else b"\n"
    path.write_bytes(head + content)
    error = _refused(path)
    assert (error.problem, error.line) == (problem, 3)


@pytest.mark.parametrize("head", ["", "01/02/2020, 10:00 - Ann: "])
def test_files_of_a_folder_that_are_no_text_are_counted(tmp_path: Path, head: str) -> None:
    for name in ("ann", "cat"):
        _write(tmp_path / f"{name}.txt", f"{head}hello\n")
    (tmp_path / "bob.txt").write_bytes(f"{head}hi\nol\xe9\n".encode("latin-1"))
    (tmp_path / "dan.txt").write_bytes(f"{head}hi\n\0\n".encode())
    messages, report = read_messages(tmp_path)
    assert [message.text for message in messages] == ["hello", "hello"]
    assert report.format == ("whatsapp" if head else "folder")
    assert report.summary().endswith(
        f"skipped: file that is not UTF-8 text 1 (first at {tmp_path}/bob.txt:2), "
        f"file that is not text: it holds a NUL byte 1 (first at {tmp_path}/dan.txt:2)"
    )
    for name in ("ann", "cat"):
        (tmp_path / f"{name}.txt").unlink()
    assert "skipped: file that is not UTF-8 text 1, " in str(_refused(tmp_path))


def test_unknown_format_and_missing_source_are_refused(tmp_path: Path) -> None:
    assert 'there is no format "xml"; name one of folder, jsonl' in str(_refused(tmp_path, format="xml"))
    for options in ({}, {"format": "csv"}):
        assert "no such file" in str(_refused(tmp_path / "none", **options))
    for name in ("jsonl", "csv", "parquet", "mbox"):
        assert "is a folder" in str(_refused(tmp_path, format=name))


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
    assert detect_format(_write(tmp_path / name, content)) == expected
    assert expected in FORMATS


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.write_bytes(b"PK\x03\x04abc"), "is a packed file; unpack it first"),
        (lambda path: path.write_bytes(b"\x1f\x8babc"), "is a packed file; unpack it first"),
        (lambda path: path.write_bytes(SECRET.encode()), "its format cannot be told; name it with --format: folder"),
        (lambda path: path.write_bytes(b""), "its format cannot be told"),
    ],
)
def test_format_that_cannot_be_told_is_refused(tmp_path: Path, make: Callable[[Path], int], problem: str) -> None:
    make(tmp_path / "a.data")
    assert problem in str(_refused(tmp_path / "a.data"))


def test_detect_format_of_folders(tmp_path: Path) -> None:
    _write(tmp_path / "users" / "ann.txt", "hi\n")
    _write(tmp_path / "chats" / "WhatsApp Chat with Ann" / "_chat.txt", "[31.12.20, 22:15:30] Ann: hi\n")
    _write(tmp_path / "chats" / "WhatsApp Chat with Ann" / "photo.jpg", "x")
    _write(tmp_path / "telegram" / "result.json", TELEGRAM)
    assert [detect_format(tmp_path / name) for name in ("users", "chats", "telegram")] == [
        "folder", "whatsapp", "telegram"
    ]  # fmt: skip
