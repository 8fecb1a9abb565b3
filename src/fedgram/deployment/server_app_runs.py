"""Makes sure that a ServerApp works in an exchange folder, on this machine or on another.

On the server's machine this process starts runs of the ServerApp. If the SuperLink or the ServerApp dies, it starts a
new run, which continues with the call without an answer. A ServerApp that dies again and again without answering is an
error. On another machine the command `federation collect` does the same, and this process only watches its heartbeat.
"""

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from fedgram.core.errors import FedgramError
from fedgram.core.locks import is_held, locked
from fedgram.core.storage import atomic_write
from fedgram.deployment.checks import UnreachableError
from fedgram.deployment.exchange import Exchange
from fedgram.deployment.flower.control import run_status, start_run, stop_run
from fedgram.deployment.folder import Folder
from fedgram.deployment.waiting import WaitNotices

RUN = "run.json"  # the run that was started last, and its folder
_POLL_SECONDS, _END_POLL_SECONDS = 0.5, 0.05
_START_SECONDS = 600.0  # within which the process of a run must have taken the folder, also on a busy machine
_LOST_SECONDS = 3.0  # after which a run whose process has left the folder counts as lost
_SILENT_SECONDS = 15.0  # without a heartbeat, after which a ServerApp on another machine counts as lost
_ATTEMPTS = 5  # runs in a row that may end without an answer, not counting those that ended with the server
_ENDED = ("failed", "stopped", "completed", "unknown")


class ServerAppRuns(Protocol):
    """Makes sure that a ServerApp works in a folder."""

    def working(self) -> AbstractContextManager[None]:
        """A context in which a ServerApp works; one command at a time uses the devices of a federation."""

    def check(self) -> bool:
        """Whether a ServerApp works in the folder now; raises if none has for too long."""

    def answered(self) -> None:
        """Note that the ServerApp has answered a call."""

    def waits_for(self, what: str) -> None:
        """Note what the round loop waits for; it is printed if it takes long."""

    def wait_for_end(self) -> None:
        """Wait until the ServerApp has seen that the job is over."""


class LocalServerApp:
    """Keeps a run of the ServerApp going on this machine, until the ServerApp writes that it cannot continue."""

    def __init__(self, folder: Folder, exchange: Exchange, away: float) -> None:
        self._folder, self._exchange, self._work, self._away = folder, exchange, exchange.folder, away
        self._run: int | None = None
        self._last_held = self._started = self._next = 0.0
        self._held = self._held_once = self._alone = False
        self._unanswered, self._away_since, self._notices = 0, None, WaitNotices()
        self._waited_for = ""

    _away_since: float | None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Lock the federation; if the command is interrupted, the run is stopped."""
        with locked(self._folder.server, taken=_taken(self._folder)):
            self._run, self._alone, self._unanswered, self._next = None, False, 0, 0.0
            try:
                yield
            except (KeyboardInterrupt, SystemExit):
                with suppress(FedgramError):
                    stop_last(self._folder)
                raise

    def answered(self) -> None:
        """Note that the run has answered a call."""
        self._unanswered, self._waited_for = 0, ""

    def waits_for(self, what: str) -> None:
        """Note what the round loop waits for."""
        self._waited_for = what

    def check(self) -> bool:
        """Whether a ServerApp works in the folder; starts one if none does."""
        if failure := self._exchange.failure():
            raise FedgramError(failure)
        now = time.monotonic()
        if now < self._next:
            return self._held
        self._next, waited_for = now + _POLL_SECONDS, self._waited_for
        try:
            self._update(now)
            self._away_since = None
        except UnreachableError as error:
            self._held, self._unanswered, waited_for = False, 0, f"{error}; waiting for it"
            self._away_since = self._away_since or now
            if now - self._away_since > self._away:
                raise
        self._notices.tell(waited_for, now)
        return self._held

    def _update(self, now: float) -> None:
        """See whether a ServerApp holds the folder; start a run if none does, and drop one that has ended."""
        if not self._alone:
            stop_last(self._folder, unless=self._work)
            self._alone = True
        self._held = is_held(self._work)
        if self._held:  # by this run, or by one that another command started
            self._held_once, self._last_held = True, now
        elif self._run is None:
            if self._unanswered == _ATTEMPTS:
                log = self._folder.server / "superlink.log"
                raise FedgramError(f"the ServerApp ended {_ATTEMPTS} times without answering; see {log}")
            self._run, self._unanswered = _start(self._folder, self._work), self._unanswered + 1
            self._started, self._held_once = now, False
        elif self._has_ended(now):
            self._run = None

    def _has_ended(self, now: float) -> bool:
        assert self._run is not None
        since, limit = (self._last_held, _LOST_SECONDS) if self._held_once else (self._started, _START_SECONDS)
        if now - since > limit:
            stop_run(self._folder, self._run)
            return True
        return run_status(self._folder, self._run) in _ENDED

    def wait_for_end(self, seconds: float = 10.0) -> None:
        """Wait until the ServerApp has seen that the job is over."""
        end = time.monotonic() + seconds
        while is_held(self._work) and time.monotonic() < end:
            time.sleep(_END_POLL_SECONDS)


class RemoteServerApp:
    """Watches the heartbeat of a ServerApp in a folder shared with another machine, where `federation collect` runs."""

    def __init__(self, exchange: Exchange, away: float) -> None:
        self._exchange, self._away, self._notices = exchange, away, WaitNotices()
        self._heartbeat, self._seen, self._began = "", float("-inf"), time.monotonic()
        self._waited_for = ""

    @contextmanager
    def working(self) -> Iterator[None]:
        """Lock nothing: the other machine holds its federation."""
        yield

    def check(self) -> bool:
        """Whether the ServerApp has had a heartbeat lately."""
        if failure := self._exchange.failure():
            raise FedgramError(failure)
        now, heartbeat = time.monotonic(), self._exchange.heartbeat()
        if heartbeat != self._heartbeat:
            self._heartbeat, self._seen = heartbeat, now
        alive, place = now - self._seen < _SILENT_SECONDS, self._exchange.folder.parent
        if not alive and now - max(self._seen, self._began) > self._away + _SILENT_SECONDS:
            remedy = "run `fedgram federation collect` on its server's machine"
            raise FedgramError(f"no server works in {place}; {remedy}")
        self._notices.tell(self._waited_for if alive else f"waiting for a server in {place}", now)
        return alive

    def answered(self) -> None:
        """Note that the wait is over."""
        self._waited_for = ""

    def waits_for(self, what: str) -> None:
        """Note what the round loop waits for."""
        self._waited_for = what

    def wait_for_end(self) -> None:
        """Do not wait: the other machine sees the end by itself."""


def keep_collecting(folder: Folder, shared: Path) -> None:
    """Keep a ServerApp of this federation working for each run that opens a folder in `shared`, one after the other."""
    with locked(folder.server, taken=_taken(folder)):
        while True:
            exchange = next((e for path in sorted(shared.glob("*")) if (e := Exchange(path)).is_open), None)
            if exchange is None:
                time.sleep(_POLL_SECONDS)
            else:
                _collect_for(folder, exchange)


def _collect_for(folder: Folder, exchange: Exchange) -> None:
    """Keep a ServerApp working for a run until its folder is closed."""
    server_app, answers = LocalServerApp(folder, exchange, float("inf")), frozenset[str]()
    while exchange.is_open:
        server_app.check()
        if (now := exchange.answers()) != answers:
            answers = now
            server_app.answered()
        time.sleep(_POLL_SECONDS)


def _taken(folder: Folder) -> str:
    return f"another run is using the devices of {folder.path}; wait for it to end"


def _start(folder: Folder, work: Path) -> int:
    """Start a run, and write down which."""
    run = start_run(folder, {"work": str(work.resolve())})
    with atomic_write(folder.server / RUN) as file:
        file.write(json.dumps({"run": run, "work": str(work.resolve())}).encode())
    return run


def stop_last(folder: Folder, unless: Path | None = None) -> None:
    """Stop the run that was started last if it has not ended, unless it works in the folder `unless`."""
    try:
        noted = json.loads((folder.server / RUN).read_text("utf-8"))
        run, work = int(noted["run"]), noted["work"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if (unless is None or work != str(unless.resolve())) and run_status(folder, run) not in _ENDED:
        stop_run(folder, run)
