"""Operations that are one event of privacy: entered in a ledger before devices are asked, and released once.

A sum that is released twice, with noise that was drawn twice, has less privacy than its event: the mean of many
releases is the sum itself. So what is released is kept in a file, which an interrupted operation reads when it resumes.
The sums without noise, from which it was made, are then removed.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram.core.checkpoint import made_once
from fedgram.core.storage import Record, content_digest
from fedgram.privacy.accounting import Event
from fedgram.privacy.ledger import Ledger
from fedgram.privacy.noise import Randomness


@dataclass(frozen=True, slots=True)
class OneEvent:
    """An operation, its folder if it can be resumed, and a description without which it must not be."""

    folder: Path | None
    belongs_to: Mapping[str, Any]

    def enter(
        self, ledger: Ledger, name: str, event: Event, randomness: Randomness, *, stands_for: float = 1.0
    ) -> None:  # fmt: skip
        """Record the whole cost, or refuse it. An operation that resumes is counted once, one begun again is again."""
        names = "run", name, content_digest(self.belongs_to, {})  # of a seeded source, so that runs differ
        drawn = self._once("run", lambda: Record({"name": f"{int(randomness.words(1, *names)[0]):016x}"}))
        run = str(drawn.fields["name"])
        ledger.plan(name, event, run=run, generator=randomness.name, stands_for=stands_for)
        ledger.spend(name, 1, run=run)

    def release(self, name: str, make: Callable[[], Record], *, sums: str) -> Record:
        """What `make` releases, made once. The folder `sums`, where it kept sums without noise, is removed."""
        found = self._once(name, make)
        if self.folder is not None:
            shutil.rmtree(self.folder / sums, ignore_errors=True)
        return found

    def _once(self, name: str, make: Callable[[], Record]) -> Record:
        return made_once(self.folder / name if self.folder else None, make, {**self.belongs_to, "release": name})
