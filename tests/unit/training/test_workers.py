"""Processes that share one training."""

import json
import subprocess
import sys
from pathlib import Path


def test_a_worker_ends_at_once_if_its_caller_has_gone(tmp_path: Path) -> None:
    (tmp_path / "work.json").write_text(json.dumps({"function": "json:nothing"}))
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], check=True, capture_output=True)
    command = [sys.executable, "-m", "fedgram.training.workers", gone.stdout.decode().strip(), str(tmp_path), "1", "2"]
    ended = subprocess.run(command, capture_output=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (1, b""), "it looked for its work"
