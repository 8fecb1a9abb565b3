"""A fleet of real devices behind a transport: who is there, and the sum of a round of theirs.

    invite ⌈n·over⌉ devices in the order of the round's draw
    until n have reported or the deadline has passed:
        a report is judged and enters the running sum at once;
        for a device that fails, declines or sends nonsense, the next one of the draw is invited
    n_min reports or more make a sum; with fewer the attempt is abandoned, and nothing of it is kept

Replies are fetched a few at a time and summed as they come, so the server's memory does not depend on the size of the
cohort. A reply counts for the request it answers and for no other, and each device is asked once a round, so none is
counted twice. A device that says that it took part already, in a sum that was lost, is not asked again. With masking,
`masked_round.py` takes the place of this. Paper: §3.1, §7.1; Bonawitz et al. 2019.
"""

import builtins
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.deployment.device import NotKnown
from fedgram.deployment.participation import TOOK_PART
from fedgram.deployment.roster import Roster
from fedgram.deployment.transport import Content, Reply, Request, Transport
from fedgram.federated.fleet import Abandoned, RoundCall, RoundSum, Tally
from fedgram.federated.intake import Intake
from fedgram.federated.job import Job
from fedgram.federated.rounds import Tell
from fedgram.federated.wire import record_to_bytes

_OWN_ERRORS = frozenset(
    ("NotKnown", "FedgramError", "InputError", "InvariantError", "MissingDependencyError", "RefusedMessageError",
     "RefusedUpdateError")
)  # fmt: skip
Fold = Callable[[int, Content], str | None]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server waits: for a round (`deadline`), for devices to be there (`wait_seconds`), and for further ones
    when all others have taken part (`idle_seconds`). It waits for as many devices as a round wants, or for `wait_for`
    of them. `batch` replies are fetched at a time.
    """

    deadline: float = 600.0
    wait_seconds: float = 600.0
    idle_seconds: float = 60.0
    wait_for: int = 0
    batch: int = 32
    poll: float = 0.2

    def __post_init__(self) -> None:
        if not min(self.deadline, self.wait_seconds, self.poll) > 0 or self.idle_seconds < 0 or self.batch < 1:
            raise FedgramError("deadlines and polling intervals must be greater than 0, batches at least 1")


class RemoteFleet:
    """A `Fleet` over a transport; `tell` is told of what happens, in words and numbers, never in text."""

    def __init__(
        self, transport: Transport, job: Job[Any], patience: Patience | None = None, *, tell: Tell = lambda *_: None,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.transport, self.job, self.patience, self.tell = transport, job, patience or Patience(), tell
        self.clock, self.sleep = clock, sleep
        self.roster = Roster(transport, job.content, clock=clock, sleep=sleep)

    def devices(self, wanted: int, spent: LongArray) -> LongArray:
        """The devices that are there and not spent; waits for as many as are wanted, if only a while for the last."""
        seconds = self.patience.idle_seconds if len(spent) else self.patience.wait_seconds
        count = (self.patience.wait_for or wanted) if wanted else 0

        def waiting(about: Mapping[str, Any]) -> None:
            self.tell("waiting", about)

        present = self.roster.wait_for(count, seconds, without=spent, on_wait=waiting)
        return sorted_devices(present)

    def prepare(self, call: RoundCall) -> None:
        """Real devices prepare nothing."""

    def collect(self, call: RoundCall) -> RoundSum:
        """The sum of an attempt at a round, masked on the way or not."""
        from fedgram.deployment.masked_round import MaskedRound

        if call.attempt:
            self.sleep(min(2.0 ** (call.attempt - 1), 30.0))
        # A server that was started in the middle of a round, or again, knows none of its devices yet.
        self.roster.hear_from(call.order[: call.plan.invited].tolist(), self.patience.idle_seconds)
        present = self.roster.present()
        order = [(device, present[device]) for device in call.order.tolist() if device in present]
        state = record_to_bytes(call.broadcast)
        digest = hashlib.sha256(state).hexdigest()
        shared = {
            "job": self.job.digest.encode(), "round": str(call.number).encode(), "broadcast": digest.encode()
        }  # fmt: skip

        def on_progress(tally: Tally) -> None:
            self.tell("progress", {"round": call.number, **tally.fields()})

        if call.masking is not None:
            return MaskedRound(self, call, order, shared, {"state": state}, on_progress).collect()
        return self._collect_plain(call, order, {**shared, "state": state}, on_progress)

    def heard_problem(self, device: int, problem: str) -> None:
        """Mind what a device said instead of answering: one that lost its job, as one does that is set up anew."""
        if problem == NotKnown.__name__:
            self.roster.forget(device)

    def _collect_plain(
        self, call: RoundCall, order: list[tuple[int, int]], shared: Content, on_progress: Callable[[Tally], object]
    ) -> RoundSum:
        intake, spent = Intake(self.job.task, (device for device, _ in order)), set[int]()

        def fold(device: int, content: Content) -> str | None:
            return intake.offer(device, content.get("update", b""))

        def request(node: int) -> Request:
            return Request(node, "report", {}, shared, str(call.number))

        try:
            tally = collect(self, order, request, fold, call, on_progress, spent)
        except Abandoned as why:  # the reports that came were seen
            raise Abandoned(str(why), why.tally, sorted_devices(intake.seen | spent)) from None
        tally.empty = intake.empty
        return RoundSum(intake.total, sorted_devices(intake.seen | spent), tally)


def sorted_devices(devices: Iterable[int]) -> LongArray:
    """Devices as an array."""
    return np.array(sorted(devices), np.int64)


def collect(
    fleet: RemoteFleet, order: list[tuple[int, int]], request: Callable[[int], Request], fold: Fold, call: RoundCall,
    on_progress: Callable[[Tally], object], spent: set[int],
) -> Tally:  # fmt: skip
    """One attempt at a plain round over (device, node) in the order of asking; raises `Abandoned` with too few reports.

    `fold` takes a report into the sum, or says why not. Devices that took part already are added to `spent`.
    """
    plan, patience, clock = call.plan, fleet.patience, fleet.clock
    tally, waiting, following = Tally(), dict[str, int](), iter(order)
    end = clock() + patience.deadline

    def ask(count: int) -> None:
        chosen = [pair for _, pair in zip(range(count), following, strict=False)]
        if not chosen:
            return
        requests = [request(node) for _, node in chosen]
        named = fleet.transport.send(requests, seconds=max(end - clock(), 1.0))
        for (device, _), sent, name in zip(chosen, requests, named, strict=True):
            tally.asked += 1
            if name:
                waiting[name] = device
                tally.bytes_sent += sent.size
            else:
                tally.failed["not sent"] += 1

    ask(plan.invited)
    while tally.reports < plan.devices and clock() < end:
        if len(waiting) + tally.reports < plan.devices:
            ask(plan.devices - len(waiting) - tally.reports)
        if not waiting:
            break
        came = _take(fleet, waiting, fold, plan.devices, tally, spent)
        on_progress(tally)
        if not came and waiting:
            fleet.sleep(patience.poll)
    tally.late += len(waiting)
    if tally.reports < plan.minimum:
        raise Abandoned(_why(tally, plan.minimum, clock() >= end), tally)
    return tally


def _take(fleet: RemoteFleet, waiting: dict[str, int], fold: Fold, wanted: int, tally: Tally, spent: set[int]) -> int:
    """Fetch what has come, a few replies at a time, and sum it; returns how many came."""
    came = 0
    for reply in fleet.transport.poll(list(waiting), most=fleet.patience.batch):
        device = waiting.pop(reply.request, None)
        if device is None:
            tally.refused["answers nothing"] += 1
            continue
        came += 1
        tally.bytes_received += reply.size
        if problem := problem_of(reply):
            tally.failed[problem] += 1
            fleet.heard_problem(device, problem)
            spent |= {device} if problem == TOOK_PART else set()
        elif reason := fold(device, reply.content or {}):
            tally.refused[reason] += 1
        else:
            tally.reports += 1
        if tally.reports >= wanted:
            break
    return came


def problem_of(reply: Reply) -> str | None:
    """Why a reply holds no answer; None if it does."""
    if reply.content is None:
        return reply.error or "no content"
    if "failed" in reply.content:
        name = reply.content["failed"].decode("ascii", "replace")[:40]
        return name if hasattr(builtins, name) or name in _OWN_ERRORS else "failed"  # nothing else is passed on
    declined = reply.content.get("declined")
    return None if declined is None else (TOOK_PART if declined == TOOK_PART.encode() else "declined")


def _why(tally: Tally, minimum: int, late: bool) -> str:
    causes = [f"{n} {reason}" for reason, n in (tally.failed + tally.refused).items()]
    causes += [f"{tally.late} late"] if tally.late else []
    end = "by the deadline" if late else "and no device is left to ask"
    return f"{tally.reports} of at least {minimum} reports {end} ({', '.join(causes) or 'no device'})"
