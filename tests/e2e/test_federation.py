"""A real federation on this machine: a SuperLink and three SuperNodes with TLS and keys, both tasks, faults."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.reference.random_models import random_topology

from fedgram.core.errors import FedgramError
from fedgram.distill.network_source import NetworkSource
from fedgram.distill.sample_approx import sample_approx
from fedgram.fedavg.task import FederatedAveraging, TrainingPlan
from fedgram.federated.cohort import CohortPlan
from fedgram.federated.driver import Devices, run_rounds
from fedgram.flower.control import is_up, nodes
from fedgram.flower.folder import Folder, open_folder
from fedgram.flower.job import FedAvgJob, UnigramJob
from fedgram.flower.journal import read_status
from fedgram.flower.keeping import check_reachable
from fedgram.flower.keys import free_port, read_public_key, write_device_key
from fedgram.flower.orders import Order, collected, trained, write_order
from fedgram.flower.processes import end, environment, start_supernode, wait_until_served
from fedgram.flower.rounds import RoundPlan
from fedgram.flower.store import open_store
from fedgram.flower.submit import carry_out
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import Coding, Network, as_arrays
from fedgram.text.population import open_population, write_messages
from fedgram.text.synthetic import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary

WORDS = Vocabulary.of(["i", "you", "the", "a", "to", "is", "in", "it", "my", "we", "of", "and", "that", "have"])
SHAPE = ModelShape(len(WORDS), 8, 12)
TRAINING = TrainingPlan(max_sentences=6)
SEED = 11
START = as_arrays(initial_weights(SHAPE, seed=0))


@contextmanager
def command(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs until it is ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgram", *map(str, arguments)],
        env=environment(Path(os.devnull)), stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        end(process)


def wait_until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.2)


def fleet_client(home: Folder, key: Path) -> Any:
    """What a device speaks to the server with."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    private: Any = load_ssh_private_key(key.read_bytes(), None)
    interceptors: list[Any] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(private, private.public_key()),
    ]
    return FleetHttpClient.from_server_address(home.address, False, home.authority.read_bytes(), interceptors)


def refusals(home: Folder, tmp_path: Path, fedgram: Callable[..., Any]) -> None:
    """Strangers, other authorities and plain text stay outside."""
    from flwr.proto.fleet_pb2 import ActivateNodeRequest

    write_device_key(tmp_path / "stranger")
    public = read_public_key(tmp_path / "stranger" / "key.pub")
    stranger = fleet_client(home, tmp_path / "stranger" / "key")
    with pytest.raises(httpx.HTTPStatusError) as refused:
        stranger.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=30))
    assert refused.value.response.status_code == 412
    stranger.close()
    fedgram("federation", "init", tmp_path / "other", "--port", home.config.port)
    with pytest.raises(FedgramError, match="certificate of another authority"):
        check_reachable(open_folder(tmp_path / "other"))
    fedgram("federation", "init", tmp_path / "plain", "--port", home.config.port, "--no-tls")
    with pytest.raises(FedgramError, match="over TLS alone"):
        check_reachable(open_folder(tmp_path / "plain"))
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://{home.address}/v1/fleet/activate-node", content=b"")


@pytest.mark.timeout(900)
def test_a_federation_learns_what_the_driver_learns(
    tmp_path: Path, fedgram: Callable[..., Any], refused: Callable[..., str]
) -> None:
    users, stores, home_path = tmp_path / "users.parquet", tmp_path / "devices", tmp_path / "fed"
    write_messages(users, ((user, text, "train") for user, text, _ in SyntheticPopulation("en_us", seed=4).rows(3)))
    people = open_population(users)
    devices = Devices(people, people.word_ids(WORDS), people.clients("train"))
    assert fedgram("federation", "devices", users, "-o", stores, "--json")["devices"] == 3
    fedgram("federation", "init", home_path, "--port", free_port())
    home = open_folder(home_path)
    assert "no server answers" in refused("federation", "join", home_path, "--data", stores / "0.sqlite")
    plan = RoundPlan(2, 1.0, minimum=2, wait_for=3, deadline=300, wait_seconds=300)
    with command("federation", "serve", home_path) as server, (tmp_path / "node2.log").open("wb") as log:
        wait_until_served(home, server, seconds=120)
        refusals(home, tmp_path, fedgram)
        with (
            command("federation", "join", home_path, "--data", stores / "0.sqlite"),
            command("federation", "join", home_path, "--data", stores / "1.sqlite"),
        ):
            store = open_store(stores / "2.sqlite")
            write_device_key(home.node(2))
            fedgram("federation", "admit", home_path, 2, home.node(2) / "key.pub")
            assert "was admitted before" in refused("federation", "admit", home_path, 2, home.node(2) / "key.pub")
            last = start_supernode(home, store, port=free_port(), log=log)
            try:
                unigrams_are_the_drivers(home, tmp_path / "unigrams", devices, plan)
                network_is_the_drivers(home, tmp_path / "training", devices, plan)
                status = fedgram("federation", "status", home_path, "--json")
                assert status["serving"]
                assert {node["name"] for node in status["nodes"]} == {"device-0", "device-1", "device-2"}
                assert (status["rounds_committed"], status["totals"]["reports"]) == (5, 10)
                a_killed_device_is_left_out(home, tmp_path / "killed", last)
            finally:
                end(last, seconds=1)
    assert not is_up(home)
    assert not any(word in (home.server / "log.jsonl").read_text() for word in ("the ", "you", "have"))
    assert "reports" in fedgram("federation", "status", home_path)


def unigrams_are_the_drivers(home: Folder, work: Path, devices: Devices, plan: RoundPlan) -> None:
    job = UnigramJob(WORDS, 20.0, SEED)
    write_order(work, Order(2, plan, str(home.server)), job)
    carry_out(home, work)
    alone = run_rounds(job.task(), devices, CohortPlan(2, 1.0, 0.0), rounds=2, seed=SEED)
    for ours, drivers in zip(collected(work).rounds, alone.rounds, strict=True):
        assert ours.devices == drivers.devices == 2
        assert ours.length_square == drivers.length_square
        for name in ("index", "weight", "square", "cross"):
            assert np.array_equal(getattr(ours, name), getattr(drivers, name))


def network_is_the_drivers(home: Folder, work: Path, devices: Devices, plan: RoundPlan) -> None:
    coding = Coding(WORDS, WORDS)
    start = Network(SHAPE, START, coding)
    write_order(work, Order(3, plan, str(home.server)), FedAvgJob(SHAPE, TRAINING, coding, SEED), start)
    carry_out(home, work)
    network, story = trained(work)
    task = FederatedAveraging(SHAPE, START, TRAINING)
    alone = run_rounds(task, devices, CohortPlan(2, 1.0, 0.0), rounds=3, seed=SEED)
    assert len(story["loss"]) == 3
    assert story["loss"][-1] == alone.loss
    for name, weight in network.weights.items():
        assert np.array_equal(weight, alone.model.weights[name])
    topology = random_topology(np.random.default_rng(0), order=2, words=len(WORDS) - 3, ngrams=40)
    again = Network(SHAPE, dict(alone.model.weights), coding)
    ours, drivers = (
        sample_approx(NetworkSource(n, max_length=8), topology, samples=200, seed=1).model for n in (network, again)
    )
    assert np.array_equal(ours.log_weight, drivers.log_weight)


def a_killed_device_is_left_out(home: Folder, work: Path, last: subprocess.Popen[bytes]) -> None:
    """A device is killed while a round goes on: the round is committed with the others."""
    job = UnigramJob(WORDS, 20.0, SEED + 1)
    plan = RoundPlan(3, 1.0, minimum=2, wait_for=3, deadline=20, wait_seconds=300)
    write_order(work, Order(1, plan, str(home.server)), job)
    killed: list[bool] = []

    def kill(_: int) -> None:
        status = read_status(home.server)
        if not killed and status.get("state") in ("round began", "collecting") and status.get("rounds") == 1:
            os.killpg(last.pid, signal.SIGKILL)
            killed.append(True)

    carry_out(home, work, on_round=kill)
    assert killed
    assert collected(work).rounds[0].devices in (2, 3)
    events = [json.loads(line) for line in (home.server / "log.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events].count("round committed") == 6
    assert len(nodes(home)) == 3
