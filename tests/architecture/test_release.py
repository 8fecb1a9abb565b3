"""What is released: the wheel and the source package have all files, and all places name the same version."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import fedgram

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source package."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True)
    return folder


def tracked(under: str) -> set[str]:
    files = subprocess.run(["git", "ls-files", under], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(files.splitlines())


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is not a checkout")
def test_the_wheel_has_every_file_of_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {path.removeprefix("src/") for path in tracked("src/fedgram")}
    assert package <= names
    others = {name for name in names - package if not name.startswith(f"fedgram-{fedgram.__version__}.dist-info/")}
    assert not [name for name in others if "__pycache__" not in name]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is not a checkout")
def test_the_source_package_has_code_tests_and_documentation(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked("src") | tracked("tests") | tracked("docs") <= names
    assert {"README.md", "CHANGELOG.md", "LICENSE", "CITATION.cff", "pyproject.toml"} <= names


def test_all_places_name_the_same_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    newest = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    cited = re.search(r"^version: (\S+)", citation, re.MULTILINE)
    assert newest is not None
    assert cited is not None
    assert newest[1] == cited[1] == fedgram.__version__


def test_continuous_integration_runs_on_every_python_that_is_claimed() -> None:
    claimed = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    for path in (".github/workflows/ci.yml", ".gitlab-ci.yml"):
        text = (ROOT / path).read_text()
        named = re.search(r"(?i)python: (\[.*\])", text)
        assert named is not None
        assert re.findall(r"3\.\d+", named[1]) == claimed
        assert ".ci/run" in text
