"""Calls in processes of their own: results, errors, and that none outlives what started it."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.processes import Processes

CALLS = """
import os, time
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
