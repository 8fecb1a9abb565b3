"""What a registered node may ask of the server: so many requests at a time and per second, and replies of some size.

A node may send a reply for every message that it was sent. So it earns the right to send bytes by being asked, and what
the server holds in memory for a node is bounded by what the server wanted to know.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

OPEN, RATE, BURST = 8, 100.0, 1000.0  # requests of a node: at a time, per second, and in one go
_REPLIES = 4  # whose bytes a node may save up
_REMEMBERED = 1 << 17  # nodes


@dataclass(slots=True)
class _Account:
    requests: float
    credit: int
    since: float
    open: int = 0


class Quotas:
    """The accounts of all nodes; `reply_bytes` is the largest reply to one message."""

    def __init__(self, reply_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reply_bytes, self._clock = reply_bytes, clock
        self._accounts: OrderedDict[int, _Account] = OrderedDict()

    def _account(self, node: int) -> _Account:
        found = self._accounts.get(node)
        if found is None:
            found = self._accounts[node] = _Account(BURST, self._reply_bytes, self._clock())
            if len(self._accounts) > _REMEMBERED:
                self._accounts.popitem(last=False)
        return found

    def enter(self, node: int) -> bool:
        """Begin a request of a node; False if it has too many already. Call `leave` when it has ended."""
        account, now = self._account(node), self._clock()
        account.requests = min(BURST, account.requests + RATE * (now - account.since))
        account.since = now
        if account.open >= OPEN or account.requests < 1.0:
            return False
        account.requests -= 1.0
        account.open += 1
        return True

    def leave(self, node: int) -> None:
        """End a request."""
        self._account(node).open -= 1

    def asked(self, node: int) -> None:
        """The node was sent a message, and may reply."""
        account = self._account(node)
        account.credit = min(account.credit + self._reply_bytes, _REPLIES * self._reply_bytes)

    def spend(self, node: int, size: int) -> bool:
        """Take so many bytes of a reply; False if the node was not asked for so much."""
        account = self._account(node)
        if size > account.credit:
            return False
        account.credit -= size
        return True
