"""The round loop, for every task: the same bits however it runs and wherever it was interrupted, and who takes part."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.federated_tasks import TASKS, ThreadRanks, bits_of, population

from fedgram.core.arrays import LongArray
from fedgram.core.checkpoint import OtherWork
from fedgram.core.errors import FedgramError
from fedgram.core.random import stream
from fedgram.core.storage import Record
from fedgram.federated.cohort import RoundPlan, draw_order
from fedgram.federated.fleet import Abandoned, Fleet, RoundCall, RoundSum, Tally
from fedgram.federated.intake import Intake
from fedgram.federated.job import Job, find_task, job_from_bytes
from fedgram.federated.rounds import GaveUp, Progress, Run, RunOptions, run_rounds
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.task import Total, device_stream
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.federated.wire import update_to_bytes

PEOPLE = population()
CLIENTS = PEOPLE.clients("train")
PLAN = RoundPlan(devices=4, over_selection=1.5)
EVENTS = ("round began", "round summed", "round committed")


def a_job(name: str = "unigrams", *, seed: int = 5, participations: int | None = None) -> Job[Any]:
    return Job(TASKS[name](), seed, participations)


def a_fleet(job: Job[Any], **options: Any) -> SimulatedFleet:
    return SimulatedFleet(job, PEOPLE, CLIENTS, **{"dropout": 0.2, **options})


def run(job: Job[Any], *, rounds: int | None = 5, fleet: Fleet | None = None, **options: Any) -> Run[Any]:
    plan, masking = options.pop("plan", PLAN), options.pop("masking", None)
    return run_rounds(job, fleet or a_fleet(job), RunOptions(rounds, plan, masking), **options)


def same(job: Job[Any], one: Run[Any], other: Run[Any]) -> bool:
    """Whether two runs end with the same state, and the same account of what happened."""
    states, progress = ([bits_of(r) for r in records] for records in _records(job, one, other))
    return states[0] == states[1] and progress[0] == progress[1]


def _records(job: Job[Any], *runs: Run[Any]) -> tuple[list[Record], list[Record]]:
    return [job.task.save(r.state) for r in runs], [r.progress.save() for r in runs]


class Interruption:
    """Ends a run at an event of a round, as a killed process would."""

    def __init__(self, event: str, number: int) -> None:
        self._at = event, number

    def __call__(self, event: str, about: Mapping[str, Any]) -> None:
        if (event, about["round"]) == self._at:
            raise KeyboardInterrupt


class FaultyFleet:
    """A fleet whose attempts at some rounds are abandoned; it remembers the calls."""

    def __init__(self, fleet: Fleet, faults: set[tuple[int, int]], seen: LongArray | None = None) -> None:
        self._fleet, self._faults, self._seen = fleet, faults, seen
        self.calls: list[RoundCall] = []

    def devices(self, wanted: int, spent: LongArray) -> LongArray:
        return self._fleet.devices(wanted, spent)

    def prepare(self, call: RoundCall) -> None:
        self._fleet.prepare(call)

    def collect(self, call: RoundCall) -> RoundSum:
        self.calls.append(call)
        if (call.number, call.attempt) in self._faults:
            raise Abandoned("the lights went out", Tally(asked=6), self._seen)
        return self._fleet.collect(call)


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


@pytest.mark.parametrize("name", [name for name in TASKS if TASKS[name]().counting])
def test_an_interrupted_pass_asks_nobody_twice(name: str, tmp_path: Path) -> None:
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
    options = RunOptions(7, PLAN, checkpoint_every=3)
    with pytest.raises(KeyboardInterrupt):
        run_rounds(job, a_fleet(job), options, folder=tmp_path, tell=Interruption("round committed", 5))
    assert [path.name for path in tmp_path.iterdir()] == ["00000003.safetensors"]
    assert same(job, run(job, rounds=7), run_rounds(job, a_fleet(job), options, folder=tmp_path))
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
        with pytest.raises(OtherWork, match=rf"other settings: (.*, )?{names}[,;]"):
            run(other, plan=plan, folder=tmp_path)
    with pytest.raises(OtherWork, match="text"):
        run(a_job(), folder=tmp_path, belongs_to={"text": "abc"})
    assert run(a_job(seed=6), rounds=2, folder=tmp_path, resume=False).progress.round == 2
    assert run(a_job(seed=6), rounds=3, folder=tmp_path).progress.round == 3


@pytest.mark.parametrize("name", TASKS)
def test_every_way_of_running_gives_the_same_bits(name: str) -> None:
    """In batches, device by device, as bytes, masked, and shared by processes."""
    job, plan = a_job(name), RoundPlan(devices=8, over_selection=1.5)
    expected = run(job, rounds=2, plan=plan)
    for options in ({"batched": False}, {"batched": False, "as_bytes": True}):
        found = run(job, rounds=2, plan=plan, fleet=a_fleet(job, **options))
        assert bits_of(job.task.save(found.state)) == bits_of(job.task.save(expected.state))
        assert found.progress.times.tolist() == expected.progress.times.tolist()
    assert found.progress.tally.bytes_received > 0
    masked = run(job, rounds=2, plan=plan, masking=SecureSettings())
    assert bits_of(job.task.save(masked.state)) == bits_of(job.task.save(expected.state))
    assert masked.progress.device.tolist() == expected.progress.device.tolist()
    assert masked.progress.tally.reports == expected.progress.tally.reports


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("name", TASKS)
def test_processes_that_share_the_rounds_agree(name: str, batched: bool, tmp_path: Path) -> None:
    job = a_job(name)
    alone = run(job, rounds=3, fleet=a_fleet(job, batched=batched))

    def rank(r: Any) -> Run[Any]:
        own = tmp_path / str(r.rank)
        return run(
            job, rounds=3, fleet=a_fleet(job, batched=batched, ranks=r), folder=own, lead=r.rank == 0
        )  # fmt: skip

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(rank, ThreadRanks(3).all):
            assert same(job, alone, found)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]  # one of them writes the checkpoints


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_its_settings(name: str) -> None:
    """A device makes the task from the job's bytes, and computes the same update."""
    job = a_job(name, participations=3)
    there = job_from_bytes(job.content)
    assert (there.digest, there.seed, there.participations, there.task.name) == (job.digest, 5, 3, name)
    assert Job(there.task, 5, 3).content == job.content
    assert there.parts() == job.parts()
    assert find_task(name) is type(job.task)
    codes, own = (task.encode(PEOPLE.words) for task in (job.task, there.task))
    assert np.array_equal(codes, own)  # type: ignore[arg-type]
    state = job.task.init()
    for device in CLIENTS[:5].tolist():
        rng = device_stream(5, 1, device)
        broadcast = job.task.broadcast(state)
        here, remote = (
            update_to_bytes(task.client_update(broadcast, PEOPLE.load(device, codes), rng))
            for task in (job.task, there.task)
        )
        assert here == remote
        assert Intake(there.task).offer(device, remote) is None


def test_a_job_is_called_by_the_bytes_it_came_as(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a device whose version of the task writes its settings in another way; both must find one digest."""
    job = a_job()
    content, plain = job.content, UnigramTask.settings
    monkeypatch.setattr(UnigramTask, "settings", lambda self: Record({**plain(self).fields, "more": 1}))
    assert a_job().digest != job.digest
    assert (job_from_bytes(content).content, job_from_bytes(content).digest) == (content, job.digest)


@pytest.mark.parametrize("name", TASKS)
def test_a_state_is_what_was_saved(name: str) -> None:
    job = a_job(name)
    for state in (job.task.init(), run(job, rounds=2).state):
        saved = job.task.save(state)
        assert bits_of(job.task.save(job.task.load(saved))) == bits_of(saved)


def test_a_pass_asks_every_device_once_however_many_drop_out() -> None:
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
        self._rounds.update(dict.fromkeys(found.devices.tolist(), call.number))
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
    """Of 26 devices in masked rounds of at least 3 reports, at most 2 are left out; no sum is of fewer than 3."""
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
    assert found.progress.tally.asked == 5 * 6
    assert found.progress.times.sum() == found.progress.tally.reports <= 3 * 4
    assert told.count(("round abandoned", 2)) == 2
    assert told[-1] == ("round committed", 3)
    clean = run(job, rounds=3)
    assert found.state.rounds[0].weight.tolist() == clean.state.rounds[0].weight.tolist()
    assert found.state.rounds[2].weight.tolist() == clean.state.rounds[2].weight.tolist()


def test_devices_whose_updates_became_known_are_not_asked_again() -> None:
    job = a_job("ngrams", participations=1)
    fleet = FaultyFleet(a_fleet(job), {(1, 0)}, seen=CLIENTS[:3])
    found = run(job, rounds=None, fleet=fleet)
    assert found.progress.device.tolist() == CLIENTS.tolist()
    assert found.progress.tally.reports == len(CLIENTS) - 3
    assert not set(CLIENTS[:3].tolist()) & set(fleet.calls[1].order.tolist())


def test_a_round_that_is_abandoned_too_often_keeps_the_state_before_it(tmp_path: Path) -> None:
    job = a_job()
    plan = RoundPlan(4, 1.5, attempts=2)
    with pytest.raises(GaveUp, match=r"round 3 was abandoned 2 times, the last time because: the lights went out"):
        run(job, fleet=FaultyFleet(a_fleet(job), {(3, 0), (3, 1)}), plan=plan, folder=tmp_path)
    assert same(job, run(job), run(job, plan=plan, folder=tmp_path))


@pytest.mark.parametrize("masking", [None, SecureSettings()])
def test_a_sum_of_too_few_is_not_used(masking: SecureSettings | None) -> None:
    """By the plan's minimum, masked or not; dropout leaves fewer."""
    job, plan = a_job(), RoundPlan(6, 1.0, minimum=6, attempts=3)
    with pytest.raises(GaveUp) as error:
        run(job, plan=plan, masking=masking, fleet=a_fleet(job, dropout=0.6))
    assert "6" in str(error.value)
    assert error.value.tally.asked == 18
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
    assert tally.asked == 150
    assert tally.asked == tally.reports + tally.late + tally.failed["dropped out"] + sum(tally.refused.values())
    assert 0.1 < tally.failed["dropped out"] / tally.asked < 0.3
    assert 0 < tally.empty < 10  # one device has no words
    assert Tally.from_fields(tally.fields()) == tally
    summed = Tally()
    for part in (tally, Tally(asked=2, refused=tally.failed)):
        summed += part
    assert (summed.asked, summed.refused) == (152, tally.failed)


class Purse:
    """A mechanism that adds 1 to a sum, and may do so three times."""

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
    assert [call.number for call in fleet.calls] == [3]  # nobody is asked in vain


def test_participations_add_up() -> None:
    progress = Progress()
    for devices in ([5, 2], [2, 9], [2], []):
        progress.took_part(np.array(devices, np.int64))
    assert dict(zip(progress.device.tolist(), progress.times.tolist(), strict=True)) == {2: 3, 5: 1, 9: 1}
    assert (progress.most, progress.spent(None).tolist(), progress.spent(2).tolist()) == (3, [], [2])
    assert bits_of(Progress.load(progress.save()).save()) == bits_of(progress.save())


def test_mistakes_are_refused() -> None:
    job = a_job()
    for make, match in (
        (lambda: RoundPlan(0), "at least 1 device"),
        (lambda: RoundPlan(10, 0.9), "over-selection"),
        (lambda: RoundPlan(10, float("nan")), "over-selection"),
        (lambda: RoundPlan(10, minimum=11), "cannot need 11"),
        (lambda: RoundPlan(10, attempts=0), "attempt"),
        (lambda: RunOptions(0), "at least 1"),
        (lambda: RunOptions(1, checkpoint_every=0), "at least 1"),
        (lambda: a_job(participations=0), "at least once"),
        (lambda: a_fleet(job, dropout=1.0), "dropout"),
        (lambda: SimulatedFleet(job, PEOPLE, np.zeros(0, np.int64)), "no clients"),
        (lambda: run(job, masking=SecureSettings(min_devices=40)), "wants 4 devices, and a masked sum needs .* 40"),
        (lambda: find_task("lottery"), "no task is registered as 'lottery'; install"),
        (lambda: run(job, masking=SecureSettings(), fleet=a_fleet(job, ranks=ThreadRanks(2).all[0])), "one worker"),
    ):  # fmt: skip
        with pytest.raises(FedgramError, match=match):
            make()


def test_what_was_committed_before_a_run_gave_up_is_kept(tmp_path: Path) -> None:
    """Also the rounds since the last checkpoint."""
    job, plan = a_job(), RoundPlan(4, 1.5, attempts=2)
    faulty = FaultyFleet(a_fleet(job), {(8, 0), (8, 1)})
    options = RunOptions(9, plan, checkpoint_every=5)
    with pytest.raises(GaveUp, match="the state before it is kept"):
        run_rounds(job, faulty, options, folder=tmp_path)
    events: list[tuple[str, int]] = []
    resumed = run_rounds(
        job, a_fleet(job), options, folder=tmp_path, tell=lambda event, about: events.append((event, about["round"]))
    )
    assert [number for event, number in events if event == "round began"] == [8, 9]
    assert bits_of(job.task.save(resumed.state)) == bits_of(job.task.save(run(job, rounds=9).state))


def test_an_abandoned_attempt_counts_nobody_twice() -> None:
    """The same devices may be seen in several attempts at a round, and reports of none but the last entered a sum."""
    job = a_job(participations=None)
    faulty = FaultyFleet(a_fleet(job, dropout=0.0), {(1, 0), (1, 1)}, seen=CLIENTS[:3])
    found = run(job, rounds=1, fleet=faulty, plan=RoundPlan(len(CLIENTS), 1.0))
    assert found.progress.tally.reports == len(CLIENTS)
    assert found.progress.times.tolist() == [1] * len(CLIENTS)


def test_processes_that_share_devices_wrongly_are_noticed() -> None:
    class Doubling:
        rank, size = 0, 1

        def sum(self, arrays: Any) -> list[LongArray]:
            return [2 * array for array in arrays]

    job = a_job()
    with pytest.raises(FedgramError, match="two processes trained the same device"):
        run(job, fleet=a_fleet(job, ranks=Doubling()))
