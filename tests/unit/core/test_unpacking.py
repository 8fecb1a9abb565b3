"""Compressed input: what it may become, and how a user allows more."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.unpacking import VARIABLE, Meter, open_unpacked, packing, size_in_bytes, unpacked, unpacked_limit

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


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress,
    "Zstandard": lambda data: zstandard.compress(data[: len(data) // 2]) + zstandard.compress(data[len(data) // 2 :]),
}  # fmt: skip


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_files_are_recognised_by_their_content(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, path = "".join(f"line {i}\n" for i in range(100_000)).encode(), tmp_path / "a.txt"
    packed = PACKERS[kind](text)
    path.write_bytes(packed)
    with open_unpacked(path) as file:
        assert file.read(10) + file.read() == text
    with unpacked(io.BufferedReader(io.BytesIO(packed)), "-") as file:
        assert file.read() == text
    for wrong in (packed[: len(packed) // 3], packed[: len(packed) - 5], packed[:30] + bytes(50) + packed[80:]):
        path.write_bytes(wrong)
        with pytest.raises(InputError, match=f"not a complete {kind} file"), open_unpacked(path) as file:
            file.read()
    path.write_bytes(packed)
    monkeypatch.setenv(VARIABLE, "100K")
    with pytest.raises(InputError, match="unpacks to more than") as refused, open_unpacked(path) as file:
        file.read()
    assert refused.value.line is not None


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".zst"])
def test_output_is_packed_by_its_name(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / f"{name}.txt{suffix}" for name in "ab"]
    for path in paths:
        with path.open("wb") as raw, packing(raw, path) as file:
            file.write(b"one\n" * 1000)
        with open_unpacked(path) as file:
            assert file.read() == b"one\n" * 1000
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert (paths[0].stat().st_size < 1000) == bool(suffix)


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
