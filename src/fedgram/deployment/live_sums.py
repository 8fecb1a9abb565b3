"""Collecting what an arm measured in a period: one masked sum per bucket of devices.

Every device of the arm is asked once per period. A bucket is summed as soon as enough of its devices are there, and
again later in the period for those that come later. A device's number decides its bucket, so what it reports over days
is in one bucket. What has been collected is in a file per period and arm, which is written after every sum. Before a
sum is asked for, the file says so: a command that was killed asks for the same one again, and finds its answer.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import InputError
from fedgram.core.storage import atomic_write
from fedgram.deployment.live_noise import LiveNoise
from fedgram.deployment.live_result import bucket_of
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.fleet import AbandonedAttemptError, Fleet, RoundCall, RoundSum
from fedgram.federated.job import Job
from fedgram.federated.secure.settings import SecureSettings


@dataclass(slots=True)
class ArmSums:
    """What an arm measured in a period: vectors by bucket, the devices in them, and who took part.

    `number` is the last sum that was asked for, and `pending` its bucket, until there is an answer.
    """

    number: int = 0
    pending: int | None = None
    spent: list[int] = field(default_factory=list)
    devices: int = 0
    buckets: dict[int, dict[str, list[int]]] = field(default_factory=dict)

    def add(self, bucket: int, found: RoundSum) -> None:
        """Add the sum of some devices of a bucket."""
        known = self.buckets.setdefault(bucket, {})
        for name, values in found.total.arrays.items():
            before = np.array(known.get(name, np.zeros(len(values))), np.int64)
            known[name] = (before + values).tolist()
        self.devices += found.total.devices
        self.took_part(found.participants)

    def took_part(self, devices: LongArray) -> None:
        """Note devices that are not asked again in this period."""
        self.spent = sorted({*self.spent, *devices.tolist()})
        self.pending = None


def read_sums(path: Path) -> ArmSums:
    """What was collected so far; nothing if there is no file."""
    if not path.is_file():
        return ArmSums()
    try:
        fields: dict[str, Any] = json.loads(path.read_text("utf-8"))
        buckets = {int(bucket): dict(vectors) for bucket, vectors in fields.pop("buckets").items()}
        return ArmSums(**fields, buckets=buckets)
    except (ValueError, TypeError, KeyError, AttributeError):
        remedy = "restore it, or delete it to lose this period"
        raise InputError(path, "does not hold the sums of an experiment", remedy=remedy) from None


def write_sums(path: Path, sums: ArmSums) -> None:
    """Keep what was collected."""
    with atomic_write(path) as file:
        file.write(json.dumps(asdict(sums)).encode())


@dataclass(frozen=True, slots=True)
class BucketRules:
    """How an arm's devices are summed: in how many buckets of the rollout, of how many devices at least, and masked.

    Sums get `noise`, if there is any. Devices in `elsewhere` have reported in the other arm, and are not asked.
    """

    rollout: str
    buckets: int
    minimum: int
    masking: SecureSettings | None
    noise: LiveNoise | None = None
    elsewhere: frozenset[int] = frozenset()

    def members(self, devices: LongArray) -> Mapping[int, LongArray]:
        """The devices by bucket, for buckets that are large enough to be summed."""
        of = np.array([bucket_of(self.rollout, device, self.buckets) for device in devices.tolist()], np.int64)
        members = {bucket: np.sort(devices[of == bucket]) for bucket in np.unique(of).tolist()}
        return {bucket: own for bucket, own in members.items() if len(own) >= self.minimum}


def collect_buckets(
    fleet: Fleet, job: Job[Any], sums: ArmSums, rules: BucketRules, save: Callable[[ArmSums], object]
) -> int:
    """Sum the buckets of the devices that are there and were not asked yet; returns how many sums there are."""
    there = fleet.devices(0, np.array(sorted({*sums.spent, *rules.elsewhere}), np.int64))
    members = dict(rules.members(there))
    if sums.pending is not None:  # of a command that was killed: its answer may be there already
        members = {sums.pending: members.pop(sums.pending, there[:0])} | members
    made = 0
    for bucket, own in members.items():
        if sums.pending is None:
            sums.number, sums.pending = sums.number + 1, bucket
            save(sums)
        plan = RoundPlan(max(len(own), rules.minimum), 1.0, rules.minimum, 1)
        call = RoundCall(sums.number, 0, own, plan, job.task.broadcast(job.task.init()), rules.masking)
        try:
            found = fleet.collect(call)
            sums.add(bucket, rules.noise.added_to(found) if rules.noise else found)
            made += 1
        except AbandonedAttemptError as abandoned:
            sums.took_part(abandoned.participants)
        save(sums)
    return made
