"""Rounds of a federated task in one process."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from fedgram.core.arrays import IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.random import Stream, stream
from fedgram.federated.cohort import Cohort, CohortPlan, choose_cohort
from fedgram.federated.intake import Intake
from fedgram.federated.secure.rounds import MASKED_STEP, Traffic, sum_securely
from fedgram.federated.secure.settings import AbandonedRoundError, SecureSettings
from fedgram.federated.secure.vectors import total_from_sum, update_to_vector, vector_length
from fedgram.federated.task import FederatedTask, Total, Update
from fedgram.federated.validation import Reason, RefusedUpdateError
from fedgram.text.population import ClientDataset, Population

State = TypeVar("State")


@dataclass(frozen=True, slots=True, eq=False)
class Devices:
    """The devices of a simulation: some clients of a population, and the ids their words have on the device.

    Each of the population's words has one id, or a row of them.
    """

    population: Population
    codes: IntArray | Ragged
    clients: LongArray

    def load(self, client: int) -> ClientDataset:
        """What is on one device."""
        return self.population.load(client, self.codes)


@dataclass(slots=True, eq=False)
class Tally:
    """What happened in rounds beside their sums: refusals by reason, why rounds were abandoned, and secure traffic."""

    refused: Counter[Reason] = field(default_factory=Counter)
    abandoned: list[str] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)


def run_rounds(
    task: FederatedTask[State], devices: Devices, plan: CohortPlan, *, rounds: int, seed: int,
    secure: SecureSettings | None = None, tally: Tally | None = None,
    on_round: Callable[[int, Cohort, State], object] = lambda *_: None,
) -> State:  # fmt: skip
    """Run the task for a number of rounds and return the server's last state."""
    if rounds < 1:
        raise FedgramError(f"at least 1 round is needed, not {rounds}")
    if len(devices.clients) == 0:
        raise FedgramError("the population has no clients to ask; check the split")
    state = task.init()
    for number in range(1, rounds + 1):
        cohort = choose_cohort(plan, devices.clients, seed=seed, round_number=number)
        total = collect_round(
            task, state, devices, cohort, seed=seed, round_number=number, secure=secure, tally=tally
        )  # fmt: skip
        state = task.server_update(state, total)
        on_round(number, cohort, state)
    return state


def device_stream(seed: int, round_number: int, client: int) -> Stream:
    """The random numbers a device draws in a round."""
    return Stream(seed, "client", round_number, client)


def collect_round(
    task: FederatedTask[State], state: State, devices: Devices, cohort: Cohort, *, seed: int, round_number: int,
    secure: SecureSettings | None = None, tally: Tally | None = None,
) -> Total:  # fmt: skip
    """The sum of the cohort's updates, masked on the way if so wanted.

    Updates that are refused are left out, and a secure round that is abandoned sums up nothing; a tally takes note of
    both, and without one they are errors.
    """
    note = tally if tally is not None else Tally()

    def update(client: int) -> Update:
        return task.client_update(state, devices.load(client), device_stream(seed, round_number, client))

    try:
        if secure is None:
            total = _sum_plainly(task, update, cohort, note)
        else:
            leaving = dict(zip(cohort.missing.tolist(), _last_steps(cohort, seed, round_number), strict=True))
            total = _sum_securely(task, update, cohort.reporting.tolist(), leaving, secure, note)
    except AbandonedRoundError as error:
        if tally is None:
            raise
        tally.abandoned.append(str(error))
        return Total.zero(task.size, task.bits)
    if tally is None and note.refused:
        raise FedgramError(f"updates were refused: {', '.join(note.refused)}")
    return total


def _sum_plainly(task: FederatedTask[State], update: Callable[[int], Update], cohort: Cohort, tally: Tally) -> Total:
    intake = Intake(task)
    for client in cohort.reporting.tolist():
        intake.offer(client, update(client))
    tally.refused += intake.refused
    return intake.total


def _last_steps(cohort: Cohort, seed: int, round_number: int) -> list[int]:
    """The step of a secure round that each missing device does not answer any more; none sends its vector in time."""
    drawn: list[int] = stream(seed, "leaving", round_number).integers(0, MASKED_STEP + 1, len(cohort.missing)).tolist()
    return drawn


def _sum_securely(
    task: FederatedTask[State], update: Callable[[int], Update], reporting: list[int], leaving: Mapping[int, int],
    settings: SecureSettings, tally: Tally,
) -> Total:  # fmt: skip
    def vector_of(client: int) -> Callable[[], LongArray]:
        return lambda: update_to_vector(task, update(client))

    def on_failure(_: int, error: FedgramError) -> None:
        if not isinstance(error, RefusedUpdateError):
            raise error
        tally.refused[error.reason] += 1

    vectors = {client: vector_of(client) for client in (*reporting, *leaving)}
    length = vector_length(task.size)
    return total_from_sum(
        task,
        sum_securely(settings, length, vectors, leaving=leaving, traffic=tally.traffic, on_failure=on_failure),
    )
