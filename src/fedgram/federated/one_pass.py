"""One pass over a population: cohorts are asked until every device has reported once.

Devices that drop out, or come too late, may be asked again; one that was counted is not. What devices send goes through
its bytes, and the task looks at it before it is added.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.random import Stream
from fedgram.federated.cohort import CohortPlan, choose_cohort
from fedgram.federated.driver import Devices, device_stream
from fedgram.federated.task import FederatedTask, Total, Update
from fedgram.federated.wire import update_from_bytes, update_to_bytes

State = TypeVar("State")
MOST_FAILURES = 1000  # rounds in a row of which nobody reports


class CheckedTask(FederatedTask[State], Protocol[State]):
    """A task that knows what no honest device sends."""

    def admit(self, update: Update) -> None:
        """Refuse, with an `InvariantError`, what a device may not send; `Total.add` looks after the rest."""


@dataclass(frozen=True, slots=True)
class PassReport:
    """What a pass took: reports, rounds, devices asked that dropped out or came too late, and bytes sent."""

    devices: int = 0
    rounds: int = 0
    dropped: int = 0
    late: int = 0
    bytes: int = 0


def run_pass(
    task: CheckedTask[State],
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
        total, sent = Total.zero(task.size, task.bits), report.bytes
        for client in cohort.reporting.tolist():
            rng = device_stream(seed, number, client)
            message = update_to_bytes(task.client_update(state, devices.load(client), rng))
            update = update_from_bytes(message)
            task.admit(update)
            total.add(update)
            sent += len(message)
        state = task.server_update(state, total)
        waiting = np.setdiff1d(waiting, cohort.reporting)
        report = replace(
            report, devices=report.devices + total.devices, rounds=number, dropped=report.dropped + cohort.dropped,
            late=report.late + cohort.late, bytes=sent,
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
