"""One pass over a population: cohorts are asked until every device has reported once.

Devices that drop out, or come too late, may be asked again; one that was counted, or whose report was refused, is not.
What devices send goes through its bytes, and is judged before it is added (`federated/intake.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.random import Stream
from fedgram.federated.cohort import CohortPlan, choose_cohort
from fedgram.federated.driver import Devices, device_stream
from fedgram.federated.intake import Intake
from fedgram.federated.task import FederatedTask
from fedgram.federated.wire import update_to_bytes

State = TypeVar("State")
MOST_FAILURES = 1000  # rounds in a row of which nobody reports


@dataclass(frozen=True, slots=True)
class PassReport:
    """What a pass took: devices counted, rounds, devices that dropped out or came too late, bytes, reports refused."""

    devices: int = 0
    rounds: int = 0
    dropped: int = 0
    late: int = 0
    bytes: int = 0
    refused: int = 0


def run_pass(
    task: FederatedTask[State],
    devices: Devices,
    plan: CohortPlan,
    *,
    seed: int,
    on_round: Callable[[PassReport], object] = lambda _: None,
) -> tuple[State, PassReport]:
    """Ask devices, a cohort at a time, until each has been counted once."""
    if len(devices.clients) == 0:
        raise FedgramError("the population has no clients to ask; check the split")
    state, report, waiting, failures = task.init(), PassReport(), devices.clients, 0
    while len(waiting):
        number = report.rounds + 1
        cohort = choose_cohort(plan, waiting, seed=seed, round_number=number)
        failures = 0 if len(cohort.reporting) else failures + 1
        if failures > MOST_FAILURES:
            raise FedgramError("no device reports any more; lower the dropout rate")
        intake, sent = Intake(task, cohort.reporting.tolist()), report.bytes
        for client in cohort.reporting.tolist():
            rng = device_stream(seed, number, client)
            message = update_to_bytes(task.client_update(state, devices.load(client), rng))
            intake.offer(client, message)
            sent += len(message)
        state = task.server_update(state, intake.total)
        waiting = np.setdiff1d(waiting, cohort.reporting)
        report = replace(
            report, devices=report.devices + intake.total.devices, rounds=number, bytes=sent,
            dropped=report.dropped + cohort.dropped, late=report.late + cohort.late,
            refused=report.refused + intake.refused.total(),
        )  # fmt: skip
        on_round(report)
    return state, report


def at_most(sentences: Ragged, labels: float, rng: Stream) -> Ragged:
    """The sentences, or as many of them, drawn at random, as have that many labels, their ends counted as labels."""
    lengths = np.diff(sentences.offsets) + 1
    if lengths.sum() <= labels:
        return sentences
    order = rng.generator().permutation(len(sentences))
    return sentences.take(np.sort(order[np.cumsum(lengths[order]) <= labels]))
