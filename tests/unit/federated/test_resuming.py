"""Runs that were interrupted end with the same bits, and checkpoints of other runs are refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.federated_tasks import TASKS, bits_of
from tests.unit.federated.runs import CLIENTS, PLAN, FaultyFleet, a_fleet, a_job, run, same

from fedgram.core.checkpoint import OtherWorkError
from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.fleet import RoundSum
from fedgram.federated.job import Job
from fedgram.federated.mechanism import Exact
from fedgram.federated.rounds import GaveUpError
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import Total
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.federated.watch import Unwatched
from fedgram.training.fedavg_task import FederatedAveraging

EVENTS = ("round began", "round summed", "round committed")


class Interruption:
    """Ends a run at an event of a round, as a killed process would."""

    def __init__(self, event: str, number: int) -> None:
        self._at = event, number

    def __call__(self, event: str, about: Mapping[str, Any]) -> None:
        if (event, about["round"]) == self._at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("name", TASKS)
def test_an_interrupted_run_ends_with_the_same_bits(name: str, event: str, number: int, tmp_path: Path) -> None:
    job = a_job(name)
    whole = run(job)
    with pytest.raises(KeyboardInterrupt):
        run(job, folder=tmp_path, tell=Interruption(event, number))
    began: list[int] = []
    resumed = run(job, folder=tmp_path, tell=lambda e, a: began.append(a["round"]) if e == "round began" else None)
    assert began == list(range(number + (event == "round committed"), 6))
    assert same(job, whole, resumed)
    assert same(job, whole, run(job, folder=tmp_path))  # nothing is left to do
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", [name for name in TASKS if TASKS[name]().is_counting])
def test_an_interrupted_pass_invites_nobody_twice(name: str, tmp_path: Path) -> None:
    job = a_job(name, participations=1)
    whole = run(job, rounds=None)
    for event, number in (("round summed", 2), ("round committed", 4)):
        with pytest.raises(KeyboardInterrupt):
            run(job, rounds=None, folder=tmp_path, tell=Interruption(event, number))
    resumed = run(job, rounds=None, folder=tmp_path)
    assert same(job, whole, resumed)
    assert resumed.progress.device.tolist() == CLIENTS.tolist()
    assert set(resumed.progress.times.tolist()) == {1}


def test_an_interrupted_masked_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    job, masking = a_job("ngrams"), SecureSettings()
    plan = RoundPlan(devices=5, over_selection=1.5)
    whole = run(job, rounds=3, plan=plan, masking=masking)
    with pytest.raises(KeyboardInterrupt):
        run(job, rounds=3, plan=plan, masking=masking, folder=tmp_path, tell=Interruption("round committed", 2))
    assert same(job, whole, run(job, rounds=3, plan=plan, masking=masking, folder=tmp_path))


def test_rounds_between_checkpoints_are_repeated(tmp_path: Path) -> None:
    job = a_job()
    with pytest.raises(KeyboardInterrupt):
        run(job, rounds=7, folder=tmp_path, every=3, tell=Interruption("round committed", 5))
    assert [path.name for path in tmp_path.iterdir()] == ["00000003.safetensors"]
    assert same(job, run(job, rounds=7), run(job, rounds=7, folder=tmp_path, every=3))
    assert sorted(path.name[:8] for path in tmp_path.iterdir()) == ["00000006", "00000007"]


def test_a_damaged_newest_checkpoint_costs_a_round(tmp_path: Path) -> None:
    job = a_job("pairs")
    with pytest.raises(KeyboardInterrupt):
        run(job, folder=tmp_path, tell=Interruption("round committed", 3))
    newest = tmp_path / "00000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-5])
    assert same(job, run(job), run(job, folder=tmp_path))


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    run(a_job(), rounds=1, folder=tmp_path)
    for other, plan, names in (
        (a_job(seed=6), PLAN, "seed"),
        (a_job(participations=2), PLAN, "participations"),
        (a_job("pairs"), PLAN, "task"),
        (Job(UnigramTask(TASKS["unigrams"]().vocabulary, clip=4.0), 5), PLAN, "unigrams.clip"),  # type: ignore[attr-defined]
        (a_job(), RoundPlan(5, 1.2), "devices, over_selection"),
    ):
        with pytest.raises(OtherWorkError, match=rf"other settings: (.*, )?{names}[,;]"):
            run(other, plan=plan, folder=tmp_path)
    with pytest.raises(OtherWorkError, match="text"):
        run(a_job(), folder=tmp_path, belongs_to={"text": "abc"})
    assert run(a_job(seed=6), rounds=2, folder=tmp_path, resume=False).progress.round == 2
    assert run(a_job(seed=6), rounds=3, folder=tmp_path).progress.round == 3


def test_a_checkpoint_of_a_network_with_other_weights_is_refused(tmp_path: Path) -> None:
    """All else is the same, but the network that the training starts from."""
    task: Any = TASKS["fedavg"]()
    other = FederatedAveraging(task.shape, {name: -array for name, array in task.start.items()}, task.plan, task.coding)
    run(Job(task, 5), rounds=1, folder=tmp_path)
    with pytest.raises(OtherWorkError, match="made with other settings: start;"):
        run(Job(other, 5), rounds=2, folder=tmp_path)


class Patience(Unwatched):
    """A watch that ends a run after four rounds, and remembers the rounds that it saw."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def is_over(self, state: Any) -> bool:  # noqa: ARG002
        return len(self.seen) == 4

    def after_round(self, state: Any, number: int, found: RoundSum, seconds: float) -> None:  # noqa: ARG002
        self.seen.append(number)

    def save(self) -> Record:
        return Record({"seen": self.seen})

    def load(self, saved: Record) -> None:
        self.seen = list(saved.fields["seen"])


def test_a_watch_that_is_resumed_knows_the_rounds_before(tmp_path: Path) -> None:
    """So the run ends where it would have ended without the interruption."""
    with pytest.raises(KeyboardInterrupt):
        run(a_job(), rounds=9, watch=Patience(), folder=tmp_path, tell=Interruption("round committed", 3))
    watch = Patience()
    assert run(a_job(), rounds=9, watch=watch, folder=tmp_path).progress.round == 4
    assert watch.seen == [1, 2, 3, 4]


def test_what_was_committed_before_a_run_gave_up_is_kept(tmp_path: Path) -> None:
    """This includes the rounds since the last checkpoint."""
    job, plan = a_job(), RoundPlan(4, 1.5, attempts=2)
    faulty = FaultyFleet(a_fleet(job), {(8, 0), (8, 1)})
    options: dict[str, Any] = {"rounds": 9, "plan": plan, "folder": tmp_path, "every": 5}
    with pytest.raises(GaveUpError, match="the state before it is kept"):
        run(job, fleet=faulty, **options)
    events: list[tuple[str, int]] = []
    resumed = run(job, **options, tell=lambda event, about: events.append((event, about["round"])))
    assert [number for event, number in events if event == "round began"] == [8, 9]
    assert bits_of(job.task.save(resumed.state)) == bits_of(job.task.save(run(job, rounds=9).state))


def test_a_round_that_is_abandoned_too_often_keeps_the_state_before_it(tmp_path: Path) -> None:
    job = a_job()
    plan = RoundPlan(4, 1.5, attempts=2)
    with pytest.raises(GaveUpError, match=r"round 3 was abandoned 2 times, the last time because: the lights went out"):
        run(job, fleet=FaultyFleet(a_fleet(job), {(3, 0), (3, 1)}), plan=plan, folder=tmp_path)
    assert same(job, run(job), run(job, plan=plan, folder=tmp_path))


def test_a_run_that_ends_after_an_abandoned_attempt_still_knows_who_took_part(tmp_path: Path) -> None:
    job = a_job("ngrams", participations=1)
    faulty = FaultyFleet(a_fleet(job), {(1, 0)}, participants=CLIENTS[:3])
    with pytest.raises(KeyboardInterrupt):
        run(job, rounds=None, fleet=faulty, folder=tmp_path, tell=Interruption("round abandoned", 1))
    fleet = FaultyFleet(a_fleet(job), set())
    run(job, rounds=None, fleet=fleet, folder=tmp_path)
    assert not set(CLIENTS[:3].tolist()) & {client for call in fleet.calls for client in call.order.tolist()}


class Purse(Exact):
    """A mechanism that adds 1 to each sum, with a budget of three rounds."""

    def __init__(self) -> None:
        self.spent: list[int] = []

    def check(self, number: int) -> None:
        if len(self.spent) >= 3:
            raise FedgramError(f"round {number} would pass the budget")

    def release(self, number: int, total: Total) -> Total:
        self.spent.append(number)
        return Total(total.bits, {n: a + (1 << total.bits) for n, a in total.arrays.items()}, total.weight, 9)

    def save(self) -> Record:
        return Record({"spent": self.spent})

    def load(self, saved: Record) -> None:
        self.spent = list(saved.fields["spent"])


def test_sums_pass_through_a_mechanism_whose_account_is_kept(tmp_path: Path) -> None:
    job = a_job("unigrams")
    exact, noisy = run(job, rounds=2), run(job, rounds=2, mechanism=Purse())
    counts = [job.task.counts(r.state).weight for r in (exact, noisy)]  # type: ignore[attr-defined]
    assert np.array_equal(counts[1], counts[0] + 2.0)
    with pytest.raises(KeyboardInterrupt):
        run(job, mechanism=Purse(), folder=tmp_path, tell=Interruption("round committed", 2))
    fleet, purse = FaultyFleet(a_fleet(job), set()), Purse()
    with pytest.raises(FedgramError, match="round 4 would pass the budget"):
        run(job, mechanism=purse, folder=tmp_path, fleet=fleet)
    assert purse.spent == [1, 2, 3]
    assert [call.number for call in fleet.calls] == [3]  # no device is invited in vain
