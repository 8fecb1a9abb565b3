"""How a device answers requests. Nothing here depends on Flower, so that devices can be tested without it.

Asked to *join* a job, a device says whether it is ready, and which model it has. Asked to *report*, it computes an
update with the task's `client_update` and sends its bytes, or masks it together with other devices in five steps. It
applies its own rules, whatever the server says: the settings it has pinned, its arm (`arms.py`), and how often it takes
part in a job. If an error occurs it sends only the name of the error, never a message, which could quote text. Sent a
*release*, it installs the model if it is signed and newer (`installed.py`).
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
from fedgram.deployment.arms import ArmShares, arm_of, wanted_arm
from fedgram.deployment.installed import ModelFolder, answer_release
from fedgram.deployment.key_list import held_keys, hold_keys
from fedgram.deployment.keys import read_identity, write_secret
from fedgram.deployment.live_task import ANY_ARM, LiveTask
from fedgram.deployment.live_text import LiveText
from fedgram.deployment.own_secret import read_own_secret
from fedgram.deployment.participation import Limits, Participations
from fedgram.deployment.store import DeviceStore, device_data, open_store
from fedgram.federated.job import Job, job_from_bytes
from fedgram.federated.secure.admitted_keys import Credentials
from fedgram.federated.secure.client import SecureClient
from fedgram.federated.secure.messages import Kind, kind_of
from fedgram.federated.secure.settings import MAJORITY, VALUE_BITS, OtherKeysError, SecureSettings
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
    that counts. `pins` are digests that settings of a job must have. `release_key` verifies models before they are
    installed, and the list of admitted keys, the only devices that count in a masked round. `arms` are the shares by
    which it decides its arm; it answers jobs of this arm only.
    """

    store: DeviceStore
    jobs: Path
    min_messages: int = 1
    hooks: tuple[Hook, ...] = ()
    masking: SecureSettings | None = None
    participations: int = 1
    pins: Mapping[str, str] = field(default_factory=dict)
    release_key: Path | None = None
    arms: ArmShares = field(default_factory=ArmShares)

    def why_not(self) -> str | None:
        """Why the device does not take part now; None if it does."""
        reasons = (enough_text(self.store, self.min_messages), *(hook(self.store) for hook in self.hooks))
        return next((reason for reason in reasons if reason), None)

    def join(self, request: Content) -> Content:
        """Store the job; answer with the device's number and whether it is ready."""
        with self._alone():
            if self.masking is not None and "admitted" in request:
                hold_keys(self.jobs.parent, request["admitted"], self.release_key)
            return self._join(request["job"])

    def _join(self, content: bytes) -> Content:
        ready = self._declines(job_from_bytes(content)) or "yes"
        self.jobs.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.jobs / hashlib.sha256(content).hexdigest()) as file:
            file.write(content)
        for old in sorted(self.jobs.iterdir(), key=lambda p: p.stat().st_mtime)[:-_KEPT_JOBS]:
            old.unlink(missing_ok=True)
        return {
            "device": str(self.store.number).encode(), "ready": ready.encode(),
            "model": str(self.models.version()).encode(),
        }  # fmt: skip

    @property
    def models(self) -> ModelFolder:
        """The models that were published to this device."""
        return ModelFolder(self.jobs.with_name("models"))

    def release(self, request: Content) -> Content:
        """Accept a release of a model, and a piece of it; answer what is installed, and what is wanted next."""
        with self._alone():
            number = {"device": str(self.store.number).encode()}
            if any(hook(self.store) for hook in self.hooks):
                return {**number, "model": str(self.models.version()).encode(), "state": b"not ready"}
            secret = read_own_secret(self.jobs.parent)
            return {**number, **answer_release(self.models, self.release_key, secret, request)}

    def _not_pinned(self, job: Job[Any]) -> str | None:
        parts, like = job.parts() if self.pins else {}, getattr(job.task, "pinned_as", None)
        if like:  # also what the other task has and this one lacks
            parts = dict.fromkeys((pin for pin in self.pins if pin.startswith(f"{like}.")), "") | {
                f"{like}.{name.partition('.')[2]}": digest for name, digest in parts.items()
            }
        wrong = [name for name, digest in self.pins.items() if name in parts and parts[name] != digest]
        return f"not the pinned {wrong[0]}" if wrong else None

    def report(self, request: Content) -> Content:
        """The update of a round, as bytes; a device that is not ready declines."""
        with self._alone():
            return self._report(request)

    def _report(self, request: Content) -> Content:
        job, number = self.job(request["job"].decode()), _round(request)
        noted, limits = self._noted(), self._limits(job)
        if reason := self._declines(job) or ("only masked" if self.masking else None):
            return {"declined": reason.encode()}
        report = update_to_bytes(self._update(job, number, request["broadcast"]))
        digest = hashlib.sha256(job.digest.encode() + report).hexdigest()  # the same bytes may answer another question
        if reason := noted.refuses_report(job.question, number, digest, limits):
            return {"declined": reason.encode()}
        if limits.are_any:  # before anything leaves the device
            noted.reported(job.question, number, digest)
        self._sent(job)
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
        noted, limits, kind = self._noted(), self._limits(job), kind_of(message)
        kept = self.jobs.with_name("masked-round")
        if reason := self._declines(job) or (None if self.masking else "never masked"):
            return {"declined": reason.encode()}
        if reason := noted.refuses_mask(job.question, number, limits, begins=kind == Kind.INVITATION):
            return {"declined": reason.encode()}
        assert self.masking is not None
        digest = request["broadcast_digest"].decode()

        def vector() -> LongArray:
            if hashlib.sha256(request["broadcast"]).hexdigest() != digest:
                raise FedgramError("the broadcast is not the one that the round began with")
            return update_to_vector(job.task, self._update(job, number, request["broadcast"]))

        length, about = vector_length(job.task.size), round_digest(job.digest, number, digest)
        own = self._credentials()
        if kind == Kind.INVITATION:
            client = SecureClient(self.masking, length, vector, own, about=about)
        elif not kept.is_file():
            return {"declined": b"round not known"}
        else:
            client = SecureClient.restore(kept.read_bytes(), self.masking, length, vector, own, about=about)
        kept.unlink(missing_ok=True)
        answer = client.answer(message)
        if limits.are_any and kind == Kind.DELIVERY:  # before anything leaves the device
            noted.masked(job.question)
        elif limits.are_any and kind == Kind.CONFIRMED:
            noted.unmasked(job.question, number)
        if kind == Kind.CONFIRMED:
            self._sent(job)
        else:
            write_secret(kept, client.save())
        return {"answer": answer}

    def _credentials(self) -> Credentials:
        """The device's long-term key, and the list of admitted keys that it holds."""
        key, admitted = self.jobs.with_name("key"), held_keys(self.jobs.parent, self.release_key)
        if not key.is_file() or admitted is None:
            raise OtherKeysError("this device has no key, or was not sent the list of admitted keys")
        return Credentials(read_identity(key), admitted)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Answer one request at a time, also across processes: participation is recorded before anything is sent."""
        self.jobs.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(
            self.jobs.parent, seconds=_LOCK_SECONDS, taken="the device is busy with another request", name=".device"
        ):
            yield

    def _declines(self, job: Job[Any]) -> str | None:
        return self._not_in_arm(job) or self._not_pinned(job) or self.why_not() or self._not_live(job)

    def _not_in_arm(self, job: Job[Any]) -> str | None:
        arm = arm_of(self.jobs.parent, self.arms, is_new=not self.jobs.exists())
        mine = wanted_arm(job.task) in (arm, ANY_ARM)
        return None if mine else "not ready"  # nothing more than for other reasons

    def _not_live(self, job: Job[Any]) -> str | None:
        return self._live.why_not(job.task) if isinstance(job.task, LiveTask) else None

    def _sent(self, job: Job[Any]) -> None:
        if isinstance(job.task, LiveTask):
            self._live.sent(job.question)

    @property
    def _live(self) -> LiveText:
        return LiveText(self.jobs.parent, self.store, self.models)

    def _limits(self, job: Job[Any]) -> Limits:
        """When this device takes part in a job: the job's limits, and for jobs that count the device's own."""
        times = [job.participations, self.participations if job.task.is_counting else None]
        return Limits(min((most for most in times if most is not None), default=None), job.min_separation)

    def _noted(self) -> Participations:
        return Participations(self.jobs.with_name("participations.json"))

    def _update(self, job: Job[Any], round_number: int, broadcast: bytes) -> Update:
        if isinstance(job.task, LiveTask):
            shared, own = self._live.measured(job.task, job.question)
        else:
            shared, own = record_from_bytes(broadcast), self.store.population()
        data = device_data(own, self.store.number, job.task.encode(own.words))
        return job.task.client_update(shared, data, device_stream(job.seed, round_number, self.store.number))

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
    participations: int = 1, pins: str = "", release_key: str = "", dev_share: float = 0.0,
    test_share: float = 0.0, neighbours: int = 0, majority: float = MAJORITY, value_bits: int = VALUE_BITS,
) -> Device:  # fmt: skip
    """The device of a store; `hooks` are names of conditions and `pins` are NAME=DIGEST, both separated by commas.

    `masked_with` is the minimum number of devices in a sum with this device's update; 0 means that it sends its updates
    unmasked. `neighbours` (0 for the default), `majority` and `value_bits` are as in `SecureSettings`.
    """
    names = [name for name in hooks.split(",") if name]
    if unknown := [name for name in names if name not in HOOKS]:
        raise FedgramError(f"unknown condition {unknown[0]!r}; choose from {', '.join(HOOKS)}")
    masking = SecureSettings(masked_with, neighbours or None, majority, value_bits) if masked_with else None
    pinned = dict(pin.split("=", 1) for pin in pins.split(",") if pin)
    return Device(
        open_store(data), Path(jobs), min_messages, tuple(HOOKS[name] for name in names), masking, participations,
        pinned, Path(release_key) if release_key else None, ArmShares(dev_share, test_share),
    )  # fmt: skip
