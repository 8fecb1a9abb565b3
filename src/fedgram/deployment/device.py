"""How a device answers requests. Nothing here depends on Flower, so that devices can be tested without it.

Asked to *join* a job, a device says whether it is ready. Asked to *report*, it computes an update with the task's
`client_update` and sends its bytes, or masks it together with other devices in four steps. It applies its own rules,
whatever the server says: the settings it has pinned, and how often it takes part in a job. If an error occurs it sends
only the name of the error, never a message, which could quote text.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.locks import locked
from fedgram.core.storage import atomic_write
from fedgram.deployment.keys import write_secret
from fedgram.deployment.participation import TOOK_PART, Participations
from fedgram.deployment.store import DeviceStore, device_data, open_store
from fedgram.federated.job import Job, job_from_bytes
from fedgram.federated.secure.client import SecureClient
from fedgram.federated.secure.messages import Kind, kind_of
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.secure.vectors import round_digest, update_to_vector, vector_length
from fedgram.federated.task import Update, device_stream
from fedgram.federated.wire import record_from_bytes, update_to_bytes

Content = dict[str, bytes]
Hook = Callable[[DeviceStore], str | None]
_KEPT_JOBS = 4
_POWER_SUPPLIES = Path("/sys/class/power_supply")
_LOCK_SECONDS = 300.0


class UnknownJobError(FedgramError):
    """A job that this device was never sent, or has deleted. The server knows this error by its name."""


def enough_text(store: DeviceStore, least: int) -> str | None:
    """Why a device with fewer than `least` messages does not take part; None if it has enough."""
    return None if store.messages() >= least else "too little text"


def on_charger(_: DeviceStore) -> str | None:
    """Why a device does not take part now: it runs on battery. A device without a known power supply takes part."""
    supplies = list(_POWER_SUPPLIES.glob("*/online"))
    try:
        online = [path.read_text().strip() == "1" for path in supplies]
    except OSError:
        return None
    return "on battery" if online and not any(online) else None


def idle(_: DeviceStore) -> str | None:
    """Why a device does not take part now: its processors are busy with other work."""
    return "busy" if os.getloadavg()[0] > 2 * (os.cpu_count() or 1) else None


HOOKS: Mapping[str, Hook] = {"charging": on_charger, "idle": idle}


@dataclass(frozen=True, slots=True)
class Device:
    """A device: its store, a folder for the jobs it was sent, and its conditions for taking part.

    It needs at least `min_messages` messages, and every hook must return None. With `masking` it sends only masked
    updates, in a cohort of at least the size given there. It takes part in at most `participations` rounds of a job
    that counts. `pins` are digests that settings of a job must have.
    """

    store: DeviceStore
    jobs: Path
    min_messages: int = 1
    hooks: tuple[Hook, ...] = ()
    masking: SecureSettings | None = None
    participations: int = 1
    pins: Mapping[str, str] = field(default_factory=dict)

    def why_not(self) -> str | None:
        """Why the device does not take part now; None if it does."""
        reasons = (enough_text(self.store, self.min_messages), *(hook(self.store) for hook in self.hooks))
        return next((reason for reason in reasons if reason), None)

    def join(self, request: Content) -> Content:
        """Store the job; answer with the device's number and whether it is ready."""
        with self._alone():
            return self._join(request["job"])

    def _join(self, content: bytes) -> Content:
        ready = self._not_pinned(job_from_bytes(content)) or self.why_not() or "yes"
        self.jobs.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.jobs / hashlib.sha256(content).hexdigest()) as file:
            file.write(content)
        for old in sorted(self.jobs.iterdir(), key=lambda p: p.stat().st_mtime)[:-_KEPT_JOBS]:
            old.unlink(missing_ok=True)
        return {"device": str(self.store.number).encode(), "ready": ready.encode()}

    def _not_pinned(self, job: Job[Any]) -> str | None:
        parts = job.parts() if self.pins else {}
        wrong = [name for name, digest in self.pins.items() if name in parts and parts[name] != digest]
        return f"not the pinned {wrong[0]}" if wrong else None

    def report(self, request: Content) -> Content:
        """The update of a round, as bytes; a device that is not ready declines."""
        with self._alone():
            return self._report(request)

    def _report(self, request: Content) -> Content:
        job, number = self.job(request["job"].decode()), _round(request)
        noted, limit = self._noted(), self._limit(job)
        if reason := self._declines(job) or ("only masked" if self.masking else None):
            return {"declined": reason.encode()}
        report = update_to_bytes(self._update(job, number, request["broadcast"]))
        digest = hashlib.sha256(report).hexdigest()
        if not noted.may_report(job.question, number, digest, limit):
            return {"declined": TOOK_PART.encode()}
        if limit is not None:  # before anything leaves the device
            noted.reported(job.question, number, digest)
        return {"update": report}

    def secure(self, request: Content) -> Content:
        """The next step of a masked round. The state between two steps is used once: it is deleted before the answer.

        The job, the round and the digest of the broadcast are part of the round's context from the first step on, and
        the broadcast itself must have that digest.
        """
        with self._alone():
            return self._secure(request)

    def _secure(self, request: Content) -> Content:
        job, number, message = self.job(request["job"].decode()), _round(request), request["message"]
        noted, limit, kind = self._noted(), self._limit(job), kind_of(message)
        kept = self.jobs.with_name("masked-round")
        if reason := self._declines(job) or (None if self.masking else "never masked"):
            return {"declined": reason.encode()}
        if not noted.may_mask(job.question, limit, begins=kind == Kind.INVITATION):
            return {"declined": TOOK_PART.encode()}
        assert self.masking is not None
        digest = request["broadcast_digest"].decode()

        def vector() -> LongArray:
            if hashlib.sha256(request["broadcast"]).hexdigest() != digest:
                raise FedgramError("the broadcast is not the one that the round began with")
            return update_to_vector(job.task, self._update(job, number, request["broadcast"]))

        length, about = vector_length(job.task.size), round_digest(job.digest, number, digest)
        if kind == Kind.INVITATION:
            client = SecureClient(self.masking, length, vector, about=about)
        elif not kept.is_file():
            return {"declined": b"round not known"}
        else:
            client = SecureClient.restore(kept.read_bytes(), self.masking, length, vector, about=about)
        kept.unlink(missing_ok=True)
        answer = client.answer(message)
        if limit is not None and kind in (Kind.DELIVERY, Kind.SURVIVORS):  # before anything leaves the device
            (noted.masked if kind == Kind.DELIVERY else noted.unmasked)(job.question)
        if kind != Kind.SURVIVORS:
            write_secret(kept, client.save())
        return {"answer": answer}

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Answer one request at a time, also across processes: participation is recorded before anything is sent."""
        self.jobs.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(
            self.jobs.parent, seconds=_LOCK_SECONDS, taken="the device is busy with another request", name=".device"
        ):
            yield

    def _declines(self, job: Job[Any]) -> str | None:
        return self._not_pinned(job) or self.why_not()

    def _limit(self, job: Job[Any]) -> int | None:
        """How often this device takes part in a job: the job's limit, and for jobs that count the device's own."""
        limits = [job.participations, self.participations if job.task.is_counting else None]
        return min((limit for limit in limits if limit is not None), default=None)

    def _noted(self) -> Participations:
        return Participations(self.jobs.with_name("participations.json"))

    def _update(self, job: Job[Any], round_number: int, broadcast: bytes) -> Update:
        own = self.store.population()
        data = device_data(own, self.store.number, job.task.encode(own.words))
        rng = device_stream(job.seed, round_number, self.store.number)
        return job.task.client_update(record_from_bytes(broadcast), data, rng)

    def job(self, digest: str) -> Job[Any]:
        """A job that this device was sent before."""
        path = self.jobs / digest
        if len(digest) != 64 or not digest.isalnum() or not path.is_file():
            raise UnknownJobError("this device does not have the job")
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise UnknownJobError("the job on this device is damaged")
        return job_from_bytes(content)


def _round(request: Content) -> int:
    number = request["round"]
    if not (number.isdigit() and len(number) < 10 and int(number)):
        raise FedgramError("the request has no valid round number")
    return int(number)


def open_device(
    data: str | Path, jobs: str | Path, *, min_messages: int = 1, hooks: str = "", masked_with: int = 0,
    participations: int = 1, pins: str = "",
) -> Device:  # fmt: skip
    """The device of a store; `hooks` are names of conditions and `pins` are NAME=DIGEST, both separated by commas.

    `masked_with` is the minimum number of devices in a sum with this device's update; 0 means that it sends its updates
    unmasked.
    """
    names = [name for name in hooks.split(",") if name]
    if unknown := [name for name in names if name not in HOOKS]:
        raise FedgramError(f"unknown condition {unknown[0]!r}; choose from {', '.join(HOOKS)}")
    masking = SecureSettings(min_devices=masked_with) if masked_with else None
    pinned = dict(pin.split("=", 1) for pin in pins.split(",") if pin)
    return Device(
        open_store(data), Path(jobs), min_messages, tuple(HOOKS[name] for name in names), masking, participations,
        pinned,
    )  # fmt: skip
