"""How servers and devices are started: checks, options, restarts, and who may connect."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedgram.core.errors import FedgramError
from fedgram.deployment.checks import check_reachable, check_ready_to_serve
from fedgram.deployment.flower.processes import start_superlink, start_supernode
from fedgram.deployment.folder import FederationConfig, Folder, make_folder, open_folder
from fedgram.deployment.keys import free_port
from fedgram.deployment.restarts import RetryLaterError, keep_running, single_instance, why_refused
from fedgram.deployment.store import open_store, write_store


def test_pins_and_participations_are_a_devices_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("subprocess.Popen", lambda command, **_: started.append(command))
    pins = ("unigrams.words=" + "0a" * 32, "fedavg.plan=" + "1" * 64)
    config = FederationConfig(tls=False, participations=2, pins=pins)
    make_folder(tmp_path / "fed", config)
    home = open_folder(tmp_path / "fed")
    assert home.config == config
    write_store(tmp_path / "7.sqlite", 7, ["Hello there."])
    start_supernode(home, open_store(tmp_path / "7.sqlite"), port=1)
    given = started[0][started[0].index("--node-config") + 1]
    assert f'pins="{",".join(pins)}"' in given
    assert "participations=2" in given
    for wrong in ("unigrams.words", "a b=" + "0" * 64, "unigrams.words=" + "0" * 63, "unigrams.words=" + "G" * 64):
        with pytest.raises(FedgramError, match="a pin must be NAME=DIGEST"):
            FederationConfig(pins=(wrong,))


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_servers_state_is_where_the_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr("subprocess.Popen", lambda command, env, **_: started.append((command, env)))
    home = make_folder(tmp_path / "fed", FederationConfig(in_memory=in_memory, poll=2.0))
    start_superlink(home, host="127.0.0.1")
    ((command, env),) = started
    database = command[command.index("--database") + 1]
    assert database == (":flwr-in-memory:" if in_memory else str(home.server / "superlink.db"))
    assert env.get("FEDGRAM_ADMITTED") == (str(home.server) if in_memory else None)
    assert home.heartbeat == 30.0
    assert Folder(tmp_path, FederationConfig(poll=0.5)).heartbeat == 12.0


def test_a_server_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    home = make_folder(tmp_path / "fed", FederationConfig(port=free_port()))
    check_ready_to_serve(home, "127.0.0.1")
    with socket.socket() as other:
        other.bind(("127.0.0.1", home.config.port))
        other.listen()
        with pytest.raises(FedgramError, match=f"port {home.config.port} is in use"):
            check_ready_to_serve(home, "127.0.0.1")
    with pytest.raises(FedgramError, match=r"cannot listen on 203\.0\.113\.5"):
        check_ready_to_serve(home, "203.0.113.5")
    home.server_pair.write_text("junk")
    with pytest.raises(FedgramError, match=r"server\.pem: does not hold a key and its certificate; make them again"):
        check_ready_to_serve(home, "127.0.0.1")
    home.authority.write_text("junk")
    with pytest.raises(FedgramError, match=r"ca\.crt: is not a certificate"):
        check_reachable(home)


def test_what_the_environment_says_about_trust_is_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With FORWARDED_ALLOW_IPS=* a server believes any caller who says that it is on this machine."""
    started: list[dict[str, str]] = []
    monkeypatch.setattr("subprocess.Popen", lambda _, env, **__: started.append(env))
    bad = ("FORWARDED_ALLOW_IPS", "UVICORN_PROXY_HEADERS", "FLWR_INTERNAL_GRPC_CONTROL_API", "SSLKEYLOGFILE")
    for name in bad:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:1")
    home = make_folder(tmp_path / "fed", FederationConfig())
    write_store(tmp_path / "7.sqlite", 7, ["Hello there."])
    start_superlink(home, host="127.0.0.1")
    start_supernode(home, open_store(tmp_path / "7.sqlite"), port=1)
    for env in started:
        assert not env.keys() & {*bad}
        assert (env["FLWR_TELEMETRY_ENABLED"], env["HTTPS_PROXY"]) == ("0", "http://proxy:1")


def test_a_server_gets_a_new_token_whenever_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: None)
    home = make_folder(tmp_path / "fed", FederationConfig())
    tokens = set[str]()
    for _ in range(2):
        start_superlink(home, host="127.0.0.1")
        tokens.add(home.token.read_text())
        assert home.token.stat().st_mode & 0o777 == 0o600
    assert len(tokens) == 2
    assert {len(token) for token in tokens} == {64}


def test_one_process_a_device(tmp_path: Path) -> None:
    with (
        single_instance(tmp_path / "d", "device 3 has joined"),
        pytest.raises(FedgramError, match="device 3 has joined already"),
        single_instance(tmp_path / "d", "device 3 has joined"),
    ):
        pytest.fail("two at once")
    with single_instance(tmp_path / "d", "device 3 has joined"):
        pass


def test_why_a_node_was_refused_is_read_from_its_log(tmp_path: Path) -> None:
    home = make_folder(tmp_path / "fed", FederationConfig(tls=False))
    assert why_refused(home, 1) is None
    home.node(1).mkdir(parents=True)
    (home.node(1) / "log").write_text("Starting Flower SuperNode\n[code: 2004] Failed\n")
    assert isinstance(why_refused(home, 1), RetryLaterError)
    (home.node(1) / "log").write_text("[code: 2004]\nStarting Flower SuperNode\nCERTIFICATE_VERIFY_FAILED\n")
    assert "another authority" in str(why_refused(home, 1))
    (home.node(1) / "log").write_text("CERTIFICATE_VERIFY_FAILED\nStarting Flower SuperNode\nfine\n")
    assert why_refused(home, 1) is None


def test_a_process_that_keeps_ending_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgram.deployment.restarts.time.sleep", lambda _: None)
    started: list[int] = []

    def start() -> "subprocess.Popen[bytes]":
        started.append(1)
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], start_new_session=True)

    with pytest.raises(FedgramError, match=r"ended 5 times shortly after its start \(code 3\)"):
        keep_running(start, lambda: None, Path("its.log"))
    assert len(started) == 5
    with pytest.raises(FedgramError, match="because"):
        keep_running(start, lambda: FedgramError("because"), Path("its.log"))
