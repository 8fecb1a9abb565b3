"""The devices of a federation, or of several, as `Devices`: what a federated operation asks."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from fedgram.deployment.folder import Folder
from fedgram.deployment.served_fleet import ServedFleet
from fedgram.deployment.waiting import Timeouts, WaitNotices
from fedgram.federated.cohort import CohortOptions, RoundPlan
from fedgram.federated.fleet import Fleet
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.shards import ShardedFleet, Waiting

_AWAY, _SHARD_AWAY = 600.0, 30.0  # seconds that a server may be away, and until a round goes on without one of several
Waits = Callable[[Timeouts], Timeouts]


@dataclass(frozen=True, slots=True)
class Servers:
    """The server of a run, whose settings count for all, and others that share its rounds.

    Another server is that of a federation's folder on this machine; or it works on another machine, in a folder that
    both share (`fedgram federation collect`).
    """

    home: Folder
    others: tuple[Folder | Path, ...] = ()

    @property
    def all(self) -> tuple[Folder | Path, ...]:
        """Every server."""
        return self.home, *self.others


def round_plan(folder: Folder, devices: int, over_selection: float) -> RoundPlan:
    """How rounds with so many devices are run here."""
    c = folder.config.rounds
    minimum = min(devices, max(1, ceil(c.minimum * devices), folder.config.masked_with))
    return RoundPlan(devices, over_selection, minimum, c.attempts)


def timeouts_of(folder: Folder) -> Timeouts:
    """How long the server of a federation waits."""
    c = folder.config.rounds
    return Timeouts(c.deadline, c.wait_seconds, c.idle_seconds, c.wait_for, c.batch)


def masking_of(folder: Folder) -> SecureSettings | None:
    """How sums are masked, if they are."""
    c = folder.config
    return SecureSettings(c.masked_with, c.neighbours, c.majority, c.value_bits) if c.masked_with else None


def fleets_of(
    servers: Servers, work: Path, job: Job[Any], waiting: Waits = lambda timeouts: timeouts
) -> list[ServedFleet]:
    """The fleet of each server, for a job; `waiting` may change how long they wait."""
    away, fleets = _SHARD_AWAY if servers.others else _AWAY, []
    for number, server in enumerate(servers.all):
        if isinstance(server, Path):
            timeouts = waiting(timeouts_of(servers.home))
            fleets.append(ServedFleet(None, server / job.digest[:16], job, timeouts, away))
        else:
            fleets.append(ServedFleet(server, work / f"server-{number}", job, waiting(timeouts_of(server)), away))
    return fleets


@contextmanager
def served(
    servers: Servers, fleets: Sequence[ServedFleet], rounds: int | None, waiting: Waits = lambda timeouts: timeouts
) -> Iterator[Fleet]:
    """The devices of one federation, or of several, at work on a job."""
    with ExitStack() as stack:
        at_work: list[Fleet] = [stack.enter_context(fleet.working(rounds)) for fleet in fleets]
        timeouts = waiting(timeouts_of(servers.home))
        yield _sharded(servers.home, at_work, timeouts) if servers.others else at_work[0]


def _sharded(home: Folder, fleets: list[Fleet], timeouts: Timeouts) -> ShardedFleet:
    """The fleets of several servers as one, with the settings of the first."""
    waits = WaitNotices()
    waiting = Waiting(timeouts.wait_seconds, timeouts.idle_seconds, timeouts.wait_for)
    return ShardedFleet(
        fleets, waiting, min_devices=max(1, home.config.masked_with),
        on_wait=lambda what: waits.tell(what, time.monotonic()),
    )  # fmt: skip


class FederationDevices:
    """The devices of a federation as `Devices`; what passes to and from the servers is kept in a folder."""

    count = None

    def __init__(self, servers: Servers, folder: Path, waiting: Waits = lambda timeouts: timeouts) -> None:
        """The devices; `waiting` may change how long servers wait."""
        self._servers, self._folder, self._waiting = servers, folder, waiting
        self._fleets: list[ServedFleet] = []

    def participations(self, limit: int | None) -> int | None:
        """The limit that is asked for, but not more than what devices allow."""
        allowed = self._servers.home.config.participations
        return allowed if limit is None else min(limit, allowed)

    def run_options(self, cohort: CohortOptions, rounds: int | None) -> RunOptions:
        """Rounds as the federation runs them."""
        home = self._servers.home
        return RunOptions(
            rounds, round_plan(home, cohort.devices_per_round, cohort.over_selection), masking_of(home)
        )  # fmt: skip

    def working_on(self, job: Job[Any], cohort: CohortOptions, rounds: int | None) -> AbstractContextManager[Fleet]:  # noqa: ARG002
        """The devices behind the servers."""
        self._fleets = fleets_of(self._servers, self._folder / job.digest[:16], job, self._waiting)
        return served(self._servers, self._fleets, rounds, self._waiting)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Leave the devices to another job between two rounds of the one at work."""
        with ExitStack() as stack:
            for fleet in self._fleets:
                stack.enter_context(fleet.resting())
            yield
