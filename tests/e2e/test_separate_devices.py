"""Devices in processes of their own: what crosses is the server's state and an update, as bytes, and nothing else."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from fedgram.core.storage import Artefact, artefact_to_bytes
from fedgram.fedavg.task import FedAvgState, FederatedAveraging, TrainingPlan
from fedgram.federated.cohort import CohortPlan, choose_cohort
from fedgram.federated.driver import Devices, collect_round
from fedgram.federated.task import Total
from fedgram.federated.wire import update_from_bytes
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import as_arrays
from fedgram.text.population import Population, population_from_messages, write_population
from fedgram.text.synthetic import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary

WORDS = Vocabulary.of(["i", "you", "the", "a", "to", "is", "in", "it", "my", "we", "of", "and", "that", "have"])
SHAPE = ModelShape(len(WORDS), 8, 12)
PLAN = TrainingPlan(max_sentences=6)
SEED, CLIENTS = 11, 3


def task() -> FederatedAveraging:
    return FederatedAveraging(SHAPE, as_arrays(initial_weights(SHAPE, seed=0)), PLAN)


def devices_of(population: Population) -> Devices:
    return Devices(population, population.word_ids(WORDS), population.clients())


def state_to_bytes(state: FedAvgState) -> bytes:
    return artefact_to_bytes(Artefact("state", 1, {"round": state.round}, state.model.weights))


DEVICE = """
import sys
from tests.e2e.test_separate_devices import SEED, devices_of, task
from fedgram.core.random import Stream
from fedgram.core.storage import artefact_from_bytes
from fedgram.fedavg.task import FedAvgState
from fedgram.federated.averaging import ServerModel
from fedgram.federated.wire import update_to_bytes
from fedgram.text.population import open_population
own = open_population(sys.argv[1])   # this device's text, and nobody else's
received = artefact_from_bytes(sys.stdin.buffer.read(), "state", kind="state", version=1)
state = FedAvgState(received.fields["round"], ServerModel(received.arrays))
rng = Stream(SEED, "client", state.round + 1, int(sys.argv[2]))
update = task().client_update(state, devices_of(own).load(0), rng)
sys.stdout.buffer.write(update_to_bytes(update))
"""


def test_a_round_over_processes_is_the_drivers(tmp_path: Path) -> None:
    rows = list(SyntheticPopulation("en_us", seed=4).rows(CLIENTS))
    population = population_from_messages(rows)
    state, total = task().init(), Total.zero(task().size, task().bits)
    for number, name in enumerate(population.client_ids):
        path = tmp_path / f"{name}.arrow"
        write_population(path, population_from_messages(row for row in rows if row[0] == name))
        done = subprocess.run(
            [sys.executable, "-c", DEVICE, str(path), str(number)], input=state_to_bytes(state), capture_output=True,
            check=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        total.add(update_from_bytes(done.stdout))
    devices = devices_of(population)
    cohort = choose_cohort(CohortPlan(CLIENTS, 1.0, 0.0), devices.clients, seed=SEED, round_number=1)
    alone = collect_round(task(), state, devices, cohort, seed=SEED, round_number=1)
    assert total.weight == alone.weight > 0
    for name, array in total.arrays.items():
        assert np.array_equal(array, alone.arrays[name])
