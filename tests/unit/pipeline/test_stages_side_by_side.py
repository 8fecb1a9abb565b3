"""Stages that run at the same time: in any order the same files, and a failure of one costs no other's result."""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedgram.automata.training import NGramOptions
from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError
from fedgram.core.sources import code_digest
from fedgram.pipeline import stage_processes
from fedgram.pipeline import workspace as workspace_module
from fedgram.pipeline.config import PopulationSection, RunConfig
from fedgram.pipeline.run import run_pipeline
from fedgram.pipeline.stage_processes import StageProcesses, run_stage
from fedgram.pipeline.workspace import Stage, Work, open_workspace


class Side:
    """A runner whose stages run in threads, and that knows which of them were running at the same time."""

    def __init__(self, at_once: int) -> None:
        self.at_once, self.pool = at_once, ThreadPoolExecutor(8)
        self.together: list[frozenset[str]] = []
        self._running: set[str] = set()

    def call(self, stage: Stage, work: Work) -> "Future[int]":
        self._running.add(stage.name)
        self.together.append(frozenset(self._running))

        def run() -> int:
            time.sleep(0.05)
            stage.function(work)
            self._running.remove(stage.name)
            return 7

        return self.pool.submit(run)


def written(name: str, *inputs: str) -> Stage:
    def function(work: Work) -> None:
        work.write(name).write_text(name + "".join(work.read(i).read_text() for i in inputs))

    return Stage(name, (name,), function, inputs)


DIAMOND = [written("a"), written("b", "a"), written("c", "a"), written("d", "c"), written("e", "b", "d")]


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_stages_that_need_nothing_of_each_other_run_side_by_side(tmp_path: Path, at_once: int) -> None:
    runner, done = Side(at_once), list[str]()
    with open_workspace(tmp_path / "w") as space:
        space.run(DIAMOND, runner=runner, on_done=lambda stage, _: done.append(stage.name))
        assert (tmp_path / "w" / "e").read_text() == "ebadca"
        assert space.artefacts["d"]["peak_bytes"] == 7
        space.run(DIAMOND, runner=runner)
    assert len(runner.together) == 5, "a second run has nothing to do"
    assert max(map(len, runner.together)) == min(at_once, 2)
    assert not any({"a", name} <= names for names in runner.together for name in "bcde")
    assert not any({"c", "d"} <= names or {"e", "d"} <= names for names in runner.together)
    assert sorted(done) == ["a", "b", "c", "d", "e"]
    assert done[0] == "a"
    assert done[-1] == "e"


def test_a_stage_waits_for_what_it_comes_after_but_does_not_depend_on_it(tmp_path: Path) -> None:
    runner = Side(8)
    with open_workspace(tmp_path / "w") as space:
        space.run([written("a"), written("b"), replace(written("c"), after=("a",))], runner=runner)
        assert {"a", "b"} in runner.together
        assert not any({"a", "c"} <= names for names in runner.together)
        (tmp_path / "w" / "a").write_text("other")
        space.run([written("b"), replace(written("c"), after=("b",))], runner=runner)
    assert len(runner.together) == 3, "neither another order nor other content is a reason to run again"


@pytest.mark.parametrize("kind", [FedgramError, OSError, MemoryError])
def test_a_stage_that_fails_beside_others_is_named_and_what_is_done_stays(
    tmp_path: Path, kind: type[Exception]
) -> None:
    def refuse(_: Work) -> None:
        raise kind("no")

    stages = [written("a"), Stage("bad", ("bad",), refuse, ("a",)), written("c", "a"), written("d", "bad")]
    with open_workspace(tmp_path / "w") as space:
        with pytest.raises(kind) as caught:
            space.run(stages, runner=Side(1))
        assert caught.value.__notes__ == ["in the stage bad"]
        assert set(space.artefacts) == {"a"}
        mended = [stages[0], written("bad", "a"), *stages[2:]]
        space.run(mended, runner=Side(4))
    assert (tmp_path / "w" / "d").read_text() == "dbada"


def test_stages_that_end_together_with_one_that_fails_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Work) -> None:
        raise FedgramError("no")

    def wait_for_all(running: Mapping[Future[int], Any], **_: Any) -> SimpleNamespace:
        for future in running:
            future.exception()
        return SimpleNamespace(done=list(running))

    monkeypatch.setattr(workspace_module, "wait", wait_for_all)
    stages = [written("a"), Stage("bad", ("bad",), refuse), written("c")]
    with open_workspace(tmp_path / "w") as space:
        with pytest.raises(FedgramError, match="no"):
            space.run(stages, runner=Side(3))
        assert set(space.artefacts) == {"a", "c"}


class Calls:
    """Stands for `Processes`, and keeps the values of the last call."""

    values: Mapping[str, Any]

    def submit(self, _: str, values: Mapping[str, Any]) -> "Future[Any]":
        self.values = values
        return Future()


def test_a_stage_whose_code_changed_during_the_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest notes the code as it was at the start; another process may find it edited."""
    calls, stage, compute = Calls(), written("a"), Compute("cpu", 1)
    monkeypatch.setattr(stage_processes, "stages_of", lambda *_: [stage])
    StageProcesses(calls, 2, tmp_path, compute).call(stage, Work(None, tmp_path, {}))  # type: ignore[arg-type]
    assert calls.values["code"] == code_digest(stage.function)
    run_stage(**calls.values)
    assert (tmp_path / "a").read_text() == "a"
    (tmp_path / "a").unlink()
    with pytest.raises(FedgramError, match="the code changed while the run went on; run it again"):
        run_stage(**{**calls.values, "code": "of another version"})
    assert not (tmp_path / "a").exists()


class EnoughError(Exception):
    """Ends a run before its first stage."""


def test_a_run_has_the_configuration_that_it_was_given(tmp_path: Path) -> None:
    """Not the one that its file says: TOML has no None, and here the default is another value."""
    config = replace(RunConfig(), external=NGramOptions(open_vocabulary=None))
    found = {}

    def look(stages: list[Stage]) -> list[Stage]:
        found.update({stage.name: stage.config for stage in stages})
        raise EnoughError

    with pytest.raises(EnoughError):
        run_pipeline(config, tmp_path / "w", change=look)
    assert found["external"][0] == asdict(config.external)


def test_stages_at_once_refuse_a_configuration_that_their_file_cannot_hold(tmp_path: Path) -> None:
    config = replace(RunConfig(), population=PopulationSection(typists=2, supplement_sentences=20))
    config = replace(config, external=NGramOptions(open_vocabulary=None))
    with pytest.raises(FedgramError, match=r"run\.toml cannot hold the values of external.*leave out stages_at_once"):
        run_pipeline(config, tmp_path / "w", until="population", stages_at_once=2)
    assert not (tmp_path / "w").exists()
