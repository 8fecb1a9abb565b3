"""The round loop: who takes part, how often a round is tried, what is counted, and which mistakes are refused."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from re import escape
from typing import Any

import numpy as np
import pytest
from tests.reference.federated_tasks import ThreadRanks, bits_of
from tests.unit.federated.runs import CLIENTS, PEOPLE, PLAN, FaultyFleet, a_fleet, a_job, run, same

from fedgram.core.arrays import IntArray
from fedgram.core.errors import FedgramError
from fedgram.core.random import Stream, stream
from fedgram.core.storage import Record
from fedgram.federated.cohort import RoundPlan, draw_order
from fedgram.federated.counting import CountingTask
from fedgram.federated.fleet import Fleet, RoundCall, RoundSum, Tally
from fedgram.federated.intake import Intake
from fedgram.federated.job import Job, find_task
from fedgram.federated.rounds import Checkpointing, GaveUpError, Progress, RunOptions
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.task import Update, device_stream
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.text.population import Users


def test_a_pass_counts_every_device_once_however_many_drop_out() -> None:
    job = a_job("ngrams", participations=1)
    found = run(job, rounds=None, fleet=a_fleet(job, dropout=0.5))
    assert found.progress.device.tolist() == CLIENTS.tolist()
    assert found.progress.tally.reports == len(CLIENTS)
    assert found.progress.most == 1
    codes = job.task.encode(PEOPLE.words)
    intake = Intake(job.task)
    rounds: dict[int, int] = {}
    run(job, rounds=None, fleet=_Recording(a_fleet(job, dropout=0.5), rounds))
    for device, number in rounds.items():
        rng = device_stream(5, number, device)
        intake.offer(device, job.task.client_update(Record(), PEOPLE.load(device, codes), rng))
    expected = job.task.server_update(job.task.init(), intake.total)
    assert bits_of(job.task.save(found.state)) == bits_of(job.task.save(expected))


class _Recording(FaultyFleet):
    def __init__(self, fleet: Fleet, rounds: dict[int, int]) -> None:
        super().__init__(fleet, set())
        self._rounds = rounds

    def collect(self, call: RoundCall) -> RoundSum:
        found = super().collect(call)
        self._rounds.update(dict.fromkeys(found.participants.tolist(), call.number))
        return found


def test_nobody_takes_part_more_often_than_the_job_allows() -> None:
    free = run(a_job(), rounds=20)
    assert free.progress.most > 2
    job = a_job(participations=2)
    limited = run(job, rounds=None)
    assert limited.progress.device.tolist() == CLIENTS.tolist()
    assert limited.progress.times.tolist() == [2] * len(CLIENTS)
    assert run(job, rounds=3).progress.round == 3


def test_a_pass_of_many_rounds_ends_with_a_rest_that_is_too_small() -> None:
    """26 devices in masked rounds of at least 3 reports: at most 2 are left out, and no sum has fewer than 3."""
    job, least = a_job("ngrams", participations=1), SecureSettings(min_devices=3)
    sums: list[int] = []
    found = run(
        job, rounds=None, masking=least, plan=RoundPlan(devices=6, over_selection=1.0),
        fleet=a_fleet(job, dropout=0.0),
        tell=lambda event, about: sums.append(about["reports"]) if event == "round summed" else None,
    )  # fmt: skip
    assert len(CLIENTS) == 26
    assert sums == [6, 6, 6, 6]
    assert len(found.progress.device) == 24


def test_a_round_is_tried_again_with_another_draw() -> None:
    job = a_job()
    fleet = FaultyFleet(a_fleet(job), {(2, 0), (2, 1)})
    told: list[tuple[str, int]] = []
    found = run(job, fleet=fleet, rounds=3, tell=lambda event, about: told.append((event, about["round"])))
    assert [(call.number, call.attempt) for call in fleet.calls] == [(1, 0), (2, 0), (2, 1), (2, 2), (3, 0)]
    orders = [call.order.tolist() for call in fleet.calls]
    assert all(sorted(order) == CLIENTS.tolist() for order in orders)
    assert len({tuple(order) for order in orders}) == 5
    assert (found.progress.round, found.progress.abandoned) == (3, 2)
    assert found.progress.tally.invited == 5 * 6
    assert found.progress.times.sum() == found.progress.tally.reports <= 3 * 4
    assert told.count(("round abandoned", 2)) == 2
    assert told[-1] == ("round committed", 3)
    clean = run(job, rounds=3)
    assert found.state.rounds[0].weight.tolist() == clean.state.rounds[0].weight.tolist()
    assert found.state.rounds[2].weight.tolist() == clean.state.rounds[2].weight.tolist()


def test_devices_whose_updates_the_server_has_seen_are_not_invited_again() -> None:
    job = a_job("ngrams", participations=1)
    fleet = FaultyFleet(a_fleet(job), {(1, 0)}, participants=CLIENTS[:3])
    found = run(job, rounds=None, fleet=fleet)
    assert found.progress.device.tolist() == CLIENTS.tolist()
    assert found.progress.tally.reports == len(CLIENTS) - 3
    assert not set(CLIENTS[:3].tolist()) & set(fleet.calls[1].order.tolist())


@pytest.mark.parametrize("masking", [None, SecureSettings()])
def test_a_sum_of_too_few_is_not_used(masking: SecureSettings | None) -> None:
    """With fewer reports than the plan's minimum a round is abandoned, masked or not."""
    job, plan = a_job(), RoundPlan(6, 1.0, minimum=6, attempts=3)
    with pytest.raises(GaveUpError) as error:
        run(job, plan=plan, masking=masking, fleet=a_fleet(job, dropout=0.6))
    assert "6" in str(error.value)
    assert error.value.tally.invited == 18
    assert error.value.tally.failed["dropped out"] > 3
    assert run(job, plan=plan, masking=masking, fleet=a_fleet(job, dropout=0.0)).progress.tally.reports == 30


def test_the_order_of_the_draw_is_the_seeds_and_the_rounds() -> None:
    """The names of the stream are fixed: a federation and its simulation invite the same devices."""
    devices = np.array([7, 3, 11, 5, 2])
    expected = stream(9, "cohort", 4).permutation(np.sort(devices)).tolist()
    assert draw_order(devices, seed=9, round_number=4).tolist() == expected
    assert draw_order(devices[::-1].copy(), seed=9, round_number=4).tolist() == expected
    others = [
        draw_order(np.arange(30), seed=s, round_number=n, attempt=a).tolist() for s, n, a in
        ((9, 4, 0), (9, 4, 1), (9, 5, 0), (8, 4, 0))
    ]  # fmt: skip
    assert len({tuple(order) for order in others}) == 4


def test_what_happened_is_counted() -> None:
    job = a_job("fedavg")
    tally = run(job, rounds=10, plan=RoundPlan(10, 1.5)).progress.tally
    assert tally.invited == 150
    assert tally.invited == tally.reports + tally.late + tally.failed["dropped out"] + sum(tally.refused.values())
    assert 0.1 < tally.failed["dropped out"] / tally.invited < 0.3
    assert 0 < tally.empty < 10  # one device has no words
    assert Tally.from_fields(tally.fields()) == tally
    summed = Tally()
    for part in (tally, Tally(invited=2, refused=tally.failed)):
        summed += part
    assert (summed.invited, summed.refused) == (152, tally.failed)


def test_participations_add_up() -> None:
    progress = Progress()
    for number, devices in enumerate(([5, 2], [2, 9], [2], []), 1):
        progress.took_part(np.array(devices, np.int64), number)
    assert dict(zip(progress.device.tolist(), progress.times.tolist(), strict=True)) == {2: 3, 5: 1, 9: 1}
    assert (progress.most, progress.spent(None).tolist(), progress.spent(2).tolist()) == (3, [], [2])
    assert bits_of(Progress.load(progress.save()).save()) == bits_of(progress.save())


@pytest.mark.parametrize(("pause", "left"), [(0.0, True), (1000.0, False)])
def test_checkpoints_are_written_after_a_pause(tmp_path: Path, pause: float, left: bool) -> None:
    """Of a run that is interrupted after its third round, and of one that ends."""

    def stop(event: str, about: Mapping[str, Any]) -> None:
        if event == "round committed" and about["round"] == 3:
            raise KeyboardInterrupt

    job = a_job()
    with pytest.raises(KeyboardInterrupt):
        run(job, folder=tmp_path, checkpoint_pause=pause, tell=stop)
    assert any(tmp_path.iterdir()) == left
    whole = run(job, folder=tmp_path, checkpoint_pause=pause)
    assert any(tmp_path.iterdir())
    assert same(job, whole, run(job))


def test_mistakes_are_refused() -> None:
    job = a_job()
    for make, match in (
        (lambda: RoundPlan(0, 1.3), "at least 1 device"),
        (lambda: RoundPlan(10, 0.9), "over-selection"),
        (lambda: RoundPlan(10, float("nan")), "over-selection"),
        (lambda: RoundPlan(10, 1.3, minimum=11), "cannot need 11"),
        (lambda: RoundPlan(10, 1.3, attempts=0), "attempt"),
        (lambda: RunOptions(0, PLAN), "at least 1"),
        (lambda: Checkpointing(Path(), every=0), "at least 1"),
        (lambda: a_job(participations=0), "at least once"),
        (lambda: a_fleet(job, dropout=1.0), "dropout"),
        (lambda: SimulatedFleet(job, Users(PEOPLE, np.zeros(0, np.int64))), "no users"),
        (lambda: run(job, masking=SecureSettings(min_devices=40)), "4 devices is too small: .* needs at least 40"),
        (lambda: find_task("lottery"), "no task is registered as 'lottery'; install"),
        (lambda: run(job, masking=SecureSettings(), fleet=a_fleet(job, ranks=ThreadRanks(2).all[0])), "one worker"),
    ):  # fmt: skip
        with pytest.raises(FedgramError, match=match):
            make()


class _Greedy(CountingTask):
    """Devices exceed the bounds that the task has set."""

    name, size = "greedy", {"messages": 1}
    bounds = UpdateBounds(weight=1.0, norms=(NormLimit(("messages",), 100.0, order=1),))

    def settings(self) -> Record:
        return Record()

    @classmethod
    def from_settings(cls, settings: Record) -> "_Greedy":  # noqa: ARG003
        return cls()

    def encode(self, words: Sequence[str]) -> IntArray:
        return np.ones(len(words), np.int32)

    def client_update(self, broadcast: Record, data: Any, rng: Stream) -> Update:  # noqa: ARG002
        return Update.dense({"messages": np.array([1e6])}, 1.0)


PROBLEM = "26 norm above the limit; for instance, the 1-norm of messages is 1e+06, and its limit is 100"


@pytest.mark.parametrize("masking", [None, SecureSettings(min_devices=2)])
def test_a_task_that_exceeds_its_own_bounds_is_told_so(masking: SecureSettings | None) -> None:
    job: Job[Any] = Job(_Greedy(), 5, 1)
    fleet, plan = a_fleet(job, dropout=0.0), RoundPlan(13, 1.0, attempts=9)
    line = f"round 1 has no sum: 26 reports were refused ({PROBLEM}), and no device is left to invite"
    with pytest.raises(GaveUpError, match=f"^{escape(line)}$") as error:
        run(job, rounds=None, fleet=fleet, plan=plan, masking=masking)
    assert error.value.tally.refused == {"norm above the limit": 26}


def test_refusals_are_told_however_a_run_ends(tmp_path: Path) -> None:
    """With too few devices left, after too many attempts, and after it was interrupted."""
    job: Job[Any] = Job(_Greedy(), 5, 1)
    plan = RoundPlan(25, 1.0, minimum=2, attempts=9)
    some = PROBLEM.replace("26", "25")
    line = f"25 reports were refused ({some}), and only 1 device is left to invite; a round needs at least 2"
    with pytest.raises(GaveUpError, match=f"{escape(line)}$"):
        run(job, rounds=None, fleet=a_fleet(job, dropout=0.0), plan=plan)
    free: Job[Any] = Job(_Greedy(), 5)
    with pytest.raises(GaveUpError, match=escape(f"0 of at least 1 reports ({PROBLEM})")):
        run(free, rounds=2, fleet=a_fleet(free, dropout=0.0), plan=RoundPlan(26, 1.0))

    def stop(event: str, _: object) -> None:
        if event == "round abandoned":
            raise KeyboardInterrupt

    whole: dict[str, Any] = {"rounds": None, "plan": RoundPlan(26, 1.0), "folder": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        run(job, fleet=a_fleet(job, dropout=0.0), tell=stop, **whole)
    with pytest.raises(GaveUpError, match=r"26 reports were refused \(26 norm above the limit\), and no device"):
        run(job, fleet=a_fleet(job, dropout=0.0), **whole)


def test_an_abandoned_attempt_counts_nobody_twice() -> None:
    """A device may take part in several attempts at a round; only the reports of the last attempt enter a sum."""
    job = a_job(participations=None)
    faulty = FaultyFleet(a_fleet(job, dropout=0.0), {(1, 0), (1, 1)}, participants=CLIENTS[:3])
    found = run(job, rounds=1, fleet=faulty, plan=RoundPlan(len(CLIENTS), 1.0))
    assert found.progress.tally.reports == len(CLIENTS)
    assert found.progress.times.tolist() == [1] * len(CLIENTS)


def test_reports_of_an_abandoned_attempt_enter_no_sum_and_are_not_counted() -> None:
    job, plan = a_job(), RoundPlan(len(CLIENTS), 1.0)
    abandoned = Tally(invited=6, reports=4, empty=1, late=2)
    faulty = FaultyFleet(a_fleet(job, dropout=0.0), {(1, 0)}, CLIENTS[:3], abandoned)
    tally = run(job, rounds=1, fleet=faulty, plan=plan).progress.tally
    clean = run(job, rounds=1, fleet=a_fleet(job, dropout=0.0), plan=plan).progress.tally
    assert (tally.reports, tally.empty) == (clean.reports, clean.empty)
    assert (tally.invited, tally.late) == (clean.invited + 6, clean.late + 2)


def test_devices_draw_other_numbers_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the seed, the round and the device, as a real device draws them."""
    job, drawn, plain = a_job(), list[float](), UnigramTask.client_update

    def noting(task: UnigramTask, broadcast: Record, data: Any, rng: Stream) -> Update:
        drawn.append(rng.generator().random())
        return plain(task, broadcast, data, rng)

    monkeypatch.setattr(UnigramTask, "client_update", noting)
    fleet = a_fleet(job, dropout=0.0)
    for number in (1, 2):
        fleet.collect(RoundCall(number, 0, CLIENTS[:3], RoundPlan(3, 1.0), Record(), None))
    assert drawn == [stream(5, "client", n, d).random() for n in (1, 2) for d in CLIENTS[:3].tolist()]
    assert len(set(drawn)) == 6


@pytest.mark.parametrize(("attempt", "first"), [(0, 4), (1, 0)])
def test_batches_that_were_made_ahead_are_used_for_the_same_call_only(attempt: int, first: int) -> None:
    """Neither for other devices, nor for another attempt, in which other devices drop out."""
    job, plan = a_job("fedavg"), RoundPlan(8, 1.0)
    state = job.task.broadcast(job.task.init())
    call = RoundCall(1, attempt, CLIENTS[first : first + 8], plan, state, None)
    ahead, fresh = (a_fleet(job, dropout=0.5) for _ in range(2))
    ahead.prepare(RoundCall(1, 0, CLIENTS[:8], plan, state, None))
    found, expected = ahead.collect(call), fresh.collect(call)
    assert found.participants.tolist() == expected.participants.tolist()
    for name, array in expected.total.arrays.items():
        assert np.array_equal(found.total.arrays[name], array)
