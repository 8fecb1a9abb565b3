"""A fleet of real devices behind a transport: which devices are there, and the sum of a round over them."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from fedgram.core.arrays import LongArray
from fedgram.deployment.attempt import Attempt
from fedgram.deployment.key_list import SignedKeys
from fedgram.deployment.masked_round import MaskedRound
from fedgram.deployment.plain_round import PlainRound
from fedgram.deployment.roster import Roster
from fedgram.deployment.transport import Transport
from fedgram.deployment.waiting import DeviceWait, Timeouts
from fedgram.federated.fleet import RoundCall, RoundSum, Tally
from fedgram.federated.job import Job
from fedgram.federated.rounds import Tell


class RemoteFleet:
    """A `Fleet` over a transport; `tell` is told what happens, in numbers and fixed words only.

    `key_list` reads the signed list of admitted keys, which masked rounds need.
    """

    def __init__(
        self, transport: Transport, job: Job[Any], timeouts: Timeouts | None = None, *, tell: Tell = lambda *_: None,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
        key_list: Callable[[], SignedKeys | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._transport, self._job, self._timeouts, self._tell = transport, job, timeouts or Timeouts(), tell
        self.clock, self._sleep = clock, sleep
        self.roster = Roster(transport, job.content, clock=clock, sleep=sleep)
        self._key_list, found = key_list, key_list()
        self._admitted = found.admitted if found else None
        self.roster.admitted = self._signed_keys

    def _signed_keys(self) -> bytes:
        found = self._key_list()
        return found.signed if found else b""

    def _renew_keys(self) -> None:
        """Read the list of admitted keys; if it has changed, devices are sent it again, with the job."""
        found = self._key_list()
        if found is None or found.admitted == self._admitted:
            return
        self._admitted = found.admitted
        for device in self.roster.present():
            self.roster.forget(device)

    def devices(self, wanted: int, spent: LongArray) -> LongArray:
        """The devices that are there and not in `spent`; waits until `wanted` are, or a while for the last ones."""

        def on_wait(about: Mapping[str, Any]) -> None:
            self._tell("waiting", about)

        wait = DeviceWait(self.roster.look, self._timeouts, on_wait, self.clock, self._sleep)
        return wait.wait(wanted, spent)

    def prepare(self, call: RoundCall) -> None:
        """Real devices prepare nothing."""

    def collect(self, call: RoundCall) -> RoundSum:
        """The sum of an attempt at a round, masked or not. Later attempts wait longer before they begin."""
        if call.attempt:
            self._sleep(min(2.0 ** (call.attempt - 1), 30.0))
        if call.masking is not None:
            self._renew_keys()
        # A server that was started in the middle of a round, or again, does not know its devices yet.
        self.roster.hear_from(call.order[: call.plan.invited].tolist(), self._timeouts.idle_seconds)
        present = self.roster.present()

        def on_progress(tally: Tally) -> None:
            self._tell("progress", {"round": call.number, **tally.fields()})

        attempt = Attempt(
            self._transport, self._job, call, {d: present[d] for d in call.order.tolist() if d in present},
            self._timeouts, forget=self.roster.forget, on_progress=on_progress, clock=self.clock, sleep=self._sleep,
            admitted=self._admitted,
        )  # fmt: skip
        return (PlainRound if call.masking is None else MaskedRound)(attempt).collect()
