"""The result of a live experiment, from the sums of its arms by bucket of devices.

A bucket is a fixed part of the devices, by a hash of their numbers, in both arms and in all periods. So everything that
a device reports is in one bucket, and the jackknife with buckets applies (`evaluate/jackknife.py`), although the arms
have different devices and reports come over days. Beside the change stands an A/A check: the same comparison between
two halves of the control arm, which have the same model. Its interval should cover zero, in 95 % of experiments.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.errors import InvariantError
from fedgram.evaluate.jackknife import Estimate, level, relative_change
from fedgram.evaluate.measure import Measure

CONTROL, TREATMENT = 0, 1
ARMS = ("control", "treatment")


@dataclass(frozen=True, slots=True)
class Compared:
    """A measure in both arms: its levels, the relative change in per cent, and the A/A check; None without text."""

    control: Estimate | None
    treatment: Estimate | None
    change: Estimate | None
    aa: Estimate | None


def bucket_of(rollout: str, device: int, buckets: int) -> int:
    """The bucket of a device in an experiment.

    >>> [bucket_of("ab", device, 20) for device in range(5)]
    [12, 19, 15, 9, 5]
    """
    digest = hashlib.sha256(f"{rollout}:{device}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % buckets


def compare_arms(control: Measure, treatment: Measure) -> Compared:
    """Compare the arms by a measure that has one entry per bucket; buckets without text in either arm are left out."""
    if control.users != treatment.users:
        raise InvariantError("both arms must have the same buckets")
    used = np.flatnonzero((control.count + treatment.count) > 0).astype(np.int32)
    old, new = control.select(used), treatment.select(used)
    place = np.arange(len(used), dtype=np.int32)
    both = old.count.any() and new.count.any()
    return Compared(
        level(old, place) if old.count.any() else None, level(new, place) if new.count.any() else None,
        relative_change(new, old, place) if both else None, aa_check(old),
    )  # fmt: skip


def aa_check(control: Measure) -> Estimate | None:
    """The change between two halves of the control arm; None if there are fewer than two buckets with text."""
    used = np.flatnonzero(control.count > 0).astype(np.int32)
    half = len(used) // 2
    if not half:
        return None
    place = np.arange(half, dtype=np.int32)
    return relative_change(control.select(used[1::2][:half]), control.select(used[::2][:half]), place)


def add_buckets(parts: Sequence[Mapping[int, Mapping[str, Sequence[int]]]]) -> dict[int, dict[str, list[int]]]:
    """The sums of several periods, added by bucket."""
    total: dict[int, dict[str, list[int]]] = {}
    for part in parts:
        for bucket, vectors in part.items():
            known = total.setdefault(bucket, {})
            for name, values in vectors.items():
                known[name] = [a + b for a, b in zip(known.get(name, [0] * len(values)), values, strict=True)]
    return total
