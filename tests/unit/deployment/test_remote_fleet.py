"""Rounds over a transport: the simulation's results, and what happens when devices fail."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.deployment.transports import (
    ALL,
    MANY,
    MASKING,
    OFTEN,
    ONCE,
    TEXTS,
    TRAINING,
    UNIGRAMS,
    Clock,
    LocalTransport,
    make_devices,
    same,
    simulated,
)

from fedgram.core.errors import FedgramError
from fedgram.deployment.folder import FederationConfig, Folder
from fedgram.deployment.journal import Journal, read_status
from fedgram.deployment.remote_fleet import Patience, RemoteFleet, problem_of
from fedgram.deployment.roster import Roster
from fedgram.deployment.stages import round_plan
from fedgram.deployment.transport import Reply, Request
from fedgram.federated.cohort import RoundPlan, draw_order
from fedgram.federated.job import Job
from fedgram.federated.rounds import GaveUp, RunOptions, run_rounds
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import State, Update
from fedgram.federated.wire import update_to_bytes

ALL_THERE = Patience(wait_for=12)


class Told(list[tuple[str, dict[str, Any]]]):
    """What was told of a run."""

    def __call__(self, event: str, about: Mapping[str, Any]) -> None:
        self.append((event, dict(about)))

    def events(self) -> list[str]:
        return [event for event, _ in self]

    def first(self, event: str) -> dict[str, Any]:
        return next(about for told, about in self if told == event)


def fleet_of(transport: LocalTransport, job: Job[Any], patience: Patience = ALL_THERE) -> RemoteFleet:
    clock = Clock()
    return RemoteFleet(transport, job, patience, clock=clock, sleep=clock.sleep)


def run(
    transport: LocalTransport, job: Job[State], plan: RoundPlan, rounds: int | None, *, patience: Patience = ALL_THERE,
    masking: SecureSettings | None = None, **more: Any,
) -> tuple[State, Told]:  # fmt: skip
    told = Told()
    options = RunOptions(rounds, plan, masking)
    return run_rounds(job, fleet_of(transport, job, patience), options, tell=told, **more).state, told


def test_the_order_of_asking_depends_on_the_devices_alone(tmp_path: Path) -> None:
    transport = LocalTransport(make_devices(tmp_path, TEXTS))
    run(transport, ONCE, RoundPlan(5, 1.0), 1)
    wanted = draw_order(np.array([11, 3, 5, 0, 1, 2, 4, 6, 7, 8, 9, 10]), seed=5, round_number=1)[:5]
    assert [request.node - 100 for request in transport.asked("report")] == wanted.tolist()


def test_a_fleet_gives_what_the_simulation_gives(tmp_path: Path) -> None:
    transport = LocalTransport(make_devices(tmp_path, TEXTS))
    patience = Patience(wait_for=12, batch=2)
    state, told = run(transport, ONCE, RoundPlan(5, 1.0), 3, patience=patience)
    assert [part.devices for part in state.rounds] == [5, 5, 2]
    assert same(state, simulated(ONCE, RoundPlan(5, 1.0), 3))
    assert transport.largest_batch <= 12
    assert len(transport.asked("join")) == 12
    assert told.events().count("round committed") == 3


def test_a_pass_asks_every_device_once_and_ends(tmp_path: Path) -> None:
    transport = LocalTransport(make_devices(tmp_path, TEXTS))
    state, _ = run(transport, ONCE, RoundPlan(5, 1.0), None)
    assert sorted(request.node for request in transport.asked("report")) == list(range(100, 112))
    assert same(state, simulated(ONCE, RoundPlan(5, 1.0), None))


def test_a_network_is_trained_as_in_the_simulation(tmp_path: Path) -> None:
    transport = LocalTransport(make_devices(tmp_path, TEXTS))
    assert same(run(transport, TRAINING, RoundPlan(5, 1.0), 3)[0], simulated(TRAINING, RoundPlan(5, 1.0), 3))


def test_failed_devices_are_replaced_and_nobody_counts_twice(tmp_path: Path) -> None:
    bad = {100, 103, 107}

    def misbehave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        return {"failed": b"Broken"} if request.node in bad and request.action == "report" else reply

    transport = LocalTransport(make_devices(tmp_path, TEXTS, participations=MANY), misbehave)
    state, told = run(transport, OFTEN, RoundPlan(9, 1.0, minimum=9), 2)
    assert [part.devices for part in state.rounds] == [9, 9]
    for number in ("1", "2"):
        asked = [request.node for request in transport.sent if request.group == number]
        assert len(asked) == len(set(asked))
        failed = sum(node in bad for node in asked)
        summed = [about for event, about in told if event == "round summed"][int(number) - 1]
        assert summed["failed"] == ({"failed": failed} if failed else {})
        assert (summed["asked"], summed["reports"]) == (len(asked), 9)


def test_stragglers_are_left_out_at_the_deadline(tmp_path: Path) -> None:
    transport = LocalTransport(
        make_devices(tmp_path, TEXTS), lambda r, reply: None if r.action == "report" and r.node < 103 else reply
    )
    patience = Patience(wait_for=12, deadline=10)
    state, told = run(transport, ONCE, RoundPlan(12, 1.0, minimum=5), 1, patience=patience)
    assert state.rounds[0].devices == 9
    assert told.first("round summed")["late"] == 3


def test_too_few_reports_abandon_the_round_and_nothing_is_kept(tmp_path: Path) -> None:
    silent = True

    def misbehave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        return None if silent and request.action == "report" and request.node != 104 else reply

    transport = LocalTransport(make_devices(tmp_path, TEXTS, participations=MANY), misbehave)
    plan, patience = RoundPlan(12, 1.0, minimum=5, attempts=2), Patience(wait_for=12, deadline=10)
    told, options = Told(), RunOptions(2, plan)
    why = "abandoned 2 times, the last time because: 1 of at least 5 reports"
    with pytest.raises(GaveUp, match=why):
        run_rounds(OFTEN, fleet_of(transport, OFTEN, patience), options, folder=tmp_path / "rounds", tell=told)
    assert not (tmp_path / "rounds").exists()
    assert "1 of at least 5 reports by the deadline" in told.first("round abandoned")["why"]
    silent = False
    state, _ = run(transport, OFTEN, plan, 2, patience=patience, folder=tmp_path / "rounds")
    assert same(state, simulated(OFTEN, RoundPlan(12, 1.0), 2))


def test_a_device_whose_report_was_seen_in_an_abandoned_round_is_spent(tmp_path: Path) -> None:
    def misbehave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        first = request.action == "report" and len(transport.asked("report")) <= 5
        return None if first and request.node != order[0] else reply

    transport = LocalTransport(make_devices(tmp_path, TEXTS), misbehave)
    order = (draw_order(ALL, seed=5, round_number=1) + 100).tolist()
    patience = Patience(wait_for=12, deadline=10)
    state, told = run(transport, ONCE, RoundPlan(5, 1.0, minimum=2), 1, patience=patience)
    assert told.events().count("round abandoned") == 1
    assert state.rounds[0].devices == 5
    assert order[0] not in [request.node for request in transport.asked("report")[5:]]


def test_nonsense_does_not_enter_the_sum(tmp_path: Path) -> None:
    rng, size = np.random.default_rng(0), UNIGRAMS.size

    def nonsense(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        if request.action == "join" or request.node >= 106:
            return reply
        good = reply["update"]
        index = {name: np.arange(n, dtype=np.int64) for name, n in size.items()}
        values = {name: np.zeros(n) for name, n in size.items()}
        kind = request.node - 100
        if kind == 0:
            return {"update": good[: int(rng.integers(len(good)))]}
        if kind == 5:
            return {"update": update_to_bytes(Update.zero({"count": 3}))}
        values["count"][3] = [0.0, np.nan, 1e6, -np.inf, -1.0][kind]
        return {"update": update_to_bytes(Update(size, index, values, 1.0))}

    transport = LocalTransport(make_devices(tmp_path, TEXTS), nonsense)
    state, told = run(transport, ONCE, RoundPlan(12, 1.0, minimum=6), 1)
    assert same(state, simulated(ONCE, RoundPlan(12, 1.0), 1, np.arange(6, 12, dtype=np.int64)))
    assert told.first("round summed")["refused"] == {
        "damaged": 1, "not finite": 2, "norm above the limit": 1, "negative count": 1, "wrong shape": 1,
    }  # fmt: skip


def test_a_crash_loses_the_current_round_alone(tmp_path: Path) -> None:
    folder, plan = tmp_path / "rounds", RoundPlan(12, 1.0)

    def go_on(transport: LocalTransport, a: int = 1) -> Any:
        return run(transport, OFTEN, plan, 6, folder=folder, belongs_to={"a": a})[0]

    for _ in range(6):  # the run dies at ever later messages
        transport = LocalTransport(make_devices(tmp_path, TEXTS, participations=MANY))
        left = [40]

        def dying(_: Request, reply: dict[str, bytes], left: list[int] = left) -> dict[str, bytes]:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            return reply

        transport.misbehave = dying
        try:
            go_on(transport)
        except KeyboardInterrupt:
            continue
    transport = LocalTransport(make_devices(tmp_path, TEXTS, participations=MANY))
    (folder / "00000006.safetensors").write_bytes(b"damaged")
    assert same(go_on(transport), simulated(OFTEN, plan, 6))
    assert {request.group for request in transport.asked("report")} == {"6"}
    with pytest.raises(FedgramError, match="other settings: a"):
        go_on(transport, a=2)


def test_a_device_number_belongs_to_one_node(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, {n: TEXTS[n] for n in range(4)})
    devices[500] = devices[100]  # another node with the same store

    class Named(LocalTransport):
        def nodes(self) -> dict[int, str]:
            return {node: "device-7" if node == 103 else "" for node in self.devices}

    fleet = fleet_of(Named(devices), ONCE, Patience(wait_for=3))
    run_rounds(ONCE, fleet, RunOptions(1, RoundPlan(3, 1.0)))
    assert fleet.roster.present() == {0: 100, 1: 101, 2: 102}
    assert fleet.roster.turned_away == {"device already there": 1, "speaks for another device": 1}


@pytest.mark.parametrize("masking", [None, MASKING], ids=["plain", "masked"])
def test_a_device_that_forgot_the_job_is_sent_it_again(tmp_path: Path, masking: SecureSettings | None) -> None:
    devices = make_devices(tmp_path, TEXTS, masking, participations=MANY)
    transport = LocalTransport(devices)
    fleet = fleet_of(transport, OFTEN)
    fleet.roster.wait_for(12, 10)
    for path in devices[105].jobs.iterdir():
        path.unlink()
    state = run_rounds(OFTEN, fleet, RunOptions(2, RoundPlan(12, 1.0, minimum=11), masking)).state
    assert [part.devices for part in state.rounds] == [11, 12]
    assert len(transport.asked("join")) == 13  # it alone


@pytest.mark.parametrize("masking", [None, MASKING], ids=["plain", "masked"])
def test_devices_that_took_part_in_a_sum_that_was_lost_are_not_asked_for_ever(
    tmp_path: Path, masking: SecureSettings | None
) -> None:
    devices = make_devices(tmp_path, TEXTS, masking)
    lost = fleet_of(LocalTransport({n: d for n, d in devices.items() if n < 106}), ONCE, Patience())
    run_rounds(
        ONCE, lost, RunOptions(2, RoundPlan(3, 1.0), masking)
    )  # two sums of three devices, of which none is left
    transport = LocalTransport(devices)
    found = run_rounds(ONCE, fleet_of(transport, ONCE), RunOptions(None, RoundPlan(12, 1.0), masking))
    again = 0 if masking else 3  # a plain report of the first round is the same once more
    assert [part.devices for part in found.state.rounds] == [6 + again]
    assert found.progress.tally.failed == {"took part already": 6 - again}
    assert found.progress.device.tolist() == list(range(12))
    asked = [r.node for r in transport.sent if r.group and (not masking or r.content["message"][5] == 1)]
    assert len(asked) == len(set(asked)) == 12


def test_a_device_that_went_away_and_came_back_is_asked_at_once(tmp_path: Path) -> None:
    clock, silent = Clock(), [True]

    class Away(LocalTransport):
        """Node 101 counts as there at first, as after a restart of the server; then as gone, until it is up again."""

        def nodes(self) -> dict[int, str]:
            silent[0] = clock() < 40
            return {node: "" for node in self.devices if node != 101 or clock() < 24 or clock() > 40}

    transport = Away(
        make_devices(tmp_path, {n: TEXTS[n] for n in range(3)}),
        lambda request, reply: None if request.node == 101 and silent[0] else reply,
    )
    roster = Roster(transport, ONCE.content, clock=clock, sleep=clock.sleep)
    assert roster.wait_for(3, 600) == {0: 100, 1: 101, 2: 102}
    assert clock() < 45


def test_a_server_that_starts_in_the_middle_of_a_round_waits_for_the_devices_of_its_call(tmp_path: Path) -> None:
    devices, calls = make_devices(tmp_path, TEXTS), list[Any]()

    class Noting(RemoteFleet):
        def collect(self, call: Any) -> Any:
            calls.append(call)
            return super().collect(call)

    clock = Clock()
    noting = Noting(LocalTransport(devices), ONCE, ALL_THERE, clock=clock, sleep=clock.sleep)
    found = run_rounds(ONCE, noting, RunOptions(1, RoundPlan(5, 1.0)))
    started = fleet_of(LocalTransport(devices), ONCE)
    assert not started.roster.present()
    again = started.collect(calls[0])
    assert again.devices.tolist() == found.progress.device.tolist()
    left = {node: device for node, device in devices.items() if node != 100 + again.devices[0]}
    fleet = fleet_of(LocalTransport(left), ONCE, Patience(idle_seconds=7))
    assert fleet.collect(calls[0]).devices.tolist() == sorted({*calls[0].order[:6].tolist()} - {again.devices[0]})
    assert 7 <= fleet.clock() < 9  # the one that is gone was waited for, and no longer than it may take


def test_a_wait_for_devices_can_be_seen(tmp_path: Path) -> None:
    transport = LocalTransport(make_devices(tmp_path, {0: ["hello you"], 1: [], 2: ["it is my day"]}))
    told, clock = Told(), Clock()
    patience = Patience(wait_for=3, wait_seconds=20)
    fleet = RemoteFleet(transport, ONCE, patience, tell=told, clock=clock, sleep=clock.sleep)
    with pytest.raises(FedgramError, match="2 of 3 devices are there"):
        run_rounds(ONCE, fleet, RunOptions(1, RoundPlan(3, 1.0)))
    waiting = {"there": 2, "wanted": 3, "online": 3, "turned_away": {"not ready": 1}}
    assert ("waiting", waiting) in told
    journal = Journal(tmp_path, "unigrams", 1)
    journal.tell("waiting", waiting)
    status = read_status(tmp_path)
    assert status["waiting"] == waiting
    assert status["state"] == "waiting for devices: 2 of 3 are there, 3 online (turned away so far: 1 not ready)"
    journal.tell("round began", {"round": 1})
    assert read_status(tmp_path)["waiting"] == {}


def test_a_device_with_too_little_text_is_not_asked(tmp_path: Path) -> None:
    transport = LocalTransport(make_devices(tmp_path, {0: ["hello you"], 1: [], 2: ["it is my day"]}))
    fleet = fleet_of(transport, ONCE, Patience(wait_for=2))
    run_rounds(ONCE, fleet, RunOptions(1, RoundPlan(2, 1.0)))
    assert set(fleet.roster.present()) == {0, 2}
    assert fleet.roster.turned_away == {"not ready": 1}
    with pytest.raises(FedgramError, match="2 of 3 devices are there after 60 s"):
        fleet.roster.wait_for(3, 60)


def test_masked_rounds_give_what_the_simulation_gives(tmp_path: Path) -> None:
    transport = LocalTransport(make_devices(tmp_path, TEXTS, MASKING))
    patience = Patience(wait_for=12, batch=2)
    state, told = run(transport, ONCE, RoundPlan(5, 1.0, minimum=5), 2, patience=patience, masking=MASKING)
    assert same(state, simulated(ONCE, RoundPlan(5, 1.0), 2))
    assert len(transport.asked("secure")) == 2 * 4 * 5
    assert not transport.asked("report")
    assert {about["late"] for event, about in told if event == "round summed"} == {0}


@pytest.mark.parametrize("step", range(4))
def test_devices_that_leave_a_masked_round_are_left_out_of_its_sum(tmp_path: Path, step: int) -> None:
    gone = {101, 108}

    def leave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        leaves = request.action == "secure" and request.node in gone and request.content["message"][5] == 2 * step + 1
        return None if leaves else reply

    transport = LocalTransport(make_devices(tmp_path, TEXTS, MASKING), leave)
    patience = Patience(wait_for=12, deadline=40)
    state, told = run(transport, ONCE, RoundPlan(12, 1.0, minimum=5), 1, patience=patience, masking=MASKING)
    counted = [n for n in range(12) if step == 3 or 100 + n not in gone]
    assert same(state, simulated(ONCE, RoundPlan(12, 1.0), 1, np.array(counted, np.int64)))
    assert told.first("round summed")["late"] == (0 if step == 3 else 2)


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("count", [4, 5, 6])
def test_a_small_masked_round_with_the_usual_settings_bears_the_loss_of_one(
    tmp_path: Path, count: int, step: int
) -> None:
    home = Folder(tmp_path, FederationConfig())
    plan, masking = round_plan(home, count, 1.0), SecureSettings(min_devices=home.config.masked_with)

    def leave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        leaves = request.action == "secure" and request.node == 101 and request.content["message"][5] == 2 * step + 1
        return None if leaves else reply

    transport = LocalTransport(make_devices(tmp_path, {n: TEXTS[n] for n in range(count)}, masking), leave)
    state, told = run(transport, ONCE, plan, 1, patience=Patience(), masking=masking)
    assert state.rounds[0].devices == (count if step == 3 else count - 1)
    assert "round abandoned" not in told.events()


def test_a_masked_round_of_three_is_tried_again_when_one_leaves(tmp_path: Path) -> None:
    home = Folder(tmp_path, FederationConfig())
    plan, masking = round_plan(home, 3, 1.0), SecureSettings(min_devices=home.config.masked_with)
    left: list[int] = []

    def leave_once(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        if not left and request.action == "secure" and request.content["message"][5] == 5:
            left.append(request.node)
            return None
        return reply

    transport = LocalTransport(make_devices(tmp_path, {n: TEXTS[n] for n in range(3)}, masking), leave_once)
    state, told = run(transport, ONCE, plan, 1, patience=Patience(), masking=masking)
    assert state.rounds[0].devices == 3
    assert told.events().count("round abandoned") == 1


def test_masked_rounds_with_too_few_devices_are_abandoned(tmp_path: Path) -> None:
    def leave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        leaves = request.action == "secure" and request.node > 103 and request.content["message"][5] == 5
        return None if leaves else reply

    transport = LocalTransport(make_devices(tmp_path, TEXTS, MASKING), leave)
    plan, told = RoundPlan(12, 1.0, minimum=3, attempts=1), Told()
    fleet = fleet_of(transport, ONCE, Patience(wait_for=12, deadline=40))
    with pytest.raises(GaveUp, match="round 1 was abandoned"):
        run_rounds(ONCE, fleet, RunOptions(1, plan, MASKING), tell=told)
    assert "are needed to unmask" in told.first("round abandoned")["why"]


def test_a_masked_device_sends_nothing_unmasked_and_a_step_is_not_taken_twice(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, TEXTS, MASKING, participations=MANY)
    transport = LocalTransport(devices)
    with pytest.raises(GaveUp, match=r"abandoned 1 times, .*\(12 declined\)"):
        run(transport, OFTEN, RoundPlan(12, 1.0, minimum=3, attempts=1), 1)
    run(transport, OFTEN, RoundPlan(12, 1.0), 1, masking=MASKING)
    for request in [r for r in transport.asked("secure") if r.content["message"][5] > 1][:8]:
        answer = devices[request.node].secure({**request.content, **request.shared})
        assert answer == {"declined": b"round not known"}
    stricter, told = SecureSettings(min_devices=4), Told()
    options = RunOptions(1, RoundPlan(12, 1.0, minimum=4, attempts=1), stricter)
    with pytest.raises(GaveUp, match="abandoned"):
        run_rounds(OFTEN, fleet_of(transport, OFTEN), options, tell=told)
    assert told.first("round abandoned")["failed"] == {"RefusedMessageError": 12}


def test_a_masked_vector_is_of_the_broadcast_that_the_round_began_with(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, TEXTS, MASKING)

    class Changing(LocalTransport):
        """A server that sends other weights than it said."""

        def send(self, requests: Any, *, seconds: float) -> list[str]:
            changed = [
                Request(r.node, r.action, r.content, {**r.shared, "state": r.shared["state"][:-4] + b"abcd"})
                if "state" in r.shared
                else r
                for r in requests
            ]
            return super().send(changed, seconds=seconds)

    told = Told()
    options = RunOptions(1, RoundPlan(12, 1.0, attempts=1), MASKING)
    with pytest.raises(GaveUp, match="abandoned"):
        run_rounds(TRAINING, fleet_of(Changing(devices), TRAINING), options, tell=told)
    assert told.first("round abandoned")["failed"] == {"FedgramError": 12}


@pytest.mark.parametrize(
    ("said", "told"),
    [(b"FedgramError", "FedgramError"), (b"\x1b[2Jmy password\n", "failed"), (b"", "failed")],
)
def test_nothing_that_a_device_says_is_passed_on_but_the_name_of_an_error(said: bytes, told: str) -> None:
    assert problem_of(Reply("1", {"failed": said})) == told
