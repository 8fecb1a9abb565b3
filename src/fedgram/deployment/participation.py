"""A device's record of its own participation, so that no two sums of a job differ by its update alone.

For a job with a limit the device records how often it has taken part (`spent`), before anything leaves it. A plain
report may be sent again in the same round if it is the same, byte for byte. A masked vector is `open` if it was sent
but this device did not help to unmask its sum: it does not count, so that an abandoned round can be repeated a few
times. A device that has given out shares, which unmask a sum, has taken part.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedgram.core.errors import InputError
from fedgram.core.storage import atomic_write, flush

TOOK_PART = "took part already"  # the answer of a device that may not take part again
MAX_OPEN = 8  # masked vectors that a device may send per participation without their round completing


@dataclass(frozen=True, slots=True)
class Participation:
    """How often a device took part in a job; the round and digest of its last plain report; its open masked vectors."""

    spent: int = 0
    round: int = 0
    report: str = ""
    open: int = 0


class Participations:
    """The participations of a device by job, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, job: str) -> Participation:
        """What is recorded for a job."""
        return Participation(**self._read().get(job, {}))

    def may_report(self, job: str, round_number: int, report: str, limit: int | None) -> bool:
        """Whether a plain report of this digest may be sent: a new one within the limit, or the last one again."""
        noted = self.of(job)
        return limit is None or noted.spent < limit or (noted.round, noted.report) == (round_number, report)

    def may_mask(self, job: str, limit: int | None, *, begins: bool = True) -> bool:
        """Whether a masked round may begin, or continue."""
        noted = self.of(job)
        return limit is None or (noted.spent < limit and not (begins and noted.open >= MAX_OPEN))

    def reported(self, job: str, round_number: int, report: str) -> None:
        """Record a plain report; the same report counts once."""
        noted = self.of(job)
        if (noted.round, noted.report) != (round_number, report):
            self._write(job, Participation(noted.spent + 1, round_number, report))

    def masked(self, job: str) -> None:
        """Record a masked vector."""
        noted = self.of(job)
        self._write(job, Participation(noted.spent, open=noted.open + 1))

    def unmasked(self, job: str) -> None:
        """Record that this device helps to unmask a sum with its vector."""
        self._write(job, Participation(self.of(job).spent + 1))

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
    numbers = noted.spent, noted.round, noted.open
    return all(type(n) is int and n >= 0 for n in numbers) and isinstance(noted.report, str)
