"""Devices as the round loop sees them: a `Fleet` says who can be asked, and returns the sum of a round.

Fleets differ in where devices are: simulated in this process (`simulation.py`), behind Flower, or behind several
servers at once (`shards.py`). All judge updates by the same rules (`intake.py`, `validation.py`) and return the same
exact integers.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import Total


@dataclass(slots=True)
class Tally:
    """What happened in a round, or in several: devices and bytes."""

    asked: int = 0
    reports: int = 0
    empty: int = 0
    late: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    bytes_sent: int = 0
    bytes_received: int = 0

    def __iadd__(self, other: "Tally") -> "Tally":
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failed += other.failed
        self.refused += other.refused
        return self

    def fields(self) -> dict[str, Any]:
        """As JSON takes it."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {**numbers, "failed": _plain(self.failed), "refused": _plain(self.refused)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "Tally":
        """The tally that `fields` came from."""
        numbers = {name: int(fields[name]) for name in _NUMBERS}
        return cls(**numbers, failed=Counter(fields["failed"]), refused=Counter(fields["refused"]))


_NUMBERS = ("asked", "reports", "empty", "late", "bytes_sent", "bytes_received")


def _plain(counts: Mapping[str, int]) -> dict[str, int]:
    return {str(name): n for name, n in sorted(counts.items())}


@dataclass(frozen=True, slots=True, eq=False)
class RoundCall:
    """What the loop asks of a fleet: an attempt at a round.

    `order` has the devices that may be invited, in this order; `broadcast` is what they are sent. With `masking` the
    fleet learns the sum alone.
    """

    number: int
    attempt: int
    order: LongArray
    plan: RoundPlan
    broadcast: Record
    masking: SecureSettings | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RoundSum:
    """The sum of a round, the devices that took part, and what happened on the way.

    A device took part if its update is in the sum, or became known and was refused.
    """

    total: Total
    devices: LongArray
    tally: Tally


class Abandoned(FedgramError):
    """An attempt at a round that has no sum. `seen` are devices whose updates became known all the same."""

    def __init__(self, why: str, tally: Tally, seen: LongArray | None = None) -> None:
        super().__init__(why)
        self.tally, self.seen = tally, seen if seen is not None else np.zeros(0, np.int64)


class Fleet(Protocol):
    """Devices that work on one job."""

    def devices(self, wanted: int, spent: LongArray) -> LongArray:
        """The devices that can be asked now, without those that are `spent`; real ones may be waited for."""

    def prepare(self, call: RoundCall) -> None:
        """A hint that this call is likely to come next; its broadcast is not known yet."""

    def collect(self, call: RoundCall) -> RoundSum:
        """The sum of the accepted updates of an attempt at a round; raises `Abandoned` if it has none."""
