"""Rounds of a federated task in one process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fedgram.core.arrays import IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.random import Stream
from fedgram.federated.cohort import Cohort, CohortPlan, choose_cohort
from fedgram.federated.task import FederatedTask, Total
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


def device_stream(seed: int, round_number: int, client: int) -> Stream:
    """The random numbers a device draws in a round."""
    return Stream(seed, "client", round_number, client)


def collect_round(
    task: FederatedTask[State], state: State, devices: Devices, cohort: Cohort, *, seed: int, round_number: int
) -> Total:
    """The sum of the cohort's updates."""
    total = Total.zero(task.size, task.bits)
    for client in cohort.reporting.tolist():
        rng = device_stream(seed, round_number, client)
        total.add(task.client_update(state, devices.load(client), rng))
    return total
