"""What the ServerApp does: it collects the rounds that a run calls for, through a folder (`exchange.py`).

It holds nothing that could be lost: a sum is in memory alone until it is in the folder, and what happens to it then is
the run's business. Should it be killed, the next one finds the call that has no answer.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from fedgram.core.errors import FedgramError
from fedgram.deployment.exchange import Exchange, Presence
from fedgram.deployment.journal import Journal
from fedgram.deployment.locks import locked
from fedgram.deployment.remote_fleet import RemoteFleet
from fedgram.deployment.transport import Lost, Transport
from fedgram.federated.fleet import Abandoned, RoundCall

_LOOK, _SHOW = 0.05, 0.5  # seconds between looks at the folder, and between looks at who is there
_SIGN = 2.0  # seconds between signs of life


def serve_rounds(work: Path, transport: Transport) -> None:
    """Answer the calls in a folder until the job is over; only one process does so at a time.

    Whatever goes wrong is written down, so that nobody starts it again in vain; all but the loss of the transport.
    """
    exchange = Exchange(work)
    with locked(work, seconds=120), _signs_of_life(exchange):
        journal = None
        try:
            order, job = exchange.read_order()
            journal = Journal(Path(order.journal or work / "journal"), job.task.name, order.rounds)
            journal.tell("run began", {"rounds": order.rounds, "job": job.digest, "parts": job.parts()})
            _Collector(exchange, RemoteFleet(transport, job, order.patience, tell=journal.tell), journal).serve()
        except Lost:
            raise
        except Exception as error:
            why = _in_words(error)
            exchange.fail(why)
            if journal is not None:
                journal.tell("run failed", {"why": why})
            raise


@contextmanager
def _signs_of_life(exchange: Exchange) -> Iterator[None]:
    """Give signs of life, also while a round is collected, for a run on another machine."""
    ended = threading.Event()

    def give() -> None:
        while not ended.wait(_SIGN):
            with suppress(OSError):
                exchange.give_sign_of_life()

    with suppress(OSError):
        exchange.give_sign_of_life()
    threading.Thread(target=give, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


class _Collector:
    """Answers calls; tells the journal of them, and the run who is there."""

    def __init__(self, exchange: Exchange, fleet: RemoteFleet, journal: Journal) -> None:
        self._exchange, self._fleet, self._journal = exchange, fleet, journal
        self._summed, self._next_look, self._shown = 0, 0.0, ""

    def serve(self) -> None:
        """Answer calls until the job is over."""
        while not self._exchange.is_over:
            self._look()
            found = self._exchange.next_call()
            if found is None:
                time.sleep(_LOOK)
            else:
                self._answer(*found)
        if not self._exchange.is_completed:
            self._journal.tell("run ended", {})
            return
        if self._summed:
            self._journal.tell("round committed", {"round": self._summed})
        self._journal.tell("run completed", {})

    def _look(self) -> None:
        """Look who is there, and say so if it has changed."""
        if time.monotonic() < self._next_look:
            return
        roster = self._fleet.roster
        roster.refresh()
        devices = sorted(roster.present())
        about = {"there": len(devices), "online": roster.online, "turned_away": dict(roster.turned_away)}
        if (now := f"{devices} {about}") != self._shown:
            self._exchange.show_devices(Presence(np.array(devices, np.int64), roster.online, roster.turned_away))
            self._shown = now
        self._journal.tell("waiting", about)
        self._next_look = time.monotonic() + _SHOW

    def _answer(self, name: str, call: RoundCall) -> None:
        if call.number > 1:  # a round is called for when the one before it is committed
            self._journal.tell("round committed", {"round": call.number - 1})
        began = time.monotonic()
        told = {"round": call.number, "attempt": call.attempt, "devices": len(call.order)}
        self._journal.tell("round began", told)
        try:
            found = self._fleet.collect(call)
        except Abandoned as why:
            self._next_look = 0.0
            self._look()  # so that the next attempt does not count on those who are gone
            self._exchange.answer(name, call, why)
            self._journal.tell("round abandoned", {"round": call.number, "why": str(why), **why.tally.fields()})
            return
        self._exchange.answer(name, call, found)
        self._summed, seconds = call.number, round(time.monotonic() - began, 3)
        self._journal.tell("round summed", {"round": call.number, "seconds": seconds, **found.tally.fields()})


def _in_words(error: Exception) -> str:
    """A line on what went wrong; of an error that nobody foresaw, its kind alone, as its text may quote anything."""
    if isinstance(error, FedgramError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror.lower()}, on the server; what was committed is kept"
    return f"the ServerApp failed with {type(error).__name__}; see superlink.log in the server's folder"
