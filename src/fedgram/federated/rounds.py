"""The round loop: the one place that draws cohorts, for every task and every fleet.

    broadcast(state) ─▶ Fleet ─▶ updates, checked and summed (masked) ─▶ noise, optional ─▶ server_update ─▶ commit

A round is committed as a whole or leaves no trace: its sum exists only in memory until the state after it is in a
checkpoint. A round with too few reports is abandoned and tried again with another draw. A device that has taken part as
often as the job allows is not invited again, nor is one whose last round is too near; a refused update counts as taking
part. A run ends after its rounds, when its `Watch` says so, or when no device is left to invite.
Paper: §3.1, §7.1; Bonawitz et al. 2019.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.checkpoint import Checkpoints
from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record, content_digest
from fedgram.federated.cohort import RoundPlan, draw_order
from fedgram.federated.fleet import AbandonedAttemptError, Fleet, RoundCall, RoundSum, Tally
from fedgram.federated.job import Job
from fedgram.federated.mechanism import Exact, Mechanism
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import State, Total
from fedgram.federated.watch import Unwatched, Watch

Tell = Callable[[str, Mapping[str, Any]], object]
_NOBODY = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run goes: its rounds, cohorts and masking. Without `rounds` it ends when no device is left to invite.

    `checkpoint_pause` is the minimum number of seconds between two checkpoints.
    """

    rounds: int | None
    plan: RoundPlan
    masking: SecureSettings | None = None
    checkpoint_pause: float = 0.0

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 1:
            raise FedgramError(f"the number of rounds must be at least 1, not {self.rounds}")
        if self.masking is not None and self.plan.devices < self.masking.min_devices:
            needed = f"secure aggregation needs at least {self.masking.min_devices}"
            raise FedgramError(f"a round of {self.plan.devices} devices is too small: {needed}")

    @property
    def minimum(self) -> int:
        """The minimum number of reports per round."""
        return max(self.plan.minimum, self.masking.min_devices if self.masking else 1)


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """Where a run keeps its checkpoints, whether it resumes from them, and after how many rounds it writes one.

    A checkpoint is refused if it was made with another job, other cohorts, or another `belongs_to`. Of several
    processes that run the same rounds, one leads and writes.
    """

    folder: Path
    resume: bool = True
    every: int = 1
    belongs_to: Mapping[str, Any] = field(default_factory=dict)
    lead: bool = True

    def __post_init__(self) -> None:
        if self.every < 1:
            raise FedgramError(f"the number of rounds between checkpoints must be at least 1, not {self.every}")


@dataclass(slots=True, eq=False)
class Progress:
    """The progress of a run: rounds committed, what happened in them, and how often and when last devices took part."""

    round: int = 0
    tally: Tally = field(default_factory=Tally)
    abandoned: int = 0
    device: LongArray = field(default_factory=lambda: _NOBODY)
    times: LongArray = field(default_factory=lambda: _NOBODY)
    last: LongArray = field(default_factory=lambda: _NOBODY)

    def took_part(self, devices: LongArray, number: int) -> None:
        """Count one more participation of each of these devices, in round `number`."""
        known = np.union1d(self.device, devices)
        before, now = np.searchsorted(known, self.device), np.searchsorted(known, devices)
        times, last = np.zeros(len(known), np.int64), np.zeros(len(known), np.int64)
        times[before], last[before] = self.times, self.last
        times[now] += 1
        last[now] = number
        self.device, self.times, self.last = known, times, last

    def spent(self, limit: int | None) -> LongArray:
        """The devices that may not take part again."""
        return _NOBODY if limit is None else self.device[self.times >= limit]

    def resting(self, number: int, separation: int) -> LongArray:
        """The devices that may not take part in round `number`, because their last round is too near."""
        return _NOBODY if separation == 1 else self.device[self.last > number - separation]

    @property
    def most(self) -> int:
        """The largest number of rounds in which the same device took part."""
        return int(self.times.max(initial=0))

    def save(self) -> Record:
        """The progress as values and arrays."""
        fields = {"round": self.round, "abandoned": self.abandoned, "tally": self.tally.fields()}
        return Record(fields, {"device": self.device, "times": self.times, "last": self.last})

    @classmethod
    def load(cls, saved: Record) -> "Progress":
        """What `save` wrote."""
        f, a = saved.fields, saved.arrays
        try:
            tally, took_part = Tally.from_fields(f["tally"]), (a["device"], a["times"], a["last"])
            return cls(int(f["round"]), tally, int(f["abandoned"]), *took_part)
        except KeyError as missing:
            raise FedgramError(f"the checkpoint lacks {missing}: another version wrote it; remove it") from None


@dataclass(frozen=True, slots=True, eq=False)
class Run(Generic[State]):
    """A finished run: its last state and its progress."""

    state: State
    progress: Progress


class GaveUpError(FedgramError):
    """A round was abandoned too often; the state before it is kept."""

    def __init__(self, problem: str, tally: Tally) -> None:
        super().__init__(problem)
        self.tally = tally


def run_rounds(
    job: Job[State],
    fleet: Fleet,
    options: RunOptions,
    *,
    checkpoints: Checkpointing | None = None,
    watch: Watch[State] | None = None,
    mechanism: Mechanism | None = None,
    tell: Tell = lambda *_: None,
) -> Run[State]:
    """Run the rounds of a job on a fleet, from the start or from the newest checkpoint.

    Args:
        job: What to compute.
        fleet: The devices.
        options: The rounds, their cohorts, and masking.
        checkpoints: Where to keep checkpoints; None keeps none.
        watch: Observes the run and may end it.
        mechanism: Noise on the sums; None uses the exact sums.
        tell: Called with the name of each event, and its details.
    """
    loop = _Loop(job, fleet, options, watch or Unwatched(), mechanism or Exact(), tell, checkpoints)
    loop.begin()
    try:
        while not loop.is_over() and loop.round():
            if loop.must_commit():
                loop.commit()
            spent = {} if (epsilon := loop.mechanism.epsilon()) is None else {"epsilon": epsilon}
            tell("round committed", {"round": loop.progress.round, **spent})
    except GaveUpError:
        loop.commit()
        raise
    loop.commit()
    return Run(loop.state, loop.progress)


def _description(job: Job[Any], options: RunOptions) -> dict[str, Any]:
    """What a checkpoint must agree with to be resumed."""
    start = job.task.save(job.task.init())
    plan = {"devices": options.plan.devices, "over_selection": options.plan.over_selection}
    return {
        **job.parts(), **plan, "task": job.task.name, "seed": job.seed, "participations": job.participations,
        "min_separation": job.min_separation, "start": content_digest(start.fields, start.arrays),
    }  # fmt: skip


@dataclass(eq=False)
class _Loop(Generic[State]):
    """A run between two rounds."""

    job: Job[State]
    fleet: Fleet
    options: RunOptions
    watch: Watch[State]
    mechanism: Mechanism
    tell: Tell
    checkpointing: Checkpointing | None

    def __post_init__(self) -> None:
        self.progress, self.state = Progress(), self.job.task.init()
        self._counted = _NOBODY  # the devices whose participation in the current round is counted already
        self._written = 0  # the round of the newest checkpoint
        self._written_at = time.monotonic()

    def begin(self) -> None:
        """Start, or resume from the newest checkpoint."""
        found = self._newest()
        if found is None:
            self.mechanism.begin()
            self.watch.begin(self.state)
            if self.mechanism.commits_every_round:  # a run that is killed in its first round keeps its ledger entry
                self.commit(again=True)
        else:
            self._load(found)
        self._written = self.progress.round

    def _newest(self) -> Record | None:
        if self.checkpointing is None:
            return None
        if not self.checkpointing.resume:
            if self.checkpointing.lead:
                self._stored.clear()
            return None
        found = self._stored.newest()
        return found[1] if found else None

    @cached_property
    def _stored(self) -> Checkpoints:
        assert self.checkpointing is not None
        about = {**_description(self.job, self.options), **self.checkpointing.belongs_to}
        # with noise that cannot be drawn again, no round is repeated from an earlier checkpoint
        return Checkpoints(self.checkpointing.folder, about, kept=1 if self.mechanism.commits_every_round else 2)

    def commit(self, *, again: bool = False) -> None:
        """Write a checkpoint of the rounds since the last one; with `again`, even if there are none."""
        if self.checkpointing is None or not self.checkpointing.lead:
            return
        if again or self.progress.round > self._written:
            self._stored.write(self.progress.round, self._save())
            self._written, self._written_at = self.progress.round, time.monotonic()

    def must_commit(self) -> bool:
        """Whether it is time for a checkpoint."""
        if self.checkpointing is None:
            return False
        if self.mechanism.commits_every_round:
            return True
        has_paused = time.monotonic() - self._written_at >= self.options.checkpoint_pause
        return self.progress.round % self.checkpointing.every == 0 and has_paused

    def is_over(self) -> bool:
        rounds = self.options.rounds
        return (rounds is not None and self.progress.round >= rounds) or self.watch.is_over(self.state)

    def round(self) -> bool:
        """Run the next round to its end; False if no device is left to invite."""
        number, began, self._counted = self.progress.round + 1, time.perf_counter(), _NOBODY
        self.mechanism.check(number)
        found = self._attempts(number)
        if found is None:
            return False
        total = self.mechanism.release(number, found.total)
        self.state = self.job.task.server_update(self.state, total)
        self.progress.round = number
        self.progress.tally += found.tally
        self.progress.took_part(np.setdiff1d(found.participants, self._counted), number)  # once per round
        self.watch.after_round(self.state, number, found, time.perf_counter() - began)
        return True

    def _attempts(self, number: int) -> RoundSum | None:
        plan, broadcast, tallies, last = self.options.plan, None, Tally(), ""
        if not self.progress.round:
            tallies += self.progress.tally  # of attempts before the run was interrupted
        for attempt in range(plan.attempts):
            call = self._call(number, attempt, broadcast, tallies)
            if call is None:
                return None
            broadcast, began = call.broadcast, time.perf_counter()
            self.tell("round began", {"round": number, "attempt": attempt, "devices": len(call.order)})
            if not attempt:
                self._look_ahead(number, call)
            try:
                found = self._collect(call)
                if found.total.devices < self.options.minimum and self.mechanism.cohorts is None:
                    raise AbandonedAttemptError(_too_few(found, self.options.minimum), found.tally, found.participants)
            except AbandonedAttemptError as abandoned:
                last = abandoned.reason
                tallies += abandoned.tally
                self._count_abandoned(abandoned, number)
                self.tell("round abandoned", {"round": number, "why": last, **abandoned.tally.fields()})
                continue
            seconds = round(time.perf_counter() - began, 3)
            self.tell("round summed", {"round": number, "seconds": seconds, **found.tally.fields()})
            return found
        if self.options.rounds is None and self.progress.round:
            return None  # the devices that are left cannot make a sum
        times = f"{plan.attempts} times, the last time because: {last}"
        raise GaveUpError(f"round {number} was abandoned {times}; the state before it is kept", tallies)

    def _collect(self, call: RoundCall) -> RoundSum:
        """The sum of a call; a Poisson sample may be empty, and its sum gets noise like any other."""
        if not len(call.order):
            return RoundSum(Total.zero(self.job.task.size, self.job.task.bits), _NOBODY, Tally())
        return self.fleet.collect(call)

    def _count_abandoned(self, attempt: AbandonedAttemptError, number: int) -> None:
        """Count an abandoned attempt, and the devices that took part in it."""
        self.progress.tally += replace(attempt.tally, reports=0, empty=0)  # no report entered a sum
        self.progress.abandoned += 1
        self.progress.took_part(np.setdiff1d(attempt.participants, self._counted), number)
        self._counted = np.union1d(self._counted, attempt.participants)
        if len(attempt.participants) and self.job.is_limited:
            self.commit(again=True)  # a run that resumes must not invite them again

    def _call(self, number: int, attempt: int, broadcast: Record | None, before: Tally) -> RoundCall | None:
        """The next attempt at a round; None if every device has taken part as often as it may.

        `before` is what happened in the attempts before.
        """
        spent = self.progress.spent(self.job.participations)
        resting = self.progress.resting(number, self.job.min_separation)
        there = self.fleet.devices(self.options.plan.devices, np.union1d(spent, resting))
        if len(there) < self.options.minimum:
            if len(spent) and self.progress.round:
                return None
            if before.refused:
                raise GaveUpError(_all_refused(number, before, len(there), self.options.minimum), before)
            needed = f"a round needs at least {self.options.minimum}"
            remedy = "; lower the minimum separation or the size of cohorts" if len(resting) else ""
            raise FedgramError(f"{len(there)} devices can be invited; {needed}{remedy}")
        state = broadcast if broadcast is not None else self.job.task.broadcast(self.state)
        return self._drawn(there, number, attempt, state)

    def _drawn(self, there: LongArray, number: int, attempt: int, broadcast: Record) -> RoundCall:
        plan, cohorts = self.options.plan, self.mechanism.cohorts
        if cohorts is None:
            order = draw_order(there, seed=self.job.seed, round_number=number, attempt=attempt)
        else:
            order = cohorts.draw(there, round_number=number, attempt=attempt)
            plan = replace(plan, devices=max(len(order), 1), over_selection=1.0, minimum=1)
        return RoundCall(number, attempt, order, plan, broadcast, self.options.masking)

    def _look_ahead(self, number: int, call: RoundCall) -> None:
        """Let the fleet prepare the next round, if its devices are known already: those of this round."""
        rounds = self.options.rounds
        if not self.job.is_limited and (rounds is None or number < rounds):
            there = call.order if self.mechanism.cohorts is None else self.fleet.devices(0, _NOBODY)
            self.fleet.prepare(self._drawn(there, number + 1, 0, Record()))

    def _save(self) -> Record:
        return Record.joined(
            state=self.job.task.save(self.state), progress=self.progress.save(), watch=self.watch.save(),
            mechanism=self.mechanism.save(),
        )  # fmt: skip

    def _load(self, saved: Record) -> None:
        self.state = self.job.task.load(saved.part("state"))
        self.progress = Progress.load(saved.part("progress"))
        self.watch.load(saved.part("watch"))
        self.mechanism.load(saved.part("mechanism"))


def _too_few(found: RoundSum, minimum: int) -> str:
    return f"{found.total.devices} of at least {minimum} reports ({found.tally.causes() or 'no device'})"


def _all_refused(number: int, tally: Tally, left: int, minimum: int) -> str:
    """Why a round has no sum if so few devices are left because reports were refused."""
    refused = sum(tally.refused.values())
    reports = "1 report was" if refused == 1 else f"{refused} reports were"
    few = f"only {left} {'device is' if left == 1 else 'devices are'} left to invite; a round needs at least {minimum}"
    rest = few if left else "no device is left to invite"
    return f"round {number} has no sum: {reports} refused ({tally.refusals()}), and {rest}"
