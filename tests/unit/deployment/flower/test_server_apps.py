"""ServerApps on a busy machine: a process has loaded its libraries before it is given a task of Flower's state."""

import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.common.constant import Status, SubStatus
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType

from fedgram.deployment.flower import internals_http
from fedgram.deployment.flower.server_apps import ServerApps

LOADING = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "began").open("a").write("x")
while not (folder / "loaded").exists():
    time.sleep(0.01)
if (folder / "broken").exists():
    sys.exit(1)
print("ready", flush=True)
(folder / "given").open("a").write(sys.stdin.read())
"""


class Busy:
    """A SuperLink's state, on a machine where a ServerApp is loaded when the file `loaded` appears."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories

        manager = get_federation_manager(is_simulation=False)
        self.state: Any = get_objectstore_linkstate_factories(":flwr-in-memory:", manager)[1].state()
        self.folder, self._later = folder, timedelta()
        core: Any = sys.modules["flwr.supercore.corestate.in_memory_corestate"]
        now = core.now
        monkeypatch.setattr(core, "now", lambda: now() + self._later)
        self.apps = ServerApps(self.state, [sys.executable, "-c", LOADING, str(folder)])

    def task(self) -> int:
        run = self.state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
        return int(self.state.get_tasks(run_ids=[run])[0].task_id)

    def status(self, task: int) -> tuple[str, str]:
        found = self.state.get_tasks(task_ids=[task])[0].status
        return found.status, found.sub_status

    def pass_time(self, seconds: float) -> None:
        self._later += timedelta(seconds=seconds)

    def look_until(self, name: str, content: str = "") -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            self.apps.look()
            if self.read(name) if not content else self.read(name) == content:
                return
            time.sleep(0.01)
        pytest.fail(f"{name}: {self.read(name)!r}")

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def load(self) -> None:
        (self.folder / "loaded").touch()

    def end(self) -> None:
        self.load()
        for process in (self.apps._next, *self.apps._given):
            if process is not None:
                process.close()
                process._process.kill()
                process._process.wait()


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    made = Busy(tmp_path, monkeypatch)
    yield made
    made.end()


def test_a_server_app_that_loads_for_minutes_is_given_its_task_once(busy: Busy) -> None:
    """Taken before, Flower would give it out again after 30 s, to one more process that loads the same libraries."""
    task = busy.task()
    busy.look_until("began")
    for _ in range(10):
        busy.pass_time(31)
        busy.apps.look()
        assert busy.status(task) == (Status.PENDING, "")
    busy.load()
    busy.look_until("given")
    assert busy.read("began") == "x"
    assert busy.status(task)[0] == Status.STARTING
    found = busy.state.get_task_by_token(busy.read("given"))
    assert found.task_id == task


def test_a_process_without_a_task_waits_for_the_next_one(busy: Busy) -> None:
    first = busy.task()
    busy.look_until("began")
    busy.state.finish_task(first, SubStatus.STOPPED, "")
    busy.load()
    busy.apps.look()
    second = busy.task()
    busy.look_until("given")
    assert busy.read("began") == "x"
    assert busy.state.get_task_by_token(busy.read("given")).task_id == second
    third = busy.task()
    busy.look_until("began", "xx")
    until = time.monotonic() + 30
    while busy.status(third)[0] == Status.PENDING and time.monotonic() < until:
        busy.apps.look()
    assert busy.status(third)[0] == Status.STARTING


def test_a_server_app_whose_process_cannot_load_fails_at_once(busy: Busy) -> None:
    task = busy.task()
    busy.load()
    (busy.folder / "broken").touch()
    until = time.monotonic() + 30
    while busy.status(task)[0] == Status.PENDING and time.monotonic() < until:
        busy.apps.look()
    assert busy.status(task) == (Status.FINISHED, SubStatus.FAILED)
    assert busy.read("began") == "x"


def test_a_ready_process_that_is_killed_is_replaced(busy: Busy) -> None:
    first = busy.task()
    busy.look_until("began")
    busy.state.finish_task(first, SubStatus.STOPPED, "")
    busy.load()
    assert busy.apps._next is not None
    until = time.monotonic() + 30
    while not busy.apps._next.is_ready() and time.monotonic() < until:
        time.sleep(0.01)
    busy.apps._next._process.kill()
    busy.apps._next._process.wait()
    second = busy.task()
    busy.look_until("given")
    assert busy.read("began") == "xx"
    assert busy.status(second)[0] == Status.STARTING


def test_other_tasks_are_left_alone(busy: Busy) -> None:
    assert busy.state.create_task(TaskType.SIMULATION, 5)
    assert not internals_http.server_app_waits(busy.state)
    busy.apps.look()
    assert busy.apps._next is None


def test_a_task_that_its_process_never_began_is_given_out_again(busy: Busy) -> None:
    task = busy.task()
    busy.load()
    busy.look_until("given")
    busy.pass_time(31)
    busy.look_until("began", "xx")
    until = time.monotonic() + 30
    while busy.status(task)[0] == Status.PENDING and time.monotonic() < until:
        busy.apps.look()
    assert busy.status(task)[0] == Status.STARTING
