"""A fleet behind Flower's Grid: requests and replies as messages, with what they carry as bytes by name.

Flower makes a request over HTTP of every record, so little content goes as one record; much goes as arrays, which
Flower sends in chunks that are tried again one by one.

The Grid's own `send_and_receive` sleeps for three seconds between looks and holds every reply in memory at once; here
requests are pushed and replies pulled in the round's own time. Requests of a round share their content, so Flower
stores it once, whatever the number of devices.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedgram.flower.fleet import Content, Reply, Request

_PUSHED_AT_ONCE = _PULLED_AT_ONCE = 25  # a request that takes Flower more than 30 s is lost, with what it had fetched
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


class GridFleet:
    """A `Fleet` over a Grid."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def nodes(self) -> Mapping[int, str]:
        """The nodes that are online, and their names."""
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
            names += [name or "" for name in self._grid.push_messages(messages)]
        return names

    def poll(self, requests: Iterable[str]) -> list[Reply]:
        """Pull the replies that have come."""
        wanted = list(requests)
        batches = [wanted[first : first + _PULLED_AT_ONCE] for first in range(0, len(wanted), _PULLED_AT_ONCE)]
        return [_reply(message) for batch in batches for message in self._grid.pull_messages(batch)]


def _reply(message: Any) -> Reply:
    name = str(message.metadata.reply_to_message_id)
    if message.has_error():
        return Reply(name, None, f"error {message.error.code}")
    try:
        return Reply(name, from_records(message.content))
    except (KeyError, AttributeError, TypeError):
        return Reply(name, None, "malformed message")
