"""The folder of a federation, its keys, who may enter, and what an operator sees."""

import socket
import sqlite3
import ssl
import stat
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from fedgram.core.errors import FedgramError
from fedgram.deployment.flower.superlink import may_enter
from fedgram.deployment.folder import FederationConfig, Folder, make_folder, open_folder
from fedgram.deployment.journal import Journal, read_status
from fedgram.deployment.keys import free_port, read_private_key, read_public_key, write_device_key
from fedgram.deployment.metrics import metrics_text, serve_metrics
from fedgram.deployment.store import open_store, write_store
from fedgram.deployment.supervision import ComeBack, alone, check_reachable, check_ready_to_serve, keep, why_refused


def test_a_folder_is_made_once_and_keeps_its_secrets(tmp_path: Path) -> None:
    home = make_folder(tmp_path / "fed", FederationConfig(host="fed.example", port=9000), ("10.0.0.7",))
    assert open_folder(tmp_path / "fed").config == home.config
    assert home.address == "fed.example:9000"
    with pytest.raises(FedgramError, match="holds a federation already"):
        make_folder(tmp_path / "fed", FederationConfig())
    for secret in ("ca.key", "server.key"):
        assert stat.S_IMODE((home.server / secret).stat().st_mode) == 0o600
    assert stat.S_IMODE(home.server.stat().st_mode) == 0o700
    certificate = x509.load_pem_x509_certificate((home.server / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "fed.example"} <= set(names.get_values_for_type(x509.DNSName))
    assert "10.0.0.7" in map(str, names.get_values_for_type(x509.IPAddress))
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(home.authority.read_bytes()))
    context = ssl.create_default_context(cafile=home.authority)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(home.server / "server.crt", home.server / "server.key")


def test_pins_and_participations_are_a_devices_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedgram.deployment.flower.processes import start_supernode

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
        with pytest.raises(FedgramError, match="a pin is NAME=DIGEST"):
            FederationConfig(pins=(wrong,))


@pytest.mark.parametrize("name", ["", "a b", "-a", "a_b", "x" * 40])
def test_names_that_flower_does_not_take_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FedgramError, match="letters, digits and hyphens"):
        make_folder(tmp_path / "fed", FederationConfig(name=name))


@pytest.mark.parametrize("host", ["", "bad host", "https://x.org:1", "münchen.de", "-a.org"])
def test_what_is_no_host_is_refused_before_anything_is_made(tmp_path: Path, host: str) -> None:
    with pytest.raises(FedgramError, match="no name or address"):
        FederationConfig(host=host)
    with pytest.raises(FedgramError, match="no name or address"):
        make_folder(tmp_path / "fed", FederationConfig(), (host,))
    assert not (tmp_path / "fed").exists()


def test_nobodys_files_are_written_over_and_no_sum_of_one_is_made(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    with pytest.raises(FedgramError, match="app: is there already"):
        make_folder(tmp_path, FederationConfig())
    with pytest.raises(FedgramError, match="at least 2"):
        FederationConfig(masked_with=1)


def test_a_server_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    home = make_folder(tmp_path / "fed", FederationConfig(port=free_port()))
    check_ready_to_serve(home, "127.0.0.1")
    with socket.socket() as other:
        other.bind(("127.0.0.1", home.config.port))
        other.listen()
        with pytest.raises(FedgramError, match=f"port {home.config.port} is taken"):
            check_ready_to_serve(home, "127.0.0.1")
    with pytest.raises(FedgramError, match=r"cannot listen on 203\.0\.113\.5"):
        check_ready_to_serve(home, "203.0.113.5")
    (home.server / "server.key").write_text("junk")
    with pytest.raises(FedgramError, match=r"server\.key: is not the key"):
        check_ready_to_serve(home, "127.0.0.1")
    home.authority.write_text("junk")
    with pytest.raises(FedgramError, match=r"ca\.crt: is not a certificate"):
        check_reachable(home)


def test_one_process_a_device(tmp_path: Path) -> None:
    with (
        alone(tmp_path / "d", "device 3 has joined"),
        pytest.raises(FedgramError, match="device 3 has joined already"),
        alone(tmp_path / "d", "device 3 has joined"),
    ):
        pytest.fail("two at once")
    with alone(tmp_path / "d", "device 3 has joined"):
        pass


def test_the_app_is_one_that_flower_takes(tmp_path: Path) -> None:
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate

    home = make_folder(tmp_path / "fed", FederationConfig(tls=False))
    config, warnings = load_and_validate(home.app / "pyproject.toml")
    assert not warnings
    assert config["project"]["name"] == "federation"
    assert build_fab_from_disk(home.app) == build_fab_from_disk(home.app)  # nodes compare it with their own


def test_a_devices_key_is_made_once(tmp_path: Path) -> None:
    write_device_key(tmp_path / "device-1")
    public = read_public_key(tmp_path / "device-1" / "key.pub")
    write_device_key(tmp_path / "device-1")
    assert read_public_key(tmp_path / "device-1" / "key.pub") == public
    assert stat.S_IMODE((tmp_path / "device-1" / "key").stat().st_mode) == 0o600
    read_private_key(tmp_path / "device-1" / "key")
    (tmp_path / "device-1" / "key.pub").unlink()
    write_device_key(tmp_path / "device-1")
    assert read_public_key(tmp_path / "device-1" / "key.pub") == public
    (tmp_path / "other.pub").write_text("ssh-rsa nonsense")
    for path in (tmp_path / "other.pub", tmp_path / "device-1" / "key"):
        with pytest.raises(FedgramError, match="is not a public key"):
            read_public_key(path)
    (tmp_path / "device-1" / "key").write_text("junk")
    with pytest.raises(FedgramError, match="is not a private key"):
        write_device_key(tmp_path / "device-1")


def test_stores_hold_what_was_typed_and_nothing_else_is_a_store(tmp_path: Path) -> None:
    assert write_store(tmp_path / "7.sqlite", 7, ["Hello there.", "It's me"]) == 2
    store = open_store(tmp_path / "7.sqlite")
    assert (store.number, store.messages()) == (7, 2)
    assert "ello" not in repr(store) + repr(store.population())
    for content in (b"", b"SQLite format 3\0", b"x" * 5000):
        (tmp_path / "bad.sqlite").write_bytes(content)
        with pytest.raises(FedgramError, match="is not a device's store"):
            open_store(tmp_path / "bad.sqlite")
    write_store(tmp_path / "minus.sqlite", -1, [])
    with pytest.raises(FedgramError, match="is not a device's store"):
        open_store(tmp_path / "minus.sqlite")


def test_a_store_is_read_as_far_as_it_is_text(tmp_path: Path) -> None:
    write_store(tmp_path / "7.sqlite", 7, ["Hello there."])
    with closing(sqlite3.connect(tmp_path / "7.sqlite")) as file:
        file.execute("INSERT INTO message (text) VALUES (NULL), (x'ff00'), (CAST(x'41ff' AS TEXT)), ('It is me')")
        file.commit()
    assert [len(s) for s in open_store(tmp_path / "7.sqlite").population().sentences(0)] == [2, 1, 3]
    write_store(tmp_path / "8.sqlite", 8, [f"secret {k} " * 20 for k in range(400)])
    store = open_store(tmp_path / "8.sqlite")
    content = bytearray((tmp_path / "8.sqlite").read_bytes())
    content[20_000:-4096] = b"\xff" * (len(content) - 24_096)
    (tmp_path / "8.sqlite").write_bytes(content)
    with pytest.raises(FedgramError, match=r"8\.sqlite: is damaged"):
        store.population()


def test_other_machines_reach_the_interface_for_devices_alone() -> None:
    for path in ("/v1/fleet/pull-messages", "/health"):
        assert may_enter(path, "203.0.113.5")
    for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/", "/v1/fleetx", "//v1/fleet/x"):
        assert may_enter(path, "127.0.0.1")
        assert may_enter(path, "::1")
        assert not may_enter(path, "203.0.113.5")
        assert not may_enter(path, None)
        assert not may_enter(path, "localhost.evil")


def test_a_journal_adds_up_over_restarts(tmp_path: Path) -> None:
    for _ in range(2):
        journal = Journal(tmp_path, "unigrams", 5)
        journal.tell("round began", {"round": 1, "devices": 9})
        about = {"round": 1, "asked": 9, "reports": 7, "late": 1, "failed": {"declined": 1}, "refused": {}}
        journal.tell("progress", about)
        journal.tell("round summed", {**about, "seconds": 2.5, "bytes_sent": 90, "bytes_received": 70})
        journal.tell("round committed", {"round": 1})
    status = read_status(tmp_path)
    assert (status["rounds_committed"], status["totals"]["reports"], status["devices"]) == (2, 14, 9)
    assert status["totals"]["failed"] == {"declined": 2}
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 6
    text = metrics_text(status, {"online": 3})
    assert 'fedgram_failed_total{reason="declined"} 2' in text
    assert "fedgram_reports_total 14" in text
    assert 'fedgram_nodes{status="online"} 3' in text
    assert "fedgram_bytes_sent_total 2387845678\n" in metrics_text({"totals": {"bytes_sent": 2387845678}})
    assert metrics_text({}).count("\n") == len(metrics_text({}).splitlines())
    (tmp_path / "status.json").write_text("{")
    assert read_status(tmp_path) == {}


def test_the_status_names_the_job_and_what_devices_can_pin(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "ngrams", None)
    journal.tell("run began", {"rounds": None, "job": "abc", "parts": {"ngrams.words": "12"}})
    journal.tell("round committed", {"round": 1})
    status = read_status(tmp_path)
    assert (status["job"], status["parts"], status["rounds"]) == ("abc", {"ngrams.words": "12"}, 0)
    assert "fedgram_rounds 0\n" in metrics_text(status)
    journal = Journal(tmp_path, "ngrams", None)  # a ServerApp that was killed after it had told of the round
    journal.tell("run began", {"rounds": None, "job": "abc", "parts": {}})
    for number in (1, 2, 2):
        journal.tell("round committed", {"round": number})
    assert read_status(tmp_path)["rounds_committed"] == 2
    journal.tell("run completed", {})
    journal = Journal(tmp_path, "ngrams", None)
    journal.tell("run began", {"rounds": None, "job": "abc", "parts": {}})
    journal.tell("round committed", {"round": 1})
    assert read_status(tmp_path)["rounds_committed"] == 3


def test_metrics_are_served() -> None:
    port = free_port()
    server = serve_metrics(port, lambda: metrics_text({"round": 3}))
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            assert b"fedgram_round 3\n" in reply.read()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/other").close()
    finally:
        server.shutdown()
        server.server_close()


def test_why_a_node_was_refused_is_read_from_its_log(tmp_path: Path) -> None:
    home = make_folder(tmp_path / "fed", FederationConfig(tls=False))
    assert why_refused(home, 1) is None
    home.node(1).mkdir(parents=True)
    (home.node(1) / "log").write_text("Starting Flower SuperNode\n[code: 2004] Failed\n")
    assert isinstance(why_refused(home, 1), ComeBack)
    (home.node(1) / "log").write_text("[code: 2004]\nStarting Flower SuperNode\nCERTIFICATE_VERIFY_FAILED\n")
    assert "another authority" in str(why_refused(home, 1))
    (home.node(1) / "log").write_text("CERTIFICATE_VERIFY_FAILED\nStarting Flower SuperNode\nfine\n")
    assert why_refused(home, 1) is None


def test_a_process_that_keeps_ending_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    monkeypatch.setattr("fedgram.deployment.supervision.time.sleep", lambda _: None)
    started: list[int] = []

    def start() -> "subprocess.Popen[bytes]":
        started.append(1)
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], start_new_session=True)

    with pytest.raises(FedgramError, match="ended 5 times at once, with code 3"):
        keep(start, lambda: None, Path("its.log"))
    assert len(started) == 5
    with pytest.raises(FedgramError, match="because"):
        keep(start, lambda: FedgramError("because"), Path("its.log"))


def test_commands_refuse_what_is_no_federation(tmp_path: Path, refused: Callable[..., str], fedgram: Any) -> None:
    assert "is not a federation's folder" in refused("federation", "serve", tmp_path)
    fedgram("federation", "init", tmp_path / "fed", "--no-tls", "--port", free_port())
    assert "without TLS" in refused("federation", "serve", tmp_path / "fed", "--host", "0.0.0.0")
    assert "no such file" in refused("federation", "join", tmp_path / "fed", "--data", tmp_path / "none.sqlite")
    assert "serving" in fedgram("federation", "status", tmp_path / "fed")
    (tmp_path / "fed" / "federation.toml").write_text("nmae = 'x'\n")
    assert "did you mean name?" in refused("federation", "status", tmp_path / "fed")
    assert threading.active_count() < 20


def test_status_says_that_privacy_has_no_bound_where_no_noise_is_added(tmp_path: Path, fedgram: Any) -> None:
    fedgram("federation", "init", tmp_path / "fed", "--port", free_port())
    Journal(tmp_path / "fed" / "server", "fedavg", 3).tell("round committed", {"round": 2})
    text = fedgram("federation", "status", tmp_path / "fed")
    assert "2 of 3" in text
    assert "none: no noise is added" in next(line for line in text.splitlines() if line.startswith("epsilon"))
    status = fedgram("federation", "status", tmp_path / "fed", "--json")
    assert (status["epsilon"], status["round"], status["rounds"]) == (None, 2, 3)
    assert "no noise is added" in status["epsilon_reason"]


@pytest.mark.parametrize(("code", "status"), [(404, "unknown"), (500, None)])
def test_a_run_from_before_a_crash_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, status: str | None
) -> None:
    import httpx
    from flwr.supercore.control import ControlHttpClient

    from fedgram.deployment.flower.control import run_status

    def refuse(*_: object) -> None:
        request = httpx.Request("POST", "http://127.0.0.1")
        raise httpx.HTTPStatusError("", request=request, response=httpx.Response(code, request=request))

    monkeypatch.setattr(ControlHttpClient, "ListRuns", refuse)
    home = make_folder(tmp_path / "fed", FederationConfig(tls=False, port=free_port()))
    if status:
        assert run_status(home, 5) == status
    else:
        with pytest.raises(FedgramError, match="HTTP 500"):
            run_status(home, 5)


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_servers_state_is_where_the_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    from fedgram.deployment.flower.processes import start_superlink

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
