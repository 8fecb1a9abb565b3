"""Requests to nodes and their replies: which nodes a server can reach, what it sends, and what comes back.

`Transport` is all that rounds over a network need. It is implemented over Flower's Grid (`flower/grid_transport.py`)
and, in tests, over a few devices in the same process.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedgram.core.errors import FedgramError

Content = Mapping[str, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A message to a node: an action (`join`, `report`, `secure`, `release`), and what the node needs for it.

    `shared` is what all requests of a round have in common: one object for all of them, so that it is stored once.
    """

    node: int
    action: str
    content: Content
    shared: Content = field(default_factory=dict)
    group: str = ""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(len, (*self.content.values(), *self.shared.values())))

    def __repr__(self) -> str:
        return f"Request({self.node}, {self.action})"


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """What came back for a request: its content, or the kind of error."""

    request: str
    content: Content | None
    error: str | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(len, (self.content or {}).values()))

    def __repr__(self) -> str:
        return f"Reply({self.request[:8]}, {self.error or f'{self.size} bytes'})"


class TransportLostError(FedgramError):
    """The transport failed, for instance because the SuperLink died; the work may be retried over another one."""


class Transport(Protocol):
    """A transport; each of its methods may raise `TransportLostError`."""

    def nodes(self) -> Mapping[int, str]:
        """The nodes that are online, and the names under which they were registered, if any."""

    def send(self, requests: Sequence[Request], *, seconds: float) -> list[str]:
        """Send requests that expire after so many seconds; returns the name of each, "" if it was not accepted."""

    def poll(self, requests: Iterable[str], *, most: int = 32) -> list[Reply]:
        """At most `most` replies that have come for some of these requests. Each is returned once."""
