"""The devices of a served federation as a fleet: the round loop runs here, and a ServerApp collects its rounds.

The two exchange calls and sums through a folder (`exchange.py`); `server_app_runs.py` makes sure that a ServerApp works
there. A failure that the ServerApp writes to the folder ends the run.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.deployment.exchange import Exchange, ServeOptions
from fedgram.deployment.folder import Folder
from fedgram.deployment.server_app_runs import LocalServerApp, RemoteServerApp, ServerAppRuns
from fedgram.deployment.waiting import DeviceWait, Presence, Timeouts, waiting_in_words
from fedgram.federated.fleet import AbandonedAttemptError, RoundCall, RoundSum
from fedgram.federated.job import Job

_POLL_SECONDS = 0.05


class ServedFleet:
    """A `Fleet` of the devices that a federation's server reaches; `away` is how long the server may be unreachable.

    With a federation's folder, its server is on this machine. Without one, the server is on another machine, with which
    the parent folder of `work` is shared.
    """

    def __init__(
        self, folder: Folder | None, work: Path, job: Job[Any], timeouts: Timeouts, away: float = 600.0
    ) -> None:
        self._job, self._timeouts, self._exchange = job, timeouts, Exchange(work)
        self._at_work, self._rounds = ExitStack(), None
        self._journal = str(folder.server) if folder is not None else ""
        self._server_app: ServerAppRuns = (
            RemoteServerApp(self._exchange, away) if folder is None else LocalServerApp(folder, self._exchange, away)
        )

    _rounds: int | None

    @contextmanager
    def working(self, rounds: int | None) -> Iterator["ServedFleet"]:
        """Let the server work on the job.

        If this process fails, the run on the server ends. If this process is killed, the next one resumes the run, or
        stops it if it works in another folder.
        """
        self._rounds = rounds
        with self._at_work:
            self._at_work.enter_context(self._serving())
            yield self

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Leave the devices to another job between two rounds of this one."""
        self._resting = True
        self._at_work.close()
        self._resting = False
        try:
            yield
        finally:
            self._at_work.enter_context(self._serving())

    _resting = False

    @contextmanager
    def _serving(self) -> Iterator[None]:
        with self._server_app.working():
            self._exchange.open(ServeOptions(self._timeouts, self._journal, self._rounds), self._job)
            try:
                yield
            except Exception:
                with suppress(OSError):
                    self._exchange.close(completed=False)
                raise
            self._exchange.close(completed=not self._resting, paused=self._resting)
            self._server_app.wait_for_end()

    def devices(self, wanted: int, spent: LongArray) -> LongArray:
        """The devices that are there and not in `spent`; waits until `wanted` are, or a while for the last ones.

        That while does not begin before the server is reachable.
        """

        def look() -> Presence | None:
            return self._exchange.devices() if self._server_app.check() else None

        def on_wait(about: Mapping[str, Any]) -> None:
            self._server_app.waits_for(waiting_in_words(about))

        wait = DeviceWait(look, self._timeouts, on_wait, time.monotonic, time.sleep, _POLL_SECONDS)
        found = wait.wait(wanted, spent)
        self._server_app.waits_for("")
        return found

    def prepare(self, call: RoundCall) -> None:
        """Real devices prepare nothing."""

    def collect(self, call: RoundCall) -> RoundSum:
        """The sum that the server collects; a sum that is in the folder already, of a killed run, is used.

        If the server is away for too long the call is withdrawn, so that no device answers it in vain later.
        """
        answer = self._exchange.sum_of(call)
        if answer is None:
            self._exchange.call(call)
        while answer is None:
            try:
                self._server_app.check()
            except FedgramError:
                self._exchange.withdraw()
                raise
            time.sleep(_POLL_SECONDS)
            answer = self._exchange.sum_of(call)
        self._server_app.answered()
        if isinstance(answer, AbandonedAttemptError):
            raise answer
        return answer
