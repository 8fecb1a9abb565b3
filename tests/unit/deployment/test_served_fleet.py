"""A run over a served federation: how often its ServerApp is started, what it finds when it resumes, how it ends.

The SuperLink is a handful of functions here, or runs ServerApps as threads (`LocalLink`).
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.deployment.test_collector import call_of
from tests.unit.deployment.transports import (
    MASKING,
    ONCE,
    ROWS,
    TEXTS,
    TRAINING,
    Killed,
    LocalLink,
    LocalTransport,
    make_devices,
    same,
    simulated,
)

from fedgram.core.errors import FedgramError
from fedgram.core.locks import locked
from fedgram.deployment import server_app_runs
from fedgram.deployment.checks import UnreachableError
from fedgram.deployment.exchange import Exchange
from fedgram.deployment.folder import FederationConfig, Folder, make_folder
from fedgram.deployment.served_fleet import ServedFleet
from fedgram.deployment.transport import Request
from fedgram.deployment.waiting import Presence, Timeouts
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.fleet import AbandonedAttemptError, RoundSum, Tally
from fedgram.federated.job import Job
from fedgram.federated.rounds import Checkpointing, GaveUpError, RunOptions, run_rounds
from fedgram.federated.task import Total
from fedgram.neural.scoring import text_to_score
from fedgram.text.population import population_from_messages
from fedgram.training.fedavg_run import DevSchedule, train

NOBODY = np.zeros(0, np.int64)
TIMEOUTS = Timeouts(deadline=60.0, wait_seconds=60.0, idle_seconds=0.5, poll=0.01)
PLAIN_OR_MASKED = pytest.mark.parametrize("masking", [None, MASKING], ids=["plain", "masked"])


class Link:
    """A SuperLink on which runs have the status `status`; `on_start` is what a ServerApp does at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: str = "failed") -> None:
        self.status, self.started, self.stopped, self.now = status, list[int](), list[int](), 0.0
        self.on_start: Callable[[int], object] = lambda _: None
        monkeypatch.setattr(server_app_runs, "start_run", self.start)
        monkeypatch.setattr(server_app_runs, "run_status", lambda *_: self.status)
        monkeypatch.setattr(server_app_runs, "stop_run", lambda _, run: self.stopped.append(run))
        monkeypatch.setattr("time.sleep", self.sleep)
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def start(self, *_: object) -> int:
        self.started.append(len(self.started) + 1)
        self.on_start(len(self.started))
        return len(self.started)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def home(tmp_path: Path) -> Folder:
    return make_folder(tmp_path / "fed", FederationConfig(tls=False))


def fleet_at(home: Folder, work: Path, job: Job[Any] = ONCE, **timeouts: Any) -> ServedFleet:
    return ServedFleet(home, work, job, Timeouts(**timeouts))


def server(work: Path) -> Exchange:
    """The side of the ServerApp."""
    exchange = Exchange(work)
    exchange.read_options()
    return exchange


def some_sum() -> RoundSum:
    total = Total.zero(ONCE.task.size, ONCE.task.bits)
    total.devices = 3
    return RoundSum(total, np.arange(3), Tally(reports=3))


def test_a_server_app_that_ends_without_a_word_is_started_a_few_times(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(monkeypatch)
    wrong = r"ended 5 times without answering; see .*superlink\.log"
    with pytest.raises(FedgramError, match=wrong), fleet_at(home, tmp_path / "work").working(1) as fleet:
        fleet.collect(call_of(1))
    assert len(link.started) == 5
    assert Exchange(tmp_path / "work").is_done  # should another one come up after all, it ends at once


def test_one_that_answers_is_started_as_often_as_it_takes(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, work = Link(monkeypatch), tmp_path / "work"

    def one_round(_: int) -> None:
        found = server(work).next_call()
        assert found is not None
        server(work).answer(*found, some_sum())

    link.on_start = one_round
    with fleet_at(home, work).working(9) as fleet:
        for number in range(1, 10):
            assert fleet.collect(call_of(number)).tally.reports == 3
    assert len(link.started) == 9


def test_what_a_server_app_wrote_down_ends_the_run_at_once(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, work = Link(monkeypatch), tmp_path / "work"
    link.on_start = lambda _: server(work).fail("no space left on device, on the server")
    with pytest.raises(FedgramError, match="no space left"), fleet_at(home, work).working(1) as fleet:
        fleet.collect(call_of(1))
    with pytest.raises(FedgramError, match="no space left"), fleet_at(home, work).working(1) as fleet:
        fleet.devices(3, NOBODY)
    assert len(link.started) == 2


def test_an_interrupted_command_stops_its_run(home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(monkeypatch, "running")

    def interrupt(seconds: float) -> None:
        if link.started:
            raise KeyboardInterrupt
        link.now += seconds

    monkeypatch.setattr("time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt), fleet_at(home, tmp_path / "work").working(1) as fleet:
        fleet.collect(call_of(1))
    assert link.stopped == link.started == [1]


def check_and_die(fleet: ServedFleet) -> None:
    fleet._server_app.check()
    raise Killed  # nothing is stopped, nor told that it is over


def test_a_run_of_another_folder_is_stopped_first(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(monkeypatch, "running")
    for name, started, stopped in (("work", [1], []), ("work", [1, 2], []), ("other", [1, 2, 3], [2])):
        with pytest.raises(Killed), fleet_at(home, tmp_path / name).working(1) as fleet:
            check_and_die(fleet)
        assert (link.started, link.stopped) == (started, stopped)
        assert not Exchange(tmp_path / name).is_done
    assert json.loads((home.server / "run.json").read_text())["work"] == str((tmp_path / "other").resolve())


def test_one_command_at_a_time_asks_the_devices(home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(monkeypatch)
    wrong = "another run is using the devices of"
    with (
        locked(home.server, taken=""),
        pytest.raises(FedgramError, match=wrong),
        fleet_at(home, tmp_path / "work").working(1),
    ):
        pytest.fail("two at once")
    assert not link.started


@contextmanager
def held(work: Path) -> Iterator[Exchange]:
    """A ServerApp that works in the folder."""
    with locked(work, taken="busy"):
        yield server(work)


def test_what_is_waited_for_is_said(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    link, work = Link(monkeypatch, "running"), tmp_path / "work"
    waiting = "waiting for devices: 3 of 9 are ready (4 online; turned away so far: 1 not ready)"
    with ExitStack() as stack:
        fleet = stack.enter_context(fleet_at(home, work, wait_seconds=60.0).working(1))
        stack.enter_context(held(work)).show_devices(Presence(np.arange(3), 4, {"not ready": 1}))
        with pytest.raises(FedgramError) as gave_up:
            fleet.devices(9, NOBODY)
    assert str(gave_up.value) == f"{waiting}; gave up after 60 s"
    assert 60 <= link.now < 62
    assert capsys.readouterr().err == f"fedgram: {waiting}\n"
    link.now = 0.0

    def away(_: int) -> None:
        if link.now < 20:
            raise UnreachableError("no server answers at 127.0.0.1:1")

    link.on_start = away
    with pytest.raises(FedgramError, match="gave up"), fleet_at(home, work, wait_seconds=40.0).working(1) as fleet:
        fleet.devices(9, NOBODY)
    first = "fedgram: no server answers at 127.0.0.1:1; waiting for it\n"
    assert capsys.readouterr().err.startswith(first)


def test_a_server_that_is_away_for_too_long_ends_the_wait_and_takes_the_call_back(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, work = Link(monkeypatch), tmp_path / "work"

    def away(_: int) -> None:
        raise UnreachableError("no server answers")

    link.on_start = away
    with ServedFleet(home, work, ONCE, TIMEOUTS, away=30.0).working(1) as fleet:
        with pytest.raises(UnreachableError):
            fleet.collect(call_of(1))
        assert 30 <= link.now < 32
        assert server(work).next_call() is None
        assert len(fleet.devices(0, NOBODY)) == 0


def test_the_last_devices_are_waited_for_a_while_that_passes_only_while_the_server_is_there(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, work = Link(monkeypatch, "running"), tmp_path / "work"
    with ExitStack() as stack:
        fleet = stack.enter_context(fleet_at(home, work, idle_seconds=10.0).working(None))

        def comes_up(seconds: float) -> None:
            link.now += seconds
            if link.now >= 50 and not stack_is_held:
                stack_is_held.append(True)
                stack.enter_context(held(work)).show_devices(Presence(np.arange(4), 4))

        stack_is_held: list[bool] = []
        monkeypatch.setattr("time.sleep", comes_up)
        assert fleet.devices(3, np.array([1, 2])).tolist() == [0, 3]
        assert 60 <= link.now < 62
        assert fleet.devices(2, np.array([1, 2])).tolist() == [0, 3]
        assert link.now < 62


def run_of(
    home: Folder, work: Path, job: Job[Any], options: RunOptions, folder: Path | None = None, tell: Any = None
) -> Any:  # fmt: skip
    with ServedFleet(home, work, job, TIMEOUTS).working(options.rounds) as fleet:
        kept = Checkpointing(folder) if folder else None
        return run_rounds(job, fleet, options, checkpoints=kept, tell=tell or (lambda *_: None))


@PLAIN_OR_MASKED
def test_a_pass_over_served_devices_is_the_simulations(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masking: Any
) -> None:
    transport = LocalTransport(make_devices(tmp_path, TEXTS, masking))
    link, options = LocalLink(monkeypatch, {home.path: transport}), RunOptions(None, RoundPlan(6, 1.0), masking)
    found = run_of(home, tmp_path / "work", ONCE, options)
    assert same(found.state, simulated(ONCE, RoundPlan(6, 1.0), None))
    link.join()
    assert len(link.threads) == 1
    assert not link.errors


@PLAIN_OR_MASKED
def test_a_run_that_is_killed_before_it_commits_finds_the_sum(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masking: Any
) -> None:
    transport = LocalTransport(make_devices(tmp_path, TEXTS, masking))
    link, options = LocalLink(monkeypatch, {home.path: transport}), RunOptions(2, RoundPlan(6, 1.0), masking)
    work, folder = tmp_path / "work", tmp_path / "rounds"

    def killed(event: str, about: Any) -> None:
        if (event, about["round"]) == ("round summed", 2):
            raise Killed  # the sum is in the folder, and the state after it nowhere

    with pytest.raises(Killed):
        run_of(home, work, ONCE, options, folder, killed)
    sent = len([request for request in transport.sent if request.group])
    found = run_of(home, work, ONCE, options, folder)
    assert len([request for request in transport.sent if request.group]) == sent
    assert same(found.state, simulated(ONCE, RoundPlan(6, 1.0), 2))
    assert found.progress.most == 1
    link.join()
    assert len(link.threads) == 1  # the ServerApp goes on when the run is killed


@pytest.mark.parametrize(
    ("masking", "request_number"), [(None, 2), (None, 9), (MASKING, 2), (MASKING, 9), (MASKING, 17), (MASKING, 36)]
)
def test_a_server_app_that_is_killed_in_a_round_is_followed_by_another(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masking: Any, request_number: int
) -> None:
    seen = [0]

    def die_once(request: Request, reply: dict[str, bytes]) -> dict[str, bytes]:
        seen[0] += bool(request.group)
        if seen[0] == request_number:
            seen[0] = 10**6
            raise Killed
        return reply

    transport = LocalTransport(make_devices(tmp_path, TEXTS, masking), die_once)
    link, options = LocalLink(monkeypatch, {home.path: transport}), RunOptions(2, RoundPlan(6, 1.0), masking)
    found = run_of(home, tmp_path / "work", ONCE, options)
    assert same(found.state, simulated(ONCE, RoundPlan(6, 1.0), 2))
    assert found.progress.abandoned == 0
    link.join()
    assert [type(error) for error in link.errors] == [Killed]
    assert len(link.threads) == 2


@PLAIN_OR_MASKED
def test_a_network_is_trained_as_in_the_simulation_whoever_is_killed(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masking: Any
) -> None:
    left = [45 if masking else 20]

    def die_once(request: Request, reply: dict[str, bytes]) -> dict[str, bytes]:
        left[0] -= bool(request.group)
        if left[0] == 0:
            left[0] = -1
            raise Killed
        return reply

    users = population_from_messages((user, text, "dev") for user, text, _ in ROWS[:40])
    dev = text_to_score(TRAINING.task.coding, users, users.clients("dev")[:2])  # type: ignore[attr-defined]
    transport = LocalTransport(make_devices(tmp_path, TEXTS, masking), die_once)
    link = LocalLink(monkeypatch, {home.path: transport})
    options = RunOptions(4, RoundPlan(5, 1.0, minimum=5), masking)

    def training(tell: Any) -> Any:
        with ServedFleet(home, tmp_path / "work", TRAINING, TIMEOUTS).working(4) as fleet:
            return train(
                TRAINING, fleet, options, dev=dev, dev_schedule=DevSchedule(4),
                checkpoints=Checkpointing(tmp_path / "rounds"), tell=tell,
            )  # fmt: skip

    def killed(event: str, about: Any) -> None:
        if (event, about["round"]) == ("round summed", 3):
            raise Killed

    with pytest.raises(Killed):
        training(killed)
    result = training(lambda *_: None)
    link.join()
    alone = simulated(TRAINING, RoundPlan(5, 1.0), 4)
    assert [type(error) for error in link.errors] == [Killed]
    assert result.history["loss"][-1] == alone.loss
    assert result.history["dev"][0]["round"] == 4
    for name, weight in result.weights.items():
        assert np.array_equal(weight, alone.model.weights[name])


def test_a_run_that_gave_up_ends_its_server_app_and_can_be_tried_again(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [True]

    def misbehave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        return {"failed": b"Broken"} if silent[0] and request.group else reply

    transport = LocalTransport(make_devices(tmp_path, TEXTS), misbehave)
    link, options = LocalLink(monkeypatch, {home.path: transport}), RunOptions(1, RoundPlan(12, 1.0, attempts=2))
    wrong = r"round 1 was abandoned 2 times, .*0 of at least 1 reports .*\(12 failed\)"
    with pytest.raises(GaveUpError, match=wrong):
        run_of(home, tmp_path / "work", ONCE, options, tmp_path / "rounds")
    link.join()
    silent[0] = False
    found = run_of(home, tmp_path / "work", ONCE, options, tmp_path / "rounds")
    assert same(found.state, simulated(ONCE, RoundPlan(12, 1.0), 1))
    link.join()
    assert not link.errors


def test_an_answer_that_is_none_is_an_abandoned_attempt(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, work = Link(monkeypatch), tmp_path / "work"

    def abandons(_: int) -> None:
        found = server(work).next_call()
        assert found is not None
        server(work).answer(*found, AbandonedAttemptError("nobody came", Tally(late=3), np.array([2])))

    link.on_start = abandons
    with fleet_at(home, work).working(1) as fleet, pytest.raises(AbandonedAttemptError, match="nobody came") as why:
        fleet.collect(call_of(1))
    assert (why.value.tally.late, why.value.participants.tolist()) == (3, [2])
