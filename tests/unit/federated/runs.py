"""Runs of the round loop on the small population of `tests/reference/federated_tasks.py`."""

from typing import Any

from tests.reference.federated_tasks import TASKS, bits_of, population

from fedgram.core.arrays import LongArray
from fedgram.core.storage import Record
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.fleet import AbandonedAttemptError, Fleet, RoundCall, RoundSum, Tally
from fedgram.federated.job import Job
from fedgram.federated.rounds import Checkpointing, Run, RunOptions, run_rounds
from fedgram.federated.simulation import SimulatedFleet

PEOPLE = population()
CLIENTS = PEOPLE.clients("train")
PLAN = RoundPlan(devices=4, over_selection=1.5)
ABANDONED = Tally(invited=6)


def a_job(name: str = "unigrams", *, seed: int = 5, participations: int | None = None) -> Job[Any]:
    return Job(TASKS[name](), seed, participations)


def a_fleet(job: Job[Any], **options: Any) -> SimulatedFleet:
    return SimulatedFleet(job, PEOPLE.train, **{"dropout": 0.2, **options})


def run(job: Job[Any], *, rounds: int | None = 5, fleet: Fleet | None = None, **options: Any) -> Run[Any]:
    """A run; `folder` and the other fields of `Checkpointing` may be given as options."""
    plan, masking, pause = options.pop("plan", PLAN), options.pop("masking", None), options.pop("checkpoint_pause", 0.0)
    kept = {name: options.pop(name) for name in ("folder", "resume", "every", "belongs_to", "lead") if name in options}
    checkpoints = Checkpointing(**kept) if kept else None
    return run_rounds(
        job, fleet or a_fleet(job), RunOptions(rounds, plan, masking, pause), checkpoints=checkpoints, **options
    )  # fmt: skip


def same(job: Job[Any], one: Run[Any], other: Run[Any]) -> bool:
    """Whether two runs end with the same state and the same progress."""
    states, progress = ([bits_of(r) for r in records] for records in _records(job, one, other))
    return states[0] == states[1] and progress[0] == progress[1]


def _records(job: Job[Any], *runs: Run[Any]) -> tuple[list[Record], list[Record]]:
    return [job.task.save(r.state) for r in runs], [r.progress.save() for r in runs]


class FaultyFleet:
    """A fleet whose attempts at some rounds are abandoned; it remembers the calls."""

    def __init__(
        self, fleet: Fleet, faults: set[tuple[int, int]], participants: LongArray | None = None,
        tally: Tally = ABANDONED,
    ) -> None:  # fmt: skip
        self._fleet, self._faults, self._participants, self._tally = fleet, faults, participants, tally
        self.calls: list[RoundCall] = []

    def devices(self, wanted: int, spent: LongArray) -> LongArray:
        return self._fleet.devices(wanted, spent)

    def prepare(self, call: RoundCall) -> None:
        self._fleet.prepare(call)

    def collect(self, call: RoundCall) -> RoundSum:
        self.calls.append(call)
        if (call.number, call.attempt) in self._faults:
            raise AbandonedAttemptError("the lights went out", self._tally, self._participants)
        return self._fleet.collect(call)
