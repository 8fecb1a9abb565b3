"""A fleet in this process: real devices with stores of their own, and a transport that can be made to misbehave."""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from fedgram.federated.secure.settings import SecureSettings
from fedgram.flower.device import Device
from fedgram.flower.fleet import Reply, Request
from fedgram.flower.store import open_store, write_store

Misbehave = Callable[[Request, dict[str, bytes]], dict[str, bytes] | None]


def make_devices(
    folder: Path, texts: Mapping[int, Sequence[str]], masking: SecureSettings | None = None
) -> dict[int, Device]:
    """Devices by node; node 100 + n is device n."""
    devices = {}
    for number, own in texts.items():
        path = folder / f"{number}.sqlite"
        write_store(path, number, own)
        jobs = Path(tempfile.mkdtemp(dir=folder)) / "jobs"
        devices[100 + number] = Device(open_store(path), jobs, masking=masking)
    return devices


class LocalFleet:
    """Answers at once, unless `misbehave` changes or swallows (None) a reply."""

    def __init__(self, devices: Mapping[int, Device], misbehave: Misbehave = lambda _, reply: reply) -> None:
        self.devices, self.misbehave = dict(devices), misbehave
        self.sent: list[Request] = []
        self.replies: dict[str, Reply] = {}
        self.largest_batch = 0

    def nodes(self) -> Mapping[int, str]:
        return dict.fromkeys(self.devices, "")

    def send(self, requests: Sequence[Request], *, seconds: float) -> list[str]:
        assert seconds > 0
        names = []
        for request in requests:
            name = str(len(self.sent))
            self.sent.append(request)
            names.append(name)
            device = self.devices[request.node]
            act = {"join": device.join, "report": device.report, "secure": device.secure}[request.action]
            try:
                reply = act({**request.content, **request.shared})
            except Exception as error:
                reply = {"failed": type(error).__name__.encode()}
            changed = self.misbehave(request, reply)
            if changed is not None:
                self.replies[name] = Reply(name, changed)
        return names

    def poll(self, requests: Iterable[str], *, most: int = 32) -> list[Reply]:
        came = [self.replies.pop(name) for name in [name for name in requests if name in self.replies][:most]]
        self.largest_batch = max(self.largest_batch, len(came))
        return came
