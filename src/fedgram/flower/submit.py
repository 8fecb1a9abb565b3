"""Having orders carried out: a run is started on the SuperLink and looked after until it has ended.

If the SuperLink or the ServerApp dies, a new run goes on from the last committed round. An error that the ServerApp
could write down, such as a round that was abandoned too often, ends it; so does a ServerApp that dies again and again
without getting a round further.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedgram.core.errors import FedgramError
from fedgram.core.storage import atomic_write
from fedgram.flower.control import Unreachable, run_status, start_run, stop_run
from fedgram.flower.folder import Folder
from fedgram.flower.journal import read_status
from fedgram.flower.locks import is_held, locked
from fedgram.flower.orders import outcome

RUN = "run.json"  # which run was started last, and for which orders
_LOOK = 0.5
_START_SECONDS = 60.0  # within which a run's process must have taken the folder
_LOST_SECONDS = 3.0  # after which a folder that nobody holds is taken for lost
_ATTEMPTS = 5  # runs in a row that may end without a word and without a round; those that the server took along aside
_SAY_AFTER, _SAY_AGAIN = 5.0, 30.0  # seconds until something is said of a wait, and until it is said again
_ENDED = ("failed", "stopped", "completed", "unknown")


def carry_out(
    folder: Folder, work: Path, *, patience: float = 600.0, on_round: Callable[[int], object] = lambda _: None
) -> None:
    """Run the orders of a working folder to their end; `patience` is how long the server may be away.

    One command at a time does so on a federation. If it is interrupted, it stops the run; if it is killed, the run
    goes on, and whoever comes next goes on with it, or stops it if the orders are others.
    """
    taken = f"another run is asking the devices of {folder.path}; wait for it to end"
    with locked(folder.server, seconds=0, taken=taken):
        try:
            _look_after(folder, work, patience, on_round)
        except (KeyboardInterrupt, SystemExit):
            with suppress(FedgramError):
                _stop(folder)
            raise


def _look_after(folder: Folder, work: Path, patience: float, on_round: Callable[[int], object]) -> None:
    run: int | None = None
    last_seen = started = time.monotonic()
    held_once, in_vain, committed = False, 0, _committed(folder)
    away_since: float | None = None
    alone, waits = False, _Waits()
    while True:
        end = outcome(work)
        if "error" in end:
            raise FedgramError(str(end["error"]))
        if end.get("done"):
            return
        status = read_status(folder.server)
        on_round(int(status.get("round", 0)))
        now, waited_for = time.monotonic(), ""
        try:
            if not alone:
                _stop(folder, unless=work)
                alone = True
            if is_held(work):  # by this run, or by one that another command started
                held_once, last_seen = True, now
                waited_for = str(status["state"]) if status.get("waiting") else ""
            elif run is None:
                if (now_committed := _committed(folder)) != committed:
                    in_vain, committed = 0, now_committed
                if in_vain == _ATTEMPTS:
                    log = folder.server / "superlink.log"
                    raise FedgramError(f"the ServerApp ended {in_vain} times without a word or a round; see {log}")
                run, in_vain = _start(folder, work), in_vain + 1
                started, held_once = now, False
            elif now - (last_seen if held_once else started) > (_LOST_SECONDS if held_once else _START_SECONDS):
                stop_run(folder, run)
                run = None
            elif run_status(folder, run) in _ENDED and not outcome(work):
                run = None
            away_since = None
        except Unreachable as error:
            away_since, in_vain, waited_for = away_since or now, 0, f"{error}; waiting for it"
            if now - away_since > patience:
                raise
        waits.tell(waited_for, now)
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


def _stop(folder: Folder, unless: Path | None = None) -> None:
    """Stop the run that was started last, if it goes on; not if it carries out the orders of the folder `unless`."""
    try:
        noted = json.loads((folder.server / RUN).read_text("utf-8"))
        run, work = int(noted["run"]), noted["work"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if (unless is None or work != str(unless.resolve())) and run_status(folder, run) not in _ENDED:
        stop_run(folder, run)


def _committed(folder: Folder) -> int:
    """How many rounds this federation has committed, in all of its runs."""
    return int(read_status(folder.server).get("rounds_committed", 0))
