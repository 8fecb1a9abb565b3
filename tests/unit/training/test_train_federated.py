"""Training as an operation: by its options, resumed, with workers, and refused where it makes no sense.

Workers start in silence, ignore Ctrl-C, and none is waited for in vain.
"""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.reference.federated_tasks import WORDS, population

from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError
from fedgram.core.progress import Advance
from fedgram.federated import devices
from fedgram.federated.averaging import ServerStep
from fedgram.federated.rounds import Checkpointing
from fedgram.neural.local_training import LocalTraining
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import Coding, Network, as_arrays
from fedgram.text.population import population_from_messages
from fedgram.training.options import FedAvgOptions
from fedgram.training.plan import Schedule, TrainingPlan
from fedgram.training.train_federated import TrainedNetwork, train_federated

OPTIONS = FedAvgOptions(
    rounds=6, devices_per_round=5, client_rate=0.2, server_rate=0.5, dev_users=2, evaluate_every=2
)  # fmt: skip
ONE = Compute("cpu", 1)
INTERRUPTED = """
import os, signal, time
from fedgram.training import workers

signal.signal(signal.SIGINT, signal.default_int_handler)  # programs in the background ignore it
started = []
start, wait = workers.start, workers._await
workers.start = lambda *about: started.append(start(*about)) or started[-1]

def interrupted(*about):
    time.sleep(0.5)
    os.killpg(0, signal.SIGINT)
    wait(*about)

workers._await = interrupted
try:
    with workers.sharing(3, "time:sleep", lambda folder: {}):
        time.sleep(600)
except KeyboardInterrupt:
    print("interrupted", [process.returncode for process in started])
"""
DYING = """
from fedgram.core.errors import FedgramError
from fedgram.federated.rounds import Checkpointing
from fedgram.training import workers

try:
    with workers.sharing(3, ".core.errors:nothing", lambda folder: {}):
        pass
except FedgramError as error:
    print(error)
"""


def _run(text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, start_new_session=True)


def test_workers_that_are_interrupted_while_they_start() -> None:
    done = _run(INTERRUPTED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted [-9, -9]\n", "")


def test_a_worker_that_dies_while_it_starts() -> None:
    done = _run(DYING)
    ended = "a worker process ended; try again, or with one worker\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, ended, "")


def a_network() -> Network:
    shape = ModelShape(len(WORDS), 6, 9)
    return Network(shape, as_arrays(initial_weights(shape, seed=2)), Coding(WORDS, WORDS))


def test_devices_and_server_agree_on_what_the_options_say() -> None:
    options = FedAvgOptions(
        rounds=9, client_rate=0.3, client_schedule="linear", rows=5, length=7, epochs=2, max_sentences=11,
        weighting="uniform", update_norm=math.inf, server_rule="adam", server_rate=0.02, server_momentum=0.8,
        server_schedule="cosine", server_warmup=3,
    )  # fmt: skip
    assert TrainingPlan.of(options) == TrainingPlan(
        local=LocalTraining(0.3), rows=5, length=7, epochs=2, max_sentences=11, weighting="uniform",
        update_norm=math.inf, server=ServerStep("adam", 0.02, 0.8), client_schedule=Schedule("linear", 9),
        server_schedule=Schedule("cosine", 9, 3), average=0.97,
    )  # fmt: skip
    assert TrainingPlan.of(FedAvgOptions(update_norm=0.3)).update_norm == 0.3


def equal(a: TrainedNetwork, b: TrainedNetwork) -> bool:
    same = all(np.array_equal(w, b.weights[name]) for name, w in a.weights.items())
    return same and a.history == b.history and a.about == b.about


def test_an_interrupted_training_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def stopping(description: str, total: int | None = None, *, unit: str = "") -> Advance:
        assert (description, total, unit) == ("Training", 6, "")

        def advance(_: int, about: str | None = None, /) -> None:
            seen.append(about or "")
            if "Round 4/6" in seen[-1] and len(seen) == 4:
                raise KeyboardInterrupt

        return advance

    monkeypatch.setattr(devices, "_CHECKPOINT_PAUSE", 0.0)
    people, kept = population(), Checkpointing(tmp_path)
    whole = train_federated(a_network(), people, OPTIONS, seed=3, compute=ONE)
    with pytest.raises(KeyboardInterrupt):
        train_federated(a_network(), people, OPTIONS, seed=3, compute=ONE, checkpoints=kept, begin=stopping)
    resumed = train_federated(a_network(), people, OPTIONS, seed=3, compute=ONE, checkpoints=kept, begin=stopping)
    assert [text.split(":")[0] for text in seen[4:]] == ["Round 4/6", "Round 5/6", "Round 6/6"]
    assert equal(whole, resumed)


def test_workers_do_not_change_the_result() -> None:
    people = population()
    alone = train_federated(a_network(), people, OPTIONS, seed=3, compute=ONE)
    shared = train_federated(a_network(), people, OPTIONS, seed=3, compute=Compute("cpu", 2))
    assert equal(alone, shared)
    by_keywords = train_federated(
        a_network(), people.train, dev=people.dev, seed=3, compute=ONE, rounds=6, devices_per_round=5, client_rate=0.2,
        server_rate=0.5, dev_users=2, evaluate_every=2,
    )  # fmt: skip
    assert equal(alone, by_keywords)
    assert "6 rounds" in repr(alone)


def test_users_without_a_known_word_are_refused() -> None:
    strangers = population_from_messages([("a", "nothing known", "train")])
    with pytest.raises(FedgramError, match="no word of the network's vocabulary"):
        train_federated(a_network(), strangers, rounds=1, compute=ONE)
    with pytest.raises(FedgramError, match="no users to train on"):
        train_federated(a_network(), strangers.dev, rounds=1, compute=ONE)
    with pytest.raises(TypeError, match="unknown setting 'round'"):
        train_federated(a_network(), strangers, round=1)
