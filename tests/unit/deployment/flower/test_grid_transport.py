"""The transports over a Grid: replies reach the requests they answer, and one that stops half-way holds up no other."""

import threading
import time
from typing import Any

import pytest
from flwr.app import Message

from fedgram.deployment.flower import grid_transport
from fedgram.deployment.flower.grid_transport import DirectTransport, GridTransport, from_records, to_records
from fedgram.deployment.flower.internals import Announcement
from fedgram.deployment.transport import Reply, Request


class SlowTransport(DirectTransport):
    """Replies are there from the start; those named slow never become whole."""

    def __init__(self, names: list[str], slow: set[str]) -> None:
        super().__init__(None)
        self.left, self.slow, self.never = names, slow, threading.Event()

    def _ask(self, names: list[str]) -> dict[str, Announcement]:
        found = [name for name in names if name in self.left]
        self.left = [name for name in self.left if name not in found]
        return {name: Announcement(f"reply {name}", None) for name in found}

    def _fetch(self, name: str, announced: Announcement) -> None:  # noqa: ARG002
        if name in self.slow:
            self.never.wait()
        self._fetched.put(Reply(name, {"update": name.encode()}))


def test_replies_that_stop_half_way_hold_up_no_others() -> None:
    names = [str(k) for k in range(200)]
    slow = {"3", "77", "120"}
    transport = SlowTransport(list(names), slow)
    waiting, came = set(names), list[str]()
    until = time.monotonic() + 200
    while len(came) < len(names) - len(slow) and time.monotonic() < until:
        replies = transport.poll(sorted(waiting), most=16)
        assert len(replies) <= 16
        assert len(transport._fetching) + len(transport._ready) <= 16
        for reply in replies:
            waiting.remove(reply.request)
            came.append(reply.request)
    assert waiting == slow
    assert len(came) == len(set(came))
    transport.never.set()


@pytest.mark.parametrize("size", [0, 10, 1 << 19])
def test_content_survives_flowers_records(size: int) -> None:
    content = {"update": b"x" * size, "other": b"\0\1\2"}
    assert from_records(to_records(content)) == content


class Grid:
    """A Grid whose public methods answer every message that was pushed to a node of `online`."""

    def __init__(self, online: set[int]) -> None:
        self.online, self.pushed, self.largest_pull = online, list[Message](), 0

    def get_nodes(self) -> list[Any]:
        return [type("Node", (), {"node_id": node, "name": f"device-{node}"}) for node in sorted(self.online)]

    def push_messages(self, messages: list[Message]) -> list[str]:
        first = len(self.pushed)
        self.pushed += messages
        return [str(first + k) for k in range(len(messages))]

    def pull_messages(self, names: list[str]) -> list[Any]:
        self.largest_pull = max(self.largest_pull, len(names))
        found = [(name, self.pushed[int(name)]) for name in names]
        return [Pulled(name, message) for name, message in found if message.metadata.dst_node_id in self.online]


class Pulled:
    """The reply to a message: its content, or an error of the odd nodes."""

    def __init__(self, name: str, message: Message) -> None:
        self.metadata = type("Metadata", (), {"reply_to_message_id": name})
        self.content, self.error = message.content, type("Error", (), {"code": 3})
        self._failed = message.metadata.dst_node_id % 2 == 1

    def has_error(self) -> bool:
        return self._failed


def test_the_public_methods_of_a_grid_carry_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_transport, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(grid_transport, "_REST", 0.0)
    for name in ("_task_id", "_run_id", "_node_id"):  # which Flower sets in the process of a ServerApp
        monkeypatch.setattr(f"flwr.supercore.task_identity.TaskIdentity.{name}", 1)
    grid = Grid(set(range(60)))
    transport, shared = GridTransport(grid), {"broadcast": b"weights"}
    assert transport.nodes()[7] == "device-7"
    requests = [Request(node, "report", {"own": b"%d" % node}, shared, "1") for node in range(70)]
    waiting = dict(zip(transport.send(requests, seconds=9.0), requests, strict=True))
    came = dict[int, Reply]()
    for _ in range(20):
        for reply in transport.poll(waiting, most=16):
            came[waiting.pop(reply.request).node] = reply
    assert set(came) == set(range(60))
    assert came[8].content == {"own": b"8", "broadcast": b"weights"}
    assert (came[9].content, came[9].error) == (None, "error 3")
    assert grid.largest_pull <= 16  # no more replies are in memory at once
    assert {message.metadata.message_type for message in grid.pushed} == {"train.report"}


class Answer:
    """A reply that says which request it answers."""

    def __init__(self, request: str) -> None:
        self.metadata = type("Metadata", (), {"reply_to_message_id": request})
        self.content = to_records({"update": b"x"})

    def has_error(self) -> bool:
        return False


def test_a_reply_that_names_another_request_is_not_taken_for_its_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device could otherwise answer for another one, or leave its own request open in the server for ever."""
    said = {"1": "2", "2": "2", "3": "nothing that was asked"}
    monkeypatch.setattr(
        "fedgram.deployment.flower.internals.announced_replies",
        lambda _, names: {name: Announcement(name, None) for name in names},
    )
    monkeypatch.setattr(
        "fedgram.deployment.flower.internals.fetch_reply", lambda _, announced, **__: Answer(said[announced.message_id])
    )
    transport, came = DirectTransport(None), dict[str, Reply]()
    until = time.monotonic() + 60
    while len(came) < 3 and time.monotonic() < until:
        came |= {reply.request: reply for reply in transport.poll(set(said) - set(came))}
    assert came["2"].content == {"update": b"x"}
    for name in ("1", "3"):
        assert (came[name].content, came[name].error) == (None, "malformed message")
    assert not transport._fetching
