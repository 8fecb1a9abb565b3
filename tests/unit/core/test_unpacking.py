"""Compressed input: what it may become, and how a user allows more."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.unpacking import VARIABLE, Meter, open_unpacked, size_in_bytes, unpacked_limit

MIB = 1 << 20


def bomb(path: Path, mebibytes: int) -> Path:
    with gzip.open(path, "wb") as file:
        for _ in range(mebibytes):
            file.write(b"a " * (MIB // 2))
    return path


def test_ordinary_files_are_read_as_they_are(tmp_path: Path) -> None:
    text = b"one line\n" * 200_000
    (tmp_path / "a.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a.txt").write_bytes(text)
    for name in ("a.gz", "a.txt"):
        with open_unpacked(tmp_path / name) as file:
            assert file.read(10) + file.read() == text
    (tmp_path / "cut.gz").write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(InputError, match="not a complete gzip file"), open_unpacked(tmp_path / "cut.gz") as file:
        file.read()


def test_the_limit_grows_with_the_file_and_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert unpacked_limit(1000) == 256 * MIB
    assert unpacked_limit(100 * MIB) == 6400 * MIB
    monkeypatch.setenv(VARIABLE, "2 GiB")
    assert unpacked_limit(1000) == unpacked_limit(100 * MIB) == 2048 * MIB
    assert [size_in_bytes(text) for text in ("7", "7k", "7 MB", "7G")] == [7, 7 << 10, 7 << 20, 7 << 30]
    for wrong in ("", "0", "-1", "many", "1.5G", "9" * 13):
        with pytest.raises(FedgramError, match="is not a size"):
            size_in_bytes(wrong)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bomb(tmp_path / "bomb.txt.gz", 24)
    monkeypatch.setenv(VARIABLE, "20M")
    assert path.stat().st_size < MIB // 20
    blocks: list[int] = []
    with pytest.raises(InputError, match="unpacks to more than 20 MiB") as refused, open_unpacked(path) as file:
        blocks.extend(len(block) for block in iter(lambda: file.read(MIB), b""))
    assert sum(blocks) <= 20 * MIB
    assert "--max-unpacked" in str(refused.value)
    monkeypatch.setenv(VARIABLE, "24M")
    with open_unpacked(path) as file:
        assert sum(len(block) for block in iter(lambda: file.read(MIB), b"")) == 24 * MIB
    with pytest.raises(InputError, match="more than 24 MiB"):
        Meter(path).add(24 * MIB + 1)


def test_commands_refuse_bombs_until_they_are_allowed(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "3M")
    path = bomb(tmp_path / "bomb.txt.gz", 4)
    arpa = tmp_path / "m.arpa"
    assert "unpacks to more than 3 MiB" in refused("ngram", "train", path, "-o", arpa)
    assert "unpacks to more than 2 MiB" in refused("--max-unpacked", "2M", "ngram", "train", path, "-o", arpa)
    assert "is not a size" in refused("--max-unpacked", "lots", "ngram", "train", path, "-o", arpa)
