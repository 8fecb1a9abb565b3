"""Masked rounds over a transport: the simulation's results, devices that leave, and what is never sent."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.deployment.transports import (
    MANY,
    MASKING,
    OFTEN,
    ONCE,
    TEXTS,
    TRAINING,
    LocalTransport,
    Told,
    fleet_of,
    make_devices,
    run,
    same,
    simulated,
)

from fedgram.deployment.federation_devices import round_plan
from fedgram.deployment.folder import FederationConfig, Folder
from fedgram.deployment.masked_round import STEPS
from fedgram.deployment.transport import Request
from fedgram.deployment.waiting import Timeouts
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.rounds import GaveUpError, RunOptions, run_rounds
from fedgram.federated.secure.settings import SecureSettings


def test_masked_rounds_give_what_the_simulation_gives(tmp_path: Path) -> None:
    transport = LocalTransport(make_devices(tmp_path, TEXTS, MASKING))
    timeouts = Timeouts(wait_for=12, batch=2)
    state, told = run(transport, ONCE, RoundPlan(5, 1.0, minimum=5), 2, timeouts=timeouts, masking=MASKING)
    assert same(state, simulated(ONCE, RoundPlan(5, 1.0), 2))
    assert len(transport.requests_for("secure")) == 2 * 5 * 5
    assert not transport.requests_for("report")
    assert {about["late"] for event, about in told if event == "round summed"} == {0}


@pytest.mark.parametrize("step", range(len(STEPS)))
def test_devices_that_leave_a_masked_round_are_left_out_of_its_sum(tmp_path: Path, step: int) -> None:
    gone = {101, 108}

    def leave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        leaves = request.action == "secure" and request.node in gone and request.content["message"][5] == 2 * step + 1
        return None if leaves else reply

    transport = LocalTransport(make_devices(tmp_path, TEXTS, MASKING), leave)
    timeouts = Timeouts(wait_for=12, deadline=40)
    state, told = run(transport, ONCE, RoundPlan(12, 1.0, minimum=5), 1, timeouts=timeouts, masking=MASKING)
    counted = [n for n in range(12) if step > 2 or 100 + n not in gone]
    assert same(state, simulated(ONCE, RoundPlan(12, 1.0), 1, np.array(counted, np.int64)))
    assert told.first("round summed")["late"] == (0 if step > 2 else 2)


@pytest.mark.parametrize("step", range(len(STEPS)))
@pytest.mark.parametrize("count", [4, 5, 6])
def test_a_small_masked_round_with_the_usual_settings_bears_the_loss_of_one(
    tmp_path: Path, count: int, step: int
) -> None:
    home = Folder(tmp_path, FederationConfig(masked_with=3))
    plan, masking = round_plan(home, count, 1.0), SecureSettings(min_devices=home.config.masked_with)

    def leave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        leaves = request.action == "secure" and request.node == 101 and request.content["message"][5] == 2 * step + 1
        return None if leaves else reply

    transport = LocalTransport(make_devices(tmp_path, {n: TEXTS[n] for n in range(count)}, masking), leave)
    state, told = run(transport, ONCE, plan, 1, timeouts=Timeouts(), masking=masking)
    assert state.rounds[0].devices == (count if step > 2 else count - 1)
    assert "round abandoned" not in told.events()


def test_a_masked_round_of_three_is_tried_again_when_one_leaves(tmp_path: Path) -> None:
    home = Folder(tmp_path, FederationConfig(masked_with=3))
    plan, masking = round_plan(home, 3, 1.0), SecureSettings(min_devices=home.config.masked_with)
    left: list[int] = []

    def leave_once(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        if not left and request.action == "secure" and request.content["message"][5] == 5:
            left.append(request.node)
            return None
        return reply

    transport = LocalTransport(make_devices(tmp_path, {n: TEXTS[n] for n in range(3)}, masking), leave_once)
    state, told = run(transport, ONCE, plan, 1, timeouts=Timeouts(), masking=masking)
    assert state.rounds[0].devices == 3
    assert told.events().count("round abandoned") == 1


def test_masked_rounds_with_too_few_devices_are_abandoned(tmp_path: Path) -> None:
    def leave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        leaves = request.action == "secure" and request.node > 103 and request.content["message"][5] == 5
        return None if leaves else reply

    transport = LocalTransport(make_devices(tmp_path, TEXTS, MASKING), leave)
    plan, told = RoundPlan(12, 1.0, minimum=3, attempts=1), Told()
    fleet = fleet_of(transport, ONCE, Timeouts(wait_for=12, deadline=40))
    with pytest.raises(GaveUpError, match="round 1 was abandoned"):
        run_rounds(ONCE, fleet, RunOptions(1, plan, MASKING), tell=told)
    assert "are needed to agree" in told.first("round abandoned")["why"]


def test_a_masked_device_sends_nothing_unmasked_and_a_step_is_not_taken_twice(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, TEXTS, MASKING, participations=MANY)
    transport = LocalTransport(devices)
    with pytest.raises(GaveUpError, match=r"abandoned 1 times, .*\(12 declined\)"):
        run(transport, OFTEN, RoundPlan(12, 1.0, minimum=3, attempts=1), 1)
    run(transport, OFTEN, RoundPlan(12, 1.0), 1, masking=MASKING)
    for request in [r for r in transport.requests_for("secure") if r.content["message"][5] > 1][:8]:
        answer = devices[request.node].secure({**request.content, **request.shared})
        assert answer == {"declined": b"round not known"}
    stricter, told = SecureSettings(min_devices=4), Told()
    options = RunOptions(1, RoundPlan(12, 1.0, minimum=4, attempts=1), stricter)
    with pytest.raises(GaveUpError, match="abandoned"):
        run_rounds(OFTEN, fleet_of(transport, OFTEN), options, tell=told)
    assert told.first("round abandoned")["failed"] == {"RefusedMessageError": 12}


def test_a_masked_vector_is_of_the_broadcast_that_the_round_began_with(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, TEXTS, MASKING)

    class Changing(LocalTransport):
        """A server that sends other weights than it said."""

        def send(self, requests: Any, *, seconds: float) -> list[str]:
            changed = [
                Request(r.node, r.action, r.content, {**r.shared, "broadcast": r.shared["broadcast"][:-4] + b"abcd"})
                if "broadcast" in r.shared
                else r
                for r in requests
            ]
            return super().send(changed, seconds=seconds)

    told = Told()
    options = RunOptions(1, RoundPlan(12, 1.0, attempts=1), MASKING)
    with pytest.raises(GaveUpError, match="abandoned"):
        run_rounds(TRAINING, fleet_of(Changing(devices), TRAINING), options, tell=told)
    assert told.first("round abandoned")["failed"] == {"FedgramError": 12}
