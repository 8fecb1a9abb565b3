"""What holds of the code base as a whole."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def imported_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_help_imports_nothing_heavy() -> None:
    code = "from fedgram.cli.main import run; run(['--help'])"
    assert not imported_by(code) & {"torch", "numba", "numpy", "rich", "safetensors", "pyarrow"}


def test_the_toolkit_does_not_import_torch() -> None:
    assert not imported_by("import fedgram.cli.ngram") & {"torch", "pywrapfst", "flwr"}


def test_a_device_of_a_secure_round_starts_light() -> None:
    assert not imported_by("import fedgram.federated.secure.client") & {"torch", "numba", "cryptography", "safetensors"}


def test_the_device_reader_stands_alone() -> None:
    loaded = imported_by("import fedgram.fgram.reader")
    assert {name.split(".")[1] for name in loaded if name.startswith("fedgram.")} == {"core", "fgram", "text"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_stay_readable(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert text.startswith('"""')
    assert not re.search(r"import pickle|pickle\.|allow_pickle=True|torch\.load\(", text)


def test_docs_name_only_files_that_exist() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_nothing_large_is_tracked() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        assert not path.is_file() or path.stat().st_size < 5_000_000, name


def test_the_page_of_commands_is_up_to_date() -> None:
    from fedgram.cli.reference import command_reference

    assert (ROOT / "docs" / "commands.md").read_text() == command_reference(), "run scripts/docs"


def test_the_page_on_design_lists_every_module() -> None:
    page = (ROOT / "docs" / "design.md").read_text("utf-8")
    block = page[page.index("src/fedgram/\n") : page.index("\ntests/ ")]
    listed: dict[str, set[str]] = {}
    outer = inner = ""
    for line in block.splitlines()[1:]:
        if found := re.match(r"( {2,4})(\w+)/ +", line):
            outer = found[2] if len(found[1]) == 2 else outer
            inner = outer if len(found[1]) == 2 else f"{outer}/{found[2]}"
        words = re.sub(r"\([^)]*\)", "", line[found.end() if found else 0 :]).split("·")
        listed.setdefault(inner, set()).update(word.strip() for word in words)
    for package, names in listed.items():
        modules = {path.stem for path in (ROOT / "src" / "fedgram" / package).glob("*.py")} - {"__init__"}
        if package and package != "cli":  # whose files are named after the commands
            assert modules - names == set(), f"docs/design.md does not list all modules of {package}"
