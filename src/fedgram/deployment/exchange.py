"""A folder through which a run and the server's ServerApp exchange rounds, as files.

    order.json, job            what devices work on, and how the ServerApp serves it    written by the run
    call-J-R-A                 a call of job J for round R, attempt A, with its broadcast       by the run
    devices                    the devices that are there now; written whenever they change     by the ServerApp
    sum-J-R-A                  the answer to a call: a sum, or why there is none                by the ServerApp
    done                       the job is over                                                  by the run
    failed.json                why the ServerApp cannot continue                                by the ServerApp
    alive                      a heartbeat: a number that rises while a ServerApp works here    by the ServerApp

Every file appears complete or not at all. There is one call at a time. A sum is never collected twice: if the run is
killed before it commits the round, it finds the sum in the folder when it resumes.
"""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import LongArray
from fedgram.core.errors import InputError, InvariantError
from fedgram.core.storage import Artefact, Record, atomic_write, content_digest, read_artefact, write_artefact
from fedgram.deployment.waiting import Presence, Timeouts
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.fleet import AbandonedAttemptError, RoundCall, RoundSum, Tally
from fedgram.federated.job import Job, job_from_bytes
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import FederatedTask, Total

ORDER, JOB, DEVICES, DONE, FAILED, ALIVE = "order.json", "job", "devices", "done", "failed.json", "alive"
CALL, SUM, PRESENT, VERSION = "round-call", "round-sum", "devices-present", 1


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a ServerApp serves a job: how long it waits, where it keeps its journal, and the number of rounds, if known.

    An empty `journal` means a folder inside the exchange.
    """

    timeouts: Timeouts
    journal: str
    rounds: int | None = None


class Exchange:
    """Both sides of the folder; the run begins with `open`, the ServerApp with `read_options`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._options, self._job = b"", ""
        self._task: FederatedTask[Any] | None = None

    def open(self, options: ServeOptions, job: Job[Any]) -> None:
        """Begin a job, or resume the same one; files of another job are deleted.

        Abandoned attempts are deleted too, so that a run that gave up can be tried again.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._job, self._task = job.digest[:16], job.task
        self._options = json.dumps({**asdict(options), "job": job.digest}).encode()
        completed = self.is_completed  # by an earlier run, whose sums are not for this one
        for old in (*self.folder.glob("call-*"), *self.folder.glob("sum-*")):
            if completed or f"-{self._job}-" not in old.name:
                old.unlink(missing_ok=True)
        for answer in list(self._own("sum")):
            if "why" in read_artefact(answer, kind=SUM, version=VERSION).fields:
                answer.with_name(answer.name.replace("sum", "call", 1)).unlink(missing_ok=True)
                answer.unlink()
        if self.is_over:  # other options, or the first time: which devices are there is not known yet
            (self.folder / DEVICES).unlink(missing_ok=True)
        for name in (DONE, FAILED):
            (self.folder / name).unlink(missing_ok=True)
        self._write(JOB, job.content)
        self._write(ORDER, self._options)

    def read_options(self) -> tuple[ServeOptions, Job[Any]]:
        """The options and the job."""
        path = self.folder / ORDER
        self._options = path.read_bytes()
        try:
            fields = json.loads(self._options)
            options = ServeOptions(Timeouts(**fields["timeouts"]), str(fields["journal"]), fields["rounds"])
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(path, f"does not hold the options of a ServerApp: {error}") from None
        job = job_from_bytes((self.folder / JOB).read_bytes())
        self._job = job.digest[:16]
        return options, job

    def _write(self, name: str, content: bytes) -> None:
        with atomic_write(self.folder / name) as file:
            file.write(content)

    def _own(self, kind: str, number: int | None = None) -> Iterator[Path]:
        """The calls or sums of the job, for one round or for all."""
        which = "*" if number is None else f"{number:06d}-*"
        return self.folder.glob(f"{kind}-{self._job}-{which}")

    def close(self, *, completed: bool, paused: bool = False) -> None:
        """Mark the job as over: completed, or given up by the run; or paused, until the run opens it again.

        Of a completed job, calls and sums are deleted: the run has committed what it needs of them, perhaps with noise.
        """
        self._write(DONE, b"completed" if completed else b"paused" if paused else b"")
        if completed:
            self._delete((*self.folder.glob("call-*"), *self.folder.glob("sum-*")))

    @staticmethod
    def _delete(paths: Iterable[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    @property
    def is_done(self) -> bool:
        """Whether the job is over."""
        return (self.folder / DONE).exists()

    @property
    def is_completed(self) -> bool:
        """Whether all rounds were committed."""
        return self._done() == b"completed"

    @property
    def is_paused(self) -> bool:
        """Whether the run has left the devices to another job for a while."""
        return self._done() == b"paused"

    def _done(self) -> bytes | None:
        try:
            return (self.folder / DONE).read_bytes()
        except FileNotFoundError:
            return None

    @property
    def is_over(self) -> bool:
        """Whether a ServerApp has nothing left to do here: the job is over, or the options have changed or are gone."""
        try:
            return self.is_done or (self.folder / ORDER).read_bytes() != self._options
        except FileNotFoundError:
            return True

    @property
    def is_open(self) -> bool:
        """Whether a run has opened a job here that is neither over nor failed."""
        return (self.folder / ORDER).exists() and not self.is_done and self.failure() is None

    def answers(self) -> frozenset[str]:
        """The names of the answers that are there."""
        return frozenset(path.name for path in self.folder.glob("sum-*"))

    def write_heartbeat(self) -> None:
        """Show that a ServerApp works here."""
        with atomic_write(self.folder / ALIVE, durable=False) as file:
            file.write(str(time.time_ns()).encode())

    def heartbeat(self) -> str:
        """The last heartbeat; "" if there is none."""
        try:
            return (self.folder / ALIVE).read_text("ascii", "replace")
        except OSError:
            return ""

    def fail(self, why: str) -> None:
        """Write why the ServerApp cannot continue."""
        self._write(FAILED, json.dumps({"error": why}).encode())

    def failure(self) -> str | None:
        """Why the ServerApp cannot continue, if it wrote so."""
        try:
            return str(json.loads((self.folder / FAILED).read_text("utf-8"))["error"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def show_devices(self, present: Presence) -> None:
        """Write which devices are there."""
        fields = {"online": present.online, "turned_away": dict(present.turned_away)}
        write_artefact(self.folder / DEVICES, Artefact(PRESENT, VERSION, fields, {"devices": present.devices}))

    def devices(self) -> Presence:
        """The devices that the ServerApp has seen last."""
        try:
            artefact = read_artefact(self.folder / DEVICES, kind=PRESENT, version=VERSION)
            fields = artefact.fields
            return Presence(artefact.arrays["devices"], int(fields["online"]), fields["turned_away"])
        except (FileNotFoundError, InputError, KeyError):
            return Presence()

    def call(self, call: RoundCall) -> None:
        """Call for a round, in place of any earlier call; sums of earlier rounds are deleted."""
        name = f"{self._job}-{call.number:06d}-{call.attempt}"
        fields = {
            "number": call.number, "attempt": call.attempt, "plan": asdict(call.plan),
            "masking": asdict(call.masking) if call.masking else None, "broadcast": dict(call.broadcast.fields),
        }  # fmt: skip
        arrays: dict[str, NDArray[Any]] = {f"broadcast.{n}": a for n, a in call.broadcast.arrays.items()}
        write_artefact(self.folder / f"call-{name}", Artefact(CALL, VERSION, fields, {**arrays, "order": call.order}))
        old_sums = (path for path in self._own("sum") if path.name < f"sum-{self._job}-{call.number:06d}")
        self._delete((*(path for path in self._own("call") if path.name != f"call-{name}"), *old_sums))

    def withdraw(self) -> None:
        """Withdraw the call."""
        self._delete(list(self._own("call")))

    def next_call(self) -> tuple[str, RoundCall] | None:
        """A call without an answer, and its name."""
        for path in self._own("call"):
            name = path.name.removeprefix("call-")
            if (self.folder / f"sum-{name}").exists():
                continue
            try:
                artefact = read_artefact(path, kind=CALL, version=VERSION)
            except FileNotFoundError:  # another call has just replaced it
                continue
            f, arrays = artefact.fields, artefact.arrays
            masking = SecureSettings(**f["masking"]) if f["masking"] else None
            broadcast = Record(f["broadcast"], Record({}, arrays).part("broadcast").arrays)
            plan = RoundPlan(**f["plan"])
            return name, RoundCall(f["number"], f["attempt"], arrays["order"], plan, broadcast, masking)
        return None

    def answer(self, name: str, call: RoundCall, found: RoundSum | AbandonedAttemptError) -> None:
        """Answer a call with a sum, or with the reason why there is none."""
        fields: dict[str, Any] = {"tally": found.tally.fields(), "broadcast": _digest(call.broadcast)}
        if isinstance(found, AbandonedAttemptError):
            fields |= {"why": found.reason}
            arrays: dict[str, NDArray[Any]] = {"seen": found.participants}
        else:
            total = found.total
            fields |= {"bits": total.bits, "weight": total.weight, "devices": total.devices}
            fields["vectors"] = list(total.arrays)
            arrays = {"devices": found.participants, **{f"total.{n}": a for n, a in total.arrays.items()}}
        write_artefact(self.folder / f"sum-{name}", Artefact(SUM, VERSION, fields, arrays))

    def sum_of(self, call: RoundCall) -> RoundSum | AbandonedAttemptError | None:
        """The answer to a call; a sum of another attempt at the same round, with the same broadcast, is accepted."""
        for path in sorted(self._own("sum", call.number)):
            answered = self._read_sum(path, call)
            if isinstance(answered, RoundSum) or (answered and path.name.endswith(f"-{call.attempt}")):
                return answered
        return None

    def _read_sum(self, path: Path, call: RoundCall) -> RoundSum | AbandonedAttemptError | None:
        """An answer, checked: it may come from another machine."""
        artefact = read_artefact(path, kind=SUM, version=VERSION)
        f, arrays = artefact.fields, artefact.arrays
        try:
            tally = Tally.from_fields(f["tally"])
            if f["broadcast"] != _digest(call.broadcast):
                return None
            if "why" in f:
                return AbandonedAttemptError(str(f["why"]), tally, _numbers(arrays["seen"]))
            task, vectors = self._task, Record({}, arrays).part("total").arrays
            assert task is not None
            own = {name: _numbers(vectors[name]) for name in task.size}
            total = Total(task.bits, own, int(f["weight"]), int(f["devices"]))
            devices = _numbers(arrays["devices"])
            if {name: len(a) for name, a in own.items()} != dict(task.size) or f["bits"] != task.bits:
                raise InvariantError("its vectors do not fit the task")
            if not total.devices <= len(np.unique(devices)) == len(devices):
                raise InvariantError("its devices do not fit its sum")
            total.check(task.bounds)
            return RoundSum(total, devices, tally)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, InvariantError) as error:
            raise InputError(path, f"does not hold the sum of a round: {error}", remedy="delete it") from None


def _numbers(array: NDArray[Any]) -> LongArray:
    if array.dtype != np.int64 or array.ndim != 1:
        raise InvariantError("an array has the wrong type or shape")
    return array


def _digest(broadcast: Record) -> str:
    return content_digest(broadcast.fields, broadcast.arrays)
