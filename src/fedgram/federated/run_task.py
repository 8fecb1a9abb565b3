"""Running any federated task on devices: `run_job` for operations of this package, `run_task` for other tasks."""

from pathlib import Path
from typing import Any

from fedgram.core.progress import Advance, Begin, silent
from fedgram.core.settings import chosen
from fedgram.federated.cohort import CohortOptions
from fedgram.federated.devices import Devices, as_devices
from fedgram.federated.job import Job
from fedgram.federated.rounds import Checkpointing, Run, Tell, run_rounds
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
    tell = by_round(begin(f"Running {task.name}", rounds))
    return run_job(job, devices, options, rounds=rounds, folder=folder, tell=tell)


def run_job(
    job: Job[State], devices: Devices, cohort: CohortOptions, *, rounds: int | None, folder: Path | None, tell: Tell
) -> Run[State]:
    """Run a job on devices; with a folder for checkpoints, an interrupted run resumes from there."""
    kept = Checkpointing(folder) if folder is not None else None
    with devices.working_on(job, cohort, rounds) as fleet:
        return run_rounds(job, fleet, devices.run_options(cohort, rounds), checkpoints=kept, tell=tell)


def by_round(advance: Advance) -> Tell:
    """Progress in rounds."""
    return lambda event, _: advance(1) if event == "round committed" else None
