"""Ragged rows, random streams and artefacts."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.arrays import Ragged
from fedgram.core.errors import InputError, InvariantError
from fedgram.core.random import philox, stream, uniform_at
from fedgram.core.storage import Artefact, atomic_write, read_artefact, write_artefact

ROWS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=8)


@given(ROWS, ROWS)
def test_ragged_rows_come_back(a: list[list[int]], b: list[list[int]]) -> None:
    joined = Ragged.concatenate([Ragged.from_rows(a), Ragged.from_rows(b)])
    assert [row.tolist() for row in joined] == a + b


@pytest.mark.parametrize("offsets", [[1, 3], [0, 2, 1, 3], [0, 2], []])
def test_ragged_refuses_bad_offsets(offsets: list[int]) -> None:
    with pytest.raises(InvariantError):
        Ragged(np.zeros(3, np.int32), np.array(offsets, np.int64))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**63), st.integers(1, 2**40))
def test_philox_is_numpys(key: int, sample: int, block: int) -> None:
    theirs = np.random.Philox(key=key, counter=[block - 1, sample, 0, 0]).random_raw(4)
    assert philox(np.uint64(key), np.uint64(sample), np.uint64(block)) == tuple(theirs)


def test_uniform_numbers_are_uniform() -> None:
    u = np.array([uniform_at(np.uint64(5), i, j) for i in range(300) for j in range(10)])
    assert 0 <= u.min() < u.max() < 1
    assert np.abs(np.histogram(u, 10)[0] - 300).max() < 80
    assert len(set(u.tolist())) == len(u)


def test_streams_are_told_apart_by_type_and_place() -> None:
    names: list[tuple[str | int, ...]] = [("a",), ("a", 1), ("a", "1"), ("b",), (1, "a")]
    assert len({stream(0, *n).random() for n in names} | {stream(1, "a").random()}) == 6


def example() -> Artefact:
    return Artefact("test", 2, {"name": "é"}, {"x": np.arange(6.0).reshape(2, 3), "none": np.zeros(0, np.int32)})


def test_artefacts_come_back(tmp_path: Path) -> None:
    write_artefact(tmp_path / "a", example())
    back = read_artefact(tmp_path / "a", kind="test", version=2)
    assert back.fields == {"name": "é"}
    assert np.array_equal(back.arrays["x"], example().arrays["x"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    write_artefact(tmp_path / "a", example())
    whole = (tmp_path / "a").read_bytes()
    for i in range(len(whole)):
        (tmp_path / "b").write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        try:
            back = read_artefact(tmp_path / "b", kind="test", version=2)
        except InputError:
            continue
        assert back.fields == {"name": "é"}, i  # only blanks of the header's padding may differ
        assert np.array_equal(back.arrays["x"], example().arrays["x"]), i
    for cut in range(0, len(whole), 7):
        (tmp_path / "b").write_bytes(whole[:cut])
        with pytest.raises(InputError):
            read_artefact(tmp_path / "b", kind="test", version=2)


def test_artefacts_of_other_kinds_and_versions_are_refused(tmp_path: Path) -> None:
    write_artefact(tmp_path / "a", example())
    with pytest.raises(InputError, match="contains a 'test', not a 'other'"):
        read_artefact(tmp_path / "a", kind="other", version=2)
    with pytest.raises(InputError, match="format version 2, not 3"):
        read_artefact(tmp_path / "a", kind="test", version=3)


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def fail() -> None:
        with atomic_write(target) as file:
            file.write(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_what_need_not_outlive_a_power_cut_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr("os.fsync", flushed.append)
    for durable in (False, True):
        with atomic_write(tmp_path / "status", durable=durable) as file:
            file.write(b"%d" % durable)
        assert (tmp_path / "status").read_bytes() == b"%d" % durable
        assert len(flushed) == durable
