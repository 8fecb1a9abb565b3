"""Parquet files that are larger inside than outside."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgram.core.errors import InputError
from fedgram.core.unpacking import VARIABLE
from fedgram.text.messages import parquet_messages, write_messages
from fedgram.text.parquet import parquet_batches

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
READ = """
import resource, sys
from pathlib import Path
from fedgram.core.errors import InputError
from fedgram.text.importers import read_messages
from fedgram.text.messages import parquet_messages
import pyarrow.parquet
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for read in (parquet_messages, lambda path: read_messages([path])[0]):
    try:
        for _ in read(Path(sys.argv[1])):
            pass
    except InputError as error:
        print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before >> 10)
"""


def repeated(path: Path, text: str, rows: int) -> Path:
    """One long text in many rows; Parquet stores it once."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
    schema = pa.schema([("user_id", pa.string()), ("text", pa.string())])
    table = pa.table({"user_id": ["u"] * rows, "text": texts})
    parquet.write_table(table, path, compression="zstd", store_schema=False)
    assert parquet.read_schema(path) == schema
    return path


def long_page(path: Path, mebibytes: int) -> Path:
    """One page that unpacks to many mebibytes."""
    table = pa.table({"user_id": ["u"], "text": ["a" * (mebibytes << 20)]})
    parquet.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    return path


@pytest.mark.parametrize(
    ("limit", "make"), [("256", lambda p: repeated(p, "a " * 500_000, 5_000)), ("20", lambda p: long_page(p, 60))]
)
def test_a_bomb_is_refused_with_little_memory(tmp_path: Path, limit: str, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path / "bomb.parquet")
    assert path.stat().st_size < 100_000
    environment = os.environ if limit == "256" else {**os.environ, VARIABLE: f"{limit}M"}
    command = [sys.executable, "-c", READ, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    first, second, mebibytes = done.stdout.splitlines()
    assert f"unpacks to more than {limit} MiB" in first
    assert "--max-unpacked" in second
    assert int(mebibytes) < 50


def test_values_are_those_that_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = [f"user {i % 700}" for i in range(60_000)]
    texts = [None if i % 50 == 0 else f"text {i}" for i in range(60_000)]
    for dictionary in (True, False):
        table = pa.table({"user_id": users, "n": range(60_000), "text": texts})
        parquet.write_table(table, tmp_path / "a.parquet", use_dictionary=dictionary, row_group_size=7_000)
        batches = list(parquet_batches(tmp_path / "a.parquet", ["n", "text", "user_id"]))
        columns = [[value for batch in batches for value in batch[k]] for k in range(3)]
        assert columns == [list(range(60_000)), texts, users]
    monkeypatch.setenv(VARIABLE, "1M")
    with pytest.raises(InputError, match="more than 1 MiB"):
        list(parquet_messages(tmp_path / "a.parquet"))
    monkeypatch.setenv(VARIABLE, "8M")
    assert len(list(parquet_messages(tmp_path / "a.parquet"))) == 60_000 - 1_200


@pytest.mark.parametrize("bits", [255, 1])  # the last bit is the sign
def test_damaged_pages_are_refused(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"user_id": ["u"] * 9, "text": [f"text {i}" for i in range(9)]}), path)
    whole = path.read_bytes()
    read, errors = 0, []
    for position in range(4, len(whole) - 8):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ bits]) + whole[position + 1 :])
        try:
            read += len(list(parquet_messages(path)))
        except InputError as error:
            errors.append(str(error))
    assert read
    assert errors
    assert not any("\n" in error for error in errors)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20


def test_a_file_of_whole_row_groups_is_read(tmp_path: Path) -> None:
    """The last group is then empty, and has no pages."""
    path = tmp_path / "users.parquet"
    write_messages(path, ((f"user{i:06d}", "hello", "train") for i in range(50_000)))
    assert parquet.ParquetFile(path).metadata.row_group(1).num_rows == 0
    assert sum(len(values[0]) for values in parquet_batches(path, ["user_id", "text"])) == 50_000


@pytest.mark.parametrize("value", [None, "", "a"], ids=["missing", "empty", "one letter"])
def test_values_that_take_no_room_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """Millions of rows of one value are some hundred bytes in the file, and a list entry each in memory."""
    path, rows = tmp_path / "bomb.parquet", 2_000_000
    column = pa.array([value] * rows, pa.string())
    parquet.write_table(pa.table({"user_id": column, "text": column}), path, compression="zstd")
    assert path.stat().st_size < 20_000
    monkeypatch.setenv(VARIABLE, "20M")
    with pytest.raises(InputError, match="unpacks to more than 20 MiB"):
        list(parquet_batches(path, ["user_id", "text"]))
