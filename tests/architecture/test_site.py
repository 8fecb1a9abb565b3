"""The site of the documentation builds without the network, and without a broken link."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "concepts" / "index.html").read_text("utf-8")
    assert "figures/composition.svg" in page
    assert 'src="http' not in page
    assert 'rel="stylesheet" href="http' not in page
