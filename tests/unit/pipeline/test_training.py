"""A training as the pipeline runs it: by its configuration, resumed, and with processes that help.

Helpers start in silence, know no Ctrl-C, and none is waited for in vain.
"""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.reference.federated_tasks import WORDS, population

from fedgram.core.errors import InputError
from fedgram.federated.averaging import ServerStep
from fedgram.neural.local_training import LocalTraining
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import Coding, Network, as_arrays, write_network
from fedgram.pipeline.config import TrainingConfig
from fedgram.pipeline.training import TrainingJob, train_job
from fedgram.text.population import population_from_messages, write_population
from fedgram.training.fedavg_task import Schedule, TrainingPlan
from fedgram.training.federated_training import Moment

INTERRUPTED = """
import multiprocessing, os, signal, threading, time
from fedgram.pipeline.training import _helpers

def interrupt():
    while not multiprocessing.active_children():
        time.sleep(0.01)
    time.sleep(0.5)
    os.killpg(0, signal.SIGINT)

if __name__ == "__main__":
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with _helpers(None, 3):
            time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted")
"""
UNGUARDED = """
from fedgram.core.errors import FedgramError
from fedgram.pipeline.training import _helpers

if __name__ == "__mp_main__":
    raise SystemExit("a helper that cannot start")
try:
    with _helpers(None, 3):
        pass
except FedgramError as error:
    print(error)
"""


def _run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True)


def test_helpers_that_are_interrupted_while_they_start(tmp_path: Path) -> None:
    done = _run(INTERRUPTED, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_helper_that_dies_while_it_starts(tmp_path: Path) -> None:
    done = _run(UNGUARDED, tmp_path)
    ended = "a helping process ended; try again, or with one worker\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, ended, "")


def a_job(folder: Path, config: TrainingConfig) -> TrainingJob:
    shape = ModelShape(len(WORDS), 6, 9)
    write_network(folder / "start", Network(shape, as_arrays(initial_weights(shape, seed=2)), Coding(WORDS, WORDS)))
    write_population(folder / "users.arrow", population())
    return TrainingJob(folder / "users.arrow", folder / "start", folder / "checkpoints", config, 3, "cpu")


def test_devices_and_server_agree_on_what_the_configuration_says(tmp_path: Path) -> None:
    config = TrainingConfig(
        rounds=9, client_rate=0.3, client_schedule="linear", rows=5, length=7, epochs=2, max_sentences=11,
        weighting="uniform", update_norm=math.inf, server_rule="adam", server_rate=0.02, server_momentum=0.8,
        server_schedule="cosine",
    )  # fmt: skip
    assert a_job(tmp_path, config).plan() == TrainingPlan(
        local=LocalTraining(0.3), rows=5, length=7, epochs=2, max_sentences=11, weighting="uniform",
        update_norm=math.inf, server=ServerStep("adam", 0.02, 0.8), client_schedule=Schedule("linear", 9),
        server_schedule=Schedule("cosine", 9),
    )  # fmt: skip
    assert a_job(tmp_path, TrainingConfig(update_norm=0.3)).plan().update_norm == 0.3


def test_an_interrupted_training_is_gone_on_from(tmp_path: Path) -> None:
    config = TrainingConfig(
        rounds=6, clients_per_round=5, client_rate=0.2, server_rate=0.5, dev_users=2, evaluate_every=2
    )  # fmt: skip
    rounds: list[int] = []

    def stop(moment: Moment) -> None:
        if moment.round == 4:
            raise KeyboardInterrupt

    (tmp_path / "whole").mkdir()
    whole = train_job(a_job(tmp_path / "whole", config), 1, on_round=lambda _: None)
    job = a_job(tmp_path, config)
    with pytest.raises(KeyboardInterrupt):
        train_job(job, 1, on_round=stop)
    resumed = train_job(job, 1, on_round=lambda moment: rounds.append(moment.round))
    assert rounds == [4, 5, 6]
    assert resumed.story == whole.story
    assert all(np.array_equal(w, resumed.weights[name]) for name, w in whole.weights.items())


def test_users_without_a_known_word_are_refused(tmp_path: Path) -> None:
    job = a_job(tmp_path, TrainingConfig(rounds=1))
    write_population(job.users, population_from_messages([("a", "nothing known", "train")]))
    with pytest.raises(InputError, match="no word of the network's vocabulary"):
        train_job(job, 1, on_round=lambda _: None)
