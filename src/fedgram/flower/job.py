"""What a federation is asked to do, as bytes: all that a device must know besides the server's state.

A job is sent to a device once, and named by its digest from then on. It says which of the two tasks to compute and
with which settings; the task's functions are those of the in-process driver. What a device is sent in a round is the
server's state as far as `client_update` looks at it: for FedAvg the weights, for unigrams nothing.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.storage import Artefact, artefact_from_bytes, artefact_to_bytes
from fedgram.federated.driver import device_stream
from fedgram.federated.task import Update
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.flower.store import device_data
from fedgram.text.population import Population
from fedgram.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from fedgram.fedavg.task import FedAvgState, FederatedAveraging, TrainingPlan
    from fedgram.neural.model import ModelShape
    from fedgram.neural.network import Coding, WeightArrays

KIND, STATE, VERSION = "federated-job", "federated-state", 1


@dataclass(frozen=True, slots=True, eq=False)
class UnigramJob:
    """Count the words of a whitelist (§3.1)."""

    vocabulary: Vocabulary
    clip: float
    seed: int
    name = "unigrams"

    def task(self) -> UnigramTask:
        """The computation."""
        return UnigramTask(self.vocabulary, clip=self.clip)

    def update(self, own: Population, number: int, state: bytes) -> Update:
        """What a device with this text sends."""
        task, round_number = self.task(), _round(_state(state))
        data = device_data(own, number, own.word_ids(self.vocabulary))
        return task.client_update(task.init(), data, device_stream(self.seed, round_number, number))


@dataclass(frozen=True, slots=True, eq=False)
class FedAvgJob:
    """Train a network (§7.1)."""

    shape: "ModelShape"
    plan: "TrainingPlan"
    coding: "Coding"
    seed: int
    name = "fedavg"

    def task(self) -> "FederatedAveraging":
        """The computation, as far as it does not depend on weights."""
        from fedgram.fedavg.task import FederatedAveraging

        empty = {name: np.zeros(size, np.float32) for name, size in self.shape.sizes().items()}
        return FederatedAveraging(self.shape, empty, self.plan)

    def update(self, own: Population, number: int, state: bytes) -> Update:
        """What a device with this text sends."""
        from fedgram.fedavg.task import FedAvgState, FederatedAveraging
        from fedgram.federated.averaging import ServerModel

        received = _state(state)
        round_number = _round(received)
        weights: WeightArrays = dict(received.arrays)
        codes = self.coding.codes(own.words)
        data = device_data(own, number, codes if self.coding.pieces is not None else codes.values)
        task = FederatedAveraging(self.shape, weights, self.plan)
        before = FedAvgState(round_number - 1, ServerModel(weights))
        return task.client_update(before, data, device_stream(self.seed, round_number, number))


Job = UnigramJob | FedAvgJob


def job_to_bytes(job: Job) -> bytes:
    """A job as an artefact."""
    if isinstance(job, UnigramJob):
        clip = None if math.isinf(job.clip) else job.clip
        words = np.frombuffer("\n".join(job.vocabulary.words).encode(), np.uint8)
        return artefact_to_bytes(
            Artefact(KIND, VERSION, {"task": job.name, "seed": job.seed, "clip": clip}, {"words": words})
        )
    from fedgram.neural.network import coding_arrays

    fields = {"task": job.name, "seed": job.seed, "shape": asdict(job.shape), "plan": asdict(job.plan)}
    return artefact_to_bytes(Artefact(KIND, VERSION, fields, coding_arrays(job.coding)))


def job_from_bytes(data: bytes) -> Job:
    """The job of some bytes, checked."""
    artefact = artefact_from_bytes(data, "job", kind=KIND, version=VERSION)
    fields, arrays = artefact.fields, artefact.arrays
    try:
        if fields["task"] == UnigramJob.name:
            words = Vocabulary(tuple(arrays["words"].tobytes().decode().split("\n")))
            clip = math.inf if fields["clip"] is None else float(fields["clip"])
            return UnigramJob(words, clip, int(fields["seed"]))
        if fields["task"] == FedAvgJob.name:
            from fedgram.neural.model import ModelShape
            from fedgram.neural.network import coding_from

            shape, plan = ModelShape(**fields["shape"]), _plan(fields["plan"])
            return FedAvgJob(shape, plan, coding_from(arrays), int(fields["seed"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvariantError(f"a job lacks a part: {error}") from None
    raise FedgramError("a job names a task that is not known here")


def _plan(fields: Mapping[str, Any]) -> "TrainingPlan":
    from fedgram.fedavg.task import Schedule, TrainingPlan
    from fedgram.federated.averaging import ServerStep
    from fedgram.neural.local_training import LocalTraining

    parts = {"local": LocalTraining, "server": ServerStep, "client_schedule": Schedule, "server_schedule": Schedule}
    return TrainingPlan(**{k: parts[k](**v) if k in parts else v for k, v in fields.items()})


def job_digest(data: bytes) -> str:
    """What a job is called."""
    return hashlib.sha256(data).hexdigest()


def unigram_state(round_number: int) -> bytes:
    """What devices are sent in a round of counting: its number."""
    return artefact_to_bytes(Artefact(STATE, VERSION, {"round": round_number}, {}))


def fedavg_state(state: "FedAvgState") -> bytes:
    """What devices are sent in the round after this state: its number and the weights."""
    return artefact_to_bytes(Artefact(STATE, VERSION, {"round": state.round + 1}, state.model.weights))


def _state(data: bytes) -> Artefact:
    return artefact_from_bytes(data, "state", kind=STATE, version=VERSION)


def _round(state: Artefact) -> int:
    number = state.fields.get("round")
    if not isinstance(number, int) or number < 1:
        raise InvariantError("the server's state names no round")
    return number
