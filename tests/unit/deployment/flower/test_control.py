"""The control interface of a SuperLink, through Flower's private client and through its command line."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedgram.core.errors import FedgramError
from fedgram.deployment.checks import UnreachableError
from fedgram.deployment.flower import command_line, control, internals
from fedgram.deployment.flower.admitted import Admitted, read_admitted, remember
from fedgram.deployment.flower.control import admit, nodes, revoke, run_status, start_run, stop_run
from fedgram.deployment.folder import FederationConfig, Folder, make_folder
from fedgram.deployment.key_list import admit_keys, read_key_list
from fedgram.deployment.keys import compressed_key, free_port, read_public_key, write_device_key


@pytest.mark.parametrize(("code", "status"), [(404, "unknown"), (500, None)])
def test_a_run_from_before_a_crash_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, status: str | None
) -> None:
    from flwr.supercore.control import ControlHttpClient

    def refuse(*_: object) -> None:
        request = httpx.Request("POST", "http://127.0.0.1")
        raise httpx.HTTPStatusError("", request=request, response=httpx.Response(code, request=request))

    monkeypatch.setattr(ControlHttpClient, "ListRuns", refuse)
    home = make_folder(tmp_path / "fed", FederationConfig(tls=False, port=free_port()))
    home.token.write_text("secret")
    if status:
        assert run_status(home, 5) == status
    else:
        with pytest.raises(FedgramError, match="HTTP 500"):
            run_status(home, 5)


FLWR = """#!{python}
import json, pathlib, sys
given = sys.argv[1:]
folder = pathlib.Path({folder!r})
with (folder / "calls").open("a") as file:
    file.write(json.dumps(given) + "\\n")
if given[0] == "supernode" and given[1] == "register":
    (folder / "key").write_bytes(pathlib.Path(given[2]).read_bytes())
print(json.loads((folder / "answers").read_text()).get(" ".join(given[:2]).split(" -")[0], "no JSON"))
"""


class Flwr:
    """A program `flwr` that prints what it is told to, and notes how it was called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._answers = folder, dict[str, str]()
        program = folder / "flwr"
        program.write_text(FLWR.format(python=sys.executable, folder=str(folder)))
        program.chmod(0o755)
        monkeypatch.setenv(internals.SWITCH, "off")
        monkeypatch.setattr(control, "is_up", lambda _: True)
        monkeypatch.setattr(
            command_line, "environment", lambda _: {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        )

    def prints(self, command: str, content: object) -> None:
        """Print this as JSON when it is called with such a command."""
        self._answers[command] = json.dumps(content)
        (self.folder / "answers").write_text(json.dumps(self._answers))

    def calls(self) -> list[list[str]]:
        """The arguments of each call."""
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flwr:
    return Flwr(tmp_path, monkeypatch)


@pytest.fixture
def home(tmp_path: Path) -> Folder:
    return make_folder(tmp_path / "fed", FederationConfig(tls=False, port=free_port()))


def failure(message: str) -> dict[str, object]:
    return {"success": False, "error-message": f"Using SuperLink: federation\n{message}\n"}


def test_devices_are_admitted_through_the_command_line(tmp_path: Path, home: Folder, flwr: Flwr) -> None:
    for name in ("own", "other"):
        write_device_key(tmp_path / name)
    key, other = (read_public_key(tmp_path / name / "key.pub") for name in ("own", "other"))
    flwr.prints("supernode list", {"success": True, "nodes": []})
    flwr.prints("supernode register", {"success": True, "node-id": 77})
    assert admit(home, key, "device-3")
    assert (tmp_path / "key").read_bytes() == (tmp_path / "own" / "key.pub").read_bytes()
    assert read_admitted(home.server) == [Admitted(key, "device-3", 77)]
    listed = [{"node-id": "77", "status": "online"}, {"node-id": "78", "status": "unregistered"}]
    flwr.prints("supernode list", {"success": True, "nodes": listed})
    assert nodes(home) == [{"node": "77", "name": "device-3", "status": "online"}]
    with pytest.raises(FedgramError, match="device-3 is admitted with another key"):
        admit(home, other, "device-3")
    flwr.prints("supernode register", failure("[code: 23] Public key already in use."))
    assert not admit(home, key, "device-3")
    flwr.prints("supernode register", failure("the disk is full"))
    with pytest.raises(FedgramError, match="`flwr supernode` failed: the disk is full"):
        admit(home, other, "device-4")


def test_runs_are_started_and_followed_through_the_command_line(home: Folder, flwr: Flwr) -> None:
    flwr.prints(f"run {home.app}", {"success": True, "run-id": "5"})
    assert start_run(home, {"work": '/a "b"/c'}) == 5
    assert flwr.calls()[-1] == ["run", str(home.app), "-c", 'work="/a \\"b\\"/c"', "--format", "json"]
    for said, status in (("running", "running"), ("finished:failed", "failed")):
        flwr.prints("list", {"success": True, "runs": [{"run-id": "5", "status": said}]})
        assert run_status(home, 5) == status
    flwr.prints("list", failure("Run ID not found"))
    assert run_status(home, 5) == "unknown"
    flwr.prints("stop 5", failure("it has ended"))
    stop_run(home, 5)
    flwr.prints("list", "not what it should be")
    assert run_status(home, 5) == "unknown"


def test_without_a_server_no_command_is_called(home: Folder, flwr: Flwr, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "is_up", lambda _: False)
    with pytest.raises(UnreachableError, match=r"no server answers at 127\.0\.0\.1"):
        nodes(home)
    assert not (flwr.folder / "calls").exists()


def test_a_device_is_revoked_while_the_server_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the signing key it is cut off, and the list is signed once the key is back."""
    monkeypatch.delenv(internals.SWITCH, raising=False)
    home = make_folder(tmp_path / "fed", FederationConfig(port=free_port()))
    keys = []
    for number in (7, 8):
        write_device_key(home.node(number))
        keys.append(read_public_key(home.node(number) / "key.pub"))
        remember(home.server, keys[-1], f"device-{number}", number)
    assert admit_keys(home.server, map(compressed_key, keys)).version == 2
    assert not revoke(home, "device-9")
    (home.server / "release.key").rename(tmp_path / "release.key")
    with pytest.raises(FedgramError, match=r"release\.key: is missing; put it back to admit or revoke"):
        revoke(home, "device-7")
    assert [device.name for device in read_admitted(home.server)] == ["device-8"]
    (tmp_path / "release.key").rename(home.server / "release.key")
    assert revoke(home, "device-7")
    assert not revoke(home, "device-7")
    found = read_key_list(home.server)
    assert found is not None
    assert (found.admitted.version, found.admitted.keys) == (3, (compressed_key(keys[1]),))
    (tmp_path / "device").mkdir()
    with pytest.raises(FedgramError, match="is a device's folder"):
        revoke(Folder(tmp_path / "device", home.config), "device-8")


def test_only_the_servers_user_can_give_it_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(internals.SWITCH, raising=False)
    home = make_folder(tmp_path / "fed", FederationConfig(port=free_port()))

    read = Path.read_text

    def denied(path: Path, *arguments: Any, **options: Any) -> str:
        if path == home.token:
            raise PermissionError
        return read(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(FedgramError, match=r"control\.token: cannot be read; run this command as the user that runs"):
        nodes(home)
