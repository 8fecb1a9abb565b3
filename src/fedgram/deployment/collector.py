"""The work of the ServerApp: it collects the rounds that a run calls for, through a folder (`exchange.py`).

It holds no state of its own: a sum is written to the folder as soon as it is complete, and the run does the rest. If
the ServerApp is killed, the next one finds the call without an answer.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from fedgram.core.errors import FedgramError
from fedgram.core.locks import locked
from fedgram.deployment.exchange import Exchange, ServeOptions
from fedgram.deployment.journal import Journal
from fedgram.deployment.key_list import read_key_list
from fedgram.deployment.published import RELEASES, DeviceVersions, Releases
from fedgram.deployment.remote_fleet import RemoteFleet
from fedgram.deployment.rollout import Rollout
from fedgram.deployment.transport import Transport, TransportLostError
from fedgram.federated.fleet import AbandonedAttemptError, RoundCall

_POLL_SECONDS, _PRESENCE_SECONDS = 0.05, 0.5  # polling intervals of the folder, and of the list of devices
_HEARTBEAT_SECONDS = 2.0
_LOCK_SECONDS = 120.0
_TAKEN = "another ServerApp works in the same folder"


def serve_rounds(work: Path, transport: Transport, server: Path | None = None) -> None:
    """Answer the calls in a folder until the job is over; only one process does so at a time.

    `server` is the server's part of the federation's folder, which has the list of admitted keys.
    Any failure but the loss of the transport is written to the folder, so that the run ends instead of trying again.
    """
    exchange = Exchange(work)
    with locked(work, seconds=_LOCK_SECONDS, taken=_TAKEN), _heartbeat(exchange):
        journal = None
        try:
            options, job = exchange.read_options()
            journal = Journal(Path(options.journal or work / "journal"), job.task.name, options.rounds)
            journal.tell("run began", {"rounds": options.rounds, "job": job.digest, "parts": job.parts()})
            key_list = partial(read_key_list, server) if server is not None else lambda: None
            fleet = RemoteFleet(transport, job, options.timeouts, tell=journal.tell, key_list=key_list)
            _Collector(exchange, fleet, journal, _rollout(options, transport, fleet)).serve()
        except TransportLostError:
            raise
        except Exception as error:
            why = _in_words(error)
            exchange.fail(why)
            if journal is not None:
                journal.tell("run failed", {"why": why})
            raise


def _rollout(options: ServeOptions, transport: Transport, fleet: RemoteFleet) -> Rollout | None:
    """What sends the latest release to devices between rounds, if the federation has published any."""
    server = Path(options.journal)
    if not options.journal or not (server / RELEASES).is_dir():
        return None
    versions = DeviceVersions(server)
    fleet.roster.on_model = versions.heard
    return Rollout(transport, Releases(server), versions)


@contextmanager
def _heartbeat(exchange: Exchange) -> Iterator[None]:
    """Write a heartbeat, also while a round is collected, for a run on another machine."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(_HEARTBEAT_SECONDS):
            with suppress(OSError):
                exchange.write_heartbeat()

    with suppress(OSError):
        exchange.write_heartbeat()
    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


class _Collector:
    """Answers calls, records them in the journal, and tells the run which devices are there.

    Between rounds it also sends devices the latest release of a model.
    """

    def __init__(self, exchange: Exchange, fleet: RemoteFleet, journal: Journal, rollout: Rollout | None) -> None:
        self._exchange, self._fleet, self._journal, self._rollout = exchange, fleet, journal, rollout
        self._summed, self._next_look, self._shown = 0, 0.0, ""
        self._rollout_next = False

    def serve(self) -> None:
        """Answer calls until the job is over."""
        while not self._exchange.is_over:
            self._look()
            found = self._exchange.next_call()
            if found is None:
                time.sleep(_POLL_SECONDS)
            else:
                self._answer(*found)
        completed, paused = self._exchange.is_completed, self._exchange.is_paused
        if self._summed and (completed or paused):
            self._journal.tell("round committed", {"round": self._summed})
        self._journal.tell("run completed" if completed else "run paused" if paused else "run ended", {})

    def _look(self) -> None:
        """Update the list of devices, and tell the run if it has changed."""
        if time.monotonic() < self._next_look:
            return
        if self._rollout is not None:  # by turns: a transport limits how often it is asked for replies
            self._rollout_next = not self._rollout_next
            if self._rollout_next:
                self._rollout.refresh()
                self._next_look = time.monotonic() + _PRESENCE_SECONDS / 2
                return
        present = self._fleet.roster.look()
        about = {
            "there": len(present.devices), "online": present.online, "turned_away": dict(present.turned_away)
        }  # fmt: skip
        if (now := f"{present.devices.tolist()} {about}") != self._shown:
            self._exchange.show_devices(present)
            self._shown = now
        self._journal.tell("waiting", about)
        self._next_look = time.monotonic() + _PRESENCE_SECONDS

    def _answer(self, name: str, call: RoundCall) -> None:
        if call.number > 1:  # the run calls for a round once the previous one is committed
            self._journal.tell("round committed", {"round": call.number - 1})
        began = time.monotonic()
        told = {"round": call.number, "attempt": call.attempt, "devices": len(call.order)}
        self._journal.tell("round began", told)
        try:
            found = self._fleet.collect(call)
        except AbandonedAttemptError as why:
            self._next_look = 0.0
            self._look()  # so that the next attempt does not count on devices that are gone
            self._exchange.answer(name, call, why)
            self._journal.tell("round abandoned", {"round": call.number, "why": why.reason, **why.tally.fields()})
            return
        self._exchange.answer(name, call, found)
        self._summed, seconds = call.number, round(time.monotonic() - began, 3)
        self._journal.tell("round summed", {"round": call.number, "seconds": seconds, **found.tally.fields()})


def _in_words(error: Exception) -> str:
    """One line that says what went wrong; for an unexpected error only its class, as its text may quote anything."""
    if isinstance(error, FedgramError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror.lower()}, on the server; committed rounds are kept"
    return f"the ServerApp failed with {type(error).__name__}; see superlink.log in the server's folder"
