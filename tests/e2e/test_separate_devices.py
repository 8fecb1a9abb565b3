"""Devices in processes of their own: what crosses is a job, a broadcast and an update, as bytes, and nothing else."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.federated_tasks import bits_of
from tests.reference.random_models import random_topology

from fedgram.distill.refit.asked_ngrams import AskedNGrams
from fedgram.distill.refit.clipped_ngrams import ClippedNGrams, Clipping
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.intake import Intake
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.task import FederatedTask
from fedgram.federated.wire import record_to_bytes
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import Coding, as_arrays
from fedgram.text.population import population_from_messages, write_population
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary
from fedgram.training.fedavg_task import FederatedAveraging
from fedgram.training.plan import TrainingPlan

WORDS = Vocabulary.of(["i", "you", "the", "a", "to", "is", "in", "it", "my", "we", "of", "and", "that", "have"])
SEED, CLIENTS = 11, 3


def a_task(name: str) -> FederatedTask[Any]:
    if name == "ngrams":
        topology = random_topology(np.random.default_rng(0), words=14, order=3, ngrams=40)
        return ClippedNGrams(AskedNGrams.all_of(topology, WORDS), Clipping(9.0), labels=50, marks=True)
    shape = ModelShape(len(WORDS), 8, 12)
    start = as_arrays(initial_weights(shape, seed=0))
    return FederatedAveraging(shape, start, TrainingPlan(max_sentences=6), Coding(WORDS, WORDS))


DEVICE = """
import sys
from pathlib import Path
from fedgram.federated.job import job_from_bytes
from fedgram.federated.task import device_stream
from fedgram.federated.wire import record_from_bytes, update_to_bytes
from fedgram.text.population import open_population
own = open_population(sys.argv[1])   # this device's text, and nobody else's
job = job_from_bytes(Path(sys.argv[2]).read_bytes())
broadcast = record_from_bytes(sys.stdin.buffer.read())
data = own.load(0, job.task.encode(own.words))
update = job.task.client_update(broadcast, data, device_stream(job.seed, 1, int(sys.argv[3])))
sys.stdout.buffer.write(update_to_bytes(update))
"""


@pytest.mark.parametrize("name", ["fedavg", "ngrams"])
def test_a_round_over_processes_is_the_simulations(name: str, tmp_path: Path) -> None:
    rows = list(SyntheticPopulation("en_us", seed=4).rows(CLIENTS))
    population = population_from_messages(rows)
    job = Job(a_task(name), SEED)
    (tmp_path / "job").write_bytes(job.content)
    state, intake = job.task.init(), Intake(job.task, range(CLIENTS))
    for number, user in enumerate(population.client_ids):
        path = tmp_path / f"{user}.population"
        write_population(path, population_from_messages(row for row in rows if row[0] == user))
        done = subprocess.run(
            [sys.executable, "-c", DEVICE, str(path), str(tmp_path / "job"), str(number)],
            input=record_to_bytes(job.task.broadcast(state)), capture_output=True, check=True,
        )  # fmt: skip
        assert intake.offer(number, done.stdout) is None
    assert intake.total.weight > 0
    expected = bits_of(job.task.save(job.task.server_update(state, intake.total)))
    for batched in (False, True):
        fleet = SimulatedFleet(job, population.users(), dropout=0.0, batched=batched)
        found = run_rounds(job, fleet, RunOptions(1, RoundPlan(CLIENTS, 1.0)))
        assert bits_of(job.task.save(found.state)) == expected
