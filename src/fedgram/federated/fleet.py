"""Devices as the round loop sees them: a `Fleet` says who can be invited, and returns the sum of a round.

Fleets differ in where the devices are: simulated in this process (`simulation.py`), behind Flower (`deployment`), or
behind several servers (`shards.py`). All check updates by the same rules (`intake.py`, `validation.py`) and return the
same exact integers.
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
    """What happened in one or more rounds, counted in devices and bytes.

    `reports` are the updates in a sum, of which `empty` hold nothing. `late` are devices whose reports were not waited
    for. `failed` and `refused` are devices and updates by reason. In a simulation, `example` may say by how much
    a refused update exceeded a bound; it is not saved.
    """

    invited: int = 0
    reports: int = 0
    empty: int = 0
    late: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    bytes_sent: int = 0
    bytes_received: int = 0
    example: str = field(default="", compare=False)

    def __iadd__(self, other: "Tally") -> "Tally":
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failed += other.failed
        self.refused += other.refused
        self.example = self.example or other.example
        return self

    def causes(self) -> str:
        """How many devices failed and how many updates were refused, by reason, in words."""
        failed = [f"{n} {reason}" for reason, n in self.failed.items()]
        return ", ".join([*failed, self.refusals()] if self.refused else failed)

    def refusals(self) -> str:
        """How many updates were refused, by reason, in words."""
        reasons = ", ".join(f"{n} {reason}" for reason, n in self.refused.items())
        return f"{reasons}; for instance, {self.example}" if self.example else reasons

    def fields(self) -> dict[str, Any]:
        """The tally as JSON values."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {**numbers, "failed": _plain(self.failed), "refused": _plain(self.refused)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "Tally":
        """The tally that `fields` described."""
        numbers: dict[str, Any] = {name: int(fields[name]) for name in _NUMBERS}
        return cls(**numbers, failed=Counter(fields["failed"]), refused=Counter(fields["refused"]))


_NUMBERS = ("invited", "reports", "empty", "late", "bytes_sent", "bytes_received")


def _plain(counts: Mapping[str, int]) -> dict[str, int]:
    return {str(name): n for name, n in sorted(counts.items())}


@dataclass(frozen=True, slots=True, eq=False)
class RoundCall:
    """One attempt at a round, as the loop requests it from a fleet.

    `order` lists the devices that may be invited, in this order; `broadcast` is sent to them. With `masking` the fleet
    learns only the sum.
    """

    number: int
    attempt: int
    order: LongArray
    plan: RoundPlan
    broadcast: Record
    masking: SecureSettings | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RoundSum:
    """The sum of a round, the devices that took part, and what happened.

    `participants` are the devices whose updates the server has used or seen: those in the sum, and those that were
    refused. They are not invited again if a device may take part only once.
    """

    total: Total
    participants: LongArray
    tally: Tally


class AbandonedAttemptError(FedgramError):
    """An attempt at a round that has no sum; `participants` are the devices whose updates the server has seen."""

    def __init__(self, reason: str, tally: Tally, participants: LongArray | None = None) -> None:
        super().__init__(reason)
        self.reason, self.tally = reason, tally
        self.participants = participants if participants is not None else np.zeros(0, np.int64)


class Fleet(Protocol):
    """Devices that work on one job."""

    def devices(self, wanted: int, spent: LongArray) -> LongArray:
        """The devices that can be invited now, without those in `spent`; may wait until `wanted` are there."""

    def prepare(self, call: RoundCall) -> None:
        """A hint that this call probably comes next; its broadcast is not known yet."""

    def collect(self, call: RoundCall) -> RoundSum:
        """The sum of the accepted updates; raises `AbandonedAttemptError` if there is none."""
