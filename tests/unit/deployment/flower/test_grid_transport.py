"""The transport over a Grid: a reply that stops half-way holds nobody up, and replies reach whoever asked."""

import threading
import time
from typing import Any

import pytest

from fedgram.deployment.flower.grid_transport import GridTransport, from_records, to_records
from fedgram.deployment.transport import Reply


class Announced:
    """A reply as a SuperLink announces it."""

    def __init__(self, name: str) -> None:
        self.metadata = type("Metadata", (), {"reply_to_message_id": name, "message_id": f"reply {name}"})


class SlowTransport(GridTransport):
    """Replies are there from the start; those named slow never become whole."""

    def __init__(self, names: list[str], slow: set[str]) -> None:
        super().__init__(None)
        self.left, self.slow, self.never = names, slow, threading.Event()

    def _ask(self, names: list[str]) -> dict[str, tuple[Any, Any]]:
        found = [name for name in names if name in self.left]
        self.left = [name for name in self.left if name not in found]
        return {name: (Announced(name), None) for name in found}

    def _fetch(self, name: str, announced: Any, tree: Any) -> None:  # noqa: ARG002
        if name in self.slow:
            self.never.wait()
        self._fetched.put(Reply(name, {"update": name.encode()}))


def test_replies_that_stop_half_way_hold_nobody_up() -> None:
    names = [str(k) for k in range(200)]
    slow = {"3", "77", "120"}
    transport = SlowTransport(list(names), slow)
    waiting, came = set(names), list[str]()
    until = time.monotonic() + 30
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
