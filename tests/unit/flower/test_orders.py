"""Orders in a working folder: carried out over a fleet in this process, resumed, kept apart."""

import threading
from pathlib import Path

import numpy as np
import pytest
from tests.unit.flower.fleets import LocalFleet, make_devices
from tests.unit.flower.test_rounds import JOB, POPULATION, ROWS, TEXTS, WORDS

from fedgram.core.errors import FedgramError
from fedgram.core.random import Stream
from fedgram.fedavg.task import FederatedAveraging, TrainingPlan
from fedgram.federated.cohort import CohortPlan
from fedgram.federated.driver import Devices, run_rounds
from fedgram.federated.secure.settings import SecureSettings
from fedgram.flower.fleet import Lost, Request
from fedgram.flower.grid_fleet import GridFleet
from fedgram.flower.job import FedAvgJob, UnigramJob, fedavg_state, job_from_bytes, job_to_bytes
from fedgram.flower.journal import read_status
from fedgram.flower.locks import is_held, locked
from fedgram.flower.orders import Order, collected, execute, outcome, trained, write_order
from fedgram.flower.rounds import RoundPlan
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import Coding, Network, as_arrays
from fedgram.text.population import population_from_messages, write_messages

SHAPE, TRAINING, CODING = ModelShape(len(WORDS), 8, 12), TrainingPlan(max_sentences=6), Coding(WORDS, WORDS)
START = Network(SHAPE, as_arrays(initial_weights(SHAPE, seed=0)), CODING)
NETWORK_JOB = FedAvgJob(SHAPE, TRAINING, CODING, 5)
PLAN = RoundPlan(5, 1.0, minimum=5, wait_for=12, poll=0.01)


@pytest.mark.parametrize("masked", [0, 3])
def test_a_network_is_trained_as_the_driver_trains_it(tmp_path: Path, masked: int) -> None:
    masking = SecureSettings(min_devices=masked) if masked else None
    fleet = LocalFleet(make_devices(tmp_path, TEXTS, masking))
    users = tmp_path / "users.parquet"
    write_messages(users, ((user, text, "dev") for user, text, _ in ROWS[:40]))
    order = Order(
        4, PLAN, str(tmp_path / "journal"), evaluate_every=4, masked_with=masked, dev=str(users), dev_users=2
    )  # fmt: skip
    write_order(tmp_path / "work", order, NETWORK_JOB, START)
    left = [60 if masked else 30]

    def dying(_: Request, reply: dict[str, bytes]) -> dict[str, bytes]:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return reply

    fleet.misbehave = dying
    with pytest.raises(KeyboardInterrupt):
        execute(tmp_path / "work", fleet)
    assert outcome(tmp_path / "work") == {}
    assert 0 < read_status(tmp_path / "journal")["rounds_committed"] < 4
    execute(tmp_path / "work", fleet)
    assert outcome(tmp_path / "work") == {"done": True}
    network, story = trained(tmp_path / "work")
    devices = Devices(POPULATION, CODING.codes(POPULATION.words).values, POPULATION.clients())
    alone = run_rounds(
        FederatedAveraging(SHAPE, START.weights, TRAINING), devices, CohortPlan(5, 1.0, 0.0), rounds=4, seed=5
    )
    assert story["loss"][-1] == alone.loss
    assert story["dev"][0]["round"] == 4
    for name, weight in network.weights.items():
        assert np.array_equal(weight, alone.model.weights[name])


def test_what_went_wrong_is_in_the_outcome(tmp_path: Path) -> None:
    fleet = LocalFleet(make_devices(tmp_path, {0: TEXTS[0]}), lambda r, reply: None if r.action == "report" else reply)
    plan = RoundPlan(1, deadline=0.2, attempts=1, poll=0.01)
    write_order(tmp_path / "work", Order(1, plan, str(tmp_path)), JOB)
    with pytest.raises(FedgramError, match="abandoned"):
        execute(tmp_path / "work", fleet)
    assert "round 1 was abandoned 1 times" in outcome(tmp_path / "work")["error"]
    with pytest.raises(FedgramError, match="ended after 0 of 1 rounds"):
        collected(tmp_path / "work")
    (tmp_path / "work" / "order.json").write_text('{"rounds": 1}')
    with pytest.raises(FedgramError, match="does not hold an order"):
        execute(tmp_path / "work", fleet)


def test_one_process_works_in_a_folder_at_a_time(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with locked(tmp_path, seconds=1):
        assert is_held(tmp_path)
        with pytest.raises(FedgramError, match="another server"), locked(tmp_path, seconds=0.3):
            pass
        waited = threading.Event()

        def wait() -> None:
            with locked(tmp_path, seconds=30):
                waited.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not waited.wait(0.3)
    waiting.join()
    assert waited.is_set()


def test_jobs_survive_the_way_over_the_wire() -> None:
    for job in (JOB, UnigramJob(WORDS, float("inf"), 2), NETWORK_JOB):
        content = job_to_bytes(job)
        assert job_to_bytes(job_from_bytes(content)) == content
        for cut in (0, 7, len(content) // 2, len(content) - 1):
            with pytest.raises(FedgramError):
                job_from_bytes(content[:cut])


def test_a_device_computes_what_the_task_computes() -> None:
    task = FederatedAveraging(SHAPE, START.weights, TRAINING)
    state = task.init()
    only = Devices(POPULATION, CODING.codes(POPULATION.words).values, POPULATION.clients())
    direct = task.client_update(state, only.load(3), Stream(5, "client", 1, 3))
    alone = population_from_messages([("3", text, "train") for text in TEXTS[3]])
    update = NETWORK_JOB.update(alone, 3, fedavg_state(state))
    for name in direct.size:
        assert np.array_equal(update.array(name), direct.array(name))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "round-1"), "round-1: no space left on device, on the server"),
        (ValueError("a word that was typed"), "the ServerApp failed with ValueError; see superlink.log"),
    ],
)
def test_what_nobody_foresaw_is_in_the_outcome_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, line: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("fedgram.flower.server.write_round", fail)
    write_order(tmp_path / "work", Order(1, RoundPlan(1, poll=0.01), str(tmp_path)), JOB)
    with pytest.raises(type(error)):
        execute(tmp_path / "work", LocalFleet(make_devices(tmp_path, {0: TEXTS[0]})))
    assert outcome(tmp_path / "work")["error"].startswith(line)
    assert read_status(tmp_path)["state"] == "run failed"
    assert "typed" not in (tmp_path / "log.jsonl").read_text() + outcome(tmp_path / "work")["error"]


def test_a_run_that_cannot_begin_says_why(tmp_path: Path) -> None:
    write_order(tmp_path / "work", Order(1, RoundPlan(1), str(tmp_path), masked_with=1), JOB)
    with pytest.raises(FedgramError):
        execute(tmp_path / "work", LocalFleet({}))
    assert "needs between 2 and" in outcome(tmp_path / "work")["error"]


def test_a_lost_fleet_is_not_the_end_of_a_run(tmp_path: Path) -> None:
    class Gone:
        def get_nodes(self) -> None:
            raise ConnectionResetError("the SuperLink died")

    write_order(tmp_path / "work", Order(1, RoundPlan(1), str(tmp_path)), JOB)
    with pytest.raises(Lost, match="ConnectionResetError"):
        execute(tmp_path / "work", GridFleet(Gone()))
    assert outcome(tmp_path / "work") == {}
