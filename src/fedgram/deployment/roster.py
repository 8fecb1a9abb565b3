"""Which devices can be asked: every node that appears is sent the job once, and says which device it is.

A device's number belongs to one node at a time. Where nodes were registered under the name `device-N`, which the
operator gives with the node's key, a node may speak for device N alone.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fedgram.core.errors import FedgramError
from fedgram.deployment.store import MOST_DEVICES
from fedgram.deployment.transport import Reply, Request, Transport

_ASK_AGAIN = 30.0  # seconds until a node that was not ready or failed is asked again
_SILENT, _EXPIRED = 10, 20  # times as long until one that is silent is asked again, and until its answer is of no use
NAME = "device-"


class Roster:
    """The devices of one job."""

    def __init__(
        self, transport: Transport, job: bytes, *, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep, ask_again: float = _ASK_AGAIN,
    ) -> None:  # fmt: skip
        self._transport, self._job, self._clock, self._sleep, self._ask_again = transport, job, clock, sleep, ask_again
        self._device: dict[int, int] = {}
        self._waiting: dict[str, tuple[int, float]] = {}
        self._not_before: dict[int, float] = {}
        self._names: dict[int, str] = {}
        self._heard: set[int] = set()
        self.turned_away: Counter[str] = Counter()
        self.bytes_sent = 0

    def present(self) -> dict[int, int]:
        """The node of each device that can be asked now."""
        return {device: node for node, device in self._device.items() if node in self._names}

    def refresh(self) -> None:
        """Look who is there, send the job to those who lack it, and hear those who answered."""
        self._names = dict(self._transport.nodes())
        now = self._clock()
        for reply in self._transport.poll(list(self._waiting)):
            if reply.request in self._waiting:
                node, _ = self._waiting.pop(reply.request)
                self._hear(node, reply)
        for name, (node, until) in list(self._waiting.items()):
            if now > until or node not in self._names:
                del self._waiting[name]
        self._not_before = {n: t for n, t in self._not_before.items() if n in self._names}  # who comes back is asked
        new = [n for n in sorted(self._names) if n not in self._device and self._not_before.get(n, now) <= now]
        job = {"job": self._job}
        requests = [Request(node, "join", {}, job) for node in new]
        if requests:
            for node, name in zip(new, self._transport.send(requests, seconds=_EXPIRED * self._ask_again), strict=True):
                self._not_before[node] = now + _SILENT * self._ask_again
                if name:
                    self._waiting[name] = (node, now + _EXPIRED * self._ask_again)
                    self.bytes_sent += len(self._job)

    def _hear(self, node: int, reply: Reply) -> None:
        content = reply.content or {}
        ready, number = content.get("ready", b"failed"), content.get("device", b"")
        self._not_before[node] = self._clock() + self._ask_again
        device = int(number) if number.isdigit() and len(number) < 15 else MOST_DEVICES
        self._heard.add(device)
        if ready != b"yes":
            self.turned_away["not ready" if "device" in content else "failed"] += 1
            return
        name = self._names.get(node, "")
        if device >= MOST_DEVICES or (name.startswith(NAME) and name != f"{NAME}{device}"):
            self.turned_away["speaks for another device"] += 1
        elif self._device.get(node) == device:
            return  # it was asked twice
        elif device in self.present():
            self.turned_away["device already there"] += 1
        else:
            self._device = {n: d for n, d in self._device.items() if d != device} | {node: device}

    def forget(self, device: int) -> None:
        """Send the job to a device again."""
        for node in [n for n, d in self._device.items() if d == device]:
            del self._device[node]
            self._not_before.pop(node, None)
        self._heard.discard(device)

    @property
    def online(self) -> int:
        """How many nodes are there, whether they can be asked or not."""
        return len(self._names)

    def hear_from(self, devices: Collection[int], seconds: float, *, poll: float = 0.3) -> None:
        """Wait until each of these devices has said whether it is ready, at most so long.

        Those that have said so before are not waited for, even if they are gone.
        """
        end, named = self._clock() + seconds, set(devices)
        self.refresh()
        while not named <= self._heard and self._clock() < end:
            self._sleep(poll)
            self.refresh()

    def wait_for(
        self, count: int, seconds: float, *, without: Collection[int] = (), poll: float = 0.3,
        on_wait: Callable[[Mapping[str, Any]], object] = lambda _: None,
    ) -> dict[int, int]:  # fmt: skip
        """The devices that are there, other than those in `without`: as soon as there are so many, or after the time.

        With nobody to leave out, too few devices are an error. `on_wait` is told how many are there.
        """
        end, left_out = self._clock() + seconds, {int(device) for device in without}

        def there() -> dict[int, int]:
            return {device: node for device, node in self.present().items() if device not in left_out}

        self.refresh()
        while len(found := there()) < count:
            if self._clock() > end:
                if left_out:
                    return found
                away = ", ".join(f"{n} {why}" for why, n in self.turned_away.items())
                problem = f"{len(found)} of {count} devices are there after {seconds:.0f} s"
                raise FedgramError(problem + (f" (turned away: {away})" if away else ""))
            on_wait({
                "there": len(found), "wanted": count, "online": self.online,
                "turned_away": dict(self.turned_away),
            })  # fmt: skip
            self._sleep(poll)
            self.refresh()
        return found
