"""A job: a task by its name, its settings, its seed, and when one device may take part; as bytes, and back.

A device is sent a job once and keeps it under its digest. Tasks are found by name: those of this package below, and
those that other packages register as entry points:

    [project.entry-points."fedgram.tasks"]
    message-length = "my_package.tasks:MessageLength"
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic

from fedgram.core.errors import FedgramError, InvariantError, MissingDependencyError
from fedgram.core.storage import Artefact, Record, artefact_from_bytes, artefact_to_bytes, content_digest
from fedgram.federated.fleet import Fleet
from fedgram.federated.task import FederatedTask, State

KIND, VERSION = "federated-job", 3
ENTRY_POINTS = "fedgram.tasks"
_OWN = {
    "unigrams": "fedgram.federated.unigram_collection:UnigramTask",
    "unigrams-by-clip": "fedgram.federated.unigrams_by_clip:UnigramsByClip",
    "fedavg": "fedgram.training.fedavg_task:FederatedAveraging",
    "pairs": "fedgram.distill.refit.pair_sketch:PairCollection",
    "ngrams": "fedgram.distill.refit.clipped_ngrams:ClippedNGrams",
    "discovery": "fedgram.federated.discovery.prefix_level:PrefixLevel",
    "evaluation": "fedgram.evaluate.scoring_task:ScoringTask",
}


Fleets = Callable[["Job[Any]"], Fleet]  # the devices for a job: a simulation's, or a federation's


def find_task(name: str) -> type[FederatedTask[Any]]:
    """The class of tasks that is registered under a name."""
    place = _OWN.get(name)
    if place is None:
        found = [entry.value for entry in entry_points(group=ENTRY_POINTS, name=name)]
        if not found:
            remedy = f"install the package that registers it under {ENTRY_POINTS!r}"
            raise FedgramError(f"no task is registered as {name[:40]!r}; {remedy}")
        place = found[0]
    module, _, attribute = place.partition(":")
    try:
        task: type[FederatedTask[Any]] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as missing:
        if missing.name == "torch":
            raise MissingDependencyError("training networks", "neural") from None
        raise
    return task


@dataclass(frozen=True, eq=False)
class Job(Generic[State]):
    """A task to be run: with a seed, and at most `participations` rounds for one device (None: no limit).

    From one round of a device to its next there are at least `min_separation` rounds; 1 allows every round.
    """

    task: FederatedTask[State]
    seed: int
    participations: int | None = None
    min_separation: int = 1

    def __post_init__(self) -> None:
        if self.participations is not None and self.participations < 1:
            raise FedgramError(f"a device must be allowed to take part at least once, not {self.participations} times")
        if self.min_separation < 1:
            raise FedgramError(f"the minimum separation of rounds must be at least 1, not {self.min_separation}")

    @property
    def is_limited(self) -> bool:
        """Whether a device may not take part in every round."""
        return self.participations is not None or self.min_separation > 1

    @cached_property
    def content(self) -> bytes:
        """The job as bytes."""
        settings = self.task.settings()
        limits = {"participations": self.participations, "min_separation": self.min_separation}
        fields = {"task": self.task.name, "seed": self.seed, **limits, "settings": dict(settings.fields)}
        return artefact_to_bytes(Artefact(KIND, VERSION, fields, settings.arrays))

    @cached_property
    def digest(self) -> str:
        """What the job is called."""
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def question(self) -> str:
        """A digest of what devices are asked: the task and its settings, without seed, limit and encoding.

        A task may list settings in `adaptive` that the server chooses from earlier sums. They are left out, so that a
        device does not answer again because they have changed.
        """
        left_out = {f"{self.task.name}.{name}" for name in getattr(self.task, "adaptive", ())}
        asked = {name: digest for name, digest in self.parts().items() if name not in left_out}
        return hashlib.sha256(json.dumps([self.task.name, asked], sort_keys=True).encode()).hexdigest()

    def parts(self) -> dict[str, str]:
        """The digest of each of the task's settings, as `TASK.SETTING`; devices can pin them."""
        return {f"{self.task.name}.{name}": digest for name, digest in _digests(self.task.settings()).items()}

    def __repr__(self) -> str:
        return f"Job({self.task.name}, {self.digest[:8]})"


def _digests(settings: Record) -> Mapping[str, str]:
    fields = {name: hashlib.sha256(json.dumps(v, sort_keys=True).encode()) for name, v in settings.fields.items()}
    return {name: sha.hexdigest() for name, sha in fields.items()} | {
        name: content_digest({}, {"": array}) for name, array in settings.arrays.items()
    }


def job_from_bytes(data: bytes) -> Job[Any]:
    """The job of some bytes, checked."""
    artefact = artefact_from_bytes(data, "job", kind=KIND, version=VERSION)
    try:
        name, seed, most, apart, settings = (
            artefact.fields[k] for k in ("task", "seed", "participations", "min_separation", "settings")
        )
        task = find_task(str(name)).from_settings(Record(settings, artefact.arrays))
        job = Job(task, int(seed), None if most is None else int(most), int(apart))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise InvariantError(f"a job lacks a part, or holds one of another kind ({type(error).__name__})") from None
    job.__dict__["content"] = data  # its name is that of the bytes it came as, however the task writes its settings
    return job
