"""An update as one vector of integers, ready to be masked: all its vectors and its weight, in fixed point."""

import hashlib
from collections.abc import Mapping

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.federated.secure.server import SecureSum
from fedgram.federated.task import FederatedTask, State, Total, Update


def vector_length(size: Mapping[str, int]) -> int:
    """The number of entries of a task's update, including its weight."""
    return sum(size.values()) + 1


def update_to_vector(task: FederatedTask[State], update: Update) -> LongArray:
    """The vector that a device masks, rounded exactly as in a plain sum; an update out of bounds is refused."""
    own = Total.zero(task.size, task.bits)
    own.add(update, task.bounds)
    return np.concatenate([*own.arrays.values(), np.array([own.weight], np.int64)])


def total_from_sum(task: FederatedTask[State], found: SecureSum) -> Total:
    """The same integers as the plain sum; refused if devices within the bounds cannot have made them."""
    ends = np.cumsum(list(task.size.values()))
    *parts, (weight,) = np.split(found.vector, ends)
    total = Total(task.bits, dict(zip(task.size, parts, strict=True)), int(weight), len(found.devices))
    total.check(task.bounds)
    return total


def round_digest(job: str, round_number: int, broadcast: str) -> bytes:
    """A digest of what a masked round computes: its job, its number and its broadcast."""
    return hashlib.sha256(f"{job} {round_number} {broadcast}".encode()).digest()
