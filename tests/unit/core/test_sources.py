"""Digests of code: an edit changes them if and only if the code is imported, in any way."""

import sys
from functools import partial, wraps
from pathlib import Path
from types import ModuleType

import pytest

from fedgram.core.errors import FedgramError
from fedgram.core.sources import PACKAGE, check_code, code_digest, source_digests

FILES = {
    "__init__.py": "",
    "stage.py": """
from typing import TYPE_CHECKING
import app.direct as d
if TYPE_CHECKING:
    from app.kinds import Kind
def run(work):
    try:
        from app import lazy
    finally:
        from .sub import deep
""",
    "direct.py": "import json, x\nfrom app.constants import *\nX = 'app.nothing', 'app.lonely x', 'apps.lonely'\n",
    "constants.py": "",
    "kinds.py": """
class Kind:
    async def f(self):
        match self:
            case 1:
                import app.matched
""",
    "matched.py": "",
    "lazy.py": "NAMES = {'a': 'app.registered:Name'}\nSETTINGS = '''\nserver = \"app.served:app\"\n'''\n",
    "registered.py": "",
    "served.py": "broken = (\n",
    "sub/__init__.py": "from ..above import y",
    "sub/deep.py": "from . import beside\nfrom importlib.resources import files\nDATA = files('app.sub') / 'phrases'\n",
    "sub/beside.py": "",
    "sub/phrases/en.txt": "hello",
    "above.py": "",
    "lonely.py": "import app.stage",
    "data.txt": "",
    "sub/lonely.py": "",
    "sub/preset.toml": "",
    "sub/.hidden": "",
    "sub/__pycache__/deep.pyc": "",
    "other/__init__.py": "",
}  # fmt: skip
UNUSED = {
    "lonely.py", "data.txt", "sub/lonely.py", "sub/preset.toml", "sub/.hidden", "sub/__pycache__/deep.pyc",
    "other/__init__.py",
}  # fmt: skip


def write(folder: Path, files: dict[str, str]) -> Path:
    """A package `app` of these files."""
    for name, text in files.items():
        path = folder / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "app"


def test_everything_imported_counts_and_nothing_else(tmp_path: Path) -> None:
    package = write(tmp_path, FILES)
    assert set(source_digests(package / "stage.py", package)) == {f"app/{name}" for name in FILES.keys() - UNUSED}
    alone = source_digests(package / "sub" / "beside.py", package)  # the packages around a module run with it
    assert set(alone) == {"app/__init__.py", "app/sub/__init__.py", "app/above.py", "app/sub/beside.py"}


@pytest.mark.parametrize("edited", FILES)
def test_an_edit_changes_the_digest_if_the_file_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edited: str
) -> None:
    def digest(folder: str, files: dict[str, str]) -> str | None:
        package = write(tmp_path / folder, files)
        module = ModuleType("app.stage")
        module.__file__ = str(package / "stage.py")
        monkeypatch.setitem(sys.modules, "app.stage", module)

        def run() -> None: ...

        run.__module__ = "app.stage"
        return code_digest(run, package)

    before, same = digest("before", FILES), digest("same", FILES)
    assert before == same  # in any folder
    after = digest("after", FILES | {edited: FILES[edited] + "# edited"})
    assert before is not None
    assert (before != after) == (edited not in UNUSED)


def test_a_digest_is_of_the_code_as_it_was_read_first(tmp_path: Path) -> None:
    package = write(tmp_path, FILES)
    before = source_digests(package / "stage.py", package)
    (package / "above.py").write_text("edited = True")
    assert source_digests(package / "stage.py", package) == before


def test_other_code_than_expected_is_refused() -> None:
    check_code(write, code_digest(write))
    for expected in ("of another version", None):
        with pytest.raises(FedgramError, match="the code changed while the run went on; run it again"):
            check_code(write, expected)


def test_partial_and_wrapped_functions_stand_for_the_one_inside() -> None:
    inner = partial(partial(write, files={}))

    @wraps(inner)
    def outer() -> None: ...

    def other() -> None: ...

    other.__module__ = "fedgram.core.sources"
    assert code_digest(outer) == code_digest(write) == code_digest(lambda: None)
    assert code_digest(other) not in (None, code_digest(write))


def test_code_without_a_source_has_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def function() -> None: ...

    for file in (None, str(tmp_path / "packed.zip" / "module.py"), "module.pyc"):
        module = ModuleType("module")
        module.__file__ = file
        monkeypatch.setitem(sys.modules, "module", module)
        function.__module__ = "module"
        assert code_digest(function) is None
    assert code_digest(print) is None


def test_what_the_stages_of_a_run_need() -> None:
    text = source_digests(PACKAGE / "pipeline" / "text_stages.py")
    needed = {"fedgram/__init__.py", "fedgram/core/arrays.py", "fedgram/text/synthetic/phrases/en_us.grammar"}
    assert needed <= text.keys()
    assert not [name for name in text if name.endswith(".toml") or name.split("/")[1] in ("cli", "deployment")]
    flower = source_digests(PACKAGE / "deployment" / "stages.py")
    assert {"fedgram/deployment/flower/server_app.py", "fedgram/deployment/flower/client_app.py"} <= flower.keys()
