"""A transport over Flower's Grid: requests and replies are messages that carry bytes by name.

Flower makes an HTTP request of every record, so small contents travel as one record; large ones travel as arrays, which
Flower sends in chunks and retries one by one. Requests of a round share their content, so Flower stores it once,
whatever the number of devices.

`GridTransport` uses the Grid's public methods. `DirectTransport` fetches replies itself (`internals.py`): a reply that
stops half-way then holds up no other, and no more replies are in memory than a round asks for. The Grid's
`send_and_receive` suits neither: it sleeps for three seconds between questions and holds every reply in memory.
"""

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedgram.deployment.flower import internals
from fedgram.deployment.transport import Content, Reply, Request, TransportLostError

_FETCH_SECONDS = 120.0  # for a reply that has been announced
_KEEP_SECONDS = 60.0  # after which a fetched reply that no round wants is dropped
_PUSH_BATCH, _PULL_BATCH = 25, 100  # messages per request: what takes Flower more than 30 s is lost
_POLL_SECONDS, _REST = 0.1, 4.0  # between questions for replies: this long, and this many times as long as one took
_SMALL_BYTES = 1 << 18
MESSAGE_TYPES = {
    "join": "query.join", "report": "train.report", "secure": "train.secure", "release": "query.release"
}  # fmt: skip


def to_records(content: Content) -> Any:
    """Bytes by name as Flower's records."""
    from flwr.app import RecordDict

    return RecordDict({"content": _record(content)})


def _record(content: Content) -> Any:
    from flwr.app import Array, ArrayRecord, ConfigRecord

    if sum(map(len, content.values())) <= _SMALL_BYTES:
        return ConfigRecord(dict(content))
    return ArrayRecord({name: Array("uint8", (len(data),), "bytes", data) for name, data in content.items()})


def from_records(records: Any) -> dict[str, bytes]:
    """The bytes by name of Flower's records."""
    parts = [item for name in ("content", "shared") if name in records for item in records[name].items()]
    return {str(name): bytes(part if isinstance(part, bytes) else part.data) for name, part in parts}


@contextmanager
def _reaching() -> Iterator[None]:
    """Turn whatever Flower raises on the way to the SuperLink into `TransportLostError`."""
    try:
        yield
    except Exception as error:
        raise TransportLostError(f"the SuperLink cannot be reached ({type(error).__name__})") from error


def open_transport(grid: Any) -> "GridTransport":
    """The best transport over a Grid that the installed Flower allows."""
    return DirectTransport(grid) if internals.are_enabled() else GridTransport(grid)


class GridTransport:
    """A `Transport` over a Grid's public methods."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._next_question = 0.0
        self._ready: dict[str, tuple[Reply, float]] = {}

    def nodes(self) -> Mapping[int, str]:
        """The nodes that are online, and their names."""
        with _reaching():
            return {int(node.node_id): str(node.name) for node in self._grid.get_nodes()}

    def send(self, requests: Sequence[Request], *, seconds: float) -> list[str]:
        """Push messages; those of one content share it."""
        from flwr.app import Message, RecordDict

        names: list[str] = []
        shared: dict[int, Any] = {}
        for first in range(0, len(requests), _PUSH_BATCH):
            messages = []
            for request in requests[first : first + _PUSH_BATCH]:
                records = RecordDict({"content": _record(request.content)} if request.content else {})
                if request.shared:
                    key = id(request.shared)
                    shared[key] = shared.get(key) or _record(request.shared)
                    records["shared"] = shared[key]
                kind = MESSAGE_TYPES[request.action]
                messages.append(Message(records, request.node, kind, ttl=max(seconds, 5.0), group_id=request.group))
            with _reaching():
                names += [name or "" for name in self._grid.push_messages(messages)]
        return names

    def poll(self, requests: Iterable[str], *, most: int = 32) -> list[Reply]:
        """Pull at most `most` of the replies that have come."""
        wanted = list(requests)
        open_ = [name for name in wanted if name not in self._ready]
        if len(self._ready) < most and self._may_ask():
            began = time.monotonic()
            for first in range(0, len(open_), most):  # pulling a reply loads it: ask for few at a time
                with _reaching():
                    pulled = [_reply(message) for message in self._grid.pull_messages(open_[first : first + most])]
                self._keep(pulled)
                if len(self._ready) >= most:
                    break
            self._rest_since(began)
        return self._take(wanted, most)

    def _may_ask(self) -> bool:
        return time.monotonic() >= self._next_question

    def _rest_since(self, began: float) -> None:
        now = time.monotonic()
        self._next_question = now + max(_POLL_SECONDS, _REST * (now - began))

    def _keep(self, replies: Iterable[Reply]) -> None:
        self._ready |= {reply.request: (reply, time.monotonic()) for reply in replies}

    def _take(self, wanted: Iterable[str], most: int) -> list[Reply]:
        """The replies that are ready and wanted; those that have been unwanted for long are dropped."""
        came = [self._ready.pop(name)[0] for name in [name for name in wanted if name in self._ready][:most]]
        old = time.monotonic() - _KEEP_SECONDS
        self._ready = {name: ready for name, ready in self._ready.items() if ready[1] > old}
        return came


class DirectTransport(GridTransport):
    """A `GridTransport` that fetches replies side by side.

    A device announces its reply, and then sends it part by part. Flower's `pull_messages` waits for all parts of one
    reply before it turns to the next, for minutes if a device stops half-way. Here a thread fetches each reply.
    Announcements are small: all of them are heard, and wait for one of a few threads.
    """

    def __init__(self, grid: Any) -> None:
        super().__init__(grid)
        self._announced: dict[str, internals.Announcement] = {}
        self._fetching: set[str] = set()
        self._fetched: queue.SimpleQueue[Reply] = queue.SimpleQueue()

    def poll(self, requests: Iterable[str], *, most: int = 32) -> list[Reply]:
        """Fetch the replies that have come; no more than `most` are in memory at a time."""
        wanted = list(requests)
        if len(self._announced) < most and self._may_ask():
            began = time.monotonic()
            known = self._announced.keys() | self._fetching | self._ready.keys()
            open_ = [name for name in wanted if name not in known]
            for first in range(0, len(open_), _PULL_BATCH):
                with _reaching():
                    self._announced |= self._ask(open_[first : first + _PULL_BATCH])
            self._rest_since(began)
        while self._announced and len(self._fetching) + len(self._ready) < most:
            name = next(iter(self._announced))
            self._fetching.add(name)
            threading.Thread(target=self._fetch, args=(name, self._announced.pop(name)), daemon=True).start()
        while not self._fetched.empty():
            reply = self._fetched.get()
            self._fetching.discard(reply.request)
            self._keep([reply])
        return self._take(wanted, most)

    def _ask(self, names: list[str]) -> dict[str, internals.Announcement]:
        """The replies to these requests that were announced."""
        return internals.announced_replies(self._grid, names)

    def _fetch(self, name: str, announced: internals.Announcement) -> None:
        """Fetch the reply to the request of this name, whichever request the device wrote into it."""
        try:
            reply = _reply(internals.fetch_reply(self._grid, announced, seconds=_FETCH_SECONDS))
            self._fetched.put(reply if reply.request == name else Reply(name, None, "malformed message"))
        except Exception as error:
            self._fetched.put(Reply(name, None, type(error).__name__))


def _reply(message: Any) -> Reply:
    name = str(message.metadata.reply_to_message_id)
    if message.has_error():
        return Reply(name, None, f"error {message.error.code}")
    try:
        return Reply(name, from_records(message.content))
    except (KeyError, AttributeError, TypeError):
        return Reply(name, None, "malformed message")
