"""ServerApps on a busy machine: a process has loaded its libraries before it is given a task of Flower's state."""

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.common.constant import Status, SubStatus
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType

from fedgram.deployment.flower import internals_http, server_apps
from fedgram.deployment.flower.server_apps import ServerApps

LOADING = """
import os, pathlib, sys, time
from fedgram.deployment.flower import internals, server_apps

folder = pathlib.Path(sys.argv[1])

def load():
    if (folder / "noisy").exists():
        print("ready", flush=True)
        os.write(1, b"a C library was loaded")
    (folder / "began").open("a").write("x")
    while not (folder / "loaded").exists():
        time.sleep(0.01)
    if (folder / "broken").exists():
        sys.exit(1)

internals.load_server_app = load
internals.run_server_app = lambda _address, token, _authority: (folder / "given").open("a").write(token)
server_apps.main()
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
        self.apps = ServerApps(self.state, [sys.executable, "-c", LOADING, str(folder), ""])

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

    @property
    def next(self) -> server_apps.ServerAppProcess:
        assert self.apps._next is not None
        return self.apps._next

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def load(self) -> None:
        (self.folder / "loaded").touch()

    def end(self) -> None:
        self.load()
        for process in (self.apps._next, *self.apps._past):
            if process is not None:
                process.end()
                process._process.wait()


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


@contextmanager
def many_sockets() -> Iterator[None]:
    """No descriptor below 1024 is free, as in a SuperLink with many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("a process may not have that many descriptors here")
    with ExitStack() as stack:
        if soft != resource.RLIM_INFINITY and soft < 1200:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1200, hard))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        taken = 0
        while taken < 1024:
            taken = os.open(os.devnull, os.O_RDONLY)
            stack.callback(os.close, taken)
        yield


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
    wait_until(busy.next.is_ready)
    busy.next._process.kill()
    busy.next._process.wait()
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


def test_a_superlink_with_many_connections_starts_server_apps(busy: Busy) -> None:
    task = busy.task()
    busy.load()
    with many_sockets():
        busy.look_until("given")
        assert busy.state.get_task_by_token(busy.read("given")).task_id == task


def test_what_a_process_prints_while_it_loads_does_not_matter(busy: Busy) -> None:
    """It is neither ready before it has loaded, nor never."""
    (busy.folder / "noisy").touch()
    task = busy.task()
    busy.look_until("began")
    for _ in range(30):
        busy.apps.look()
    assert busy.status(task) == (Status.PENDING, "")
    busy.load()
    busy.look_until("given")
    assert busy.state.get_task_by_token(busy.read("given")).task_id == task


def test_a_process_that_cannot_be_asked_is_replaced(busy: Busy) -> None:
    task = busy.task()
    busy.look_until("began")
    first = busy.next
    first._from.close()
    with pytest.raises(ValueError, match="closed file"):
        busy.apps.look()
    assert busy.apps._next is None
    assert first._process.wait(10) < 0
    busy.load()
    busy.look_until("given")
    assert busy.read("began") == "xx"
    assert busy.state.get_task_by_token(busy.read("given")).task_id == task


def test_a_process_that_loads_for_too_long_is_replaced(
    busy: Busy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = busy.task()
    busy.look_until("began")
    first = busy.next
    with monkeypatch.context() as patched:
        patched.setattr(server_apps, "_LOAD_SECONDS", 0.0)
        busy.apps.look()
    assert capsys.readouterr().err == "fedgram: a ServerApp's process was not ready after 0 s, and is started again\n"
    assert first._process.wait(10) < 0
    assert busy.status(task) == (Status.PENDING, "")
    busy.load()
    busy.look_until("given")
    assert busy.read("began") == "xx"
    assert busy.state.get_task_by_token(busy.read("given")).task_id == task


def test_a_process_that_is_ready_may_wait_for_as_long_as_it_takes(
    busy: Busy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    busy.task()
    busy.look_until("began")
    busy.load()
    wait_until(busy.next.is_ready)
    monkeypatch.setattr(server_apps, "_LOAD_SECONDS", 0.0)
    busy.apps.look()
    assert not capsys.readouterr().err
    wait_until(lambda: bool(busy.read("given")))
    assert busy.read("began") == "x"
