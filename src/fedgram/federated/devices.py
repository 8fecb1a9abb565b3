"""Who takes part in a federated operation: users of a population as simulated devices, or a real federation.

Operations such as `collect_unigrams` are written once, for any `Devices`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from fedgram.federated.cohort import CohortOptions, RoundPlan
from fedgram.federated.fleet import Fleet
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.simulation import Ranks, SimulatedFleet
from fedgram.text.population import Users

_CHECKPOINT_PAUSE = 5.0  # seconds; simulated rounds take less time than their checkpoints, and can be run again
_PASS_ATTEMPTS = 100  # per round, if every device is to take part: the last ones may drop out again and again


@runtime_checkable
class Devices(Protocol):
    """Devices that can be put to work on a job."""

    @property
    def count(self) -> int | None:
        """How many there are, if that is known."""

    def participations(self, limit: int | None) -> int | None:
        """How many rounds of a job one device may take part in: not more than `limit`; None means no limit."""

    def run_options(self, cohort: CohortOptions, rounds: int | None) -> RunOptions:
        """How rounds with these devices are run; without `rounds`, until every device has taken part."""

    def working_on(self, job: Job[Any], cohort: CohortOptions, rounds: int | None) -> AbstractContextManager[Fleet]:
        """The devices as a fleet, while the job runs."""


class SimulatedDevices:
    """Users of a population as devices of this process, or of several that share the work.

    With `as_bytes`, updates go through their bytes, so that their sizes are known.
    """

    def __init__(self, users: Users, *, ranks: Ranks | None = None, as_bytes: bool = False) -> None:
        self._users, self._ranks, self._as_bytes = users, ranks, as_bytes

    @property
    def count(self) -> int | None:
        """The number of users."""
        return len(self._users)

    def participations(self, limit: int | None) -> int | None:
        """The limit that is asked for."""
        return limit

    def run_options(self, cohort: CohortOptions, rounds: int | None) -> RunOptions:
        """Rounds of the cohort's size."""
        plan = RoundPlan(cohort.devices_per_round, cohort.over_selection)
        if rounds is None:
            plan = replace(plan, attempts=_PASS_ATTEMPTS)
        masking = SecureSettings() if cohort.secure_aggregation else None
        return RunOptions(rounds, plan, masking, checkpoint_pause=_CHECKPOINT_PAUSE)

    @contextmanager
    def working_on(self, job: Job[Any], cohort: CohortOptions, rounds: int | None) -> Iterator[Fleet]:  # noqa: ARG002
        """A simulated fleet."""
        yield SimulatedFleet(job, self._users, dropout=cohort.dropout, as_bytes=self._as_bytes, ranks=self._ranks)


def as_devices(users: Users | Devices) -> Devices:
    """Users as simulated devices; devices as they are."""
    return SimulatedDevices(users) if isinstance(users, Users) else users
