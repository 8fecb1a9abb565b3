"""Messages by user from JSON lines, CSV and Parquet."""

import contextlib
import csv
import json
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tests.unit.text.importing import SECRET, read, refused, write

from fedgram.core.errors import FedgramError, InputError
from fedgram.text.importers import ImportOptions, read_messages
from fedgram.text.source_files import format_of

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
    source = write(tmp_path / "a.jsonl", "\n".join(lines))
    found, report = read(source)
    assert found == [("ann", "one\ntwo"), ("17", "hi")]
    assert report.skipped == {
        "not JSON": 3, "not a JSON object": 1, "no user field": 1, "no text field": 1, "no user": 2, "no text": 1,
        "the user is neither a string nor an integer": 2, "the text is not a string": 1, "not Unicode text": 2,
    }  # fmt: skip
    assert report.first_places["not JSON"] == f"{source}:4"
    assert report.first_places["no user"] == f"{source}:8"
    assert sum(report.skipped.values()) + report.messages == sum(map(bool, lines))


@pytest.mark.parametrize("user", ["user", "user_id", "author", "client_id", "sender", "from", "Author"])
@pytest.mark.parametrize("text", ["text", "message", "body", "content", "TEXT"])
def test_recognised_fields(tmp_path: Path, user: str, text: str) -> None:
    jsonl = write(tmp_path / "a.jsonl", json.dumps({"id": 1, user: "ann", text: "hi"}))
    table = write(tmp_path / "a.csv", f"id,{user},{text}\n1,ann,hi\n")
    assert read(jsonl)[0] == read(table)[0] == [("ann", "hi")]


def test_named_fields(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", '{"user": "x", "who": "ann", "said": "hi", "text": "no"}\n')
    assert read(source, user_field="who", text_field="said")[0] == [("ann", "hi")]
    assert read(source, text_field="said")[0] == [("x", "hi")]
    assert "no user field 1" in str(refused(source, user_field="whom"))
    with pytest.raises(FedgramError, match="same field"):
        ImportOptions(user_field="text", text_field="text")


def test_fields_cannot_be_named_for_a_chat(tmp_path: Path) -> None:
    source = write(tmp_path / "chat.txt", "31/12/2020 22:15 - Ann: hi\n")
    assert "has no named fields" in str(refused(source, user_field="who"))


def test_file_without_any_json_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", f"{SECRET}\n{SECRET}\n")
    error = refused(source)
    assert str(error).startswith(f"{source}: contains no messages in the format jsonl (skipped: not JSON 2); ")


ROWS = st.lists(st.tuples(st.sampled_from(["ann", "bob", "çem"]), st.text(min_size=1)), min_size=1)


def _accounted(source: Path) -> tuple[list[tuple[str, str]], int]:
    messages, report = read_messages([source])
    found: list[tuple[str, str]] = []
    with contextlib.suppress(InputError):
        found.extend((message.user, message.text) for message in messages)
    return found, len(found) + sum(report.skipped.values())


@given(ROWS)
def test_jsonl_loses_nothing(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    source = tmp_path_factory.mktemp("lines") / "a.jsonl"
    write(source, "broken\n" + "\n".join(json.dumps({"user": u, "text": t}) for u, t in rows) + "\n")
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
    source = write(tmp_path / "a.csv", "\ufeff" + "\r\n".join(delimiter.join(row) for row in rows) + "\r\n\r\n")
    found, report = read(source)
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
        (f"user,text,user\nann,{SECRET},bob\n", "has two user columns with the same name"),
        (f'user,text\nann,hi\nann,"{SECRET}\nbob,hi\n', "a quoted field is not closed"),
        (f'user,text\nann,hi\nann,"{SECRET}" hi\nbob,hi\n', "a quoted field is not closed"),
        ("user,text\n", "contains no messages in the format csv"),
        (f"user,text\n ,{SECRET}\n", "contains no messages in the format csv (skipped: no user 1)"),
    ],
)
def test_broken_csv_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    error = refused(write(tmp_path / "a.csv", content))
    assert error.problem.startswith(problem)
    assert error.line == (3 if "quoted" in problem else None)


# Parquet.


def _table(path: Path, **columns: object) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet(tmp_path: Path) -> None:
    users = ["ann", None, "", "bob", "bob"]
    texts = ["hi", SECRET, SECRET, None, "two\nlines"]
    found, report = read(_table(tmp_path / "a.parquet", sender=users, body=texts, other=list(range(5))))
    assert found == [("ann", "hi"), ("bob", "two\nlines")]
    assert report.skipped == {"no user": 2, "no text": 1}
    assert report.first_places["no user"] == f"{tmp_path / 'a.parquet'}:row 2"


def test_parquet_with_coded_and_numbered_users(tmp_path: Path) -> None:
    coded = _table(tmp_path / "a", user=pyarrow.array(["ann", "bob"]).dictionary_encode(), text=["hi", "yo"])
    assert format_of(coded) == "parquet"
    assert read(coded)[0] == [("ann", "hi"), ("bob", "yo")]
    numbered = _table(
        tmp_path / "b.parquet", who=[2**60, 2**60 + 1], text=pyarrow.array(["a", "b"]).cast("large_string")
    )
    assert read(numbered, user_field="who")[0] == [(str(2**60), "a"), (str(2**60 + 1), "b")]


def test_broken_parquet_is_refused(tmp_path: Path) -> None:
    assert "has no text column" in str(refused(_table(tmp_path / "a.parquet", user=["a"], words=[SECRET])))
    assert 'has no column "who"' in str(refused(_table(tmp_path / "b.parquet", text=["a"]), user_field="who"))
    assert "the type double" in str(refused(_table(tmp_path / "c.parquet", user=[1.0, None], text=["a", "b"])))
    assert "the type int64" in str(refused(_table(tmp_path / "d.parquet", user=["a"], text=[1])))
    coded = pyarrow.array([1.5]).dictionary_encode()
    assert "the type double" in str(refused(_table(tmp_path / "e.parquet", user=coded, text=["a"])))
    binary = _table(tmp_path / "f.parquet", user=["a"], text=pyarrow.array([SECRET.encode()]))
    assert "the type binary" in str(refused(binary))
    assert "not a Parquet file" in str(refused(write(tmp_path / "g.parquet", SECRET)))
    whole = _table(tmp_path / "h.parquet", user=["a"], text=["b"]).read_bytes()
    (tmp_path / "h.parquet").write_bytes(whole[:-20])
    assert "not a Parquet file" in str(refused(tmp_path / "h.parquet"))
