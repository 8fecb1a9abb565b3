"""Flower's processes import nothing from the folder in which they are started, but what PYTHONPATH names."""

import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedgram.deployment.flower import server_apps, supernode
from fedgram.deployment.flower.processes import start_superlink, start_supernode
from fedgram.deployment.flower.programs import environment
from fedgram.deployment.folder import FederationConfig, make_folder
from fedgram.deployment.store import open_store, write_store

run = subprocess.run  # what is started is patched below


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The commands of the processes, by their module; none is run."""
    started: list[list[str]] = []

    class Started:
        def __init__(self, command: list[str], **_: Any) -> None:
            started.append(command)
            self.stdin = BytesIO()

    class Apps:
        def __init__(self, _: Any, command: list[str]) -> None:
            started.append(command)

        def keep_starting(self) -> None: ...

    write_store(folder / "7.sqlite", 7, ["Hello there."])
    home = make_folder(folder / "fed", FederationConfig(tls=False))
    with monkeypatch.context() as patched:
        patched.setattr("subprocess.Popen", Started)
        patched.setattr(server_apps, "ServerApps", Apps)
        start_superlink(home, host="127.0.0.1")
        start_supernode(home, open_store(folder / "7.sqlite"), port=1)
        supernode._start_worker("127.0.0.1:1", "token")
        server_apps.start_server_apps(None, "127.0.0.1:1", "")
    return {command[command.index("-m") + 1].rpartition(".")[2]: command for command in started}


def test_a_users_file_does_not_stand_for_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as `secrets.py`: the process would import it, and could not start. A plug-in on PYTHONPATH is found."""
    here, path = tmp_path / "here", tmp_path / "path"
    for folder, name in ((here, "secrets"), (here, "mine"), (path, "plug_in")):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(f"print('{name}')")
    monkeypatch.setenv("PYTHONPATH", str(path))
    found = commands(tmp_path, monkeypatch)
    assert found.keys() == {"superlink", "supernode", "worker", "server_apps"}
    for command in found.values():
        start = command[: command.index("-m") + 1]
        assert start[0] == sys.executable
        for name, shown in (("plug_in", b"plug_in\n"), ("mine", b""), ("secrets", b"")):
            done = run([*start, name], cwd=here, env=environment(tmp_path), capture_output=True, check=False)
            assert done.stdout == shown, command
