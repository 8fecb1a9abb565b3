"""When a workspace trusts what an earlier run left, and what it never writes over."""

import errno
import json
from pathlib import Path

import pytest

from fedgram.core.errors import InputError
from fedgram.core.storage import flush
from fedgram.pipeline import workspace
from fedgram.pipeline.workspace import MANIFEST, Stage, Work, open_workspace


def both(work: Work) -> None:
    """Write the configuration to two files."""
    for name in ("first", "second"):
        work.write(name).write_text(str(work.config))


def make(work: Work) -> None:
    """Write one file, whatever the stage reads."""
    work.write("made").write_text("made")


def upper(work: Work) -> None:
    """Write the source in capitals."""
    work.write("text.txt").write_text(work.read("given").read_text().upper())


def test_the_manifest_does_not_name_a_stage_whose_files_are_being_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails between the first and the second file of a stage that ran before and runs again."""
    seen = []

    def flushed(path: Path) -> None:
        seen.append((path.name, sorted(json.loads((tmp_path / "w" / MANIFEST).read_text())["artefacts"])))
        if path.name == "second":
            raise OSError(errno.EIO, "Input/output error")
        flush(path)

    def stages(value: int) -> list[Stage]:
        return [Stage("other", ("made",), make), Stage("both", ("first", "second"), both, config=value)]

    with open_workspace(tmp_path / "w") as space:
        space.run(stages(1))
        monkeypatch.setattr(workspace, "flush", flushed)
        with pytest.raises(OSError, match="Input/output"):
            space.run(stages(2))
        assert list(space.artefacts) == ["other"]
    assert seen == [("first", ["other"]), ("second", ["other"])]
    assert [(tmp_path / "w" / name).read_text() for name in ("first", "second")] == ["2", "1"]
    with open_workspace(tmp_path / "w") as space:
        assert [planned.reason for planned in space.plan(stages(1))] == [None, "new"]


def test_a_stage_that_no_longer_reads_a_file_runs_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    a, b = tmp_path / "a", tmp_path / "b"
    with open_workspace(tmp_path / "w") as space:
        space.run([Stage("make", ("made",), make, sources={"a": a, "b": b})])
        for sources, reason in (({"a": a, "b": b}, None), ({"a": a}, "b changed"), ({"b": b}, "a changed")):
            assert [p.reason for p in space.plan([Stage("make", ("made",), make, sources=sources)])] == [reason]


def test_a_stage_that_reads_one_more_file_runs_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    with open_workspace(tmp_path / "w") as space:
        space.run([Stage("make", ("made",), make)])
        assert space.plan([Stage("make", ("made",), make, sources={"a": tmp_path / "a"})])[0].reason == "a changed"


def test_what_another_version_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage("make", ("made",), make)
    with open_workspace(tmp_path / "w") as space:
        place = space.place(stage)
        space.run([stage])
        assert space.plan([stage])[0].reason is None
        monkeypatch.setattr(workspace, "__version__", "0.0.0+other")
        assert space.plan([stage])[0].reason == "another version of fedgram"
        assert space.place(stage) != place  # checkpoints of another version are not found
        space.run([stage])
        assert space.artefacts["make"]["version"] == "0.0.0+other"


@pytest.mark.parametrize("way", ["plain", "around", "link"])
def test_a_source_is_not_written_over_under_any_name(tmp_path: Path, way: str) -> None:
    """The file of the user that stands where the run writes is named as it is, through another folder, or by a link."""
    folder = tmp_path / "w"
    with open_workspace(folder):
        (folder / "text.txt").write_text("mine")
    (tmp_path / "link").symlink_to(folder / "text.txt")
    given = {"plain": folder / "text.txt", "around": folder / ".." / "w" / "text.txt", "link": tmp_path / "link"}[way]
    with open_workspace(folder) as space, pytest.raises(InputError, match="keep it outside of the workspace"):
        space.run([Stage("upper", ("text.txt",), upper, sources={"given": given})])
    assert (folder / "text.txt").read_text() == "mine"
