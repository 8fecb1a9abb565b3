"""The fast path: valid requests of a round are answered, and everything else takes Flower's normal path."""

import asyncio
import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Metadata, PullObjectRequest, PushObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest

from fedgram.core.errors import FedgramError
from fedgram.deployment.flower.admitted import is_remembered, remember, restore
from fedgram.deployment.flower.fast_path import FastPath
from fedgram.deployment.keys import read_private_key, read_public_key, write_device_key

PULL, BEAT = "/v1/fleet/pull-messages", "/v1/fleet/send-node-heartbeat"


class Link:
    """A SuperLink's state with one device, behind the fast path; `passed_on` has what took the normal path."""

    def __init__(self, folder: Path) -> None:
        from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories

        write_device_key(folder / "device")
        self.private, _ = read_private_key(folder / "device" / "key")
        self.key = read_public_key(folder / "device" / "key.pub")
        remember(folder, self.key, "device-7", 77)
        manager = get_federation_manager(is_simulation=False)
        _, factory = get_objectstore_linkstate_factories(":flwr-in-memory:", manager)
        self.state: Any = factory.state()
        assert restore(folder, self.state, 30.0) == 1
        self.app = type("App", (), {"state": type("State", (), {"linkstate_factory": factory})})
        self.passed_on: list[tuple[str, bytes]] = []
        self.fast_path = FastPath(self._normal)

    async def _normal(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        self.passed_on.append((scope["path"], body))
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def headers(self, key: bytes | None = None, when: str | None = None) -> list[tuple[bytes, bytes]]:
        from flwr.common.constant import TIMESTAMP_HEADER
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
        from flwr.supercore.date import now
        from flwr.supercore.primitives.asymmetric import sign_message

        stamp = when or now().isoformat()
        fields = {
            FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(key or self.key).decode(), TIMESTAMP_HEADER: stamp,
            FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(sign_message(self.private, stamp.encode())).decode(),
            "content-type": "application/protobuf",
        }  # fmt: skip
        return [(name.lower().encode(), value.encode()) for name, value in fields.items()]

    def post(
        self, path: str, body: bytes, headers: list[tuple[bytes, bytes]], parts: int = 1, method: str = "POST"
    ) -> tuple[int, bytes]:
        size = max(1, -(-len(body) // parts))
        chunks = [body[k : k + size] for k in range(0, len(body), size)] or [b""]
        events = iter(
            {"type": "http.request", "body": chunk, "more_body": k + 1 < len(chunks)} for k, chunk in enumerate(chunks)
        )
        sent: list[Any] = []

        async def receive() -> Any:
            return next(events)

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {"type": "http", "method": method, "path": path, "headers": headers, "app": self.app}
        asyncio.run(self.fast_path(scope, receive, send))
        return sent[0]["status"], b"".join(event["body"] for event in sent[1:])


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    made = Link(tmp_path)
    yield made
    made.fast_path.close()


def test_a_device_that_is_known_is_answered_at_once(link: Link) -> None:
    pull = PullMessagesRequest(node=Node(node_id=77)).SerializeToString()
    status, body = link.post(PULL, pull, link.headers())
    assert status == 200
    assert not PullMessagesResponse.FromString(body).messages_list
    beat = SendNodeHeartbeatRequest(node=Node(node_id=77), heartbeat_interval=30).SerializeToString()
    status, body = link.post(BEAT, beat, link.headers())
    assert SendNodeHeartbeatResponse.FromString(body).success
    assert not link.passed_on


def test_of_a_run_from_before_a_crash_a_device_is_told_that_it_has_ended(link: Link) -> None:
    about = Metadata(run_id=5, message_id="m", src_node_id=77, reply_to_message_id="r", message_type="train.report")
    node = Node(node_id=77)
    requests: dict[str, Any] = {
        "get-run": GetRunRequest(node=node, run_id=5),
        "get-fab": GetFabRequest(node=node, run_id=5, hash_str="x"),
        "pull-object": PullObjectRequest(node=node, run_id=5, object_id="x"),
        "push-object": PushObjectRequest(node=node, run_id=5, object_id="x", object_content=b"x"),
        "confirm-message-received": ConfirmMessageReceivedRequest(node=node, run_id=5, message_object_id="x"),
        "push-messages": PushMessagesRequest(node=node, messages_list=[ProtoMessage(metadata=about)]),
    }
    for path, message in requests.items():
        assert link.post(f"/v1/fleet/{path}", message.SerializeToString(), link.headers())[0] == 403, path
    assert not link.passed_on
    stranger = GetRunRequest(node=Node(node_id=78), run_id=5).SerializeToString()
    assert link.post("/v1/fleet/get-run", stranger, link.headers())[0] == 401


def other_key(link: Link) -> list[tuple[bytes, bytes]]:
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    return link.headers(public_key_to_bytes(ec.generate_private_key(ec.SECP256R1()).public_key()))


Headers = Callable[[Link], list[tuple[bytes, bytes]]]


@pytest.mark.parametrize(
    ("headers", "node"),
    [
        (lambda link: link.headers(), 78),  # speaks for another node
        (other_key, 77),  # a key that did not sign
        (lambda link: link.headers(when="2020-01-01T00:00:00+00:00"), 77),  # an old signature
        (lambda _: [(b"content-type", b"application/protobuf")], 77),  # none at all
        (lambda link: [(n, v) for n, v in link.headers() if n != b"content-type"], 77),
        (lambda link: [*link.headers(), (b"content-type", b"application/json")], 77),
    ],
)  # fmt: skip
def test_an_unknown_sender_takes_the_normal_path_with_the_same_bytes(link: Link, headers: Headers, node: int) -> None:
    body = PullMessagesRequest(node=Node(node_id=node)).SerializeToString()
    assert link.post(PULL, body, headers(link), parts=2)[0] == 401
    assert link.passed_on == [(PULL, body)]


def test_nonsense_and_other_requests_take_the_normal_path(link: Link) -> None:
    for path, body, method in ((PULL, b"\xff" * 9, "POST"), (PULL, b"", "GET"), ("/v1/control/stop-run", b"", "POST")):
        assert link.post(path, body, link.headers(), method=method)[0] == 401
    assert [path for path, _ in link.passed_on] == [PULL, PULL, "/v1/control/stop-run"]


def test_devices_are_restored_under_their_numbers(tmp_path: Path, link: Link) -> None:
    assert link.state.get_node_id_by_public_key(link.key) == 77
    (node,) = link.state.get_node_info(node_ids=[77])
    assert (node.name, node.status) == ("device-7", "online")
    assert len(link.state.nodes) == 1
    assert is_remembered(tmp_path, link.key)
    assert not is_remembered(tmp_path, b"another")


@pytest.mark.parametrize("content", ["", "[]", '{"name": "device-1"}', '{"name": "a", "node": 1, "key": 5}'])
def test_a_damaged_record_is_named(tmp_path: Path, link: Link, content: str) -> None:
    (tmp_path / "admitted" / "bad.json").write_text(content)
    with pytest.raises(FedgramError, match="does not hold an admitted device"):
        restore(tmp_path, link.state, 30.0)


def test_a_device_without_a_number_is_given_one(tmp_path: Path, link: Link) -> None:
    write_device_key(tmp_path / "second")
    key = read_public_key(tmp_path / "second" / "key.pub")
    (tmp_path / "admitted").rename(tmp_path / "gone")
    remember(tmp_path, key, "device-8", None)
    restore(tmp_path, link.state, 30.0)
    assert link.state.get_node_id_by_public_key(key) not in (None, 77)
