"""The devices of a served federation as a fleet: the round loop runs here, and a ServerApp collects what it calls for.

The two pass calls and sums through a folder (`exchange.py`); `keeper.py` sees to it that a ServerApp works there. An
error that the ServerApp could write down ends the run.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.deployment.exchange import Exchange, Order, Presence
from fedgram.deployment.folder import Folder
from fedgram.deployment.journal import waiting_in_words
from fedgram.deployment.keeper import FarKeeper, Keeper, LocalKeeper
from fedgram.deployment.remote_fleet import Patience
from fedgram.federated.fleet import Abandoned, RoundCall, RoundSum
from fedgram.federated.job import Job

_ANSWER_LOOK = 0.05  # seconds between looks at the folder


class ServedFleet:
    """A `Fleet` of the devices that a federation's server reaches; `away` is how long the server may not answer.

    The server is that of a federation's folder on this machine; or, without one, of another machine that shares the
    folder in which `work` lies.
    """

    def __init__(
        self, folder: Folder | None, work: Path, job: Job[Any], patience: Patience, away: float = 600.0
    ) -> None:
        self._job, self._patience, self._exchange = job, patience, Exchange(work)
        self._journal = str(folder.server) if folder is not None else ""
        self._keeper: Keeper = (
            LocalKeeper(folder, self._exchange, away) if folder is not None else FarKeeper(self._exchange, away)
        )

    @contextmanager
    def working(self, rounds: int | None) -> Iterator["ServedFleet"]:
        """Have the server work on the job.

        If it fails, the run on the server ends; if it is killed, the next one goes on with the run, or stops it if its
        folder is another.
        """
        with self._keeper.working():
            self._exchange.open(Order(self._patience, self._journal, rounds), self._job)
            try:
                yield self
            except Exception:
                with suppress(OSError):
                    self._exchange.close(completed=False)
                raise
            self._exchange.close(completed=True)
            self._keeper.wait_for_end()

    def devices(self, wanted: int, spent: LongArray) -> LongArray:
        """The devices that are there and not spent; waits for as many as are wanted, if only a while for the last.

        That while does not pass as long as the server is away.
        """
        patience, goal = self._patience, (self._patience.wait_for or wanted) if wanted else 0
        end = time.monotonic() + (patience.idle_seconds if len(spent) else patience.wait_seconds)
        while True:
            held = self._keeper.look()
            if not held and len(spent):
                end = time.monotonic() + patience.idle_seconds
            there = self._exchange.devices() if held else Presence()
            found = np.setdiff1d(there.devices, spent)
            if len(found) >= goal:
                self._keeper.waits_for("")
                return found
            about = {"there": len(found), "wanted": goal, "online": there.online, "turned_away": there.turned_away}
            if time.monotonic() > end:
                if len(spent):
                    return found
                raise FedgramError(f"{waiting_in_words(about)}; gave up after {patience.wait_seconds:.0f} s")
            self._keeper.waits_for(waiting_in_words(about))
            time.sleep(_ANSWER_LOOK)

    def prepare(self, call: RoundCall) -> None:
        """Real devices prepare nothing."""

    def collect(self, call: RoundCall) -> RoundSum:
        """The sum that the server collects; one that is there already, of a run that was killed, is taken.

        If the server is away for too long the call is withdrawn, so that no device answers it in vain later.
        """
        answer = self._exchange.sum_of(call)
        if answer is None:
            self._exchange.call(call)
        while answer is None:
            try:
                self._keeper.look()
            except FedgramError:
                self._exchange.withdraw()
                raise
            time.sleep(_ANSWER_LOOK)
            answer = self._exchange.sum_of(call)
        self._keeper.answered()
        if isinstance(answer, Abandoned):
            raise answer
        return answer
