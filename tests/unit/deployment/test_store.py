"""Stores of devices: what they hold, and what is refused."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedgram.core.errors import FedgramError
from fedgram.deployment.store import open_store, write_population_stores, write_store
from fedgram.text.messages import write_messages


def test_stores_hold_what_was_typed_and_nothing_else_is_a_store(tmp_path: Path) -> None:
    assert write_store(tmp_path / "7.sqlite", 7, ["Hello there.", "It's me"]) == 2
    store = open_store(tmp_path / "7.sqlite")
    assert (store.number, store.messages()) == (7, 2)
    assert "ello" not in repr(store) + repr(store.population())
    for content in (b"", b"SQLite format 3\0", b"x" * 5000):
        (tmp_path / "bad.sqlite").write_bytes(content)
        with pytest.raises(FedgramError, match="is not a device's store"):
            open_store(tmp_path / "bad.sqlite")
    write_store(tmp_path / "minus.sqlite", -1, [])
    with pytest.raises(FedgramError, match="is not a device's store"):
        open_store(tmp_path / "minus.sqlite")


def test_a_store_is_read_as_far_as_it_is_text(tmp_path: Path) -> None:
    write_store(tmp_path / "7.sqlite", 7, ["Hello there."])
    with closing(sqlite3.connect(tmp_path / "7.sqlite")) as file:
        file.execute("INSERT INTO message (text) VALUES (NULL), (x'ff00'), (CAST(x'41ff' AS TEXT)), ('It is me')")
        file.commit()
    assert [len(s) for s in open_store(tmp_path / "7.sqlite").population().sentences(0)] == [2, 1, 3]
    write_store(tmp_path / "8.sqlite", 8, [f"secret {k} " * 20 for k in range(400)])
    store = open_store(tmp_path / "8.sqlite")
    content = bytearray((tmp_path / "8.sqlite").read_bytes())
    content[20_000:-4096] = b"\xff" * (len(content) - 24_096)
    (tmp_path / "8.sqlite").write_bytes(content)
    with pytest.raises(FedgramError, match=r"8\.sqlite: is damaged"):
        store.population()


def test_what_was_typed_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Stores were readable by every user of the machine."""
    write_store(tmp_path / "7.sqlite", 7, ["Hello there."])
    assert (tmp_path / "7.sqlite").stat().st_mode & 0o777 == 0o600
    write_messages(tmp_path / "users.parquet", [("a", "Hello.", "train")])
    write_population_stores(tmp_path / "users.parquet", tmp_path / "stores")
    assert (tmp_path / "stores").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "stores").iterdir()} == {0o600}
