"""The devices of a served federation as a fleet: a run of Flower's collects rounds, and is looked after.

The round loop runs in this process; a ServerApp on the SuperLink collects what it calls for, through a folder
(`exchange.py`). If the SuperLink or the ServerApp dies, a new run is started, which goes on with the call that has no
answer. An error that the ServerApp could write down ends it; so does a ServerApp that dies again and again without
answering anything.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.storage import atomic_write
from fedgram.federated.fleet import Abandoned, RoundCall, RoundSum
from fedgram.federated.job import Job
from fedgram.flower.control import Unreachable, run_status, start_run, stop_run
from fedgram.flower.exchange import Exchange, Order, Presence
from fedgram.flower.folder import Folder
from fedgram.flower.journal import waiting_in_words
from fedgram.flower.locks import is_held, locked
from fedgram.flower.remote_fleet import Patience

RUN = "run.json"  # which run was started last, and for which folder
_LOOK, _ANSWER_LOOK = 0.5, 0.05  # seconds between looks at the run, and at the folder
_START_SECONDS = 60.0  # within which a run's process must have taken the folder
_LOST_SECONDS = 3.0  # after which a folder that nobody holds is taken for lost
_ATTEMPTS = 5  # runs in a row that may end without an answer; those that the server took along aside
_SAY_AFTER, _SAY_AGAIN = 5.0, 30.0  # seconds until something is said of a wait, and until it is said again
_ENDED = ("failed", "stopped", "completed", "unknown")


class ServedFleet:
    """A `Fleet` of the devices that a federation's server reaches; `away` is how long the server may not answer."""

    def __init__(self, folder: Folder, work: Path, job: Job[Any], patience: Patience, away: float = 600.0) -> None:
        self._folder, self._work, self._job, self._patience = folder, work, job, patience
        self._exchange = Exchange(work)
        self._keeper = _Keeper(folder, self._exchange, away)

    @contextmanager
    def working(self, rounds: int | None) -> Iterator["ServedFleet"]:
        """Have the server work on the job; one command at a time does so on a federation.

        If it fails, the run on the server ends; if it is interrupted, the run is stopped; if it is killed, the next one
        goes on with the run, or stops it if its folder is another.
        """
        taken = f"another run is asking the devices of {self._folder.path}; wait for it to end"
        with locked(self._folder.server, seconds=0, taken=taken):
            self._exchange.open(Order(self._patience, str(self._folder.server), rounds), self._job)
            try:
                yield self
            except (KeyboardInterrupt, SystemExit):
                with suppress(FedgramError):
                    stop_last(self._folder)
                raise
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


class _Keeper:
    """Keeps a run of the ServerApp going in a folder, unless it has said that it cannot go on."""

    def __init__(self, folder: Folder, exchange: Exchange, away: float) -> None:
        self._folder, self._exchange, self._work, self._away = folder, exchange, exchange.folder, away
        self._run: int | None = None
        self._last_seen = self._started = self._next = 0.0
        self._held = self._held_once = self._alone = False
        self._in_vain, self._away_since, self._waits = 0, None, _Waits()
        self._waited_for = ""

    _away_since: float | None

    def answered(self) -> None:
        """The run has done something."""
        self._in_vain, self._waited_for = 0, ""

    def waits_for(self, what: str) -> None:
        """What the loop waits for."""
        self._waited_for = what

    def look(self) -> bool:
        """Whether a ServerApp works in the folder; starts one if none does."""
        if failure := self._exchange.failure():
            raise FedgramError(failure)
        now = time.monotonic()
        if now < self._next:
            return self._held
        self._next, told = now + _LOOK, self._waited_for
        try:
            self._check(now)
            self._away_since = None
        except Unreachable as error:
            self._held, self._in_vain, told = False, 0, f"{error}; waiting for it"
            self._away_since = self._away_since or now
            if now - self._away_since > self._away:
                raise
        self._waits.tell(told, now)
        return self._held

    def _check(self, now: float) -> None:
        if not self._alone:
            stop_last(self._folder, unless=self._work)
            self._alone = True
        self._held = is_held(self._work)
        if self._held:  # by this run, or by one that another command started
            self._held_once, self._last_seen = True, now
        elif self._run is None:
            if self._in_vain == _ATTEMPTS:
                log = self._folder.server / "superlink.log"
                raise FedgramError(f"the ServerApp ended {self._in_vain} times without answering; see {log}")
            self._run, self._in_vain = _start(self._folder, self._work), self._in_vain + 1
            self._started, self._held_once = now, False
        elif self._ended(now):
            self._run = None

    def _ended(self, now: float) -> bool:
        assert self._run is not None
        since, most = (self._last_seen, _LOST_SECONDS) if self._held_once else (self._started, _START_SECONDS)
        if now - since > most:
            stop_run(self._folder, self._run)
            return True
        return run_status(self._folder, self._run) in _ENDED

    def wait_for_end(self, seconds: float = 10.0) -> None:
        """Wait until the ServerApp has seen that the job is over."""
        end = time.monotonic() + seconds
        while is_held(self._work) and time.monotonic() < end:
            time.sleep(_ANSWER_LOOK)


class _Waits:
    """Says on standard error what is waited for, if it takes long; anew if it changed, and not too often."""

    def __init__(self) -> None:
        self._said, self._next = "", float("inf")

    def tell(self, what: str, now: float) -> None:
        """Take note of what is waited for now; "" if nothing is."""
        if not what:
            self._said, self._next = "", float("inf")
            return
        self._next = min(self._next, now + (_SAY_AGAIN if self._said else _SAY_AFTER))
        if what != self._said and now >= self._next:
            print(f"fedgram: {what}", file=sys.stderr)
            self._said, self._next = what, now + _SAY_AGAIN


def _start(folder: Folder, work: Path) -> int:
    """Start a run, and write down which."""
    run = start_run(folder, {"work": str(work.resolve())})
    with atomic_write(folder.server / RUN) as file:
        file.write(json.dumps({"run": run, "work": str(work.resolve())}).encode())
    return run


def stop_last(folder: Folder, unless: Path | None = None) -> None:
    """Stop the run that was started last, if it goes on; not if it works in the folder `unless`."""
    try:
        noted = json.loads((folder.server / RUN).read_text("utf-8"))
        run, work = int(noted["run"]), noted["work"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if (unless is None or work != str(unless.resolve())) and run_status(folder, run) not in _ENDED:
        stop_run(folder, run)
