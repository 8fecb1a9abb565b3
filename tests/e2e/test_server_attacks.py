"""Attacks on a server that runs: by other users of its machine, by strangers, and by a registered device."""

import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node

from fedgram.deployment.flower import internals
from fedgram.deployment.flower.control import admit, nodes, start_run
from fedgram.deployment.flower.processes import end, start_superlink, start_supernode, wait_until_served
from fedgram.deployment.folder import Folder, open_folder
from fedgram.deployment.key_list import read_key_list
from fedgram.deployment.keys import free_port, read_private_key, read_public_key, write_device_key
from fedgram.deployment.store import open_store, write_store


@contextmanager
def served(home: Folder, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as file:
        process = start_superlink(home, host="127.0.0.1", log=file)
        try:
            wait_until_served(home, process, seconds=120)
            yield process
        finally:
            end(process, seconds=2)


def client_of(home: Folder, number: int) -> tuple[Any, int]:
    """A registered device that speaks the protocol by itself, and its node's number."""
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    own = home.node(number)
    write_device_key(own)
    public = read_public_key(own / "key.pub")
    admit(home, public, f"device-{number}")
    speaking: list[Any] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(*read_private_key(own / "key")),
    ]
    client = FleetHttpClient.from_server_address(home.address, False, home.authority.read_bytes(), speaking)
    node = client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=30)).node_id
    return client, int(node)


def status_of(call: Callable[[], object]) -> int:
    try:
        call()
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return 200


def memory(pid: int) -> int:
    """Megabytes that a process has in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) >> 10


def other_users_start_nothing(home: Folder, folder: Path) -> None:
    """A run of code of one's own, without the token, with another one, and with the right one."""
    evil = folder / "evil"
    evil.mkdir()
    (evil / "pyproject.toml").write_text((home.app / "pyproject.toml").read_text().replace("fedgram.deploy", "evil"))
    token = home.token.read_text()
    for told, app, status in (("", evil, 401), ("0" * 64, home.app, 401), (token, evil, 403)):
        client = internals.ControlClient(home.local_address, home.authority.read_bytes(), told)
        assert status_of(lambda: client.start_run(app, {"work": str(folder)})) == status  # noqa: B023
        if told != token:
            assert status_of(client.nodes) == 401
        client.close()
    with httpx.Client(verify=ssl.create_default_context(cafile=home.authority)) as web:
        for path in ("/v1/runtime/acquire-task", "/docs", "/openapi.json"):
            assert web.post(f"https://{home.local_address}{path}").status_code == 404


def endless_bodies_are_not_kept(home: Folder, process: int) -> None:
    """Four connections without a key, 50 MB each; all of it once stayed in the server's memory."""
    context, before = ssl.create_default_context(cafile=home.authority), memory(process)
    block = bytes(1 << 20)
    for name in ("fleet/push-object", "fleet/pull-messages", "control/start-run", "runtime/push-object"):
        plain = socket.create_connection(("127.0.0.1", home.config.port))
        with suppress(OSError), context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            head = f"POST /v1/{name} HTTP/1.1\r\nHost: x\r\nContent-Type: application/protobuf\r\n"
            connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            for _ in range(50):
                connection.sendall(b"%x\r\n" % len(block) + block + b"\r\n")
    assert memory(process) < before + 30


def a_device_speaks_for_itself_alone(home: Folder) -> None:
    one, node = client_of(home, 910)
    other, victim = client_of(home, 911)

    def push(source: int, reply_to: str) -> int:
        about = Metadata(run_id=5, message_id="m", src_node_id=source, dst_node_id=victim, reply_to_message_id=reply_to)
        return status_of(
            lambda: one.PushMessages(
                PushMessagesRequest(
                    node=Node(node_id=node), messages_list=[ProtoMessage(metadata=about)],
                    message_object_trees=[ObjectTree(object_id="m")],
                )
            )
        )  # fmt: skip

    assert push(1, "") == 403  # as the server
    assert push(victim, "asked") == 403  # as another device
    assert push(node, "never asked") != 200
    assert not other.PullMessages(PullMessagesRequest(node=Node(node_id=victim))).messages_list
    assert status_of(lambda: one.PullMessages(PullMessagesRequest(node=Node(node_id=victim)))) == 401

    def store(size: int) -> int:
        request = PushObjectRequest(node=Node(node_id=node), run_id=5, object_id="x", object_content=bytes(size))
        return status_of(lambda: one.PushObject(request))

    assert store(9 << 20) == 413
    stored = [store(4 << 20) for _ in range(home.config.reply_mb // 4 + 1)]
    assert stored[-1] == 413  # it was asked for nothing
    one.close()
    other.close()


def a_device_is_revoked_at_once(home: Folder, fedgram: Callable[..., Any], refused: Callable[..., str]) -> None:
    client, node = client_of(home, 912)
    pull = PullMessagesRequest(node=Node(node_id=node))
    assert status_of(lambda: client.PullMessages(pull)) == 200
    found = read_key_list(home.server)
    assert found is not None
    fedgram("federation", "revoke", home.path, 912)
    assert status_of(lambda: client.PullMessages(pull)) == 401
    client.close()
    after = read_key_list(home.server)
    assert after is not None
    assert (after.admitted.version, len(after.admitted.keys)) == (
        found.admitted.version + 1,
        len(found.admitted.keys) - 1,
    )
    assert "device-912" not in {entry["name"] for entry in nodes(home)}
    assert "device 912 is not admitted" in refused("federation", "revoke", home.path, 912)


def a_devices_own_port_is_closed_to_others(home: Folder, folder: Path) -> None:
    write_store(folder / "913.sqlite", 913, ["Hello there."])
    write_device_key(home.node(913))
    admit(home, read_public_key(home.node(913) / "key.pub"), "device-913")
    port = free_port()
    with (folder / "device.log").open("wb") as log:
        device = start_supernode(home, open_store(folder / "913.sqlite"), port=port, log=log)
        try:
            until = time.monotonic() + 120
            while time.monotonic() < until:
                with suppress(httpx.TransportError):
                    if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                        break
                time.sleep(0.2)
            for path, status in (("/v1/runtime/acquire-task", 401), ("/v1/runtime/push-object", 401), ("/docs", 404)):
                assert httpx.post(f"http://127.0.0.1:{port}{path}", content=b"").status_code == status
        finally:
            end(device, seconds=2)


def no_token_is_on_a_command_line(home: Folder, folder: Path) -> None:
    """The token of a ServerApp, with which one can speak to devices as the server."""
    run = start_run(home, {"work": str(folder / "nothing")})
    assert run
    until = time.monotonic() + 60
    while time.monotonic() < until:
        lines = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _words(path)]
        started = [_words(path) for path in lines]
        ours = [words for words in started if b"fedgram.deployment.flower.server_apps" in words]
        mine = [words for words in ours if home.local_address.encode() in words]
        if mine:
            assert all(len(words) == 7 for words in mine)
            assert not any(b"--token" in words and home.local_address.encode() in words for words in started)
            return
        time.sleep(0.02)
    pytest.fail("no ServerApp was started")


def a_certificate_is_replaced_at_once(home: Folder, fedgram: Callable[..., Any]) -> None:
    """Every new connection succeeds, and after a while all are shown the new certificate."""
    context = ssl.create_default_context(cafile=home.authority)

    def shown() -> bytes | None:
        plain = socket.create_connection(("127.0.0.1", home.config.port))
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            return connection.getpeercert(binary_form=True)

    before = shown()
    fedgram("federation", "renew", home.path)
    own = ssl.PEM_cert_to_DER_cert(home.server_pair.read_text().partition("-----END PRIVATE KEY-----\n")[2])
    until = time.monotonic() + 60
    while (now := shown()) == before and time.monotonic() < until:
        time.sleep(0.02)
    assert before != now == own


def _words(path: Path) -> list[bytes]:
    with suppress(OSError):
        return path.read_bytes().rstrip(b"\0").split(b"\0")
    return []


@pytest.mark.timeout(300)
def test_a_server_withstands_what_once_worked(
    tmp_path: Path, fedgram: Callable[..., Any], refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fedgram("federation", "init", tmp_path / "fed", "--port", free_port(), "--poll", 0.2, "--reply-mb", 16)
    home = open_folder(tmp_path / "fed")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    with served(home, tmp_path / "log") as process:
        size = (tmp_path / "log").stat().st_size
        endless_bodies_are_not_kept(home, process.pid)
        with httpx.Client(verify=ssl.create_default_context(cafile=home.authority)) as web:
            for _ in range(100):
                assert web.post(f"https://{home.address}/v1/fleet/push-messages", content=b"x").status_code == 401
        assert (tmp_path / "log").stat().st_size - size < 500  # the log does not grow with refused requests
        other_users_start_nothing(home, tmp_path)
        a_device_speaks_for_itself_alone(home)
        a_device_is_revoked_at_once(home, fedgram, refused)
        a_devices_own_port_is_closed_to_others(home, tmp_path)
        no_token_is_on_a_command_line(home, tmp_path)
        a_certificate_is_replaced_at_once(home, fedgram)
