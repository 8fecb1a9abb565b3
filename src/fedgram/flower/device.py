"""What a device does when it is asked: nothing of Flower here, so that it can be tried and simulated without it.

A device is asked to *join* a job, and says whether it is ready; asked to *report*, it computes an update with the
task's `client_update` and sends its bytes, or in four steps masks it together with other devices. Whatever goes wrong
is answered with the name of the error alone, never with a message that could quote text.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.storage import atomic_write
from fedgram.federated.secure.client import SecureClient
from fedgram.federated.secure.messages import Kind, kind_of
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.secure.vectors import update_to_vector, vector_length
from fedgram.federated.task import FederatedTask
from fedgram.federated.wire import update_to_bytes
from fedgram.flower.job import Job, job_digest, job_from_bytes
from fedgram.flower.keys import write_secret
from fedgram.flower.store import DeviceStore, open_store

Content = dict[str, bytes]
Hook = Callable[[DeviceStore], str | None]
_KEPT_JOBS = 4


class NotKnown(FedgramError):
    """A job that this device was never sent, or has forgotten."""


def enough_text(store: DeviceStore, least: int) -> str | None:
    """Why a device has too little text to take part; None if it has enough."""
    return None if store.messages() >= least else "too little text"


def on_charger(_: DeviceStore) -> str | None:
    """Why a device is not to be used now: it runs on its battery. Where none can be found, it may be used."""
    supplies = list(Path("/sys/class/power_supply").glob("*/online"))
    try:
        online = [path.read_text().strip() == "1" for path in supplies]
    except OSError:
        return None
    return "on battery" if online and not any(online) else None


def idle(_: DeviceStore) -> str | None:
    """Why a device is not to be used now: it is busy with something else."""
    return "busy" if os.getloadavg()[0] > 2 * (os.cpu_count() or 1) else None


HOOKS: Mapping[str, Hook] = {"charging": on_charger, "idle": idle}


@dataclass(frozen=True, slots=True)
class Device:
    """A device: its store, a folder for the jobs it was sent, and what it demands before it takes part.

    With `masking` it sends no update but a masked one, in a cohort of the size that it demands itself.
    """

    store: DeviceStore
    jobs: Path
    min_messages: int = 1
    hooks: tuple[Hook, ...] = ()
    masking: SecureSettings | None = None

    def why_not(self) -> str | None:
        """Why the device does not take part now; None if it does."""
        reasons = (enough_text(self.store, self.min_messages), *(hook(self.store) for hook in self.hooks))
        return next((reason for reason in reasons if reason), None)

    def join(self, request: Content) -> Content:
        """Keep the job; say who this is, and whether it is ready."""
        content = request["job"]
        job_from_bytes(content)
        self.jobs.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.jobs / job_digest(content)) as file:
            file.write(content)
        for old in sorted(self.jobs.iterdir(), key=lambda p: p.stat().st_mtime)[:-_KEPT_JOBS]:
            old.unlink(missing_ok=True)
        return {"device": str(self.store.number).encode(), "ready": (self.why_not() or "yes").encode()}

    def report(self, request: Content) -> Content:
        """The update of a round, as bytes; a device that is not ready says so instead."""
        if reason := self.why_not() or ("only masked" if self.masking else None):
            return {"declined": reason.encode()}
        job = self.job(request["job"].decode())
        update = job.update(self.store.population(), self.store.number, request["state"])
        return {"update": update_to_bytes(update)}

    def secure(self, request: Content) -> Content:
        """The next step of a masked round. What is kept between steps is used once: it is gone before the answer is."""
        if reason := self.why_not() or (None if self.masking else "never masked"):
            return {"declined": reason.encode()}
        assert self.masking is not None
        job, message, kept = self.job(request["job"].decode()), request["message"], self.jobs.with_name("masked-round")
        task: FederatedTask[Any] = job.task()

        def vector() -> LongArray:
            return update_to_vector(task, job.update(self.store.population(), self.store.number, request["state"]))

        length, kind = vector_length(task.size), kind_of(message)
        if kind == Kind.INVITATION:
            client = SecureClient(self.masking, length, vector)
        elif not kept.is_file():
            return {"declined": b"round not known"}
        else:
            client = SecureClient.restore(kept.read_bytes(), self.masking, length, vector)
        kept.unlink(missing_ok=True)
        answer = client.answer(message)
        if kind != Kind.SURVIVORS:
            write_secret(kept, client.save())
        return {"answer": answer}

    def job(self, digest: str) -> Job:
        """A job that was sent before."""
        path = self.jobs / digest
        if len(digest) != 64 or not digest.isalnum() or not path.is_file():
            raise NotKnown("this device does not have the job")
        return job_from_bytes(path.read_bytes())


def open_device(
    data: str | Path, jobs: str | Path, *, min_messages: int = 1, hooks: str = "", masked_with: int = 0
) -> Device:
    """The device of a store; `hooks` names what it demands, with commas between.

    `masked_with` is the fewest devices whose sum it lets itself be part of; 0: it sends its updates unmasked.
    """
    names = [name for name in hooks.split(",") if name]
    if unknown := [name for name in names if name not in HOOKS]:
        raise FedgramError(f"unknown condition {unknown[0]!r}; choose from {', '.join(HOOKS)}")
    masking = SecureSettings(min_devices=masked_with) if masked_with else None
    return Device(open_store(data), Path(jobs), min_messages, tuple(HOOKS[name] for name in names), masking)
