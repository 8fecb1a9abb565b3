"""Processes that help to train: they start in silence, know no Ctrl-C, and none is waited for in vain."""

import subprocess
import sys
from pathlib import Path

INTERRUPTED = """
import multiprocessing, os, signal, threading, time
from fedgram.pipeline.training import _helpers

def interrupt():
    while not multiprocessing.active_children():
        time.sleep(0.01)
    time.sleep(0.5)
    os.killpg(0, signal.SIGINT)

if __name__ == "__main__":
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with _helpers(None, 3):
            time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted")
"""
UNGUARDED = """
from fedgram.core.errors import FedgramError
from fedgram.pipeline.training import _helpers

if __name__ == "__mp_main__":
    raise SystemExit("a helper that cannot start")
try:
    with _helpers(None, 3):
        pass
except FedgramError as error:
    print(error)
"""


def _run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True)


def test_helpers_that_are_interrupted_while_they_start(tmp_path: Path) -> None:
    done = _run(INTERRUPTED, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_helper_that_dies_while_it_starts(tmp_path: Path) -> None:
    done = _run(UNGUARDED, tmp_path)
    ended = "a helping process ended; try again, or with one worker\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, ended, "")
