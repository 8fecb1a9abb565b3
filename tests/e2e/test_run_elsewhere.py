"""A run that moves to a machine with few packages once the users' text has been read."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.test_run_command import TINY

from fedgram.cli.main import run as run_command

pytestmark = pytest.mark.timeout(1200)  # the first run compiles

ABSENT = ("pyarrow", "matplotlib", "flwr", "cryptography", "zstandard", "scipy", "starlette", "transformers")
RUN = f"""
import importlib.abc, json, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Absent())
from fedgram.cli.main import run
code = run(sys.argv[1:])
top = {{name.partition(".")[0] for name, module in sys.modules.items() if "site-packages" in str(
    getattr(module, "__file__", None))}}
print(json.dumps(sorted(top)))
sys.exit(code)
"""


def test_stages_after_the_population_need_few_packages(tmp_path: Path) -> None:
    """The stages from the unigrams to the evaluation work without pyarrow and other optional packages."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    names = {"-o": "users.parquet", "--supplement": "supplement.txt", "--whitelist": "whitelist.txt"}
    files = [part for option, name in names.items() for part in (option, str(here / name))]
    assert run_command(["data", "synthesize", "--users", "100", "--sentences", "600", "--seed", "3", *files]) == 0
    sources = '\nusers = "users.parquet"\nsupplement = "supplement.txt"\nwhitelist = "whitelist.txt"\n'
    (here / "run.toml").write_text(TINY.replace("\ntypists = 100\nsupplement_sentences = 600\n", sources))
    work = ["--workers", "1", "--json", "-w"]
    assert run_command(["run", str(here / "run.toml"), *work, str(here / "work"), "--until", "population"]) == 0
    here.rename(there)
    command = ["run", str(there / "run.toml"), *work, str(there / "work"), "--until", "evaluation"]
    done = subprocess.run([sys.executable, "-c", RUN, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((there / "work" / "manifest.json").read_text())["artefacts"]
    assert {"population", "train_pieces", "refit", "evaluation"} <= manifest.keys()
    needed = set(json.loads(done.stdout.splitlines()[-1]))
    assert not needed & set(ABSENT)
    assert {"torch", "numpy", "numba", "safetensors", "sentencepiece", "click"} <= needed


def test_the_population_cannot_be_read_there(tmp_path: Path) -> None:
    """The packages are absent indeed: a `.parquet` is refused with the package to install."""
    shutil.copy(__file__, tmp_path / "users.parquet")
    command = ["data", "info", str(tmp_path / "users.parquet")]
    done = subprocess.run([sys.executable, "-c", RUN, *command], capture_output=True, text=True)
    assert done.returncode == 2
    assert "fedgram[data]" in done.stderr
