"""A ServerApp's work: rounds that a run calls for, collected over devices in this process; killed, resumed, failed."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.deployment.transports import (
    ALL,
    CODING,
    MASKING,
    ONCE,
    POPULATION,
    TEXTS,
    TRAINING,
    UNIGRAMS,
    WORDS,
    LocalTransport,
    make_devices,
    same,
    simulated,
)

from fedgram.core.errors import FedgramError
from fedgram.core.locks import is_held, locked
from fedgram.core.storage import Record
from fedgram.deployment.collector import serve_rounds
from fedgram.deployment.device import Device
from fedgram.deployment.exchange import Exchange, ServeOptions
from fedgram.deployment.flower.grid_transport import GridTransport
from fedgram.deployment.journal import read_status
from fedgram.deployment.transport import Request, TransportLostError
from fedgram.deployment.waiting import Timeouts
from fedgram.distill.refit.pair_sketch import PairCollection, SketchSize
from fedgram.federated.cohort import RoundPlan, draw_order
from fedgram.federated.fleet import AbandonedAttemptError, RoundCall, RoundSum
from fedgram.federated.job import Job, job_from_bytes
from fedgram.federated.task import device_stream
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.federated.wire import record_to_bytes, update_from_bytes
from fedgram.text.population import population_from_messages

TIMEOUTS = Timeouts(deadline=60.0, idle_seconds=0.5, wait_seconds=60.0, poll=0.01)


def call_of(number: int, devices: int = 5, attempt: int = 0, **more: Any) -> RoundCall:
    order = draw_order(ALL, seed=5, round_number=number, attempt=attempt)
    return RoundCall(number, attempt, order, RoundPlan(devices, 1.0), Record(), **more)


def opened(tmp_path: Path, job: Job[Any] = ONCE, timeouts: Timeouts = TIMEOUTS) -> Exchange:
    run = Exchange(tmp_path / "work")
    run.open(ServeOptions(timeouts, str(tmp_path / "journal"), 3), job)
    return run


class Answering(threading.Thread):
    """A ServerApp in a thread, and what a run does with it."""

    def __init__(self, run: Exchange, transport: LocalTransport) -> None:
        super().__init__(daemon=True)
        self._run, self._transport, self.error = run, transport, None

    error: BaseException | None

    def run(self) -> None:
        try:
            serve_rounds(self._run.folder, self._transport, self._run.folder.parent)
        except BaseException as error:
            self.error = error

    def answer(self, call: RoundCall) -> RoundSum | AbandonedAttemptError:
        self._run.call(call)
        return self.wait_for(call)

    def wait_for(self, call: RoundCall) -> RoundSum | AbandonedAttemptError:
        for _ in range(6000):
            if (found := self._run.sum_of(call)) is not None:
                return found
            self.join(0.01)
        raise AssertionError("no answer")

    def close(self, completed: bool = True) -> None:
        self._run.close(completed=completed)
        self.join(60)
        assert not self.is_alive()


@pytest.mark.parametrize("masking", [None, MASKING], ids=["plain", "masked"])
def test_calls_are_answered_until_the_job_is_over(tmp_path: Path, masking: Any) -> None:
    run, transport = opened(tmp_path), LocalTransport(make_devices(tmp_path, TEXTS, masking))
    app = Answering(run, transport)
    app.start()
    found = app.answer(call_of(1, masking=masking))
    assert isinstance(found, RoundSum)
    assert same(UNIGRAMS.server_update(UNIGRAMS.init(), found.total), simulated(ONCE, RoundPlan(5, 1.0), 1))
    assert found.participants.tolist() == sorted(call_of(1).order[:5].tolist())
    status = read_status(tmp_path / "journal")
    assert status["job"] == ONCE.digest
    assert status["parts"] == ONCE.parts()
    second = call_of(2, 7, masking=masking)
    second = replace(second, order=np.setdiff1d(second.order, found.participants))
    assert isinstance(app.answer(second), RoundSum)
    while not len(run.devices().devices):
        app.join(0.01)
    assert run.devices().devices.tolist() == list(range(12))
    app.close()
    assert app.error is None
    status = read_status(tmp_path / "journal")
    assert (status["state"], status["rounds_committed"], status["rounds"]) == ("run completed", 2, 3)
    assert (status["totals"]["invited"], status["totals"]["reports"]) == (12, 12)


def test_a_round_is_committed_once_in_the_journal_whoever_tells_of_it(tmp_path: Path) -> None:
    def misbehave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        return None if request.group == "2" and request.action == "report" and silent else reply

    silent = True
    run, timeouts = opened(tmp_path, timeouts=Timeouts(2.0, 60, 0.5, poll=0.01)), Timeouts(2.0, 60, 0.5, poll=0.01)
    transport = LocalTransport(make_devices(tmp_path, TEXTS), misbehave)
    for attempt in (0, 1):  # in ServerApps of their own, the first of which does not see the end of the job
        app = Answering(run, transport)
        app.start()
        if attempt == 0:
            assert isinstance(app.answer(call_of(1)), RoundSum)
        assert isinstance(app.answer(call_of(2, attempt=attempt)), AbandonedAttemptError)
        if attempt == 0:
            (run.folder / "order.json").unlink()
            app.join(60)
            run = opened(tmp_path, timeouts=timeouts)
    silent = False
    assert isinstance(app.answer(call_of(2, attempt=2)), RoundSum)
    app.close()
    status = read_status(tmp_path / "journal")
    assert (status["rounds_committed"], status["rounds_abandoned"]) == (2, 2)
    again = Answering(opened(tmp_path), transport)
    again.start()
    again.close()
    assert read_status(tmp_path / "journal")["last_committed"] == 0


def test_who_is_gone_is_known_when_an_attempt_is_abandoned(tmp_path: Path) -> None:
    def leave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes]:
        if request.group:
            transport.devices = {node: d for node, d in transport.devices.items() if node != request.node}
            return {"failed": b"Broken"}
        return reply

    run, transport = opened(tmp_path), LocalTransport(make_devices(tmp_path, TEXTS), leave)
    app = Answering(run, transport)
    app.start()
    while len(run.devices().devices) < 12:
        app.join(0.01)
    found = app.answer(replace(call_of(1), order=np.arange(4)))
    assert isinstance(found, AbandonedAttemptError)
    assert run.devices().devices.tolist() == list(range(4, 12))
    app.close()


def test_a_job_that_is_given_up_is_not_completed(tmp_path: Path) -> None:
    app = Answering(opened(tmp_path), LocalTransport(make_devices(tmp_path, TEXTS)))
    app.start()
    assert isinstance(app.answer(call_of(1)), RoundSum)
    app.close(completed=False)
    status = read_status(tmp_path / "journal")
    assert (status["state"], status["rounds_committed"]) == ("run ended", 0)


@pytest.mark.parametrize("masking", [None, MASKING], ids=["plain", "masked"])
@pytest.mark.parametrize("after", [14, 20])
def test_one_that_is_killed_in_a_round_is_followed_by_another_that_answers_the_same_call(
    tmp_path: Path, masking: Any, after: int
) -> None:
    left = [after]  # messages, of which 12 ask devices to join

    def dying(_: Request, reply: dict[str, bytes]) -> dict[str, bytes]:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return reply

    run, devices = opened(tmp_path, ONCE), make_devices(tmp_path, TEXTS, masking)
    call = call_of(1, 10, masking=masking)
    run.call(call)
    with pytest.raises(KeyboardInterrupt):
        serve_rounds(run.folder, LocalTransport(devices, dying), tmp_path)
    assert run.sum_of(call) is None
    assert run.failure() is None
    app = Answering(run, LocalTransport(devices))
    app.start()
    found = app.wait_for(call)
    assert isinstance(found, RoundSum)
    assert same(UNIGRAMS.server_update(UNIGRAMS.init(), found.total), simulated(ONCE, RoundPlan(10, 1.0), 1))
    app.close()


def test_what_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    run = opened(tmp_path)
    (run.folder / "job").write_bytes(ONCE.content[:-9])
    with pytest.raises(FedgramError, match="damaged"):
        serve_rounds(run.folder, LocalTransport({}))
    assert "job: is damaged" in str(run.failure())
    (run.folder / "order.json").write_text('{"rounds": 1}')
    with pytest.raises(FedgramError, match="does not hold the options of a ServerApp"):
        serve_rounds(run.folder, LocalTransport({}))
    assert "does not hold the options of a ServerApp" in str(run.failure())


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "sum-1"), "sum-1: no space left on device, on the server"),
        (ValueError("a word that was typed"), "the ServerApp failed with ValueError; see superlink.log"),
    ],
)
def test_what_nobody_foresaw_is_a_failure_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, line: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Exchange, "answer", fail)
    run = opened(tmp_path)
    run.call(call_of(1))
    with pytest.raises(type(error)):
        serve_rounds(run.folder, LocalTransport(make_devices(tmp_path, TEXTS)))
    assert str(run.failure()).startswith(line)
    assert read_status(tmp_path / "journal")["state"] == "run failed"
    assert "typed" not in (tmp_path / "journal" / "log.jsonl").read_text() + str(run.failure())


def test_a_lost_transport_is_not_the_end_of_a_run(tmp_path: Path) -> None:
    class Gone:
        def get_nodes(self) -> None:
            raise ConnectionResetError("the SuperLink died")

    run = opened(tmp_path)
    with pytest.raises(TransportLostError, match="ConnectionResetError"):
        serve_rounds(run.folder, GridTransport(Gone()))
    assert run.failure() is None


def test_one_process_works_in_a_folder_at_a_time(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with locked(tmp_path, seconds=1, taken="busy"):
        assert is_held(tmp_path)
        with pytest.raises(FedgramError, match="busy"), locked(tmp_path, seconds=0.3, taken="busy"):
            pass
        waited = threading.Event()

        def wait() -> None:
            with locked(tmp_path, seconds=30, taken="busy"):
                waited.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not waited.wait(0.3)
    waiting.join()
    assert waited.is_set()


PAIRS = Job(PairCollection(WORDS, SketchSize(2, 8), labels=float("inf"), with_unknown=False), 2, participations=1)


@pytest.mark.parametrize("job", [ONCE, Job(UnigramTask(WORDS, clip=float("inf")), 2), TRAINING, PAIRS], ids=repr)
def test_jobs_survive_the_way_over_the_wire(job: Job[Any]) -> None:
    found = job_from_bytes(job.content)
    assert (found.content, found.seed, found.participations) == (job.content, job.seed, job.participations)
    for cut in (0, 7, len(job.content) // 2, len(job.content) - 1):
        with pytest.raises(FedgramError):
            job_from_bytes(job.content[:cut])


def test_a_device_computes_what_the_task_computes(tmp_path: Path) -> None:
    task = TRAINING.task
    broadcast = task.broadcast(task.init())
    whole = POPULATION.load(3, CODING.codes(POPULATION.words).values)
    direct = task.client_update(broadcast, whole, device_stream(5, 1, 3))
    (device,) = make_devices(tmp_path, {3: TEXTS[3]}).values()
    assert len(population_from_messages([("3", text, "train") for text in TEXTS[3]]).words) < len(POPULATION.words)
    device.join({"job": TRAINING.content})
    request = {"job": TRAINING.digest.encode(), "round": b"1", "broadcast": record_to_bytes(broadcast)}
    update = update_from_bytes(Device.report(device, request)["update"])
    assert direct.weight > 0
    for name in direct.size:
        assert np.array_equal(update.array(name), direct.array(name))
