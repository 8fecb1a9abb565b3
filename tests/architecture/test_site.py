"""The site builds without the network and without a broken link, and what is generated is in step with the code."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fedgram as fg

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "concepts" / "index.html").read_text("utf-8")
    assert "figures/composition.svg" in page
    assert 'src="http' not in page
    assert 'rel="stylesheet" href="http' not in page


def test_the_api_reference_is_that_of_the_code() -> None:
    """It has every public name, with its signature or its options."""
    written = subprocess.run([sys.executable, DOCS / "api.py"], check=True, capture_output=True, text=True).stdout
    assert (DOCS / "api.md").read_text("utf-8") == written, "run scripts/docs"
    sections = dict(re.findall(r"^### fg\.(\w+)\n(.*?)(?=^##|\Z)", written, re.MULTILINE | re.DOTALL))
    assert sections.keys() == set(fg.__all__)
    for name, text in sections.items():
        assert f"```python\nfg.{name}(" in text or name[0].isupper(), f"{name} has no signature"
        assert "| field | default |" in text or not name.endswith("Options"), f"{name} has no fields"


def test_figures_are_those_of_the_program_that_draws_them(tmp_path: Path) -> None:
    program = shutil.copy(DOCS / "figures" / "draw.py", tmp_path)
    subprocess.run([sys.executable, program], check=True)
    drawn = sorted(tmp_path.glob("*.svg"))
    assert [path.name for path in drawn] == sorted(path.name for path in (DOCS / "figures").glob("*.svg"))
    for path in drawn:
        assert path.read_text("utf-8") == (DOCS / "figures" / path.name).read_text("utf-8"), "run scripts/docs"
