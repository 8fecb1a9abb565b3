"""Plain rounds over a transport: the simulation's results, and what happens when devices fail."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.deployment.transports import (
    ALL,
    MANY,
    OFTEN,
    ONCE,
    TEXTS,
    TRAINING,
    UNIGRAMS,
    LocalTransport,
    Told,
    fleet_of,
    make_devices,
    run,
    same,
    simulated,
)

from fedgram.core.errors import FedgramError
from fedgram.deployment.attempt import problem_of
from fedgram.deployment.transport import Reply, Request
from fedgram.deployment.waiting import Timeouts
from fedgram.federated.cohort import RoundPlan, draw_order
from fedgram.federated.rounds import Checkpointing, GaveUpError, RunOptions, run_rounds
from fedgram.federated.task import Update
from fedgram.federated.wire import update_to_bytes


def test_the_order_of_invitation_depends_on_the_devices_alone(tmp_path: Path) -> None:
    transport = LocalTransport(make_devices(tmp_path, TEXTS))
    run(transport, ONCE, RoundPlan(5, 1.0), 1)
    wanted = draw_order(np.array([11, 3, 5, 0, 1, 2, 4, 6, 7, 8, 9, 10]), seed=5, round_number=1)[:5]
    assert [request.node - 100 for request in transport.requests_for("report")] == wanted.tolist()


def test_a_fleet_gives_what_the_simulation_gives(tmp_path: Path) -> None:
    transport = LocalTransport(make_devices(tmp_path, TEXTS))
    timeouts = Timeouts(wait_for=12, batch=2)
    state, told = run(transport, ONCE, RoundPlan(5, 1.0), 3, timeouts=timeouts)
    assert [part.devices for part in state.rounds] == [5, 5, 2]
    assert same(state, simulated(ONCE, RoundPlan(5, 1.0), 3))
    assert transport.largest_batch <= 12
    assert len(transport.requests_for("join")) == 12
    assert told.events().count("round committed") == 3


def test_a_pass_invites_every_device_once_and_ends(tmp_path: Path) -> None:
    transport = LocalTransport(make_devices(tmp_path, TEXTS))
    state, _ = run(transport, ONCE, RoundPlan(5, 1.0), None)
    assert sorted(request.node for request in transport.requests_for("report")) == list(range(100, 112))
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
        invited = [request.node for request in transport.sent if request.group == number]
        assert len(invited) == len(set(invited))
        failed = sum(node in bad for node in invited)
        summed = [about for event, about in told if event == "round summed"][int(number) - 1]
        assert summed["failed"] == ({"failed": failed} if failed else {})
        assert (summed["invited"], summed["reports"]) == (len(invited), 9)


def test_stragglers_are_left_out_at_the_deadline(tmp_path: Path) -> None:
    transport = LocalTransport(
        make_devices(tmp_path, TEXTS), lambda r, reply: None if r.action == "report" and r.node < 103 else reply
    )
    timeouts = Timeouts(wait_for=12, deadline=10)
    state, told = run(transport, ONCE, RoundPlan(12, 1.0, minimum=5), 1, timeouts=timeouts)
    assert state.rounds[0].devices == 9
    assert told.first("round summed")["late"] == 3


def test_too_few_reports_abandon_the_round_and_nothing_is_kept(tmp_path: Path) -> None:
    silent = True

    def misbehave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        return None if silent and request.action == "report" and request.node != 104 else reply

    transport = LocalTransport(make_devices(tmp_path, TEXTS, participations=MANY), misbehave)
    plan, timeouts = RoundPlan(12, 1.0, minimum=5, attempts=2), Timeouts(wait_for=12, deadline=10)
    told, options = Told(), RunOptions(2, plan)
    why = "abandoned 2 times, the last time because: 1 of at least 5 reports"
    kept = Checkpointing(tmp_path / "rounds")
    with pytest.raises(GaveUpError, match=why):
        run_rounds(OFTEN, fleet_of(transport, OFTEN, timeouts), options, checkpoints=kept, tell=told)
    assert not (tmp_path / "rounds").exists()
    assert "1 of at least 5 reports by the deadline" in told.first("round abandoned")["why"]
    silent = False
    state, _ = run(transport, OFTEN, plan, 2, timeouts=timeouts, checkpoints=kept)
    assert same(state, simulated(OFTEN, RoundPlan(12, 1.0), 2))


def test_a_device_whose_report_was_seen_in_an_abandoned_round_is_spent(tmp_path: Path) -> None:
    def misbehave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        first = request.action == "report" and len(transport.requests_for("report")) <= 5
        return None if first and request.node != order[0] else reply

    transport = LocalTransport(make_devices(tmp_path, TEXTS), misbehave)
    order = (draw_order(ALL, seed=5, round_number=1) + 100).tolist()
    timeouts = Timeouts(wait_for=12, deadline=10)
    state, told = run(transport, ONCE, RoundPlan(5, 1.0, minimum=2), 1, timeouts=timeouts)
    assert told.events().count("round abandoned") == 1
    assert state.rounds[0].devices == 5
    assert order[0] not in [request.node for request in transport.requests_for("report")[5:]]


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
        return run(transport, OFTEN, plan, 6, checkpoints=Checkpointing(folder, belongs_to={"a": a}))[0]

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
    assert {request.group for request in transport.requests_for("report")} == {"6"}
    with pytest.raises(FedgramError, match="other settings: a"):
        go_on(transport, a=2)


@pytest.mark.parametrize(
    ("said", "told"),
    [(b"FedgramError", "FedgramError"), (b"\x1b[2Jmy password\n", "failed"), (b"", "failed")],
)
def test_only_the_name_of_an_error_is_passed_on_from_a_device(said: bytes, told: str) -> None:
    assert problem_of(Reply("1", {"failed": said})) == told
