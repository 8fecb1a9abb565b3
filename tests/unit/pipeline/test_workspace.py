"""Workspaces: only what changed runs again, whatever happens in between."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from fedgram.core.errors import FedgramError, InputError, InvariantError
from fedgram.core.sources import code_digest
from fedgram.pipeline.workspace import MANIFEST, Stage, Work, Workspace, open_workspace


@dataclass(frozen=True)
class Number:
    value: int


class Recorder:
    """Three stages over small text files: double a source, add a number, join both."""

    def __init__(self, folder: Path) -> None:
        self.ran: list[str] = []
        self.source = folder / "source.txt"
        self.source.write_text("3")

    def stages(self, add: int = 1, scale: int = 2) -> list[Stage]:
        def step(name: str, make: Callable[[Work], str]) -> Callable[[Work], None]:
            def function(work: Work) -> None:
                self.ran.append(name)
                work.write(f"{name}.txt").write_text(make(work))

            return function

        def number(work: Work, name: str) -> int:
            return int(work.read(name).read_text())

        return [
            Stage(
                "scaled", ("scaled.txt",), step("scaled", lambda w: str(w.config.value * number(w, "text") // 10 * 10)),
                sources={"text": self.source}, config=Number(scale),
            ),
            Stage(
                "added", ("added.txt",), step("added", lambda w: str(w.config.value + number(w, "scaled.txt"))),
                inputs=("scaled.txt",), config=Number(add),
            ),
            Stage(
                "joined", ("joined.txt",),
                step("joined", lambda w: w.read("scaled.txt").read_text() + w.read("added.txt").read_text()),
                inputs=("scaled.txt", "added.txt"),
            ),
        ]  # fmt: skip

    def run(self, space: Workspace, **options: int) -> list[str]:
        self.ran.clear()
        space.run(self.stages(**options))
        return self.ran


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


def test_only_what_changed_runs_again(tmp_path: Path, recorder: Recorder) -> None:
    recorder.source.write_text("13")
    with open_workspace(tmp_path / "w") as space:
        assert recorder.run(space) == ["scaled", "added", "joined"]
        assert (tmp_path / "w" / "joined.txt").read_text() == "2021"
        assert recorder.run(space) == []
        assert recorder.run(space, add=5) == ["added", "joined"]
    with open_workspace(tmp_path / "w") as space:
        assert recorder.run(space, add=5) == []
        recorder.source.write_text("14")  # 28 is cut to 20 as 26 was: the stages after it need not run
        assert recorder.run(space, add=5) == ["scaled"]
        (tmp_path / "w" / "added.txt").write_text("tampered")
        assert recorder.run(space, add=5) == ["added"]
        (tmp_path / "w" / "joined.txt").unlink()
        assert recorder.run(space, add=5) == ["joined"]
    assert not list((tmp_path / "w" / ".work").iterdir())


def test_the_plan_says_why(tmp_path: Path, recorder: Recorder) -> None:
    with open_workspace(tmp_path / "w") as space:
        assert [p.reason for p in space.plan(recorder.stages())] == [
            "new",
            "new",
            "new",
        ]
        assert recorder.ran == []
        recorder.run(space)
        plan = space.plan(recorder.stages(add=2))
        assert [p.reason for p in plan] == [None, "its configuration changed", "added.txt may change"]
        assert all(p.seconds is not None for p in plan)
        assert [p.stage.name for p in space.plan(recorder.stages(), "added")] == ["scaled", "added"]
        with pytest.raises(FedgramError, match="no stage 'ended'; the stages are scaled, added, joined"):
            space.plan(recorder.stages(), "ended")


def test_a_stage_whose_code_changed_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stages(folder: str, code: str) -> list[Stage]:
        (tmp_path / folder).mkdir()
        module = ModuleType("steps")
        module.__file__ = str(tmp_path / folder / "steps.py")
        Path(module.__file__).write_text(f"def step(work):\n    {code}\n    work.write('out').write_text('done')\n")
        exec(Path(module.__file__).read_text(), module.__dict__)
        monkeypatch.setitem(sys.modules, "steps", module)
        return [Stage("step", ("out",), module.step), Stage("copy", ("copied",), copy, inputs=("out",))]

    def copy(work: Work) -> None:
        work.write("copied").write_text(work.read("out").read_text())

    def run(space: Workspace, stages: list[Stage]) -> list[str | None]:
        reasons: list[str | None] = []
        space.run(stages, on_stage=lambda _, reason: reasons.append(reason))
        return reasons

    with open_workspace(tmp_path / "w") as space:
        old = stages("old", "pass")
        place = space.place(old[0])
        assert run(space, old) == ["new", "new"]
        new = stages("new", "import fedgram.core.arrays")
        assert space.place(new[0]) != place  # checkpoints of other code are not found
        assert [p.reason for p in space.plan(new)] == ["its code changed", "out may change"]
        assert run(space, new) == ["its code changed", None]  # the same bytes: the stage after it is spared
        assert run(space, stages("moved", "import fedgram.core.arrays")) == [None, None]


def test_a_manifest_from_before_code_was_noted(tmp_path: Path, recorder: Recorder) -> None:
    with open_workspace(tmp_path / "w") as space:
        recorder.run(space)
    manifest = json.loads((tmp_path / "w" / MANIFEST).read_text())
    for noted in manifest["artefacts"].values():
        del noted["code"]
    (tmp_path / "w" / MANIFEST).write_text(json.dumps(manifest))
    with open_workspace(tmp_path / "w") as space:
        assert space.plan(recorder.stages())[0].reason == "its code changed"


def test_stages_of_a_run_have_the_code_of_their_functions() -> None:
    from fedgram.pipeline import network_stages, text_stages
    from fedgram.pipeline.config import RunConfig
    from fedgram.pipeline.stages import run_stages

    stages = {stage.name: stage.function for stage in run_stages(RunConfig())}
    of = {name: code_digest(function) for name, function in stages.items()}
    assert of["population"] == of["unigrams"] == code_digest(text_stages.population)
    assert of["train_words"] == code_digest(network_stages.train_network) != of["population"]
    assert None not in of.values()


def test_until_and_being_told(tmp_path: Path, recorder: Recorder) -> None:
    told = []
    with open_workspace(tmp_path / "w") as space:
        space.run(recorder.stages(), until="scaled")
        space.run(recorder.stages(), on_stage=lambda stage, reason: told.append((stage.name, reason)))
    assert told == [("scaled", None), ("added", "new"), ("joined", "new")]


def test_the_manifest_names_every_artefact(tmp_path: Path, recorder: Recorder) -> None:
    with open_workspace(tmp_path / "w") as space:
        recorder.run(space)
        manifest = json.loads((tmp_path / "w" / MANIFEST).read_text())
        assert manifest["artefacts"] == space.artefacts
    noted = manifest["artefacts"]["added"]
    assert set(noted) == {"key", "config", "inputs", "files", "seconds", "peak_bytes", "version", "code"}
    assert set(noted["inputs"]) == {"scaled.txt"}
    assert noted["inputs"]["scaled.txt"] == manifest["artefacts"]["scaled"]["files"]["scaled.txt"]["sha256"]
    assert noted["files"]["added.txt"]["bytes"] == 1


def test_measurements_are_counted_by_users(tmp_path: Path) -> None:
    """A stage is told how often it has measured the same users, whatever else changed; being spared does not count."""
    told = []

    def measure(work: Work) -> None:
        told.append((work.config.value, work.measured))
        work.write("measured.json").write_text(str(work.measured))

    def stages(value: int, users: str | None) -> list[Stage]:
        return [Stage("evaluation", ("measured.json",), measure, config=Number(value), measures=users)]

    for value, users in ((1, "dev"), (2, "test"), (2, "test"), (3, "test"), (4, "dev"), (5, None)):
        with open_workspace(tmp_path / "w") as space:
            space.run(stages(value, users))
    assert told == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 0)]
    noted = json.loads((tmp_path / "w" / MANIFEST).read_text())
    assert noted["measured"] == {"evaluation": {"dev": 2, "test": 2}}
    del noted["measured"]  # as in a workspace from before measurements were counted
    (tmp_path / "w" / MANIFEST).write_text(json.dumps(noted))
    with open_workspace(tmp_path / "w") as space:
        space.run(stages(6, "test"))
    assert told[-1] == (6, 0)


def test_two_runs_in_one_workspace_are_refused(tmp_path: Path) -> None:
    with (
        open_workspace(tmp_path / "w"),
        pytest.raises(InputError, match=f"in use by another run .process {os.getpid()}.; wait"),
        open_workspace(tmp_path / "w"),
    ):
        pass
    with open_workspace(tmp_path / "w"):
        pass


def test_a_stage_that_fails_leaves_everything_as_it_was(tmp_path: Path, recorder: Recorder) -> None:
    def full(work: Work) -> None:
        work.write("added.txt").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_workspace(tmp_path / "w") as space:
        recorder.run(space)
        before = (tmp_path / "w" / MANIFEST).read_bytes()
        stages = recorder.stages(add=7)
        stages[1] = Stage("added", ("added.txt",), full, inputs=("scaled.txt",), config=Number(7))
        with pytest.raises(OSError, match="No space left"):
            space.run(stages)
        assert (tmp_path / "w" / MANIFEST).read_bytes() == before
        assert recorder.run(space) == []


def test_an_interrupted_stage_finds_its_checkpoint(tmp_path: Path) -> None:
    seen = []

    def slow(work: Work) -> None:
        checkpoint = work.write("checkpoint")
        seen.append(checkpoint.exists())
        if not checkpoint.exists():
            checkpoint.write_text("half way")
            raise KeyboardInterrupt
        work.write("out").write_text("done")

    def stage(value: int) -> list[Stage]:
        return [Stage("slow", ("out",), slow, config=Number(value))]

    with open_workspace(tmp_path / "w") as space:
        for value in (1, 2):  # a checkpoint of other work is not found
            with pytest.raises(KeyboardInterrupt):
                space.run(stage(value))
        space.run(stage(2))
    assert seen == [False, False, True]
    assert (tmp_path / "w" / "out").read_text() == "done"


def test_stages_must_fit_together(tmp_path: Path) -> None:
    def nothing(_: Work) -> None:
        pass

    with open_workspace(tmp_path / "w") as space:
        for stages, message in (
            ([Stage("a", ("x",), nothing, inputs=("y",))], "needs y, which no earlier stage writes"),
            ([Stage("a", ("x",), nothing, after=("y",))], "needs y, which no earlier stage writes"),
            ([Stage("a", ("x",), nothing), Stage("b", ("x",), nothing)], "another's file"),
            ([Stage("a", ("x",), nothing), Stage("a", ("y",), nothing)], "stands twice"),
            ([Stage("a", (), nothing)], "writes nothing"),
            ([Stage("a", ("x",), nothing)], "did not write x"),
        ):
            with pytest.raises(InvariantError, match=message):
                space.run(stages)
        missing = tmp_path / "missing.txt"
        with pytest.raises(InputError, match=r"missing.txt: is needed by a, and not there"):
            space.run([Stage("a", ("x",), nothing, sources={"text": missing})])


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"format": 1}',
        '{"format": 1, "artefacts": {"a": {}}}',
        '{"format": 1, "artefacts": {"a": 3}}',
        '{"format": 1, "artefacts": {}, "measured": {"evaluation": 3}}',
        "[" * 9999,
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(InputError, match="is damaged; remove it to run everything again"), open_workspace(tmp_path):
        pass


def test_another_format_or_no_folder(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"format": 9, "artefacts": {}}')
    with pytest.raises(InputError, match="has format 9, not 1"), open_workspace(tmp_path):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not a folder"), open_workspace(tmp_path / "file"):
        pass


_CHAIN = """
import hashlib, sys, time
from pathlib import Path
from fedgram.pipeline.workspace import Stage, open_workspace

def link(number):
    def function(work):
        data = b"".join(work.read(name).read_bytes() for name in work.inputs)
        with work.write(f"{number}.bin").open("wb") as file:
            for i in range(40):
                file.write(hashlib.sha256(data + bytes([number, i])).digest() * 64)
                file.flush()
                time.sleep(0.001)
    return function

stages = [
    Stage(f"s{n}", (f"{n}.bin",), link(n), inputs=(f"{n - 1}.bin",) if n else ()) for n in range(6)
]
print("ready", flush=True)
with open_workspace(sys.argv[1]) as space:
    space.run(stages)
"""


def test_files_that_are_not_a_runs_are_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "text.txt"
    own.write_text("mine")
    with pytest.raises(InputError, match="holds files that are not a run's"), open_workspace(tmp_path):
        pytest.fail("it was opened")

    def copy(work: Work) -> None:
        work.write("text.txt").write_text(work.read("given").read_text().upper())

    folder = tmp_path / "w"
    with open_workspace(folder):
        (folder / "text.txt").write_text("mine")
    stage = Stage("copy", ("text.txt",), copy, sources={"given": folder / "text.txt"})
    with open_workspace(folder) as workspace, pytest.raises(InputError, match="keep it outside of the workspace"):
        workspace.run([stage])
    assert (own.read_text(), (folder / "text.txt").read_text()) == ("mine", "mine")


def test_a_killed_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    """Killed 20 times at random moments, then left to finish."""
    script = tmp_path / "chain.py"
    script.write_text(_CHAIN)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([sys.executable, script, whole], check=True, stdout=subprocess.DEVNULL)
    moments, kills = random.Random(1), 0
    while kills < 20:
        process = subprocess.Popen([sys.executable, script, broken], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.15))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        process.stdout.close()
        if kills % 7 == 6 and broken.exists():  # and once in a while with other work in between
            (broken / "2.bin").unlink(missing_ok=True)
    subprocess.run([sys.executable, script, broken], check=True, stdout=subprocess.DEVNULL)
    assert _content(broken) == _content(whole)
    assert not list((broken / ".work").iterdir())


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.bin"))}


def test_files_are_flushed_before_they_are_moved_and_the_manifest_after(tmp_path: Path, flushed: list[Path]) -> None:
    """So that what the manifest names is on disk: the outputs, then the folder that has them, then the manifest."""

    def write(work: Work) -> None:
        work.write("a").write_text("a")
        work.write("b").write_text("b")

    home = tmp_path / "run"
    with open_workspace(home) as space:
        space.run([Stage("one", ("a", "b"), write)])
    outputs = [path for path in flushed if path.name in ("a", "b")]
    assert [path.name for path in outputs] == ["a", "b"]
    assert all(path.parent.parent == home / ".work" for path in outputs)
    after = flushed[flushed.index(outputs[-1]) + 1 :]
    assert after[0] == home
    assert after[-1].parent == home
    assert len(after) >= 2
