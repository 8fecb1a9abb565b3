"""Calls in processes of their own: results, errors, and that none outlives what started it."""

import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.processes import Processes

CALLS = """
import errno, os, resource, signal, time
from pathlib import Path
from fedgram.core.errors import InputError

def double(number):
    return {"pid": os.getpid(), "number": 2 * number, "word": "naïve"}

def refuse(path):
    error = InputError(path, "is no good", remedy="mend it")
    error.add_note("in a note")
    raise error

def crash():
    raise KeyError("a bug")

def fail(kind):
    error = {
        "full": OSError(errno.ENOSPC, "No space left on device", Path("/w/x")),
        "denied": PermissionError(errno.EACCES, "Permission denied", "/w/y"),
        "odd": OSError("the archive is damaged"),
        "memory": MemoryError("Unable to allocate 9 GiB"),
        "missing": ModuleNotFoundError("No module named 'torch'", name="torch"),
    }[kind]
    error.add_note("in a note")
    raise error

def fill_the_disk():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    return "x" * 9999

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def linger(mark):
    Path(mark).write_text(str(os.getpid()))
    time.sleep(60)
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with functions to call."""
    (tmp_path / "some_calls.py").write_text(CALLS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return "some_calls"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text()


def test_a_call_runs_elsewhere_and_its_result_comes_back(calls: str) -> None:
    with Processes(2) as processes:
        found = [processes.submit(f"{calls}:double", {"number": n}).result() for n in (3, 4)]
    assert [(r["number"], r["word"]) for r in found] == [(6, "naïve"), (8, "naïve")]
    assert os.getpid() not in {r["pid"] for r in found}


def test_an_error_that_a_user_can_mend_keeps_its_text_and_notes(calls: str) -> None:
    with Processes(1) as processes, pytest.raises(FedgramError) as caught:
        processes.submit(f"{calls}:refuse", {"path": "a.arpa"}).result()
    assert str(caught.value) == str(InputError("a.arpa", "is no good", remedy="mend it"))
    assert caught.value.__notes__ == ["in a note"]


def test_a_bug_is_no_such_error_and_shows_its_traceback(calls: str) -> None:
    with Processes(1) as processes, pytest.raises(RuntimeError, match=r"exit code 1(.|\n)*KeyError: 'a bug'"):
        processes.submit(f"{calls}:crash", {}).result()


@pytest.mark.parametrize(
    ("kind", "expected", "shown", "of"),
    [
        ("full", OSError, "[Errno 28] No space left on device: '/w/x'", {"errno": errno.ENOSPC, "filename": "/w/x"}),
        ("denied", PermissionError, "[Errno 13] Permission denied: '/w/y'", {"errno": errno.EACCES}),
        ("odd", OSError, "the archive is damaged", {"errno": None, "filename": None}),
        ("memory", MemoryError, "Unable to allocate 9 GiB", {}),
        ("missing", ModuleNotFoundError, "No module named 'torch'", {"name": "torch"}),
    ],
)
def test_an_error_of_the_machine_comes_back_as_what_it_is(
    calls: str, kind: str, expected: type[Exception], shown: str, of: dict[str, Any]
) -> None:
    """So that the command line shows it in one line, as if it had happened in this process."""
    with Processes(1) as processes, pytest.raises(expected) as caught:
        processes.submit(f"{calls}:fail", {"kind": kind}).result()
    assert type(caught.value) is expected
    assert str(caught.value) == shown
    assert {name: getattr(caught.value, name) for name in of} == of
    assert caught.value.__notes__ == ["in a note"]


def test_a_result_that_cannot_be_written_is_such_an_error_too(calls: str) -> None:
    with Processes(1) as processes, pytest.raises(OSError, match="File too large"):
        processes.submit(f"{calls}:fill_the_disk", {}).result()


def test_a_killed_call_is_one_line(calls: str) -> None:
    with Processes(1) as processes, pytest.raises(FedgramError, match="killed by signal 9, perhaps for lack of memory"):
        processes.submit(f"{calls}:die", {}).result()


def test_files_of_the_current_folder_are_not_imported(
    calls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's folder may have a file named as a module of Python's."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "random.py").write_text("raise SystemExit('this is not a module')")
    monkeypatch.chdir(tmp_path / "data")
    with Processes(1) as processes:
        assert processes.submit(f"{calls}:double", {"number": 3}).result()["number"] == 6


def test_leaving_ends_what_still_runs_and_begins_nothing_new(calls: str, tmp_path: Path) -> None:
    with Processes(1) as processes:
        running = processes.submit(f"{calls}:linger", {"mark": str(tmp_path / "first")})
        waiting = processes.submit(f"{calls}:linger", {"mark": str(tmp_path / "second")})
        pid = int(wait_for(tmp_path / "first"))
    assert not is_alive(pid)
    assert isinstance(running.exception(), RuntimeError)
    with pytest.raises((CancelledError, RuntimeError)):
        waiting.result()
    assert not (tmp_path / "second").exists()


def test_a_call_ends_with_a_process_that_is_killed(calls: str, tmp_path: Path) -> None:
    script = f"""
from fedgram.core.processes import Processes
Processes(1).submit("{calls}:linger", {{"mark": "{tmp_path / "mark"}"}}).result()
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    pid = int(wait_for(tmp_path / "mark"))
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_call_is_not_made_if_its_caller_ends_before_it_begins(calls: str, tmp_path: Path) -> None:
    script = f"""
import os
from fedgram.core import processes

def start_and_end(*arguments, **options):
    print(start(*arguments, **options).pid, flush=True)
    os._exit(0)

start, processes.start = processes.start, start_and_end
processes.Processes(1).submit("{calls}:linger", {{"mark": "{tmp_path / "mark"}"}}).result()
"""
    pid = int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60).stdout)
    deadline = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline
        assert not (tmp_path / "mark").exists(), "it waits for process 1 to end"
        time.sleep(0.05)
    assert not (tmp_path / "mark").exists()
