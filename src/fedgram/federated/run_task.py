"""Running any federated task on devices: what a task of one's own needs."""

from pathlib import Path
from typing import Any

from fedgram.core.progress import Begin, silent
from fedgram.core.settings import chosen
from fedgram.federated.cohort import CohortOptions
from fedgram.federated.devices import Devices, as_devices
from fedgram.federated.job import Job
from fedgram.federated.rounds import Checkpointing, Run, run_rounds
from fedgram.federated.task import FederatedTask, State
from fedgram.text.population import Users


def run_task(
    task: FederatedTask[State],
    users: Users | Devices,
    options: CohortOptions | None = None,
    *,
    rounds: int | None = None,
    participations: int | None = None,
    seed: int = 0,
    folder: Path | None = None,
    begin: Begin = silent,
    **settings: Any,
) -> Run[State]:
    """Run a federated task; the result has the server's `state`, and the `progress` of the rounds.

    Args:
        task: What devices compute and what the server does with the sums.
        users: The users whose devices take part, such as `population.train`.
        options: The size of cohorts, dropout and masking; its fields may be given as keywords instead.
        rounds: The number of rounds; by default, until every device has taken part as often as it may.
        participations: The maximum number of rounds per device; 1 if `rounds` is not given, else no limit.
        seed: Of the cohorts.
        folder: For checkpoints; an interrupted run resumes from there.
        begin: Progress callback.
    """
    options, devices = chosen(CohortOptions, options, settings), as_devices(users)
    limit = 1 if rounds is None and participations is None else participations
    job = Job(task, seed, devices.participations(limit))
    advance = begin(f"Running {task.name}", rounds)
    with devices.working_on(job, options, rounds) as fleet:
        return run_rounds(
            job, fleet, devices.run_options(options, rounds),
            checkpoints=Checkpointing(folder) if folder is not None else None,
            tell=lambda event, _: advance(1) if event == "round committed" else None,
        )  # fmt: skip
