"""A round over a fleet: more devices are asked than needed, the first to report count, the others are left out.

    ask ⌈n·over⌉ devices in the order of the round's draw
    until n have reported or the deadline has passed:
        a report enters the running sum at once, if it is sane;
        for a device that fails, declines or sends nonsense, the next one of the draw is asked
    n_min reports or more: the round is committed; fewer: it is abandoned, and nothing of it is kept

The draw is that of the in-process driver, by device number. Replies are fetched a few at a time and summed as they
come, so the server's memory does not depend on the size of the cohort. A reply counts for the request it answers and
for no other, and each device is asked once a round, so none is counted twice. Paper: §3.1, §7.1; Bonawitz et al. 2019.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from fedgram.core.errors import FedgramError
from fedgram.core.random import stream
from fedgram.flower.fleet import Content, Fleet, Reply, Request

Fold = Callable[[int, Content], str | None]


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """How rounds are run: devices wanted, asked and needed at least; the deadline in seconds; attempts at a round.

    `wait_for` devices must be there before a round begins; `batch` replies are fetched at a time.
    """

    devices: int
    over_selection: float = 1.3
    minimum: int = 1
    deadline: float = 600.0
    attempts: int = 5
    wait_for: int = 1
    wait_seconds: float = 600.0
    batch: int = 32
    poll: float = 0.2

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.devices:
            raise FedgramError("a round needs at least 1 report, and at most as many as devices")
        if not (1.0 <= self.over_selection < 1e6 and self.deadline > 0 and self.wait_seconds > 0 and self.poll > 0):
            raise FedgramError("over-selection must be at least 1; deadlines must be greater than 0")
        if min(self.attempts, self.batch, self.wait_for) < 1:
            raise FedgramError("attempts, batches and devices to wait for must be at least 1")

    @property
    def asked(self) -> int:
        """Devices asked at first."""
        return ceil(self.devices * self.over_selection)


@dataclass(slots=True)
class Tally:
    """What happened in a round, or in several."""

    asked: int = 0
    reports: int = 0
    late: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    bytes_sent: int = 0
    bytes_received: int = 0

    def __iadd__(self, other: "Tally") -> "Tally":
        self.asked += other.asked
        self.reports += other.reports
        self.late += other.late
        self.failed += other.failed
        self.refused += other.refused
        self.bytes_sent += other.bytes_sent
        self.bytes_received += other.bytes_received
        return self

    def fields(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "asked": self.asked, "reports": self.reports, "late": self.late, "failed": dict(self.failed),
            "refused": dict(self.refused), "bytes_sent": self.bytes_sent, "bytes_received": self.bytes_received,
        }  # fmt: skip


class Abandoned(FedgramError):
    """A round with too few reports, of which nothing is kept."""

    def __init__(self, why: str, tally: Tally) -> None:
        super().__init__(why)
        self.tally = tally


def order_of_asking(devices: list[int], *, seed: int, round_number: int, attempt: int = 0) -> list[int]:
    """The devices in the order in which they are asked; at the first attempt, that of the in-process driver."""
    names: tuple[str | int, ...] = ("cohort", round_number) if attempt == 0 else ("cohort", round_number, attempt)
    return [int(d) for d in stream(seed, *names).permutation(sorted(devices))]


def collect(
    fleet: Fleet, order: list[tuple[int, int]], request: Callable[[int], Request], fold: Fold, plan: RoundPlan, *,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    on_progress: Callable[[Tally], object] = lambda _: None,
) -> Tally:  # fmt: skip
    """One attempt at a round over (device, node) in the order of asking; raises `Abandoned` with too few reports.

    `fold` takes a report into the sum, or says why not.
    """
    tally, waiting, following = Tally(), dict[str, int](), iter(order)
    end = clock() + plan.deadline

    def ask(count: int) -> None:
        chosen = [pair for _, pair in zip(range(count), following, strict=False)]
        if not chosen:
            return
        requests = [request(node) for _, node in chosen]
        named = fleet.send(requests, seconds=max(end - clock(), 1.0))
        for (device, _), sent, name in zip(chosen, requests, named, strict=True):
            tally.asked += 1
            if name:
                waiting[name] = device
                tally.bytes_sent += sent.size
            else:
                tally.failed["not sent"] += 1

    ask(plan.asked)
    while tally.reports < plan.devices and clock() < end:
        if len(waiting) + tally.reports < plan.devices:
            ask(plan.devices - len(waiting) - tally.reports)
        if not waiting:
            break
        came = _take(fleet, waiting, fold, plan, tally)
        on_progress(tally)
        if not came and waiting:
            sleep(plan.poll)
    tally.late += len(waiting)
    if tally.reports < plan.minimum:
        raise Abandoned(_why(tally, plan, clock() >= end), tally)
    return tally


def _take(fleet: Fleet, waiting: dict[str, int], fold: Fold, plan: RoundPlan, tally: Tally) -> int:
    """Fetch what has come, a few replies at a time, and sum it; returns how many came."""
    came = 0
    for reply in fleet.poll(list(waiting), most=plan.batch):
        device = waiting.pop(reply.request, None)
        if device is None:
            tally.refused["answers nothing"] += 1
            continue
        came += 1
        tally.bytes_received += reply.size
        if problem := problem_of(reply):
            tally.failed[problem] += 1
        elif reason := fold(device, reply.content or {}):
            tally.refused[reason] += 1
        else:
            tally.reports += 1
        if tally.reports >= plan.devices:
            break
    return came


def problem_of(reply: Reply) -> str | None:
    """Why a reply holds no answer; None if it does."""
    if reply.content is None:
        return reply.error or "no content"
    if "failed" in reply.content:
        return reply.content["failed"].decode("ascii", "replace")[:40]
    return "declined" if "declined" in reply.content else None


def _why(tally: Tally, plan: RoundPlan, late: bool) -> str:
    causes = [f"{n} {reason}" for reason, n in (tally.failed + tally.refused).items()]
    causes += [f"{tally.late} late"] if tally.late else []
    end = "by the deadline" if late else "and no device is left to ask"
    return f"{tally.reports} of at least {plan.minimum} reports {end} ({', '.join(causes) or 'no device'})"
