"""The stages of `fedgram run` that ask devices, on a federation: the same files come out, and the rest goes on.

A stage's working folder holds its checkpoints and what passes to and from the server; so a killed stage resumes. The
population of the configuration is then what the server may see: its dev and test users. Its train users are not asked;
the devices of the federation are.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any

from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError
from fedgram.deployment.folder import Folder
from fedgram.deployment.served_fleet import ServedFleet
from fedgram.deployment.waiting import Timeouts, WaitNotices
from fedgram.federated.cohort import CohortOptions, RoundPlan
from fedgram.federated.fleet import Fleet
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.shards import ShardedFleet, Waiting
from fedgram.pipeline import network_stages, refit_stage, text_stages
from fedgram.pipeline.config import PiecesSection, RunConfig, WordsSection
from fedgram.pipeline.participants import DevicesOf
from fedgram.pipeline.workspace import Stage, Work
from fedgram.training.options import FedAvgOptions

_AWAY, _SHARD_AWAY = 600.0, 30.0  # seconds that a server may be away, and until a round goes on without one of several


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


def on_federation(servers: Servers, config: RunConfig) -> Callable[[list[Stage]], list[Stage]]:
    """What puts federations in the place of the simulation, where the configuration names no file instead.

    Several servers share the rounds; the settings of the first count.
    """

    def devices(work: Work) -> FederationDevices:
        return FederationDevices(servers, work.write("servers"))

    functions = _functions(config, devices)

    def change(stages: list[Stage]) -> list[Stage]:
        for stage in stages:
            if stage.name in functions:
                _check_masked(servers.home, *_cohort_of(stage.name, config))
        own = {
            "federation": [_identity(server) for server in servers.all], "masked_with": servers.home.config.masked_with
        }  # fmt: skip
        return [
            replace(stage, function=functions[stage.name], config=[stage.config, own])
            if stage.name in functions
            else stage
            for stage in stages
        ]

    return change


def _functions(config: RunConfig, devices: DevicesOf) -> dict[str, Callable[[Work], None]]:
    """The stages that ask devices, by name."""
    c = config
    functions: dict[str, Callable[[Work], None]] = {
        "refit": lambda work: refit_stage.refit(work, c.refit, c.budget, c.seed, devices=devices)
    }
    if c.unigrams.counts is None:
        functions["unigrams"] = lambda work: text_stages.unigrams(work, c.unigrams, c.seed, devices=devices)
    sections: list[tuple[str, WordsSection | PiecesSection]] = [("R_W", c.words), ("R_P", c.pieces)]
    for name, section in sections:
        if section.network is None:
            what = "words" if name == "R_W" else "pieces"
            functions[f"train_{what}"] = _training(section.training, c.seed, name, devices)
    return functions


def _training(options: FedAvgOptions, seed: int, name: str, devices: DevicesOf) -> Callable[[Work], None]:
    compute = Compute("cpu", 1)  # of the server, which only scores
    return lambda work: network_stages.train_network(work, options, seed, name=name, compute=compute, devices=devices)


def _cohort_of(stage: str, config: RunConfig) -> tuple[str, CohortOptions]:
    """The settings of a stage's cohorts, with the name of their section."""
    if stage.startswith("train_"):
        what = stage.removeprefix("train_")
        return f"{what}.training", getattr(config, what).training
    return stage, getattr(config, stage)


def _identity(server: Folder | Path) -> str:
    """What tells a federation from others: its authority, which stays when certificates are renewed.

    One without TLS is on this machine alone, and has its place there; so has a folder that is shared.
    """
    if isinstance(server, Path):
        return str(server.resolve())
    return sha256(server.authority.read_bytes()).hexdigest() if server.config.tls else str(server.path.resolve())


def _check_masked(folder: Folder, section: str, cohort: CohortOptions) -> None:
    """Refuse rounds of fewer devices than may be summed."""
    devices, masked_with = cohort.devices_per_round, folder.config.masked_with
    if devices < masked_with:
        name = f"{section}.devices_per_round"
        raise FedgramError(f"{name} = {devices} is less than the federation's masked_with = {masked_with}")


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
    return SecureSettings(min_devices=folder.config.masked_with) if folder.config.masked_with else None


@contextmanager
def served(servers: Servers, work: Path, job: Job[Any], rounds: int | None) -> Iterator[Fleet]:
    """The devices of one federation, or of several, at work on a job."""
    with ExitStack() as stack:
        away = _SHARD_AWAY if servers.others else _AWAY
        fleets: list[Fleet] = []
        for number, server in enumerate(servers.all):
            if isinstance(server, Path):
                fleet = ServedFleet(None, server / job.digest[:16], job, timeouts_of(servers.home), away)
            else:
                fleet = ServedFleet(server, work / f"server-{number}", job, timeouts_of(server), away)
            fleets.append(stack.enter_context(fleet.working(rounds)))
        yield _sharded(servers.home, fleets) if servers.others else fleets[0]


def _sharded(home: Folder, fleets: list[Fleet]) -> ShardedFleet:
    """The fleets of several servers as one, with the settings of the first."""
    timeouts, waits = timeouts_of(home), WaitNotices()
    waiting = Waiting(timeouts.wait_seconds, timeouts.idle_seconds, timeouts.wait_for)
    return ShardedFleet(
        fleets, waiting, min_devices=max(1, home.config.masked_with),
        on_wait=lambda what: waits.tell(what, time.monotonic()),
    )  # fmt: skip


class FederationDevices:
    """The devices of a federation as `Devices`; what passes to and from the servers is kept in a folder."""

    count = None

    def __init__(self, servers: Servers, folder: Path) -> None:
        self._servers, self._folder = servers, folder

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
        return served(self._servers, self._folder / job.digest[:16], job, rounds)
