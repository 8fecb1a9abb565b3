"""A device's record of its own participation, so that no two sums of a job differ by its update alone.

For a job with limits the device records how often it has taken part (`spent`) and in which round it did so last, before
anything leaves it. It refuses a round that comes too early after the last one, or before it. It has only the server's
word for the number of a round, so the limit on how often it takes part is the stronger one.

A plain report may be sent again in the same round if it is the same, byte for byte. A masked vector is `open` if it was
sent but this device did not help to unmask its sum: it does not count, so that an abandoned round can be repeated a few
times. A device that has given out shares, which unmask a sum, has taken part.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedgram.core.errors import InputError
from fedgram.core.storage import atomic_write, flush

TOOK_PART = "took part already"  # the answer of a device that may not take part again
TOO_EARLY = "took part too recently"  # the answer of a device whose last round is too near
MAX_OPEN = 8  # masked vectors that a device may send per participation without their round completing


@dataclass(frozen=True, slots=True)
class Participation:
    """How often a device took part in a job; the round and digest of its last plain report; its open masked vectors.

    `last` is the last round in which it took part.
    """

    spent: int = 0
    round: int = 0
    report: str = ""
    open: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """When a device may take part: at most `times` (None: without limit), and `separation` or more rounds apart."""

    times: int | None = None
    separation: int = 1

    @property
    def are_any(self) -> bool:
        """Whether participations must be recorded."""
        return self.times is not None or self.separation > 1

    def refusal(self, noted: Participation, round_number: int) -> str | None:
        """Why a device with this record may not take part in a round; None if it may."""
        if self.times is not None and noted.spent >= self.times:
            return TOOK_PART
        is_near = self.separation > 1 and noted.last > 0 and round_number - noted.last < self.separation
        return TOO_EARLY if is_near else None


class Participations:
    """The participations of a device by job, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, job: str) -> Participation:
        """What is recorded for a job."""
        return Participation(**self._read().get(job, {}))

    def refuses_report(self, job: str, round_number: int, report: str, limits: Limits) -> str | None:
        """Why a plain report of this digest may not be sent: one within the limits may, and the last one again."""
        noted = self.of(job)
        is_again = (noted.round, noted.report) == (round_number, report)
        return None if is_again else limits.refusal(noted, round_number)

    def refuses_mask(self, job: str, round_number: int, limits: Limits, *, begins: bool = True) -> str | None:
        """Why a masked round may not begin, or continue."""
        noted = self.of(job)
        if limits.are_any and begins and noted.open >= MAX_OPEN:
            return TOOK_PART
        return limits.refusal(noted, round_number)

    def reported(self, job: str, round_number: int, report: str) -> None:
        """Record a plain report; the same report counts once."""
        noted = self.of(job)
        if (noted.round, noted.report) != (round_number, report):
            self._write(job, Participation(noted.spent + 1, round_number, report, last=round_number))

    def masked(self, job: str) -> None:
        """Record a masked vector."""
        noted = self.of(job)
        self._write(job, Participation(noted.spent, open=noted.open + 1, last=noted.last))

    def unmasked(self, job: str, round_number: int) -> None:
        """Record that this device helps to unmask a sum with its vector."""
        self._write(job, Participation(self.of(job).spent + 1, last=round_number))

    def _read(self) -> dict[str, dict[str, Any]]:
        if not self._path.is_file():
            return {}
        try:
            noted: dict[str, dict[str, Any]] = json.loads(self._path.read_text("utf-8"))
            if not all(_is_sound(Participation(**entry)) for entry in noted.values()):
                raise ValueError
        except (ValueError, TypeError, AttributeError, RecursionError):
            remedy = "restore it from a backup; until then the device takes part in no job"
            raise InputError(self._path, "is damaged", remedy=remedy) from None
        return noted

    def _write(self, job: str, noted: Participation) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_write(self._path) as file:
            file.write(json.dumps({**self._read(), job: asdict(noted)}).encode())
        flush(self._path.parent)


def _is_sound(noted: Participation) -> bool:
    numbers = noted.spent, noted.round, noted.open, noted.last
    return all(type(n) is int and n >= 0 for n in numbers) and isinstance(noted.report, str)
