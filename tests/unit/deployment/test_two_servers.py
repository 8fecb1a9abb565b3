"""Two servers with six devices each share the rounds of one run: the bits of one server, and what one failing costs."""

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.unit.deployment.transports import (
    ALL,
    MANY,
    MASKING,
    OFTEN,
    ONCE,
    TEXTS,
    TRAINING,
    Clock,
    Killed,
    LocalLink,
    LocalTransport,
    key_list_of,
    make_devices,
    same,
    simulated,
)

from fedgram.core.errors import FedgramError
from fedgram.deployment import federation_devices, server_app_runs
from fedgram.deployment.federation_devices import Servers, fleets_of, served
from fedgram.deployment.folder import FederationConfig, RoundsConfig, make_folder
from fedgram.deployment.remote_fleet import RemoteFleet
from fedgram.deployment.server_app_runs import keep_collecting
from fedgram.deployment.transport import Request, TransportLostError
from fedgram.deployment.waiting import Timeouts
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Job
from fedgram.federated.rounds import GaveUpError, Progress, RunOptions, run_rounds
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.shards import ShardedFleet, Waiting

TIMEOUTS = Timeouts(deadline=3.0, wait_seconds=5.0, idle_seconds=0.3, poll=0.01)
PLAIN_OR_MASKED = pytest.mark.parametrize("masking", [None, MASKING], ids=["plain", "masked"])
HALVES = (range(6), range(6, 12))


class Failing(LocalTransport):
    """A transport that is lost in some rounds (`lost`), or whose devices do not answer in them (`silent`)."""

    lost: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()

    def send(self, requests: Any, *, seconds: float) -> list[str]:
        if any(request.group in map(str, self.lost) for request in requests):
            raise TransportLostError("the SuperLink cannot be reached (test)")
        return super().send(requests, seconds=seconds)

    def swallow(self, request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        return None if request.group in map(str, self.silent) else reply


def two(tmp_path: Path, masking: SecureSettings | None = None, participations: int = 1) -> tuple[Failing, Failing]:
    """Twelve devices behind two transports."""
    devices = make_devices(tmp_path, TEXTS, masking, participations)
    one, other = (Failing({100 + n: devices[100 + n] for n in half}) for half in HALVES)
    one.misbehave, other.misbehave = one.swallow, other.swallow
    return one, other


def sharded(
    transports: tuple[Failing, ...], job: Job[Any], timeouts: Timeouts = TIMEOUTS, least: int = 1
) -> ShardedFleet:
    """Each server has a clock on which time passes when it waits: a deadline never comes because a machine is busy."""
    clocks = [Clock() for _ in transports]
    shards = [
        RemoteFleet(transport, job, timeouts, clock=clock, sleep=clock.sleep, key_list=key_list_of(transport.devices))
        for transport, clock in zip(transports, clocks, strict=True)
    ]
    return ShardedFleet(shards, Waiting(timeouts.wait_seconds, timeouts.idle_seconds), min_devices=least)


@PLAIN_OR_MASKED
@pytest.mark.parametrize(("job", "rounds"), [(ONCE, None), (TRAINING, 3)], ids=["unigrams", "fedavg"])
def test_two_servers_give_the_bits_of_one(tmp_path: Path, job: Job[Any], rounds: int | None, masking: Any) -> None:
    plan = RoundPlan(10 if rounds else 12, 1.0)
    transports = two(tmp_path, masking)
    found = run_rounds(job, sharded(transports, job), RunOptions(rounds, plan, masking))
    invited = [t.requests_for("report" if masking is None else "secure") for t in transports]
    assert all(invited)
    alone = LocalTransport(make_devices(tmp_path, TEXTS, masking))
    timeouts = Timeouts(wait_for=12, idle_seconds=0.3, poll=0.01)
    one = RemoteFleet(alone, job, timeouts, key_list=key_list_of(alone.devices))
    assert same(found.state, run_rounds(job, one, RunOptions(rounds, plan, masking)).state)
    assert same(found.state, simulated(job, plan, rounds))
    assert found.progress.tally.reports == (30 if rounds else 12)


@PLAIN_OR_MASKED
@pytest.mark.parametrize("how", ["lost", "silent"])
def test_a_round_goes_on_without_a_server_that_fails(tmp_path: Path, masking: Any, how: str) -> None:
    one, other = two(tmp_path, masking, MANY)
    setattr(other, how, (2,))
    told = list[tuple[str, Any]]()
    fleet = sharded((one, other), OFTEN, Timeouts(4.0, 5.0, 0.3, poll=0.01))
    options = RunOptions(3, RoundPlan(12, 1.0), masking)
    found = run_rounds(OFTEN, fleet, options, tell=lambda event, about: told.append((event, dict(about))))
    assert [part.devices for part in found.state.rounds] == [12, 6, 12]
    assert "round abandoned" not in [event for event, _ in told]
    assert [about["failed"].get("server failed", 0) for event, about in told if event == "round summed"] == [0, 1, 0]
    everyone, half = (simulated(OFTEN, RoundPlan(12, 1.0), 1, clients) for clients in (ALL, ALL[:6]))
    for part, wanted in zip(found.state.rounds, (everyone, half, everyone), strict=True):
        assert same(type(everyone)((part,)), wanted)


@PLAIN_OR_MASKED
def test_a_round_that_needs_both_servers_is_tried_again(tmp_path: Path, masking: Any) -> None:
    one, other = two(tmp_path, masking, MANY)
    attempts = [0]

    def fails_once(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        if request.group == "1" and attempts[0] < 6:
            attempts[0] += 1
            return None
        return reply

    other.misbehave = fails_once
    options = RunOptions(2, RoundPlan(12, 1.0, minimum=10, attempts=2), masking)
    timeouts = Timeouts(1.0, 5.0, 0.3, poll=0.01)
    found = run_rounds(OFTEN, sharded((one, other), OFTEN, timeouts), options)
    assert [part.devices for part in found.state.rounds] == [12, 12]
    assert found.progress.abandoned == 1
    other.misbehave = lambda request, reply: None if request.group else reply
    with pytest.raises(GaveUpError, match="round 1 was abandoned 2 times"):
        run_rounds(OFTEN, sharded((one, other), OFTEN, timeouts), options)


def test_a_server_that_is_away_is_not_waited_for_and_may_come_back(tmp_path: Path) -> None:
    one, other = two(tmp_path, participations=MANY)
    away, nodes = [True], other.nodes

    def lost() -> Any:
        if away[0]:
            raise TransportLostError("the SuperLink cannot be reached (test)")
        return nodes()

    other.nodes = lost  # type: ignore[method-assign]

    def come_back(event: str, about: Any) -> None:
        away[0] = away[0] and not (event == "round committed" and about["round"] == 1)

    fleet = sharded((one, other), OFTEN, Timeouts(3.0, 5.0, 0.3, poll=0.01))
    found = run_rounds(OFTEN, fleet, RunOptions(3, RoundPlan(12, 1.0)), tell=come_back)
    assert found.state.rounds[0].devices == 6
    assert found.state.rounds[-1].devices == 12
    away[0], one.nodes = True, lost  # type: ignore[method-assign]
    with pytest.raises(FedgramError, match="cannot be reached"):
        run_rounds(OFTEN, fleet, RunOptions(1, RoundPlan(12, 1.0)))


@PLAIN_OR_MASKED
def test_a_share_that_is_too_small_to_be_masked_is_not_collected(tmp_path: Path, masking: Any) -> None:
    devices = make_devices(tmp_path, TEXTS, masking)
    most, few = ({n: d for n, d in devices.items() if (n < 110) == first} for first in (True, False))
    transports = Failing(most), Failing(few)
    found = run_rounds(ONCE, sharded(transports, ONCE), RunOptions(1, RoundPlan(12, 1.0), masking))
    assert found.progress.tally.reports == (12 if masking is None else 10)
    assert len(transports[1].requests_for("secure")) == 0


@PLAIN_OR_MASKED
def test_two_served_federations_share_a_run_that_survives_their_server_apps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masking: Any
) -> None:
    """As `federation run --shard` does it: through folders, with ServerApps, one of which is killed in a round."""
    transports = two(tmp_path, masking, MANY)
    rounds = RoundsConfig(deadline=60.0, wait_seconds=60.0, idle_seconds=10.0)
    folders = [
        make_folder(tmp_path / name, FederationConfig(tls=False, masked_with=3, rounds=rounds))
        for name in ("one", "other")
    ]
    link = LocalLink(monkeypatch, {home.path: t for home, t in zip(folders, transports, strict=True)})
    killed: list[str] = []

    def die(request: Request, reply: dict[str, bytes]) -> dict[str, bytes]:
        if request.group == "2" and not killed:
            killed.append(request.group)
            raise Killed
        return reply

    transports[1].misbehave = die
    servers = Servers(folders[0], (folders[1],))
    with served(servers, fleets_of(servers, tmp_path / "work", TRAINING), 3) as fleet:
        found = run_rounds(TRAINING, fleet, RunOptions(3, RoundPlan(10, 1.0), masking))
    link.join()
    assert killed
    assert [type(error) for error in link.errors] == [Killed]
    assert len(link.threads) == 3
    assert same(found.state, simulated(TRAINING, RoundPlan(10, 1.0), 3))
    assert isinstance(found.progress, Progress)
    assert found.progress.abandoned == 0


@PLAIN_OR_MASKED
def test_a_server_on_another_machine_shares_a_run_through_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masking: Any
) -> None:
    """`federation collect` keeps its ServerApp; all that passes between the machines are files in a shared folder."""
    transports, shared = two(tmp_path, masking, MANY), tmp_path / "shared"
    shared.mkdir()
    rounds = RoundsConfig(deadline=60.0, wait_seconds=60.0, idle_seconds=10.0)
    near, far = (
        make_folder(tmp_path / name, FederationConfig(tls=False, masked_with=3, rounds=rounds))
        for name in ("near", "far")
    )
    link = LocalLink(monkeypatch, {near.path: transports[0], far.path: transports[1]})
    threading.Thread(target=keep_collecting, args=(far, shared), daemon=True).start()
    jobs: tuple[tuple[Job[Any], int], ...] = ((TRAINING, 2), (OFTEN, 1))
    for job, count in jobs:
        servers = Servers(near, (shared,))
        with served(servers, fleets_of(servers, tmp_path / "work", job), count) as fleet:
            found = run_rounds(job, fleet, RunOptions(count, RoundPlan(10, 1.0), masking))
        assert same(found.state, simulated(job, RoundPlan(10, 1.0), count))
    link.join()
    assert not link.errors
    assert {file.name for file in (shared / TRAINING.digest[:16]).iterdir()} >= {"order.json", "done", "alive"}


def test_a_server_on_another_machine_that_is_silent_costs_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_app_runs, "_SILENT_SECONDS", 0.1)
    monkeypatch.setattr(federation_devices, "_SHARD_AWAY", 0.2)
    shared = tmp_path / "shared"
    shared.mkdir()
    rounds = RoundsConfig(deadline=60.0, wait_seconds=60.0, idle_seconds=10.0)
    near, transports = (
        make_folder(tmp_path / "near", FederationConfig(tls=False, masked_with=3, rounds=rounds)),
        two(tmp_path, None),
    )
    link = LocalLink(monkeypatch, {near.path: transports[0]})
    servers = Servers(near, (shared,))
    with served(servers, fleets_of(servers, tmp_path / "work", ONCE), 1) as fleet:
        found = run_rounds(ONCE, fleet, RunOptions(1, RoundPlan(12, 1.0), None))
    link.join()
    assert found.progress.tally.reports == 6


def test_a_pass_ends_where_no_server_has_devices_enough_for_a_masked_sum(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, {n: TEXTS[n] for n in range(10)}, MASKING)
    halves = [Failing({100 + n: devices[100 + n] for n in numbers}) for numbers in (range(5), range(5, 10))]
    fleet = sharded((halves[0], halves[1]), ONCE, least=3)
    found = run_rounds(ONCE, fleet, RunOptions(None, RoundPlan(6, 1.0), MASKING))
    assert [part.devices for part in found.state.rounds] == [6]  # of the rest, each server has two
    assert found.progress.abandoned == 0


def test_a_share_that_is_too_small_to_be_masked_goes_to_the_other_server(tmp_path: Path) -> None:
    transports = two(tmp_path, MASKING)
    found = run_rounds(ONCE, sharded(transports, ONCE, least=3), RunOptions(None, RoundPlan(4, 1.0), MASKING))
    assert [part.devices for part in found.state.rounds] == [4, 4]  # of the rest, each server has two
    invited = [{request.group for request in transport.requests_for("secure")} for transport in transports]
    assert all(len(groups) == 1 for groups in invited)
    assert found.progress.abandoned == 0
