"""The round loop: the one place that draws cohorts, for every task and every fleet.

    broadcast(state) ─▶ Fleet ─▶ updates, judged and summed (masked) ─▶ noise, if asked ─▶ server_update ─▶ commit

A round is committed whole or leaves no trace: its sum is in memory alone until the state after it is in a checkpoint. A
round with too few reports is abandoned and tried again with another draw. Devices that have taken part as often as the
job allows, or whose updates were refused, are not asked again; a run ends after its rounds, when its `Watch` says so,
or when no device is left to ask.
Paper: §3.1, §7.1; Bonawitz et al. 2019.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.checkpoint import Checkpoints
from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record, content_digest
from fedgram.federated.cohort import RoundPlan, draw_order
from fedgram.federated.fleet import Abandoned, Fleet, RoundCall, RoundSum, Tally
from fedgram.federated.job import Job
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import State, Total

Tell = Callable[[str, Mapping[str, Any]], object]
_NOBODY = np.zeros(0, np.int64)


Watched = TypeVar("Watched", contravariant=True)


class Watch(Protocol[Watched]):
    """Follows a run and may end it; what it remembers is part of the checkpoint."""

    def begin(self, state: Watched) -> None:
        """A run starts from this state; not called for one that resumes."""

    def is_over(self, state: Watched) -> bool:
        """Whether the run should end after this state."""

    def after_round(self, state: Watched, number: int, found: RoundSum, seconds: float) -> None:
        """A round led to this state."""

    def save(self) -> Record:
        """What it remembers."""

    def load(self, saved: Record) -> None:
        """Remember what `save` wrote."""


class Unwatched:
    """A `Watch` that lets a run go on to its end."""

    def begin(self, state: Any) -> None:
        """Nothing to do."""

    def is_over(self, state: Any) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def after_round(self, state: Any, number: int, found: RoundSum, seconds: float) -> None:
        """Nothing to do."""

    def save(self) -> Record:
        """Nothing."""
        return Record()

    def load(self, saved: Record) -> None:
        """Nothing to remember."""


class Mechanism(Protocol):
    """What happens to a round's sum before the server uses it: noise, and the account of it."""

    def check(self, number: int) -> None:
        """Refuse a round that would pass the budget, before any device is asked."""

    def release(self, number: int, total: Total) -> Total:
        """The sum that the server may use."""

    def save(self) -> Record:
        """What was spent so far."""

    def load(self, saved: Record) -> None:
        """Go on from what `save` wrote."""


class Exact:
    """A `Mechanism` that adds nothing: the server uses the exact sum."""

    def check(self, number: int) -> None:
        """No budget."""

    def release(self, number: int, total: Total) -> Total:  # noqa: ARG002
        """The sum itself."""
        return total

    def save(self) -> Record:
        """Nothing."""
        return Record()

    def load(self, saved: Record) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run goes: its rounds (None: until no device is left to ask), its cohorts, masking, and checkpoints."""

    rounds: int | None
    plan: RoundPlan = field(default_factory=RoundPlan)
    masking: SecureSettings | None = None
    checkpoint_every: int = 1

    def __post_init__(self) -> None:
        if (self.rounds is not None and self.rounds < 1) or self.checkpoint_every < 1:
            raise FedgramError("rounds, and the rounds between checkpoints, must be at least 1")
        if self.masking is not None and self.plan.devices < self.masking.min_devices:
            needed = f"a masked sum needs at least {self.masking.min_devices}"
            raise FedgramError(f"a round wants {self.plan.devices} devices, and {needed}")

    @property
    def minimum(self) -> int:
        """The fewest reports of which a sum is made."""
        return max(self.plan.minimum, self.masking.min_devices if self.masking else 1)


@dataclass(slots=True, eq=False)
class Progress:
    """How far a run is: rounds committed, what happened in them, and how often each device has taken part."""

    round: int = 0
    tally: Tally = field(default_factory=Tally)
    abandoned: int = 0
    device: LongArray = field(default_factory=lambda: _NOBODY)
    times: LongArray = field(default_factory=lambda: _NOBODY)

    def took_part(self, devices: LongArray) -> None:
        """Count one more participation of each of these devices."""
        known, inverse = np.unique(np.concatenate([self.device, devices]), return_inverse=True)
        ones = np.ones(len(devices), np.int64)
        times = np.bincount(inverse, np.concatenate([self.times, ones]), minlength=len(known))
        self.device, self.times = known, times.astype(np.int64)

    def spent(self, limit: int | None) -> LongArray:
        """The devices that may not take part again."""
        return _NOBODY if limit is None else self.device[self.times >= limit]

    @property
    def most(self) -> int:
        """How often the device took part that did so most often."""
        return int(self.times.max(initial=0))

    def save(self) -> Record:
        """As values and arrays."""
        fields = {"round": self.round, "abandoned": self.abandoned, "tally": self.tally.fields()}
        return Record(fields, {"device": self.device, "times": self.times})

    @classmethod
    def load(cls, saved: Record) -> "Progress":
        """What `save` wrote."""
        f, a = saved.fields, saved.arrays
        return cls(int(f["round"]), Tally.from_fields(f["tally"]), int(f["abandoned"]), a["device"], a["times"])


@dataclass(frozen=True, slots=True, eq=False)
class Run(Generic[State]):
    """A finished run: the last state, and how it went."""

    state: State
    progress: Progress


class GaveUp(FedgramError):
    """A round that was abandoned too often; the state before it is kept."""

    def __init__(self, problem: str, tally: Tally) -> None:
        super().__init__(problem)
        self.tally = tally


def run_rounds(
    job: Job[State], fleet: Fleet, options: RunOptions, *, watch: Watch[State] | None = None,
    mechanism: Mechanism | None = None, folder: Path | None = None, resume: bool = True, lead: bool = True,
    belongs_to: Mapping[str, Any] | None = None, tell: Tell = lambda *_: None,
) -> Run[State]:  # fmt: skip
    """Run a job's rounds on a fleet, from the beginning or from the newest checkpoint in the folder.

    Of several processes that run the same rounds together, one leads and writes the checkpoints.
    """
    loop = _Loop(job, fleet, options, watch or Unwatched(), mechanism or Exact(), tell)
    checkpoints = None
    if folder is not None:
        checkpoints = Checkpoints(folder, {**_description(job, options), **(belongs_to or {})})
        if not resume and lead:
            checkpoints.clear()
    found = checkpoints.newest() if checkpoints and resume else None
    if found:
        loop.load(found[1])
    else:
        loop.begin()
    written = loop.progress.round

    def commit(*, again: bool = False) -> None:
        nonlocal written
        if checkpoints and lead and (again or loop.progress.round > written):
            checkpoints.write(loop.progress.round, loop.save())
            written = loop.progress.round

    loop.keep = partial(commit, again=True)

    try:
        while not loop.is_over() and loop.round():
            if loop.progress.round % options.checkpoint_every == 0:
                commit()
            tell("round committed", {"round": loop.progress.round})
    except GaveUp:
        commit()
        raise
    commit()
    return Run(loop.state, loop.progress)


def _description(job: Job[Any], options: RunOptions) -> dict[str, Any]:
    """What a checkpoint must agree with to be resumed."""
    start = job.task.save(job.task.init())
    plan = {"devices": options.plan.devices, "over_selection": options.plan.over_selection}
    return {
        **job.parts(), **plan, "task": job.task.name, "seed": job.seed, "participations": job.participations,
        "start": content_digest(start.fields, start.arrays),
    }  # fmt: skip


class _Loop(Generic[State]):
    """A run between two rounds."""

    def __init__(
        self, job: Job[State], fleet: Fleet, options: RunOptions, watch: Watch[State], mechanism: Mechanism, tell: Tell
    ) -> None:
        self._job, self._fleet, self._options, self._tell = job, fleet, options, tell
        self._watch, self._mechanism = watch, mechanism
        self.progress, self.state, self._seen = Progress(), job.task.init(), _NOBODY
        self.keep: Callable[[], object] = lambda: None

    def begin(self) -> None:
        self._watch.begin(self.state)

    def is_over(self) -> bool:
        rounds = self._options.rounds
        return (rounds is not None and self.progress.round >= rounds) or self._watch.is_over(self.state)

    def round(self) -> bool:
        """Run the next round to its end; False if no devices are left to ask."""
        number, began, self._seen = self.progress.round + 1, time.perf_counter(), _NOBODY
        self._mechanism.check(number)
        found = self._attempts(number)
        if found is None:
            return False
        total = self._mechanism.release(number, found.total)
        self.state = self._job.task.server_update(self.state, total)
        self.progress.round = number
        self.progress.tally += found.tally
        self.progress.took_part(np.setdiff1d(found.devices, self._seen))  # once, in however many attempts
        self._watch.after_round(self.state, number, found, time.perf_counter() - began)
        return True

    def _attempts(self, number: int) -> RoundSum | None:
        plan, broadcast, tallies, last = self._options.plan, None, Tally(), ""
        for attempt in range(plan.attempts):
            call = self._call(number, attempt, broadcast)
            if call is None:
                return None
            broadcast, began = call.broadcast, time.perf_counter()
            self._tell("round began", {"round": number, "attempt": attempt, "devices": len(call.order)})
            if not attempt:
                self._look_ahead(number, call)
            try:
                found = self._fleet.collect(call)
                if found.total.devices < self._options.minimum:
                    raise Abandoned(_too_few(found, self._options.minimum), found.tally, found.devices)
            except Abandoned as why:
                last = str(why)
                tallies += why.tally
                self.progress.tally += replace(why.tally, reports=0, empty=0)  # none of them entered a sum
                self.progress.abandoned += 1
                self.progress.took_part(np.setdiff1d(why.seen, self._seen))
                self._seen = np.union1d(self._seen, why.seen)
                if len(why.seen) and self._job.participations is not None:
                    self.keep()  # who must not be asked again
                self._tell("round abandoned", {"round": number, "why": last, **why.tally.fields()})
                continue
            seconds = round(time.perf_counter() - began, 3)
            self._tell("round summed", {"round": number, "seconds": seconds, **found.tally.fields()})
            return found
        if self._options.rounds is None and self.progress.round:
            return None  # those who are left cannot be counted
        times = f"{plan.attempts} times, the last time because: {last}"
        raise GaveUp(f"round {number} was abandoned {times}; the state before it is kept", tallies)

    def _call(self, number: int, attempt: int, broadcast: Record | None) -> RoundCall | None:
        """The next attempt at a round; None if every device has taken part as often as it may."""
        spent = self.progress.spent(self._job.participations)
        there = self._fleet.devices(self._options.plan.devices, spent)
        if len(there) < self._options.minimum:
            if len(spent) and self.progress.round:
                return None
            needed = f"a round needs at least {self._options.minimum}"
            raise FedgramError(f"{len(there)} devices can be asked, and {needed}")
        order = draw_order(there, seed=self._job.seed, round_number=number, attempt=attempt)
        state = broadcast if broadcast is not None else self._job.task.broadcast(self.state)
        return RoundCall(number, attempt, order, self._options.plan, state, self._options.masking)

    def _look_ahead(self, number: int, call: RoundCall) -> None:
        """Let the fleet prepare the round after this one, where it is known: if the same devices can be asked."""
        rounds = self._options.rounds
        if self._job.participations is None and (rounds is None or number < rounds):
            order = draw_order(call.order, seed=self._job.seed, round_number=number + 1)
            self._fleet.prepare(RoundCall(number + 1, 0, order, call.plan, Record(), call.masking))

    def save(self) -> Record:
        return Record.joined(
            state=self._job.task.save(self.state), progress=self.progress.save(), watch=self._watch.save(),
            mechanism=self._mechanism.save(),
        )  # fmt: skip

    def load(self, saved: Record) -> None:
        self.state = self._job.task.load(saved.part("state"))
        self.progress = Progress.load(saved.part("progress"))
        self._watch.load(saved.part("watch"))
        self._mechanism.load(saved.part("mechanism"))


def _too_few(found: RoundSum, minimum: int) -> str:
    causes = [f"{n} {reason}" for reason, n in (found.tally.failed + found.tally.refused).items()]
    return f"{found.total.devices} of at least {minimum} reports ({', '.join(causes) or 'no device'})"
