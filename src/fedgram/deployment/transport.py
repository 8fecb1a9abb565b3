"""Requests to nodes and their replies: whom a server can reach, what it sends, what comes back.

`Transport` is all that rounds over a network need. Behind it stands Flower's Grid (`grid_transport.py`) or, in tests, a
handful of devices in this process.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedgram.core.errors import FedgramError

Content = Mapping[str, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A message to a node: what it is to do (`join`, `report`, …), and what it needs for that.

    `shared` is what all of a round's requests have in common: the same object for each, so that it is stored once.
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


class Lost(FedgramError):
    """The transport itself failed, as when the SuperLink dies; what was going on may be tried over another one."""


class Transport(Protocol):
    """A transport; any of its methods may raise `Lost`."""

    def nodes(self) -> Mapping[int, str]:
        """The nodes that are there now, and the names under which they were registered, if any."""

    def send(self, requests: Sequence[Request], *, seconds: float) -> list[str]:
        """Send requests that are of use for so many seconds; returns what each is called, "" if it was not taken."""

    def poll(self, requests: Iterable[str], *, most: int = 32) -> list[Reply]:
        """Replies that have come for some of these requests; at most one each, ever, and at most so many at once."""
