"""Artefacts whose arrays are mapped into memory: what is read, and which files are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from fedgram.core.errors import InputError
from fedgram.core.storage import (
    Artefact,
    artefact_to_bytes,
    atomic_write,
    content_digest,
    flush,
    limit_from_json,
    limit_to_json,
    map_artefact,
    read_artefact,
    write_artefact,
)

ARRAYS: dict[str, NDArray[Any]] = {
    "bytes": np.arange(5, dtype=np.uint8), "ids": np.arange(6, dtype=np.int32).reshape(2, 3),
    "none": np.zeros(0, np.int64), "sums": np.arange(3, dtype=np.float64), "half": np.ones(3, np.float16),
    "true": np.array([True, False]),
}  # fmt: skip


def mapped(path: Path) -> Artefact:
    return map_artefact(path, kind="test", version=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_artefact(tmp_path / "a", Artefact("test", 1, {"n": 7}, ARRAYS))
    return tmp_path / "a"


def test_mapped_artefacts_equal_those_that_are_read(path: Path) -> None:
    here, there = mapped(path), read_artefact(path, kind="test", version=1)
    assert here.fields == there.fields == {"n": 7}
    assert here.arrays.keys() == there.arrays.keys() == ARRAYS.keys()
    for name, array in here.arrays.items():
        assert array.dtype == there.arrays[name].dtype
        assert np.array_equal(array, there.arrays[name])
        assert array.flags.aligned
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_files_have_the_bytes_that_the_safetensors_library_writes(tmp_path: Path) -> None:
    types = ["?", "u1", "i1", "i2", "u2", "f2", "i4", "u4", "f4", "c8", "f8", "i8", "u8"]
    arrays = {f"{case}é{dtype}": np.arange(4).astype(dtype).reshape(2, 2) for dtype in types for case in "aA"}
    arrays |= {"turned": arrays["aéi4"].T, "every other": np.arange(6)[::2], "none": np.zeros((0, 3), np.uint8)}
    artefact = Artefact("test", 1, {"text": 'é"\\\n\x7f', "list": [1, None]}, arrays)
    digest = write_artefact(tmp_path / "a", artefact)
    about = {"kind": "test", "version": 1, "fields": artefact.fields, "digest": digest}
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    expected = save(contiguous, {"fedgram": json.dumps(about, sort_keys=True)})
    assert (tmp_path / "a").read_bytes() == artefact_to_bytes(artefact) == expected
    write_artefact(tmp_path / "none", Artefact("test", 1, {}, {}))
    assert mapped(tmp_path / "none").arrays == {}


def test_arrays_remain_when_the_file_is_replaced(path: Path) -> None:
    arrays = mapped(path).arrays
    write_artefact(path, Artefact("test", 1, {}, {"ids": np.zeros(3, np.int32)}))
    assert np.array_equal(arrays["ids"], ARRAYS["ids"])
    assert mapped(path).arrays["ids"].tolist() == [0, 0, 0]


def test_other_kinds_versions_and_content_are_refused(path: Path) -> None:
    with pytest.raises(InputError, match="contains a 'test', not a 'population'"):
        map_artefact(path, kind="population", version=1)
    with pytest.raises(InputError, match="has format version 1, not 2"):
        map_artefact(path, kind="test", version=2)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="does not match its checksum"):
        mapped(path)
    with pytest.raises(FileNotFoundError):
        mapped(path.parent / "absent")


def rewritten(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The same arrays behind a changed header."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ids", {"dtype": "I64"}),  # larger than its bytes
        ("ids", {"dtype": "F8_E4M3"}),
        ("ids", {"dtype": ["I32"]}),
        ("bytes", {"dtype": "BOOL"}),
        ("ids", {"shape": [2, 4]}),
        ("ids", {"shape": [-2, -3]}),
        ("ids", {"shape": [2.0, 3.0]}),
        ("ids", {"shape": [True, 6]}),
        ("ids", {"shape": 6}),
        ("none", {"shape": [0, 2**80]}),
        ("none", {"shape": [0] * 100}),
        ("bytes", {"data_offsets": [54, 60]}),  # beyond the end
        ("bytes", {"data_offsets": [0, 5]}),  # over another array
        ("bytes", {"data_offsets": [-5, 0]}),
        ("bytes", {"data_offsets": [5]}),
        ("bytes", {"data_offsets": ["0", "5"]}),
        ("bytes", {"data_offsets": None}),
    ],
)  # fmt: skip
def test_headers_that_do_not_fit_the_file_are_refused(path: Path, name: str, change: dict[str, Any]) -> None:
    rewritten(path, lambda header: header[name].update(change))
    with pytest.raises(InputError, match="is damaged or not a fedgram artefact") as refused:
        mapped(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("bytes"),  # a gap at the end
        lambda header: header.pop("sums"),  # a gap at the start
        lambda header: header.pop("__metadata__"),
        lambda header: header.update(__metadata__={"fedgram": "[" * 100_000}),
        lambda header: header.update(bytes=5),
    ],
)
def test_headers_with_missing_or_odd_entries_are_refused(
    path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    rewritten(path, change)
    with pytest.raises(InputError, match="is damaged"):
        mapped(path)


def test_misaligned_arrays_are_refused(tmp_path: Path) -> None:
    """Aligned arrays keep every read of a mapped value legal."""
    about = {"fedgram": json.dumps({"kind": "test", "version": 1, "fields": {}, "digest": ""})}
    header = {
        "__metadata__": about, "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "I32", "shape": [1], "data_offsets": [1, 5]},
    }  # fmt: skip
    text = json.dumps(header).encode()
    for pad in range(8):
        padded = text + b" " * pad
        (tmp_path / "a").write_bytes(len(padded).to_bytes(8, "little") + padded + bytes(5))
        with pytest.raises(InputError, match="not aligned"):
            mapped(tmp_path / "a")


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\5\0\0", b"\xff" * 8, b"\2" + bytes(7) + b"{}", b"\x08" + bytes(7) + b"[1,2,3] ",
        b"\x08" + bytes(7) + b'"abcdef"', b"\x08" + bytes(7) + b"\xff\xfe{}    ", bytes(8),
    ],
)  # fmt: skip
def test_files_without_a_header_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        mapped(tmp_path / "a")


def test_every_cut_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match="is damaged"):
            mapped(path)


def test_files_and_folders_are_flushed_to_disk(tmp_path: Path, flushed: list[Path]) -> None:
    with atomic_write(tmp_path / "a") as file:
        file.write(b"a")
    assert [path.parent for path in flushed] == [tmp_path]
    flush(tmp_path / "a")
    flush(tmp_path)
    assert flushed[1:] == [tmp_path / "a", tmp_path]


def test_the_umask_decides_who_may_read_a_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with atomic_write(tmp_path / "a") as file:
        file.write(b"a")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode
    with atomic_write(tmp_path / "secret", private=True) as file:
        file.write(b"a")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("fields", "arrays"),
    [
        ({"n": 8}, {"a": np.arange(4)}),
        ({"n": 7}, {"b": np.arange(4)}),
        ({"n": 7}, {"a": np.arange(4).reshape(2, 2)}),
        ({"n": 7}, {"a": np.arange(4).view(np.uint64)}),
        ({"n": 7}, {"a": np.arange(4)[::-1]}),
        ({"n": 7}, {"a": np.arange(4), "b": np.zeros(0)}),
    ],
)
def test_digests_tell_fields_names_types_shapes_and_bytes_apart(
    fields: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> None:
    assert content_digest(fields, arrays) != content_digest({"n": 7}, {"a": np.arange(4)})


def test_bytes_after_the_last_array_are_refused_when_mapped(tmp_path: Path, path: Path) -> None:
    (tmp_path / "longer").write_bytes(path.read_bytes() + bytes(8))
    with pytest.raises(InputError, match="damaged"):
        mapped(tmp_path / "longer")


def test_no_limit_is_null_in_json() -> None:
    assert limit_to_json(float("inf")) is None
    assert [limit_from_json(limit_to_json(limit)) for limit in (float("inf"), 2.5, 0.0)] == [float("inf"), 2.5, 0.0]
