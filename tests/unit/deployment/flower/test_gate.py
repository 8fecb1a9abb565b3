"""The gate before Flower's servers: who may ask what, and how much of it is read. Each of these attacks once worked."""

import asyncio
import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.common.constant import NOOP_FLWR_AID
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata, ObjectTree
from flwr.proto.node_pb2 import Node

from fedgram.deployment.flower import gate, internals_http
from fedgram.deployment.flower.gate import OBJECT, SMALL, TREE, Gate, LocalDoor, ServerDoor
from fedgram.deployment.flower.internals_http import NODE
from fedgram.deployment.flower.quotas import BURST, OPEN, RATE, Quotas
from fedgram.deployment.keys import read_private_key, read_public_key, write_device_key

APP, TOKEN = hashlib.sha256(b"the app").hexdigest(), "secret"
Headers = list[tuple[bytes, bytes]]
Answer = tuple[int, bytes]


class Server:
    """A SuperLink's state with one device, number 77, behind the gate; `passed` has what came through it."""

    def __init__(self, folder: Path, *, reply_bytes: int = 1 << 20) -> None:
        from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories

        _, factory = get_objectstore_linkstate_factories(
            ":flwr-in-memory:", get_federation_manager(is_simulation=False)
        )
        self.state: Any = factory.state()
        self.keys = {name: self._key(folder / name) for name in ("device", "stranger")}
        internals_http.register_in_memory(self.state, self.keys["device"][1], "device-7", 77, 30.0)
        about = {"linkstate_factory": factory, "runtime_state_factory": factory, "enable_supernode_auth": True}
        self.app: Any = type("App", (), {"state": type("State", (), about)})
        self.passed: list[tuple[str, bytes, int | None]] = []
        self.answer = b""
        self.read = 0
        self.gate = Gate(self._behind, ServerDoor(TOKEN, APP), Quotas(reply_bytes))

    def _key(self, folder: Path) -> tuple[Any, bytes]:
        write_device_key(folder)
        return read_private_key(folder / "key")[0], read_public_key(folder / "key.pub")

    async def _behind(self, scope: Any, receive: Any, send: Any) -> None:
        event = await receive()
        assert not event.get("more_body")
        self.passed.append((scope["path"], event["body"], scope.get(NODE)))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.answer})

    def signed(self, name: str = "device", when: str | None = None) -> Headers:
        from flwr.common.constant import TIMESTAMP_HEADER
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
        from flwr.supercore.date import now
        from flwr.supercore.primitives.asymmetric import sign_message

        private, public = self.keys[name]
        stamp = when or now().isoformat()
        fields = {
            FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(public).decode(), TIMESTAMP_HEADER: stamp,
            FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(sign_message(private, stamp.encode())).decode(),
        }  # fmt: skip
        return [(key.lower().encode(), value.encode()) for key, value in fields.items()]

    def post(
        self, path: str, body: bytes | Sequence[bytes] = b"", headers: Headers | None = None, *,
        peer: str = "127.0.0.1", through: Any = None,
    ) -> Answer:  # fmt: skip
        chunks = [body] if isinstance(body, bytes) else list(body)
        sent: list[Any] = []

        async def receive() -> Any:
            self.read += len(chunks[0])
            return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {
            "type": "http", "method": "POST", "path": path, "headers": headers or [], "client": (peer, 1),
            "app": self.app,
        }  # fmt: skip
        asyncio.run((through or self.gate)(scope, receive, send))
        if sent[0]["status"] != 200:
            assert (b"connection", b"close") in sent[0]["headers"]
        return sent[0]["status"], sent[1]["body"]


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


FLEET = "/v1/fleet/"
PUSH = f"{FLEET}push-object"


def test_a_strangers_body_is_never_read(server: Server) -> None:
    """Bodies of any size without a key once stayed in the server's memory."""
    old = server.signed(when="2020-01-01T00:00:00+00:00")
    swapped = [*server.signed("stranger")[1:], server.signed("device")[0]]
    for headers in ([], old, swapped, server.signed("stranger"), [(b"flwr-public-key", b"\xff")]):
        for path in (PUSH, f"{FLEET}pull-messages", f"{FLEET}register-node", f"{FLEET}push-messages"):
            assert server.post(path, [bytes(1 << 20)] * 100, headers, peer="203.0.113.5")[0] == 401
    for path in ("/v1/runtime/push-object", "/v1/control/start-run", "/v1/responses", "/docs"):
        assert server.post(path, [bytes(1 << 20)] * 100)[0] in (401, 404)
    assert (server.read, server.passed) == (0, [])


def test_a_stranger_is_told_that_it_is_not_admitted(server: Server) -> None:
    """In Flower's own words, by which `federation join` knows what to say."""
    status, body = server.post(f"{FLEET}activate-node", bytes(99), server.signed("stranger"))
    assert (status, b'"code": 2004' in body, server.read) == (412, True, 0)
    server.app.state.enable_supernode_auth = False  # without TLS, on one machine
    assert server.post(f"{FLEET}register-node", b"x", server.signed("stranger"))[0] == 200
    assert server.post(f"{FLEET}register-node", bytes(SMALL + 1), server.signed("stranger"))[0] == 413


@pytest.mark.parametrize(("name", "most"), [("push-object", OBJECT), ("pull-messages", SMALL), ("push-messages", TREE)])
def test_a_registered_devices_body_is_capped(tmp_path: Path, name: str, most: int) -> None:
    server = Server(tmp_path, reply_bytes=1 << 30)
    announced = [*server.signed(), (b"content-length", b"%d" % (most + 1))]
    assert server.post(FLEET + name, bytes(most + 1), announced)[0] == 413
    assert server.read == 0
    chunks = [bytes(1 << 16)] * 1000
    assert server.post(FLEET + name, chunks, server.signed())[0] == 413
    assert server.read <= most + (1 << 16)
    assert not server.passed
    if name != "push-messages":
        assert server.post(FLEET + name, bytes(most), server.signed())[0] == 200
        assert server.passed == [(FLEET + name, bytes(most), 77)]


def test_a_body_that_does_not_come_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_BODY_SECONDS", 0.05)
    sent: list[Any] = []

    async def never() -> Any:
        await asyncio.sleep(60)

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "POST", "path": PUSH, "headers": server.signed(), "app": server.app}
    asyncio.run(server.gate(scope, never, send))
    assert sent[0]["status"] == 408


def pushed(node: int = 77, source: int = 77, reply_to: str = "asked", messages: int = 1) -> bytes:
    about = Metadata(run_id=5, message_id="m", src_node_id=source, dst_node_id=78, reply_to_message_id=reply_to)
    made = [ProtoMessage(metadata=about)] * messages
    return bytes(
        PushMessagesRequest(
            node=Node(node_id=node), messages_list=made, message_object_trees=[ObjectTree(object_id="m")] * messages
        ).SerializeToString()
    )


def test_a_node_speaks_for_itself_and_only_when_asked(server: Server) -> None:
    """A registered device could push instructions to other devices in the server's name."""
    path = f"{FLEET}push-messages"
    for body in (
        pushed(source=1, reply_to=""), pushed(source=1), pushed(source=78), pushed(node=78), pushed(reply_to=""),
        pushed(messages=2), pushed(messages=0), b"\xff" * 9,
    ):  # fmt: skip
        for headers in (server.signed(), [*server.signed(), (b"content-type", b"application/protobuf; x=y")]):
            assert server.post(path, body, headers)[0] == 403
    assert not server.passed
    assert server.post(path, pushed(), server.signed())[0] == 200


def test_replies_are_no_larger_than_what_was_asked_for(tmp_path: Path) -> None:
    """A registered device could store any amount in the server's memory, unasked."""
    server = Server(tmp_path, reply_bytes=1000)
    assert server.post(PUSH, bytes(600), server.signed())[0] == 200
    assert server.post(PUSH, bytes(600), server.signed())[0] == 413
    assert server.post(f"{FLEET}pull-messages", b"", server.signed())[0] == 200  # no message for it
    assert server.post(PUSH, bytes(600), server.signed())[0] == 413
    server.answer = b"a message"
    assert server.post(f"{FLEET}pull-messages", b"", server.signed())[0] == 200
    assert server.post(PUSH, bytes(600), server.signed())[0] == 200
    for _ in range(20):  # what is saved up is bounded too
        server.post(f"{FLEET}pull-messages", b"", server.signed())
    server.answer = b""
    assert [server.post(PUSH, bytes(1000), server.signed())[0] for _ in range(5)] == [200] * 4 + [413]


def test_a_nodes_requests_are_counted() -> None:
    now = [0.0]
    quotas = Quotas(1, clock=lambda: now[0])
    assert [quotas.enter(1) for _ in range(OPEN + 1)] == [True] * OPEN + [False]
    assert quotas.enter(2)  # another node's account is its own
    for _ in range(OPEN):
        quotas.leave(1)
    served = 0
    while quotas.enter(1):
        quotas.leave(1)
        served += 1
    assert served == BURST - OPEN
    now[0] += 1.0
    for _ in range(int(RATE)):
        assert quotas.enter(1)
        quotas.leave(1)
    assert not quotas.enter(1)


def test_a_revoked_node_is_refused_at_once(server: Server) -> None:
    body = PullMessagesRequest(node=Node(node_id=77)).SerializeToString()
    assert server.post(f"{FLEET}pull-messages", body, server.signed())[0] == 200
    server.state.delete_node(NOOP_FLWR_AID, 77)
    assert server.post(f"{FLEET}pull-messages", body, server.signed())[0] == 401
    assert server.post(f"{FLEET}activate-node", b"", server.signed())[0] == 412


def start_run(content: bytes, **changes: Any) -> bytes:
    request = StartRunRequest(**changes)
    request.fab.content, request.fab.hash_str = content, hashlib.sha256(content).hexdigest()
    return bytes(request.SerializeToString())


def test_only_the_servers_user_starts_runs_and_only_of_its_app(server: Server) -> None:
    """Any local user could start a run, and so run code as the server."""
    token = [(b"x-fedgram-token", TOKEN.encode())]
    good = start_run(b"the app")
    start = "/v1/control/start-run"
    for headers in ([], [(b"x-fedgram-token", b"guess")], token * 2, [(b"authorization", b"Bearer secret")]):
        assert server.post(start, good, headers)[0] == 401
    assert server.read == 0
    assert server.post(start, good, token, peer="203.0.113.5")[0] == 403
    forwarded = [*token, (b"x-forwarded-for", b"127.0.0.1"), (b"forwarded", b"for=127.0.0.1")]
    assert server.post(start, good, forwarded, peer="203.0.113.5")[0] == 403
    stored = StartRunRequest()
    stored.fab.hash_str = APP
    for body in (start_run(b"evil"), start_run(b"the app", app_spec="@evil/app"), stored.SerializeToString(), b"\xff"):
        assert server.post(start, body, token)[0] == 403
    for name in ("add-app", "start-automation", "stream-logs", "pull-artifacts", "begin-connector-oauth"):
        assert server.post(f"/v1/control/{name}", b"", token)[0] == 404
    assert not server.passed
    assert server.post(start, good, token)[0] == 200
    assert server.post("/v1/control/list-nodes", b"", token)[0] == 200


def test_no_process_takes_a_servers_task_over_http(server: Server) -> None:
    token = [(b"x-fedgram-token", TOKEN.encode())]
    assert server.post("/v1/runtime/acquire-task", b"", token)[0] == 404
    assert server.post("/v1/runtime/pull-messages", b"", [(b"flwr-task-token", b"guess")])[0] == 401


def test_a_devices_port_answers_its_own_worker_alone(server: Server) -> None:
    local = Gate(server._behind, LocalDoor(TOKEN))
    task = "/v1/runtime/acquire-task"
    assert server.post(task, b"", through=local)[0] == 401
    assert server.post(task, b"", [(b"x-fedgram-token", b"guess")], through=local)[0] == 401
    for path in ("/v1/runtime/pull-task-input", "/v1/runtime/push-object", "/v1/runtime/responses"):
        assert server.post(path, bytes(1 << 20), [(b"flwr-task-token", b"guess")], through=local)[0] == 401
    for path in ("/docs", "/openapi.json", "/v1/control/start-run", f"{FLEET}pull-messages"):
        assert server.post(path, b"", through=local)[0] == 404
    assert (server.read, server.passed) == (0, [])
    assert server.post(task, b"", [(b"x-fedgram-token", TOKEN.encode())], through=local)[0] == 200
    assert server.post("/health", b"", through=local)[0] == 200


def test_refused_requests_are_counted_and_not_logged(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(500):
        server.post(PUSH, b"x")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(gate, "_SAY_SECONDS", 0.0)
    server.post("/docs", b"")
    assert capsys.readouterr().err == "fedgram: refused requests: 500 no signature, 1 no such path\n"
    assert not server.gate.refused
