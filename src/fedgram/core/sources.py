"""A digest of the code that a function runs: its module, and the modules of this package that it imports.

Imports are read from the sources; nothing is imported. All imports count, also those inside functions or under
TYPE_CHECKING, and relative ones. A module name in quotes, as `"package.module"` or `"package.module:name"`, counts as
an import too, because registries, `python -m` and Flower load modules by such names. A package name in quotes includes
the package's data files, because `importlib.resources.files` takes such names. TOML files are left out: they are
presets, and a stage depends on the values that were read from one, not on the file.

Each file is read once per process. So a digest describes the code as it was when it was first read, even if the
checkout is edited during a long run. A process that is started later imports its own code; `check_code` refuses it if
that is other code. Files are named relative to the package: equal checkouts have equal digests.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from fedgram.core.errors import FedgramError

PACKAGE = Path(__file__).parents[1]


class Source(NamedTuple):
    """The digest of a file, and the files of the package that it needs directly."""

    sha256: str
    needs: frozenset[Path]


def code_digest(function: Callable[..., Any], package: Path = PACKAGE) -> str | None:
    """The digest of the code that a function runs; None if its source is not on disk, as in a zip archive.

    Partial functions and wrappers made with `functools.wraps` stand for the inner function. If the function is defined
    outside the package, the digest covers its own file and what this file imports from the package.
    """
    inner: Any = function
    while isinstance(inner, partial) or hasattr(inner, "__wrapped__"):
        inner = inner.func if isinstance(inner, partial) else inner.__wrapped__
    path = Path(getattr(sys.modules.get(inner.__module__), "__file__", None) or "")
    if not path.is_file() or path.suffix == ".pyc":
        return None
    return sha256(repr(sorted(source_digests(path, package).items())).encode()).hexdigest()


def check_code(function: Callable[..., Any], expected: str | None) -> None:
    """Refuse a function whose code is not what the process that asks for it has read."""
    if code_digest(function) != expected:
        raise FedgramError("the code changed while the run went on; run it again")


def source_digests(path: Path, package: Path = PACKAGE) -> dict[str, str]:
    """The digests, by name, of a module's file and of all package files that it needs, directly or indirectly."""
    found: dict[Path, Source] = {}
    ahead = [path]
    while ahead:
        if (file := ahead.pop()) not in found:
            found[file] = _read(file, package)
            ahead += found[file].needs
    return {_name(file, package): source.sha256 for file, source in found.items()}


def _name(path: Path, package: Path) -> str:
    return path.relative_to(package.parent).as_posix() if path.is_relative_to(package) else path.name


@cache
def _read(path: Path, package: Path) -> Source:
    content = path.read_bytes()
    needs = set[Path]()
    if path.suffix == ".py":
        own = path.relative_to(package.parent).with_suffix("").parts if path.is_relative_to(package) else ()
        for name in (".".join(own), *_imported(content, own[:-1])):
            needs.update(_modules(name, package))
        for name in _quoted(content, package.name):
            modules = _modules(name, package)
            is_package = len(modules) == name.count(".") + 1 and modules[-1].name == "__init__.py"
            needs.update(modules, _data(modules[-1].parent) if is_package else ())
    return Source(sha256(content).hexdigest(), frozenset(needs))


def _imported(content: bytes, container: tuple[str, ...]) -> Iterator[str]:
    """The names that a module in the package `container` imports; `from a import b` gives `a` and `a.b`."""
    for node in _statements(content):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = container[: len(container) + 1 - node.level] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _statements(content: bytes) -> Iterator[ast.AST]:
    """All statements of a module. Expressions have no imports and are skipped for speed."""
    try:
        ahead: list[ast.AST] = [ast.parse(content)]
    except (SyntaxError, ValueError):
        return  # importing the module will report the error
    while ahead:
        yield (node := ahead.pop())
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            ahead += getattr(node, block, ())


def _quoted(content: bytes, package: str) -> Iterator[str]:
    """Dotted names in quotes that may be modules, also inside longer strings such as TOML text."""
    for name in re.findall(rf"""["']({package}(?:\.\w+)+)(?::\w+)?["']""".encode(), content):
        yield name.decode()


@cache
def _modules(name: str, package: Path) -> tuple[Path, ...]:
    """The files that run when a dotted name is imported: its packages, then the module if there is one."""
    above, _, last = name.rpartition(".")
    if not above:
        return (package / "__init__.py",) if last == package.name else ()
    found = _modules(above, package)
    if not found or found[-1].name != "__init__.py":
        return found  # the last part is a name inside a module
    place = found[-1].with_name(last)
    return (*found, *[f for f in (place / "__init__.py", place.with_name(f"{last}.py")) if f.is_file()][:1])


@cache
def _data(folder: Path) -> tuple[Path, ...]:
    """The data files of a package."""
    files = (path for path in folder.rglob("*") if path.suffix not in (".py", ".toml") and path.is_file())
    return tuple(f for f in files if not any(p == "__pycache__" or p[0] == "." for p in f.relative_to(folder).parts))
