"""The keyboard in JavaScript understands taps and trails as the one in Python does."""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.conformance.typing_vectors import write_vectors


@pytest.mark.skipif(not shutil.which("node"), reason="Node is not installed")
def test_javascript_types_as_python_does(tmp_path: Path) -> None:
    write_vectors(tmp_path)
    script = Path(__file__).parent / "check_typing.mjs"
    done = subprocess.run(["node", script, tmp_path], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 430
