"""How the sum of a level is collected: in rounds with any devices, or at once from a simulated population."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.progress import Advance
from fedgram.federated.cohort import CohortOptions, draw_order
from fedgram.federated.devices import Devices
from fedgram.federated.discovery.prefix_level import COUNT, Collection, PrefixLevel
from fedgram.federated.discovery.simulated_levels import SimulatedLevels
from fedgram.federated.job import Job
from fedgram.federated.run_task import run_job
from fedgram.text.population import Users


class LevelSum(NamedTuple):
    """The sum of a level in fixed point, and the number of devices in it."""

    total: LongArray
    reports: int


class Passes(Protocol):
    """Passes over devices, one per level; in each, every device takes part at most once."""

    def run(self, task: PrefixLevel, *, seed: int, batch: int | None) -> LevelSum:
        """The sum over all devices, or over `batch` of them, drawn with the seed."""

    def forget(self, level: int) -> None:
        """Remove what is kept of the sum of a level, once the level is released."""


class AtOnce:
    """All users of a simulated population at once; the same sums as in rounds without masking."""

    def __init__(self, users: Users, collection: Collection, begin: Callable[[int], Advance]) -> None:
        begin(0)
        self._users, self._levels, self._begin = users, SimulatedLevels(users, collection), begin

    def run(self, task: PrefixLevel, *, seed: int, batch: int | None) -> LevelSum:
        """The sum of a level."""
        self._begin(task.level)
        drawn = None if batch is None else draw_order(self._users.clients, seed=seed, round_number=1)[:batch]
        return LevelSum(self._levels.sum(task, drawn), len(self._users) if drawn is None else len(drawn))

    def forget(self, level: int) -> None:
        """Nothing is kept."""


class InRounds:
    """Rounds with any devices, masked or not; with a folder, an interrupted level resumes."""

    def __init__(
        self, devices: Devices, cohort: CohortOptions, folder: Path | None, begin: Callable[[int], Advance]
    ) -> None:
        self._devices, self._cohort, self._folder, self._begin = devices, cohort, folder, begin

    def run(self, task: PrefixLevel, *, seed: int, batch: int | None) -> LevelSum:
        """The sum of a level."""
        job, cohort, rounds = Job(task, seed, self._devices.participations(1)), self._cohort, None
        if batch is not None:
            rounds = ceil(batch / cohort.devices_per_round)
            cohort = replace(cohort, devices_per_round=batch // rounds)
        advance = self._begin(task.level)
        run = run_job(
            job, self._devices, cohort, rounds=rounds,
            folder=self._folder / f"level-{task.level}" if self._folder else None,
            tell=lambda event, about: advance(about["reports"]) if event == "round summed" else None,
        )  # fmt: skip
        return LevelSum(np.asarray(run.state[COUNT]), run.progress.tally.reports)

    def forget(self, level: int) -> None:
        """Remove the checkpoints of a level."""
        if self._folder:
            shutil.rmtree(self._folder / f"level-{level}", ignore_errors=True)
