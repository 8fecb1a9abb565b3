"""Waiting for devices: for how long, for how many, and what an operator sees meanwhile."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError

_NOTICE_AFTER, _NOTICE_EVERY = 5.0, 30.0  # seconds until a wait is mentioned, and between mentions


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a server waits.

    A round ends after `deadline` seconds. The server waits `wait_seconds` for devices to appear, and `idle_seconds` for
    further ones when all others have taken part. It waits for `wait_for` devices; 0 means as many as a round wants. It
    fetches `batch` replies at a time, and polls every `poll` seconds.
    """

    deadline: float = 600.0
    wait_seconds: float = 600.0
    idle_seconds: float = 60.0
    wait_for: int = 0
    batch: int = 32
    poll: float = 0.2

    def __post_init__(self) -> None:
        if not min(self.deadline, self.wait_seconds, self.poll) > 0 or self.idle_seconds < 0 or self.batch < 1:
            raise FedgramError("deadlines and polling intervals must be greater than 0, batches at least 1")


@dataclass(frozen=True, slots=True, eq=False)
class Presence:
    """The devices that can be invited, the number of nodes online, and of those turned away, by reason."""

    devices: LongArray = field(default_factory=lambda: np.zeros(0, np.int64))
    online: int = 0
    turned_away: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceWait:
    """A wait for devices.

    `look` returns who is there, or None while the server is away. `on_wait` is called at every poll with the numbers of
    devices that are there, wanted, online and turned away.
    """

    look: Callable[[], Presence | None]
    timeouts: Timeouts
    on_wait: Callable[[Mapping[str, Any]], object]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    poll: float = 0.3

    def wait(self, wanted: int, spent: LongArray) -> LongArray:
        """The devices that are there and not in `spent`, as soon as enough are; with `wanted` = 0, at once.

        Too few devices are an error if no device is spent. Otherwise the wait is for the last ones: it is shorter, ends
        without an error, and does not begin before the server is back.
        """
        timeouts, goal = self.timeouts, (self.timeouts.wait_for or wanted) if wanted else 0
        seconds = timeouts.idle_seconds if len(spent) else timeouts.wait_seconds
        end = self.clock() + seconds
        while True:
            there = self.look()
            if there is None and len(spent):
                end = self.clock() + seconds
            there = there or Presence()
            found = np.setdiff1d(there.devices, spent)
            if len(found) >= goal:
                return found
            about = {
                "there": len(found), "wanted": goal, "online": there.online, "turned_away": dict(there.turned_away)
            }  # fmt: skip
            if self.clock() > end:
                if len(spent):
                    return found
                raise FedgramError(f"{waiting_in_words(about)}; gave up after {seconds:.0f} s")
            self.on_wait(about)
            self.sleep(self.poll)


def waiting_in_words(about: Mapping[str, Any]) -> str:
    """What a server waits for: devices, if a number of them is `wanted`, or else the run."""
    there, wanted, online = (about.get(name, 0) for name in ("there", "wanted", "online"))
    away = ", ".join(f"{n} {why}" for why, n in about.get("turned_away", {}).items())
    ready = f"devices: {there} of {wanted} are ready" if wanted else f"a round: {there} ready"
    return f"waiting for {ready} ({online} online{f'; turned away so far: {away}' if away else ''})"


class WaitNotices:
    """Says on standard error what a command waits for, if it takes long; says it again if it changes."""

    def __init__(self) -> None:
        self._said, self._next = "", float("inf")

    def tell(self, what: str, now: float) -> None:
        """Take note of what the command waits for at this time; "" if it waits for nothing."""
        if not what:
            self._said, self._next = "", float("inf")
            return
        self._next = min(self._next, now + (_NOTICE_EVERY if self._said else _NOTICE_AFTER))
        if what != self._said and now >= self._next:
            print(f"fedgram: {what}", file=sys.stderr)
            self._said, self._next = what, now + _NOTICE_EVERY
