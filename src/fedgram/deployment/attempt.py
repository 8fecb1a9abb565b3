"""One attempt at a round over a transport: what plain (`plain_round.py`) and masked rounds (`masked_round.py`) share.

A reply counts for the request that it answers and for no other. A device that says that it took part already, in a sum
that was lost, is noted, so that it is not invited again.
"""

import builtins
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.deployment.device import UnknownJobError
from fedgram.deployment.participation import TOOK_PART
from fedgram.deployment.transport import Content, Reply, Request, Transport
from fedgram.deployment.waiting import Timeouts
from fedgram.federated.fleet import RoundCall, Tally
from fedgram.federated.job import Job
from fedgram.federated.secure.admitted_keys import AdmittedKeys
from fedgram.federated.secure.settings import OtherKeysError
from fedgram.federated.wire import record_to_bytes

_OWN_ERRORS = frozenset(
    ("UnknownJobError", "FedgramError", "InputError", "InvariantError", "MissingDependencyError",
     "RefusedMessageError", "RefusedUpdateError", "OtherKeysError", "RefusedKeyListError")
)  # fmt: skip


@dataclass(slots=True)
class Attempt:
    """An attempt at the round of a call.

    `nodes` has the node of each device, in the order of invitation. `forget` is told of devices that no longer have the
    job. `tally` counts what happens, and `took_part` collects devices that took part before. `admitted` has the keys
    of the devices that count in a masked round.
    """

    transport: Transport
    job: Job[Any]
    call: RoundCall
    nodes: Mapping[int, int]
    timeouts: Timeouts
    forget: Callable[[int], object] = lambda _: None
    on_progress: Callable[[Tally], object] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    tally: Tally = field(default_factory=Tally)
    took_part: set[int] = field(default_factory=set)
    admitted: AdmittedKeys | None = None
    broadcast: bytes = field(init=False)
    shared: Content = field(init=False)
    """What goes with every request: the job, the round, and the digest of the broadcast."""

    def __post_init__(self) -> None:
        self.broadcast = record_to_bytes(self.call.broadcast)
        self.shared = {
            "job": self.job.digest.encode(), "round": str(self.call.number).encode(),
            "broadcast_digest": hashlib.sha256(self.broadcast).hexdigest().encode(),
        }  # fmt: skip

    def send(self, action: str, contents: Mapping[int, Content], shared: Content, *, seconds: float) -> dict[str, int]:
        """Send a request to each of these devices; returns the device of each request that was accepted."""
        requests = [
            Request(self.nodes[device], action, content, shared, str(self.call.number))
            for device, content in contents.items()
        ]
        names = self.transport.send(requests, seconds=max(seconds, 1.0)) if requests else []
        self.tally.bytes_sent += sum(request.size for request, name in zip(requests, names, strict=True) if name)
        if lost := names.count(""):
            self.tally.failed["not sent"] += lost
        return {name: device for name, device in zip(names, contents, strict=True) if name}

    def replies(self, waiting: dict[str, int]) -> Iterator[tuple[int, Content | None]]:
        """Fetch a batch of replies: the device of each, and its answer, or None if it failed or declined.

        The request of a reply is removed from `waiting`, which has the device of each request, when it is its turn.
        """
        for reply in self.transport.poll(list(waiting), most=self.timeouts.batch):
            device = waiting.pop(reply.request, None)
            if device is None:
                self.tally.refused["answers nothing"] += 1
                continue
            self.tally.bytes_received += reply.size
            problem = problem_of(reply)
            if problem is not None:
                self.tally.failed[problem] += 1
                self._note(device, problem)
            yield device, None if problem is not None else reply.content

    def _note(self, device: int, problem: str) -> None:
        if problem in (UnknownJobError.__name__, OtherKeysError.__name__):  # for instance, it was set up anew
            self.forget(device)
        if problem == TOOK_PART:
            self.took_part.add(device)


def problem_of(reply: Reply) -> str | None:
    """Why a reply holds no answer; None if it does."""
    if reply.content is None:
        return reply.error or "no content"
    if "failed" in reply.content:
        name = reply.content["failed"].decode("ascii", "replace")[:40]
        return name if hasattr(builtins, name) or name in _OWN_ERRORS else "failed"  # nothing else is passed on
    declined = reply.content.get("declined")
    return None if declined is None else (TOOK_PART if declined == TOOK_PART.encode() else "declined")


def sorted_devices(devices: Iterable[int]) -> LongArray:
    """Devices as an array, in ascending order."""
    return np.array(sorted(devices), np.int64)
