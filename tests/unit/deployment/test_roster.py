"""Which devices a server can invite: how it learns of them, how it waits for them, and whom it turns away."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.deployment.transports import (
    ALL_THERE,
    MANY,
    MASKING,
    NOBODY,
    OFTEN,
    ONCE,
    TEXTS,
    Clock,
    LocalTransport,
    Told,
    fleet_of,
    make_devices,
)

from fedgram.core.errors import FedgramError
from fedgram.deployment.journal import Journal, read_status
from fedgram.deployment.remote_fleet import RemoteFleet
from fedgram.deployment.waiting import Timeouts, waiting_in_words
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.federated.secure.settings import SecureSettings


def test_a_device_number_belongs_to_one_node(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, {n: TEXTS[n] for n in range(4)})
    devices[500] = devices[100]  # another node with the same store

    class Named(LocalTransport):
        def nodes(self) -> dict[int, str]:
            return {node: "device-7" if node == 103 else "" for node in self.devices}

    fleet = fleet_of(Named(devices), ONCE, Timeouts(wait_for=3))
    run_rounds(ONCE, fleet, RunOptions(1, RoundPlan(3, 1.0)))
    assert fleet.roster.present() == {0: 100, 1: 101, 2: 102}
    assert fleet.roster.turned_away == {"device already there": 1, "speaks for another device": 1}


def test_a_node_speaks_for_no_device_after_it_has_gone(tmp_path: Path) -> None:
    """Its name went with it: nobody knows any more for which device it may speak."""
    devices, looks = make_devices(tmp_path, {n: TEXTS[n] for n in range(2)}), [0]
    devices[103] = devices.pop(101)  # registered as device 3, but has the store of device 1

    class Leaving(LocalTransport):
        def nodes(self) -> dict[int, str]:
            looks[0] += 1
            return {100: "device-0"} | ({103: "device-3"} if looks[0] == 1 else {})

    heard = list[int]()
    fleet = fleet_of(Leaving(devices), ONCE)
    fleet.roster.on_model = lambda device, _: heard.append(device)
    fleet.roster.refresh()
    fleet.roster.refresh()
    assert fleet.roster.present() == {0: 100}
    assert heard == [0]


@pytest.mark.parametrize("masking", [None, MASKING], ids=["plain", "masked"])
def test_a_device_that_forgot_the_job_is_sent_it_again(tmp_path: Path, masking: SecureSettings | None) -> None:
    devices = make_devices(tmp_path, TEXTS, masking, participations=MANY)
    transport = LocalTransport(devices)
    fleet = fleet_of(transport, OFTEN)
    fleet.devices(12, NOBODY)
    for path in devices[105].jobs.iterdir():
        path.unlink()
    state = run_rounds(OFTEN, fleet, RunOptions(2, RoundPlan(12, 1.0, minimum=11), masking)).state
    assert [part.devices for part in state.rounds] == [11, 12]
    assert len(transport.requests_for("join")) == 13  # that device only


@pytest.mark.parametrize("masking", [None, MASKING], ids=["plain", "masked"])
def test_devices_that_took_part_in_a_lost_sum_are_not_invited_again_and_again(
    tmp_path: Path, masking: SecureSettings | None
) -> None:
    devices = make_devices(tmp_path, TEXTS, masking)
    lost = fleet_of(LocalTransport({n: d for n, d in devices.items() if n < 106}), ONCE, Timeouts())
    run_rounds(
        ONCE, lost, RunOptions(2, RoundPlan(3, 1.0), masking)
    )  # two sums of three devices, of which none is left
    transport = LocalTransport(devices)
    found = run_rounds(ONCE, fleet_of(transport, ONCE), RunOptions(None, RoundPlan(12, 1.0), masking))
    again = 0 if masking else 3  # a plain report of the first round is the same once more
    assert [part.devices for part in found.state.rounds] == [6 + again]
    assert found.progress.tally.failed == {"took part already": 6 - again}
    assert found.progress.device.tolist() == list(range(12))
    invited = [r.node for r in transport.sent if r.group and (not masking or r.content["message"][5] == 1)]
    assert len(invited) == len(set(invited)) == 12


def test_a_device_that_went_away_and_came_back_is_sent_the_job_at_once(tmp_path: Path) -> None:
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
    fleet = RemoteFleet(transport, ONCE, Timeouts(), clock=clock, sleep=clock.sleep)
    assert fleet.devices(3, NOBODY).tolist() == [0, 1, 2]
    assert fleet.roster.present() == {0: 100, 1: 101, 2: 102}
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
    assert again.participants.tolist() == found.progress.device.tolist()
    left = {node: device for node, device in devices.items() if node != 100 + again.participants[0]}
    fleet = fleet_of(LocalTransport(left), ONCE, Timeouts(idle_seconds=7))
    assert fleet.collect(calls[0]).participants.tolist() == sorted(
        {*calls[0].order[:6].tolist()} - {again.participants[0]}
    )
    assert 7 <= fleet.clock() < 9  # the one that is gone was waited for, and no longer than it may take


def test_a_wait_for_devices_can_be_seen(tmp_path: Path) -> None:
    transport = LocalTransport(make_devices(tmp_path, {0: ["hello you"], 1: [], 2: ["it is my day"]}))
    told, clock = Told(), Clock()
    timeouts = Timeouts(wait_for=3, wait_seconds=20)
    fleet = RemoteFleet(transport, ONCE, timeouts, tell=told, clock=clock, sleep=clock.sleep)
    with pytest.raises(FedgramError, match="2 of 3 are ready"):
        run_rounds(ONCE, fleet, RunOptions(1, RoundPlan(3, 1.0)))
    waiting = {"there": 2, "wanted": 3, "online": 3, "turned_away": {"not ready": 1}}
    assert ("waiting", waiting) in told
    journal = Journal(tmp_path, "unigrams", 1)
    journal.tell("waiting", waiting)
    status = read_status(tmp_path)
    assert status["waiting"] == waiting
    assert status["state"] == "waiting for devices: 2 of 3 are ready (3 online; turned away so far: 1 not ready)"
    journal.tell("round began", {"round": 1})
    assert read_status(tmp_path)["waiting"] == {}
    assert waiting_in_words({"there": 3, "online": 4}) == "waiting for a round: 3 ready (4 online)"


def test_a_device_with_too_little_text_is_not_invited(tmp_path: Path) -> None:
    transport = LocalTransport(make_devices(tmp_path, {0: ["hello you"], 1: [], 2: ["it is my day"]}))
    fleet = fleet_of(transport, ONCE, Timeouts(wait_for=2))
    run_rounds(ONCE, fleet, RunOptions(1, RoundPlan(2, 1.0)))
    assert set(fleet.roster.present()) == {0, 2}
    assert fleet.roster.turned_away == {"not ready": 1}
    with pytest.raises(FedgramError, match=r"2 of 3 are ready \(3 online; .*; gave up after 60 s"):
        fleet_of(transport, ONCE, Timeouts(wait_seconds=60)).devices(3, NOBODY)
