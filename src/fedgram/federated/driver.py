"""Rounds of a federated task in one process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fedgram.core.arrays import IntArray, LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.random import Stream
from fedgram.federated.cohort import Cohort, CohortPlan, choose_cohort
from fedgram.federated.task import FederatedTask, Total
from fedgram.text.population import Population

State = TypeVar("State")


@dataclass(frozen=True, slots=True, eq=False)
class Devices:
    """The devices of a simulation: some clients of a population, and the ids their words have on the device."""

    population: Population
    word_id: IntArray
    clients: LongArray


def run_rounds(
    task: FederatedTask[State],
    devices: Devices,
    plan: CohortPlan,
    *,
    rounds: int,
    seed: int,
    on_round: Callable[[int, Cohort, State], object] = lambda *_: None,
) -> State:
    """Run the task for a number of rounds and return the server's last state."""
    if rounds < 1:
        raise FedgramError(f"at least 1 round is needed, not {rounds}")
    if len(devices.clients) == 0:
        raise FedgramError("the population has no clients to ask; check the split")
    state = task.init()
    for number in range(1, rounds + 1):
        cohort = choose_cohort(plan, devices.clients, seed=seed, round_number=number)
        state = task.server_update(state, collect_round(task, state, devices, cohort, seed=seed, round_number=number))
        on_round(number, cohort, state)
    return state


def collect_round(
    task: FederatedTask[State], state: State, devices: Devices, cohort: Cohort, *, seed: int, round_number: int
) -> Total:
    """The sum of the cohort's updates."""
    total = Total.zero(task.size, task.bits)
    for client in cohort.reporting.tolist():
        data = devices.population.load(client, devices.word_id)
        total.add(task.client_update(state, data, Stream(seed, "client", round_number, client)))
    return total
