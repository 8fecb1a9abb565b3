"""Who keeps a ServerApp working in a folder: this process, on the server's machine, or a command on another machine.

If the SuperLink or the ServerApp dies, a new run is started, which goes on with the call that has no answer. It is an
error if a ServerApp dies again and again without answering anything.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from fedgram.core.errors import FedgramError
from fedgram.core.storage import atomic_write
from fedgram.deployment.exchange import Exchange
from fedgram.deployment.flower.control import Unreachable, run_status, start_run, stop_run
from fedgram.deployment.folder import Folder
from fedgram.deployment.locks import is_held, locked

RUN = "run.json"  # which run was started last, and for which folder
_LOOK, _END_LOOK = 0.5, 0.05  # seconds between looks at the run, and at its end
_START_SECONDS = 60.0  # within which a run's process must have taken the folder
_LOST_SECONDS = 3.0  # after which a folder that nobody holds is taken for lost
_SILENT_SECONDS = 15.0  # after which a ServerApp on another machine is taken for lost
_ATTEMPTS = 5  # runs in a row that may end without an answer; those that the server took along aside
_SAY_AFTER, _SAY_AGAIN = 5.0, 30.0  # seconds until something is said of a wait, and until it is said again
_ENDED = ("failed", "stopped", "completed", "unknown")


class Keeper(Protocol):
    """Sees to it that a ServerApp works in a folder."""

    def working(self) -> AbstractContextManager[None]:
        """A context in which it does; one command at a time asks the devices of a federation."""

    def look(self) -> bool:
        """Whether a ServerApp works in the folder now; raises if none has for too long."""

    def answered(self) -> None:
        """The ServerApp has done something."""

    def waits_for(self, what: str) -> None:
        """What the loop waits for, to be said if it takes long."""

    def wait_for_end(self) -> None:
        """Wait until the ServerApp has seen that the job is over."""


class LocalKeeper:
    """Keeps a run of the ServerApp going on this machine, unless it has said that it cannot go on."""

    def __init__(self, folder: Folder, exchange: Exchange, away: float) -> None:
        self._folder, self._exchange, self._work, self._away = folder, exchange, exchange.folder, away
        self._run: int | None = None
        self._last_seen = self._started = self._next = 0.0
        self._held = self._held_once = self._alone = False
        self._in_vain, self._away_since, self._waits = 0, None, _Waits()
        self._waited_for = ""

    _away_since: float | None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Hold the federation; if the command is interrupted, the run is stopped."""
        taken = f"another run is asking the devices of {self._folder.path}; wait for it to end"
        with locked(self._folder.server, seconds=0, taken=taken):
            try:
                yield
            except (KeyboardInterrupt, SystemExit):
                with suppress(FedgramError):
                    stop_last(self._folder)
                raise

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
            time.sleep(_END_LOOK)


class FarKeeper:
    """Looks whether a ServerApp works in a folder that another machine shares, where `federation collect` keeps it."""

    def __init__(self, exchange: Exchange, away: float) -> None:
        self._exchange, self._away, self._waits = exchange, away, _Waits()
        self._sign, self._seen, self._began = "", float("-inf"), time.monotonic()
        self._waited_for = ""

    @contextmanager
    def working(self) -> Iterator[None]:
        """The other machine holds its federation."""
        yield

    def look(self) -> bool:
        """Whether the ServerApp has given a sign of life lately."""
        if failure := self._exchange.failure():
            raise FedgramError(failure)
        now, sign = time.monotonic(), self._exchange.sign_of_life()
        if sign != self._sign:
            self._sign, self._seen = sign, now
        held = now - self._seen < _SILENT_SECONDS
        if not held and now - max(self._seen, self._began) > self._away + _SILENT_SECONDS:
            remedy = "run `fedgram federation collect` on its server's machine"
            raise FedgramError(f"nobody works in {self._exchange.folder.parent}; {remedy}")
        self._waits.tell(self._waited_for if held else f"waiting for a server at {self._exchange.folder.parent}", now)
        return held

    def answered(self) -> None:
        """Nothing to note."""
        self._waited_for = ""

    def waits_for(self, what: str) -> None:
        """What the loop waits for."""
        self._waited_for = what

    def wait_for_end(self) -> None:
        """The other machine sees it when it looks."""


def keep_collecting(folder: Folder, shared: Path) -> None:
    """Keep a ServerApp of this federation working in whatever folder of `shared` a run has opened, one at a time."""
    taken = f"another run is asking the devices of {folder.path}; wait for it to end"
    with locked(folder.server, seconds=0, taken=taken):
        while True:
            exchange = next((e for path in sorted(shared.glob("*")) if (e := Exchange(path)).is_open), None)
            if exchange is None:
                time.sleep(_LOOK)
                continue
            keeper, answers = LocalKeeper(folder, exchange, float("inf")), frozenset[str]()
            while exchange.is_open:
                keeper.look()
                if (now := exchange.answers()) != answers:
                    answers = now
                    keeper.answered()
                time.sleep(_LOOK)


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
