"""The page that says where the paper is: the test of a row uses the row's code, and fails if the code is broken."""

import ast
import importlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "paper-map.md"
Function = ast.FunctionDef | ast.ClassDef


class Row(NamedTuple):
    """A row of the page."""

    what: str
    code: str
    test: str


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text("utf-8").splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        if "`fedgram." in line:
            (code,), (test,) = re.findall(r"`(fedgram\.[\w.]+)`", cells[3]), re.findall(r"`(tests/[^`]+)`", cells[4])
            found.append(Row(cells[2].strip(), code, test))
    return found


ROWS = rows()
NAMES = [f"{row.code.rpartition('.')[2]}: {row.test.rpartition('::')[2]}" for row in ROWS]


# -- what a test uses -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """The top level of a test file: functions, values, and what each imported name is."""

    functions: dict[str, Function]
    values: dict[str, ast.expr]
    imported: dict[str, str]


@dataclass
class Uses:
    """What a test reaches by way of its fixtures and helpers: names of fedgram, and whether anything is asserted."""

    names: set[str] = field(default_factory=set)
    asserts: bool = False
    seen: set[tuple[Path, str]] = field(default_factory=set)


@cache
def source(path: Path) -> Source:
    tree = ast.parse(path.read_text("utf-8"))
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    values = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for pattern in node.targets
        for target in (pattern.elts if isinstance(pattern, ast.Tuple) else [pattern])
        if isinstance(target, ast.Name)
    }
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return Source(functions, values, imported)


def follow(path: Path, name: str, uses: Uses) -> None:
    """Add what a function or a value of a test file uses."""
    if (path, name) in uses.seen:
        return
    uses.seen.add((path, name))
    own = source(path)
    node = own.functions.get(name) or own.values.get(name)
    if node is None:
        if (meant := own.imported.get(name, "")).startswith("tests."):
            module, _, attribute = meant.rpartition(".")
            if (file := ROOT / f"{module.replace('.', '/')}.py").is_file():  # else a whole module was imported
                follow(file, attribute, uses)
        elif meant:
            uses.names.add(meant)
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Assert) or (isinstance(part, ast.Attribute) and re.match("raises$|assert_", part.attr)):
            uses.asserts = True
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in own.imported:
            uses.names.add(f"{own.imported[part.value.id]}.{part.attr}")
        if isinstance(part, ast.Name | ast.arg):
            follow(path, part.id if isinstance(part, ast.Name) else part.arg, uses)


def uses_of(test: str) -> Uses:
    file, _, name = test.partition("::")
    uses = Uses()
    follow(ROOT / file, name, uses)
    return uses


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_a_row_names_code_and_a_test_that_uses_it(row: Row) -> None:
    module, _, attribute = row.code.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute), f"{row.code} does not exist"
    file, _, name = row.test.partition("::")
    assert name in source(ROOT / file).functions, f"{row.test} does not exist"
    uses = uses_of(row.test)
    assert uses.asserts, f"{row.test} asserts nothing"
    assert row.code in uses.names, f"{row.test} does not use {row.code}"


def test_a_row_whose_test_does_something_else_is_noticed() -> None:
    uses = uses_of("tests/unit/evaluate/test_measures.py::test_accuracy_counts_typed_words_only")
    assert "fedgram.evaluate.accuracy.accuracy" in uses.names
    assert "fedgram.evaluate.oov.oov_rate" not in uses.names  # imported by the file, but not used by the test
    assert not uses_of("tests/unit/evaluate/test_measures.py::by_user").asserts


def test_every_part_of_the_paper_has_a_row() -> None:
    text = PAGE.read_text("utf-8")
    parts = [f"Table {n}" for n in (1, 2, 3, 4)] + ["Figure 1", "Figure 2 (a)", "Figure 2 (b)", "Figure 3 (a)"]
    parts += ["Figure 3 (b)", "Figure 3 (c)", "Figure 4", "Algorithm 1", "§3.1", "§3.2", "§3.3", "§4", "§5", "§6"]
    parts += ["§7.1", "§7.2", "§7.3"]
    first = " ".join(line.split("|")[1] for line in text.splitlines() if "`fedgram." in line)
    first = first.replace("Tables 3, 4", "Table 3, Table 4")
    assert [part for part in parts if part not in first] == []


# -- planted faults ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_the_test_of_a_row_fails_if_its_code_is_broken(row: Row) -> None:
    plugin = "tests.architecture.planted_fault"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", plugin]
    env = {**os.environ, "FEDGRAM_PLANTED_FAULT": row.code}
    ran = subprocess.run([*command, row.test], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, f"{row.test} passes although {row.code} is broken\n{ran.stdout[-3000:]}{ran.stderr}"
    module, _, attribute = row.code.rpartition(".")
    if callable(getattr(importlib.import_module(module), attribute)):
        assert "PlantedFault" in ran.stdout, ran.stdout[-3000:]
