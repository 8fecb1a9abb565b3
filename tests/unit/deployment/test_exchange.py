"""The folder between a run and a ServerApp: calls and answers, what is kept, and what is forgotten."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.deployment.transports import ALL, MASKING, ONCE, START, TRAINING, WORDS

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.storage import Record
from fedgram.deployment.exchange import Exchange, ServeOptions
from fedgram.deployment.waiting import Presence, Timeouts
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.fleet import AbandonedAttemptError, RoundCall, RoundSum, Tally
from fedgram.federated.job import Job
from fedgram.federated.task import Total
from fedgram.federated.unigram_collection import UnigramTask

ORDER = ServeOptions(Timeouts(), "journal", 3)
CALL = RoundCall(3, 0, ALL[::-1].copy(), RoundPlan(5, 1.2, 2, 4), Record(), MASKING)
TALLY = Tally(5, 4, 1, 1, bytes_sent=70, bytes_received=60)


def sides(folder: Path, job: Job[Any] = ONCE, order: ServeOptions = ORDER) -> tuple[Exchange, Exchange]:
    run, server = Exchange(folder), Exchange(folder)
    run.open(order, job)
    server.read_options()
    return run, server


def sum_for(job: Job[Any], value: int = 7) -> RoundSum:
    total = Total.zero(job.task.size, job.task.bits)
    for array in total.arrays.values():
        array[:] = value
    total.weight, total.devices = 4 << total.bits, 4
    return RoundSum(total, np.array([1, 2, 8, 11]), TALLY)


def open_call(server: Exchange) -> tuple[str, RoundCall]:
    found = server.next_call()
    assert found is not None
    return found


@pytest.mark.parametrize("job", [ONCE, TRAINING], ids=lambda job: str(job.task.name))
def test_calls_and_sums_cross_as_they_are(tmp_path: Path, job: Job[Any]) -> None:
    run, server = sides(tmp_path, job)
    order, found = server.read_options()
    assert (order, found.content) == (ORDER, job.content)
    assert server.next_call() is None
    call = replace(CALL, broadcast=job.task.broadcast(job.task.init()))
    run.call(call)
    name, came = open_call(server)
    assert (came.number, came.attempt, came.plan, came.masking) == (3, 0, CALL.plan, MASKING)
    assert came.order.tolist() == CALL.order.tolist()
    assert came.broadcast.fields == call.broadcast.fields
    assert all(np.array_equal(came.broadcast.arrays[n], a) for n, a in call.broadcast.arrays.items())
    assert run.sum_of(call) is None
    server.answer(name, came, sum_for(job))
    assert server.next_call() is None
    answer = run.sum_of(call)
    assert isinstance(answer, RoundSum)
    wanted = sum_for(job)
    assert (answer.total.weight, answer.total.devices, answer.total.bits) == (wanted.total.weight, 4, wanted.total.bits)
    assert list(answer.total.arrays) == list(wanted.total.arrays)
    assert all(np.array_equal(answer.total.arrays[n], a) for n, a in wanted.total.arrays.items())
    assert (answer.participants.tolist(), answer.tally) == ([1, 2, 8, 11], TALLY)


def test_an_attempt_that_was_abandoned_is_answered_with_the_reason(tmp_path: Path) -> None:
    run, server = sides(tmp_path)
    run.call(CALL)
    server.answer(*open_call(server), AbandonedAttemptError("nobody came", TALLY, np.array([4])))
    answer = run.sum_of(CALL)
    assert isinstance(answer, AbandonedAttemptError)
    assert (str(answer), answer.tally, answer.participants.tolist()) == ("nobody came", TALLY, [4])
    for attempt in range(1, 12):  # of which the last have two digits
        again = replace(CALL, attempt=attempt)
        assert run.sum_of(again) is None
        run.call(again)
        name, came = open_call(server)
        assert came.attempt == attempt
        server.answer(name, came, AbandonedAttemptError(f"nobody came {attempt}", TALLY))
        assert str(run.sum_of(again)) == f"nobody came {attempt}"


def test_a_sum_serves_every_attempt_at_its_round_and_no_other(tmp_path: Path) -> None:
    run, server = sides(tmp_path, TRAINING)
    call = replace(CALL, broadcast=Record({"round": 3}, START))
    run.call(call)
    server.answer(*open_call(server), sum_for(TRAINING))
    assert isinstance(run.sum_of(replace(call, attempt=2)), RoundSum)
    assert run.sum_of(replace(call, broadcast=Record({"round": 4}, START))) is None
    assert run.sum_of(replace(call, number=4)) is None
    run.call(replace(call, number=4))
    assert run.sum_of(call) is None  # the next round was called for, so it was committed
    assert open_call(server)[1].number == 4


def test_there_is_one_call_at_a_time(tmp_path: Path) -> None:
    run, server = sides(tmp_path)
    for attempt in (0, 1, 0):  # a run that is killed begins with the first attempt again
        run.call(replace(CALL, attempt=attempt))
        assert open_call(server)[1].attempt == attempt
    assert len(list(tmp_path.glob("call-*"))) == 1
    run.withdraw()
    assert server.next_call() is None


def test_a_run_that_resumes_finds_its_sum_but_not_what_was_abandoned(tmp_path: Path) -> None:
    run, server = sides(tmp_path)
    run.call(CALL)
    server.answer(*open_call(server), AbandonedAttemptError("nobody came", Tally()))
    run.call(replace(CALL, attempt=1))
    second, server = sides(tmp_path)
    assert second.sum_of(CALL) is None
    assert open_call(server)[1].attempt == 1  # the call stands, and its sum would be accepted
    server.answer(*open_call(server), sum_for(ONCE))
    assert isinstance(sides(tmp_path)[0].sum_of(CALL), RoundSum)


def test_another_job_finds_nothing_of_the_one_before(tmp_path: Path) -> None:
    run, server = sides(tmp_path)
    run.call(CALL)
    server.answer(*open_call(server), sum_for(ONCE))
    server.show_devices(Presence(ALL, 12))
    assert not server.is_over
    other, second = sides(tmp_path, Job(UnigramTask(WORDS, clip=3.0), 5, participations=1))
    assert server.is_over  # so that it does not answer for the other job
    assert other.sum_of(CALL) is None
    assert second.next_call() is None
    assert not len(second.devices().devices)
    run.call(CALL)
    assert second.next_call() is None


def test_a_server_app_goes_on_with_the_same_order_and_ends_with_another(tmp_path: Path) -> None:
    _, server = sides(tmp_path)
    server.show_devices(Presence(ALL, 13, {"not ready": 1}))
    run, _ = sides(tmp_path)
    assert not server.is_over
    present = run.devices()
    assert (present.devices.tolist(), present.online, present.turned_away) == (ALL.tolist(), 13, {"not ready": 1})
    sides(tmp_path, order=replace(ORDER, timeouts=Timeouts(deadline=5)))
    assert server.is_over


@pytest.mark.parametrize("completed", [True, False])
def test_a_job_is_over_when_the_run_says_so(tmp_path: Path, completed: bool) -> None:
    run, server = sides(tmp_path)
    run.close(completed=completed)
    assert server.is_over
    assert server.is_completed == completed
    run, server = sides(tmp_path)
    assert not server.is_over
    (tmp_path / "order.json").unlink()
    assert server.is_over


def test_what_a_server_app_says_of_its_failure_is_read_once(tmp_path: Path) -> None:
    run, server = sides(tmp_path)
    assert run.failure() is None
    server.fail("no space")
    assert run.failure() == "no space"
    (tmp_path / "failed.json").write_text("[")
    assert run.failure() is None
    server.fail("no space")
    assert sides(tmp_path)[0].failure() is None


def test_what_are_no_options_is_refused(tmp_path: Path) -> None:
    sides(tmp_path)
    for content in ("", "[]", '{"rounds": 1}', '{"timeouts": {"timeouts": 3}, "journal": "", "rounds": 1}'):
        (tmp_path / "order.json").write_text(content)
        with pytest.raises(FedgramError, match="does not hold the options of a ServerApp"):
            Exchange(tmp_path).read_options()


def spoiled(found: RoundSum, case: str) -> RoundSum:
    """A sum that no honest server writes."""
    total, first = found.total, next(iter(found.total.arrays))
    match case:
        case "negative":
            total.arrays[first][0] = -(2**60)
        case "not whole":
            total.arrays[first] = np.full(len(total.arrays[first]), np.nan)
        case "too short":
            total.arrays[first] = total.arrays[first][1:]
        case "too many devices":
            total.devices = 3 * 10**9
        case "devices twice":
            return replace(found, participants=np.array([1, 1, 8, 11]))
    return found


@pytest.mark.parametrize("case", ["negative", "not whole", "too short", "too many devices", "devices twice"])
def test_a_sum_that_cannot_be_is_refused(tmp_path: Path, case: str) -> None:
    """Sums may come from another machine."""
    run, server = sides(tmp_path)
    run.call(CALL)
    server.answer(*open_call(server), spoiled(sum_for(ONCE), case))
    with pytest.raises(InputError, match="does not hold the sum of a round"):
        run.sum_of(CALL)


def test_sums_of_a_completed_run_are_no_business_of_the_next(tmp_path: Path) -> None:
    run, server = sides(tmp_path)
    run.call(CALL)
    server.answer(*open_call(server), sum_for(ONCE))
    again, _ = sides(tmp_path)
    assert isinstance(again.sum_of(CALL), RoundSum)  # the run was killed
    again.close(completed=True)
    assert not [*tmp_path.glob("call-*"), *tmp_path.glob("sum-*")]  # the noise of privacy is added after them
    assert sides(tmp_path)[0].sum_of(CALL) is None
