"""Checkpoints: written atomically, tied to one piece of work, and safe from damage to the newest file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgram.core.checkpoint import Checkpoints, OtherWorkError, read_checkpoint, write_checkpoint
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.storage import Artefact, Record, artefact_from_bytes, write_artefact

WORK = {"task": "unigrams", "seed": 3, "limits": (1, 2.5), "folder": None}
RECORD = Record(
    {"loss": [0.1, None], "story": {"best": 7}},
    {"sums": np.arange(6).reshape(2, 3), "w": np.array([0.1, -0.0], np.float32), "none": np.zeros(0, np.int64)},
)


def same(found: Record, expected: Record = RECORD) -> bool:
    """Whether two records have the same values, and arrays of the same types, shapes and bits."""
    return found.fields == expected.fields and {n: _content(a) for n, a in found.arrays.items()} == {
        n: _content(a) for n, a in expected.arrays.items()
    }


def _content(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.tobytes()


def numbered(number: int) -> Record:
    return Record({"number": number}, {"a": np.full(50, number)})


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "checkpoint"
    write_checkpoint(path, 12, RECORD, WORK)
    number, record = read_checkpoint(path, WORK)
    assert number == 12
    assert same(record)
    assert read_checkpoint(path, {**WORK, "limits": [1, 2.5]})[0] == 12


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full, or the process ends before the file is renamed."""
    path = tmp_path / "checkpoint"

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for before in (False, True):
        if before:
            write_checkpoint(path, 1, numbered(1), WORK)
        for name, failing, error in (("os.fsync", full, OSError), ("pathlib.Path.replace", killed, KeyboardInterrupt)):
            with monkeypatch.context() as patch:
                patch.setattr(name, failing)
                with pytest.raises(error):
                    write_checkpoint(path, 2, numbered(2), WORK)
            assert [p.name for p in tmp_path.iterdir()] == (["checkpoint"] if before else [])
    assert same(read_checkpoint(path, WORK)[1], numbered(1))


def test_any_damage_is_noticed(tmp_path: Path) -> None:
    path, rng = tmp_path / "checkpoint", np.random.default_rng(0)
    write_checkpoint(path, 1, RECORD, WORK)
    content = path.read_bytes()
    for _ in range(100):
        damaged = bytearray(content)
        damaged[int(rng.integers(len(damaged)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(InputError) as error:
            read_checkpoint(path, WORK)
        assert not isinstance(error.value, OtherWorkError)
    for length in range(0, len(content), 11):
        path.write_bytes(content[:length])
        with pytest.raises(InputError):
            read_checkpoint(path, WORK)


@pytest.mark.parametrize("fields", [{}, {"number": 1, "fields": {}}, {"belongs_to": 3, "number": 1, "fields": {}}])
def test_other_content_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = tmp_path / "checkpoint"
    write_artefact(path, Artefact("checkpoint", 1, fields, {}))
    with pytest.raises(InputError, match="does not hold a checkpoint"):
        read_checkpoint(path, WORK)
    write_artefact(path, Artefact("network", 1, fields, {}))
    with pytest.raises(InputError, match="contains a 'network', not a 'checkpoint'"):
        read_checkpoint(path, WORK)


def test_other_work_is_refused_with_the_names_that_differ(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(path, 1, RECORD, WORK)
    more = {**WORK, "seed": 4, "rate": 0.5}
    fewer = {name: value for name, value in WORK.items() if name != "limits"}
    for other, names in ((more, "rate, seed"), (fewer, "limits"), ({**WORK, "limits": [1, 3]}, "limits")):
        with pytest.raises(OtherWorkError) as error:
            read_checkpoint(path, other)
        assert str(error.value).startswith(f"{path}: was made with other settings: {names}; use the same settings")


def test_two_are_kept(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, WORK)
    (tmp_path / "notes.txt").touch()
    assert kept.newest() is None
    for number in (1, 2, 3, 10, 11):
        kept.write(number, numbered(number))
        found = kept.newest()
        assert found is not None
        assert (found[0], found[1].fields) == (number, {"number": number})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000010.safetensors", "00000011.safetensors", "notes.txt"]
    kept.clear()
    assert kept.newest() is None
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("damage", ["cut short", "changed", "emptied"])
def test_a_damaged_newest_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    kept = Checkpoints(tmp_path, WORK)
    for number in (1, 2):
        kept.write(number, numbered(number))
    newest = tmp_path / "00000002.safetensors"
    content = newest.read_bytes()
    spoilt = {"cut short": content[:-7], "changed": content[:-1] + bytes([content[-1] ^ 1]), "emptied": b""}[damage]
    newest.write_bytes(spoilt)
    found = kept.newest()
    assert found is not None
    assert found[0] == 1
    assert same(found[1], numbered(1))
    kept.write(2, numbered(2))  # the step is repeated, and is there again
    found = kept.newest()
    assert found is not None
    assert found[0] == 2


def test_where_none_can_be_read_the_work_does_not_start_anew_in_silence(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, WORK)
    for number in (1, 2):
        kept.write(number, numbered(number))
        (tmp_path / f"{number:08d}.safetensors").write_bytes(b"?")
    with pytest.raises(FedgramError, match=r"no checkpoint can be read: .*00000002.safetensors: is damaged"):
        kept.newest()


def test_the_newest_of_other_work_is_not_passed_over(tmp_path: Path) -> None:
    Checkpoints(tmp_path, WORK).write(1, numbered(1))
    other = Checkpoints(tmp_path, {**WORK, "seed": 4})
    with pytest.raises(OtherWorkError, match="seed"):
        other.newest()
    other.write(2, numbered(2))
    with pytest.raises(OtherWorkError, match="seed"):
        Checkpoints(tmp_path, WORK).newest()


def test_parts_of_a_record() -> None:
    joined = Record.joined(state=RECORD, progress=numbered(4))
    assert same(joined.part("state"))
    assert same(joined.part("progress"), numbered(4))
    assert same(joined.part("nothing"), Record())


@pytest.mark.parametrize("depth", [900, 960, 980, 990, 1000, 5000])
def test_an_artefact_nested_deeper_than_can_be_written_is_damaged(depth: int) -> None:
    """At any depth of the caller's stack: such bytes must not crash a server."""
    about = {"kind": "update", "version": 1, "fields": 0, "digest": "x"}
    text = json.dumps(about).replace('"fields": 0', '"fields": ' + "[" * depth + "]" * depth)
    header = json.dumps({"__metadata__": {"fedgram": text}}).encode()
    with pytest.raises(InputError, match="damaged"):
        artefact_from_bytes(len(header).to_bytes(8, "little") + header, "update", kind="update", version=1)


def test_a_checkpoint_and_its_folder_are_flushed_to_disk(tmp_path: Path, flushed: list[Path]) -> None:
    write_checkpoint(tmp_path / "folder" / "a", 1, RECORD, WORK)
    assert [path.parent for path in flushed] == [tmp_path / "folder", tmp_path]
    assert flushed[-1] == tmp_path / "folder"


@pytest.mark.parametrize("other", [{**WORK, "new": 1}, {name: WORK[name] for name in ("task", "seed", "limits")}])
def test_a_description_with_more_or_less_is_other_work(tmp_path: Path, other: dict[str, Any]) -> None:
    write_checkpoint(tmp_path / "a", 1, RECORD, {**WORK, "folder": "x"})
    with pytest.raises(OtherWorkError, match="was made with other settings"):
        read_checkpoint(tmp_path / "a", {**other, **({"folder": "x"} if "new" in other else {})})
