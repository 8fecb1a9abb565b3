"""A transport over Flower's Grid: requests and replies as messages, with what they carry as bytes by name.

Flower makes a request over HTTP of every record, so little content goes as one record; much goes as arrays, which
Flower sends in chunks that are tried again one by one.

The Grid's own `send_and_receive` sleeps for three seconds between looks and holds every reply in memory at once; here
requests are pushed and replies fetched in the round's own time, some at once. Requests of a round share their content,
so Flower stores it once, whatever the number of devices.
"""

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedgram.deployment.transport import Content, Lost, Reply, Request

_PATIENCE = 120.0  # seconds for a reply that has been announced
_FORGOTTEN = 60.0  # seconds after which a reply is dropped that nobody asks for any more
_PUSHED_AT_ONCE, _ASKED_AT_ONCE = 25, 100  # what takes Flower more than 30 s is lost, with what it had fetched
_BETWEEN, _RESPITE = 0.1, 4.0  # seconds between questions for replies: so many, and times as long as one took
_LITTLE = 1 << 18
MESSAGE_TYPES = {"join": "query.join", "report": "train.report", "secure": "train.secure"}


def to_records(content: Content) -> Any:
    """Bytes by name as Flower's records."""
    from flwr.app import RecordDict

    return RecordDict({"content": _record(content)})


def _record(content: Content) -> Any:
    from flwr.app import Array, ArrayRecord, ConfigRecord

    if sum(map(len, content.values())) <= _LITTLE:
        return ConfigRecord(dict(content))
    return ArrayRecord({name: Array("uint8", (len(data),), "bytes", data) for name, data in content.items()})


def from_records(records: Any) -> dict[str, bytes]:
    """The bytes by name of Flower's records."""
    parts = [item for name in ("content", "shared") if name in records for item in records[name].items()]
    return {str(name): bytes(part if isinstance(part, bytes) else part.data) for name, part in parts}


@contextmanager
def _reaching() -> Iterator[None]:
    """Whatever Flower raises on the way to the SuperLink is `Lost`."""
    try:
        yield
    except Exception as error:
        raise Lost(f"the SuperLink cannot be reached ({type(error).__name__})") from error


class GridTransport:
    """A `Transport` over a Grid."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._not_before = 0.0
        self._announced: dict[str, tuple[Any, Any]] = {}
        self._fetching: set[str] = set()
        self._ready: dict[str, tuple[Reply, float]] = {}
        self._fetched: queue.SimpleQueue[Reply] = queue.SimpleQueue()

    def nodes(self) -> Mapping[int, str]:
        """The nodes that are online, and their names."""
        with _reaching():
            return {int(node.node_id): str(node.name) for node in self._grid.get_nodes()}

    def send(self, requests: Sequence[Request], *, seconds: float) -> list[str]:
        """Push messages; those of one content share it."""
        from flwr.app import Message, RecordDict

        names: list[str] = []
        shared: dict[int, Any] = {}
        for first in range(0, len(requests), _PUSHED_AT_ONCE):
            messages = []
            for request in requests[first : first + _PUSHED_AT_ONCE]:
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
        """Pull the replies that have come; no more than `most` are in memory at a time.

        A device announces its reply, and then sends it part by part. Flower's `pull_messages` waits for all parts of
        one reply before it turns to the next, for minutes if a device stops half-way; here each is fetched by a
        thread, of which there are a few. An announcement is small: all are heard, and wait their turn.
        """
        wanted = list(requests)
        began = time.monotonic()
        if len(self._announced) < most and began >= self._not_before:
            known = self._announced.keys() | self._fetching | self._ready.keys()
            open_ = [name for name in wanted if name not in known]
            for first in range(0, len(open_), _ASKED_AT_ONCE):
                with _reaching():
                    self._announced |= self._ask(open_[first : first + _ASKED_AT_ONCE])
            now = time.monotonic()
            self._not_before = now + max(_BETWEEN, _RESPITE * (now - began))
        while self._announced and len(self._fetching) + len(self._ready) < most:
            name = next(iter(self._announced))
            self._fetching.add(name)
            threading.Thread(target=self._fetch, args=(name, *self._announced.pop(name)), daemon=True).start()
        while not self._fetched.empty():
            reply = self._fetched.get()
            self._fetching.discard(reply.request)
            self._ready[reply.request] = (reply, time.monotonic())
        came = [self._ready.pop(name)[0] for name in wanted if name in self._ready]
        old = time.monotonic() - _FORGOTTEN
        self._ready = {name: ready for name, ready in self._ready.items() if ready[1] > old}
        return came

    def _ask(self, names: list[str]) -> dict[str, tuple[Any, Any]]:
        """The replies to these requests that were announced."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        found = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=names))
        pairs = zip(found.messages_list, found.message_object_trees, strict=True)
        return {message.metadata.reply_to_message_id: (message, tree) for message, tree in pairs}

    def _fetch(self, name: str, announced: Any, tree: Any) -> None:
        try:
            self._fetched.put(_reply(self._whole(announced.metadata.message_id, tree)))
        except Exception as error:
            self._fetched.put(Reply(name, None, type(error).__name__))

    def _whole(self, message_id: str, tree: Any) -> Any:
        """What `HttpGrid.pull_messages` does for one reply, with less patience."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects

        client, node, run = self._grid._runtime_client, self._grid.node, self._grid.run.run_id
        pull = make_pull_object_fn_protobuf(pull_object_protobuf=client.PullObject, node=node, run_id=run)
        parts = [part.object_id for part in iterate_object_tree(tree)]
        contents = pull_objects(parts, pull, max_time=_PATIENCE, initial_backoff=0.2)
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=message_id)
        )
        return inflate_object_from_contents(message_id, contents)


def _reply(message: Any) -> Reply:
    name = str(message.metadata.reply_to_message_id)
    if message.has_error():
        return Reply(name, None, f"error {message.error.code}")
    try:
        return Reply(name, from_records(message.content))
    except (KeyError, AttributeError, TypeError):
        return Reply(name, None, "malformed message")
