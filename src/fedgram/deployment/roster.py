"""Which devices can be invited: every node that appears is sent the job once, and says which device it is.

A device's number belongs to one node at a time. A node that the operator registered under the name `device-N` may speak
for device N only.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection

import numpy as np

from fedgram.deployment.store import MAX_DEVICES
from fedgram.deployment.transport import Reply, Request, Transport
from fedgram.deployment.waiting import Presence

_RETRY_SECONDS = 30.0  # until a node that was not ready or failed is sent the job again
_SILENT, _EXPIRED = 10, 20  # times as long until a silent node is sent it again, and until its reply is ignored
NAME = "device-"


def device_number(content: bytes) -> int:
    """The number of a device as it was sent; `MAX_DEVICES` if it is none."""
    return int(content) if content.isdigit() and len(content) < 15 else MAX_DEVICES


def may_speak_for(device: int, name: str) -> bool:
    """Whether a node that is registered under a name may speak for a device."""
    return device < MAX_DEVICES and (not name.startswith(NAME) or name == f"{NAME}{device}")


class Roster:
    """The devices of one job; `on_model` is told which version of a published model each of them has."""

    def __init__(
        self, transport: Transport, job: bytes, *, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._transport, self._job, self._clock, self._sleep = transport, job, clock, sleep
        self._device: dict[int, int] = {}
        self._waiting: dict[str, tuple[int, float]] = {}
        self._not_before: dict[int, float] = {}
        self._names: dict[int, str] = {}
        self._heard: set[int] = set()
        self.admitted: Callable[[], bytes] = bytes  # the signed list of admitted keys, which goes with the job
        self.turned_away: Counter[str] = Counter()
        self.on_model: Callable[[int, bytes], object] = lambda *_: None

    def present(self) -> dict[int, int]:
        """The node of each device that can be invited now."""
        return {device: node for node, device in self._device.items() if node in self._names}

    def look(self) -> Presence:
        """Who is there now, after a refresh."""
        self.refresh()
        return Presence(np.array(sorted(self.present()), np.int64), len(self._names), dict(self.turned_away))

    def refresh(self) -> None:
        """Update the list of nodes, send the job to those that lack it, and read the replies that have come."""
        self._names, now = dict(self._transport.nodes()), self._clock()
        for reply in self._transport.poll(list(self._waiting)):
            if reply.request in self._waiting:
                node, _ = self._waiting.pop(reply.request)
                self._hear(node, reply)
        self._waiting = {
            name: (node, until) for name, (node, until) in self._waiting.items() if now <= until and node in self._names
        }
        self._not_before = {n: t for n, t in self._not_before.items() if n in self._names}  # at once if it comes back
        self._send_job(
            [n for n in sorted(self._names) if n not in self._device and self._not_before.get(n, now) <= now], now
        )

    def _send_job(self, nodes: list[int], now: float) -> None:
        if not nodes:
            return
        job, expired = {"job": self._job}, _EXPIRED * _RETRY_SECONDS
        if admitted := self.admitted():
            job["admitted"] = admitted
        names = self._transport.send([Request(node, "join", {}, job) for node in nodes], seconds=expired)
        for node, name in zip(nodes, names, strict=True):
            self._not_before[node] = now + _SILENT * _RETRY_SECONDS
            if name:
                self._waiting[name] = (node, now + expired)

    def _hear(self, node: int, reply: Reply) -> None:
        name = self._names.get(node)
        if name is None:  # for which device it may speak is not known; it is sent the job again when it is back
            return
        content = reply.content or {}
        ready, number = content.get("ready", b"failed"), content.get("device", b"")
        self._not_before[node] = self._clock() + _RETRY_SECONDS
        device = device_number(number)
        self._heard.add(device)
        if may_speak_for(device, name):
            self.on_model(device, content.get("model", b""))
        if ready != b"yes":
            self.turned_away["not ready" if "device" in content else "failed"] += 1
            return
        if not may_speak_for(device, name):
            self.turned_away["speaks for another device"] += 1
        elif self._device.get(node) == device:
            return  # it was sent the job twice
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

    def hear_from(self, devices: Collection[int], seconds: float, *, poll: float = 0.3) -> None:
        """Wait until each of these devices has said whether it is ready, but at most so many seconds.

        Devices that have said so before are not waited for, even if they are gone.
        """
        end, named = self._clock() + seconds, set(devices)
        self.refresh()
        while not named <= self._heard and self._clock() < end:
            self._sleep(poll)
            self.refresh()
