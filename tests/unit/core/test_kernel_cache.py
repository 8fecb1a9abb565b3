"""The cache folder of compiled kernels: which edits change it, and which folders of other versions are removed."""

import os
import subprocess
import sys
from pathlib import Path
from time import time

import pytest

from fedgram.core.kernel_cache import MAX_OTHER_FOLDERS, MAX_UNUSED_SECONDS, kernel_digest, prepare_cache

PACKAGE = Path(__file__).parents[3] / "src" / "fedgram"
SOURCES = {
    "text/words.py": "from fedgram.core.jit import kernel\nfrom fedgram.core.limits import (\n    LIMIT,\n)\n",
    "text/lists.py": "import fedgram.core.lists\nfrom fedgram.text import a, tables\nfrom fedgram.core.jit import F\n",
    "core/limits.py": "from fedgram.core.numbers import TEN\nLIMIT = TEN\n",
    "core/lists.py": "",
    "core/numbers.py": "TEN = 10\n",
    "text/tables.py": "",
    "cli/main.py": "from fedgram.text.words import LIMIT\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, content in SOURCES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "cli/main.py"])
def test_an_edit_of_what_kernels_import_changes_the_digest(package: Path, name: str) -> None:
    before = kernel_digest(package)
    (package / name).write_text(SOURCES[name] + "# edited\n")
    assert kernel_digest(package) != before


def test_an_edit_of_what_no_kernel_imports_does_not(package: Path) -> None:
    before = kernel_digest(package)
    (package / "cli/main.py").write_text("from fedgram.text.lists import kernel\n")
    (package / "cli/new.py").write_text("")
    assert kernel_digest(package) == before


def test_the_files_that_kernels_need_here(tmp_path: Path) -> None:
    """A constant of another layer is compiled into kernels; commands and reports are not."""
    for path in PACKAGE.rglob("*.py"):
        copy = tmp_path / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    before = kernel_digest(tmp_path)
    for name in ("cli/main.py", "report/page.py", "pipeline/stages.py"):
        (tmp_path / name).write_text("# edited\n")
    assert kernel_digest(tmp_path) == before
    (tmp_path / "text/vocabulary.py").write_text("UNK = 1\n")
    assert kernel_digest(tmp_path) != before


def folder_of(package: Path, name: str, age: float) -> Path:
    folder = package / "__pycache__" / f"kernels-{name}"
    (folder / "text_1").mkdir(parents=True)
    (folder / "text_1" / "words.nbi").write_bytes(b"compiled")
    os.utime(folder, (time() - age, time() - age))
    return folder


def test_folders_of_other_versions_are_kept_for_a_day(package: Path) -> None:
    recent = folder_of(package, "recent", MAX_UNUSED_SECONDS - 100)
    old = folder_of(package, "old", MAX_UNUSED_SECONDS + 100)
    own = prepare_cache(package)
    assert own is not None
    assert own.is_dir()
    assert (recent / "text_1" / "words.nbi").is_file()
    assert not old.exists()
    assert sorted(p.name for p in own.parent.iterdir()) == sorted([own.name, recent.name])


def test_a_start_counts_as_use(package: Path) -> None:
    own = prepare_cache(package)
    assert own is not None
    os.utime(own, (0, 0))
    assert prepare_cache(package) == own
    assert own.stat().st_mtime > time() - 60
    (package / "text/words.py").write_text("from fedgram.core.jit import kernel\n")
    assert prepare_cache(package) != own
    assert own.is_dir()


def test_the_number_of_folders_is_limited(package: Path) -> None:
    folders = [folder_of(package, f"{i}", 60.0 * (i + 1)) for i in range(MAX_OTHER_FOLDERS + 3)]
    prepare_cache(package)
    assert [folder.exists() for folder in folders] == [True] * MAX_OTHER_FOLDERS + [False] * 3


def test_a_package_that_cannot_be_written_to_has_no_folder(package: Path) -> None:
    (package / "__pycache__").write_text("a file where the folder should be")
    assert prepare_cache(package) is None


def test_a_run_survives_an_edit_and_a_start_of_the_new_version(tmp_path: Path) -> None:
    """While one process compiles, the sources change and another process starts: the first one continues."""
    code = tmp_path / "fedgram"
    for name in ("__init__.py", "core/__init__.py", "core/jit.py", "core/kernel_cache.py"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_bytes((PACKAGE / name).read_bytes())
    kernels = "from fedgram.core.jit import kernel\n\n\n@kernel\ndef double(x: int) -> int:\n    return 2 * x\n"
    (code / "core" / "doubling.py").write_text(kernels)
    script = (
        "from fedgram.core.doubling import double\nassert double(2) == 4\nprint(flush=True)\n"
        "input()\nassert double(2.5) == 5.0\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        first.stdout.readline()
        compiled = set((code / "__pycache__").rglob("*.nb?"))
        (code / "core" / "doubling.py").write_text(kernels + "# edited\n")
        second = [sys.executable, "-c", "from fedgram.core.doubling import double; assert double(3) == 6"]
        subprocess.run(second, env=environment, check=True)
        assert compiled
        assert compiled < set((code / "__pycache__").rglob("*.nb?"))
        first.stdin.write("\n")
        first.stdin.flush()
        assert first.wait(timeout=120) == 0
    assert len(list((code / "__pycache__").glob("kernels-*"))) == 2
