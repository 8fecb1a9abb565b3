"""Flower's private modules: used in two files, for one version, and not at all with another."""

import ast
import tomllib
from pathlib import Path

import pytest

import fedgram
from fedgram.core.errors import FedgramError
from fedgram.deployment.flower import internals, internals_http
from fedgram.deployment.flower.grid_transport import DirectTransport, GridTransport, open_transport
from fedgram.deployment.flower.processes import start_superlink, start_supernode
from fedgram.deployment.flower.programs import run_program
from fedgram.deployment.folder import FederationConfig, make_folder
from fedgram.deployment.store import open_store, write_store

PACKAGE = Path(fedgram.__file__).parent
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp")


def flower_modules(path: Path) -> set[str]:
    """The modules of Flower that a file names, in imports and in strings."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names if node.module == "flwr")}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("flwr."):
            found.add(node.value.strip())
    return {name for name in found if name.startswith("flwr.") and name != "flwr."}


def test_private_modules_of_flower_are_named_in_two_files() -> None:
    own = [Path(str(module.__file__)) for module in (internals, internals_http)]
    private = {
        str(path.relative_to(PACKAGE)): names
        for path in PACKAGE.rglob("*.py")
        if path not in own and (names := {n for n in flower_modules(path) if not n.startswith(PUBLIC)})
    }
    assert private == {}
    assert all(len(flower_modules(path)) > 10 for path in own)


def test_the_version_is_the_one_that_is_required() -> None:
    path = PACKAGE.parents[1] / "pyproject.toml"
    extras = tomllib.loads(path.read_text("utf-8"))["project"]["optional-dependencies"]
    assert f"flwr=={internals.VERSION}" in extras["flower"]
    assert internals.is_written_for(internals.VERSION)
    assert not internals.is_written_for("1.42.0")


@pytest.fixture(params=["version", "switch"])
def disabled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Another version of Flower, or the switch in the environment; the reason that is logged."""
    internals._say.cache_clear()
    if request.param == "switch":
        monkeypatch.setenv(internals.SWITCH, "off")
        return f"{internals.SWITCH}=off"
    monkeypatch.setattr(internals, "version", lambda _: "9.9.9")
    return f"Flower 9.9.9 is installed, fast paths are for Flower {internals.VERSION}"


def test_another_version_is_said_once(disabled: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not internals.are_enabled()
    assert not internals.are_enabled()
    assert capsys.readouterr().err == f"fedgram: using Flower's public interfaces ({disabled})\n"


def test_replies_are_fetched_directly_only_with_the_right_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(internals.SWITCH, raising=False)
    assert type(open_transport(None)) is DirectTransport
    monkeypatch.setenv(internals.SWITCH, "off")
    assert type(open_transport(None)) is GridTransport


@pytest.mark.usefixtures("disabled")
def test_another_version_is_started_without_what_it_may_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's own processes compute, and the state is on disk, as nothing could restore it in memory."""
    started: list[list[str]] = []
    monkeypatch.setattr("subprocess.Popen", lambda command, **_: started.append(command))
    home = make_folder(tmp_path / "fed", FederationConfig(tls=False))
    write_store(tmp_path / "7.sqlite", 7, ["Hello there."])
    start_superlink(home, host="127.0.0.1")
    start_supernode(home, open_store(tmp_path / "7.sqlite"), port=1)
    link, node = started
    assert link[link.index("--database") + 1] == str(home.server / "superlink.db")
    assert node[node.index("--isolation") + 1] == "subprocess"
    with pytest.raises(FedgramError, match=rf"needs Flower {internals.VERSION}.*pip install flwr=={internals.VERSION}"):
        start_superlink(home, host="192.0.2.1")


def test_a_program_that_flower_does_not_have_is_named() -> None:
    with pytest.raises(FedgramError, match="no program flower-nothing"):
        run_program("flower-nothing")
