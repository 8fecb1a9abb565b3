"""Locks on folders: held by one process at a time, with a name for the owner, and released with the process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.locks import is_held, locked

HOLDER = """
import sys, time
from pathlib import Path
from fedgram.core.locks import locked
with locked(Path(sys.argv[1]), taken=""):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_owner_can_be_named_in_the_error(tmp_path: Path) -> None:
    def in_use(owner: str) -> FedgramError:
        return InputError(tmp_path, f"is in use by another run ({owner})")

    with locked(tmp_path, taken="busy"):
        assert is_held(tmp_path)
        named = rf"in use by another run \(process {os.getpid()}\)"
        with pytest.raises(InputError, match=named), locked(tmp_path, taken=in_use):
            pytest.fail("two at once")
        with pytest.raises(FedgramError, match=r"^busy$"), locked(tmp_path, taken="busy"):
            pytest.fail("two at once")
    assert not is_held(tmp_path)


def test_locks_of_other_names_are_independent(tmp_path: Path) -> None:
    with locked(tmp_path, taken="busy", name="a"), locked(tmp_path, taken="busy", name="b"):
        assert is_held(tmp_path, name="a")
        assert not is_held(tmp_path)


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(FedgramError, match=f"process {holder.pid}"), locked(tmp_path, taken=FedgramError):
            pytest.fail("two at once")
        holder.kill()
    with locked(tmp_path, seconds=5, taken="busy"):
        pass


def test_a_lock_is_waited_for_as_long_as_asked(tmp_path: Path) -> None:
    program = HOLDER.replace("time.sleep(60)", "time.sleep(1)")
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with locked(tmp_path, seconds=120, taken="busy"):
            assert is_held(tmp_path)
