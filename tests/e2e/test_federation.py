"""A real federation on this machine: a SuperLink and three SuperNodes with TLS and keys; a run on it; faults."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedgram.core.errors import FedgramError
from fedgram.flower.control import is_up
from fedgram.flower.folder import Folder, open_folder
from fedgram.flower.job import UnigramJob
from fedgram.flower.journal import read_status
from fedgram.flower.keeping import check_reachable
from fedgram.flower.keys import free_port, read_private_key, read_public_key, write_device_key
from fedgram.flower.orders import Order, collected, write_order
from fedgram.flower.processes import end, environment, start_supernode, wait_until_served
from fedgram.flower.rounds import RoundPlan
from fedgram.flower.store import open_store
from fedgram.flower.submit import carry_out
from fedgram.text.population import write_messages
from fedgram.text.synthetic import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary

CONFIG = """
seed = 11
[population]
users = "users.parquet"
supplement = "supplement.txt"
whitelist = "whitelist.txt"
[unigrams]
clip = 20
devices_per_round = 3
rounds = 1
over_selection = 1.0
dropout = 0.0
[words]
preset = "W_demo"
[pieces]
use = false
[pretraining]
epochs = 0
[training]
rounds = 3
clients_per_round = 3
over_selection = 1.0
dropout = 0.0
max_sentences = 6
evaluate_every = 3
dev_users = 1
[budget]
ngrams = 2000
[distillation]
samples = 300
infer_samples = 300
order = 2
"""
SPLITS = {0: "train", 1: "dev", 2: "train", 3: "test", 4: "train"}
DEVICES = [n for n, split in SPLITS.items() if split == "train"]


def write_text(folder: Path) -> None:
    """Five users, three of whom are devices; the server's text and whitelist."""
    source = SyntheticPopulation("en_us", seed=4)
    rows = list(source.rows(len(SPLITS)))
    split = {user: SPLITS[n] for n, user in enumerate(sorted({user for user, _, _ in rows}))}
    write_messages(folder / "users.parquet", ((user, text, split[user]) for user, text, _ in rows))
    lines = [" ".join(sentence) for sentence in source.clean_sentences(300)]
    (folder / "supplement.txt").write_text("\n".join(lines) + "\n")
    words = sorted({word.lower() for line in lines for word in line.split() if word[0].isalpha()})
    (folder / "whitelist.txt").write_text("\n".join(words) + "\n")
    (folder / "run.toml").write_text(CONFIG)


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


def refusals(home: Folder, tmp_path: Path, fedgram: Callable[..., Any]) -> None:
    """Strangers, other authorities and plain text stay outside."""
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    write_device_key(tmp_path / "stranger")
    public = read_public_key(tmp_path / "stranger" / "key.pub")
    knocking: list[Any] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(*read_private_key(tmp_path / "stranger" / "key")),
    ]
    stranger = FleetHttpClient.from_server_address(home.address, False, home.authority.read_bytes(), knocking)
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
def test_a_federation_learns_what_one_process_learns(
    tmp_path: Path, fedgram: Callable[..., Any], refused: Callable[..., str]
) -> None:
    stores, home_path = tmp_path / "devices", tmp_path / "fed"
    write_text(tmp_path)
    assert fedgram("federation", "devices", tmp_path / "users.parquet", "-o", stores, "--json")["devices"] == 3
    fedgram("federation", "init", home_path, "--port", free_port(), "--poll", 0.5)
    home = open_folder(home_path)
    first, second, third = DEVICES
    assert "no server answers" in refused("federation", "join", home_path, "--data", stores / f"{first}.sqlite")
    with command("federation", "serve", home_path) as server, (tmp_path / "third.log").open("wb") as log:
        wait_until_served(home, server, seconds=120)
        refusals(home, tmp_path, fedgram)
        key = home.node(third) / "key.pub"
        write_device_key(home.node(third))
        fedgram("federation", "admit", home_path, third, key)
        assert "was admitted before" in refused("federation", "admit", home_path, third, key)
        with (
            command("federation", "join", home_path, "--data", stores / f"{first}.sqlite"),
            command("federation", "join", home_path, "--data", stores / f"{second}.sqlite"),
        ):
            last = start_supernode(home, open_store(stores / f"{third}.sqlite"), port=free_port(), log=log)
            try:
                run = ("run.toml", "--until", "distill_words", "--workers", 1, "--json")
                config = tmp_path / run[0]
                ours = fedgram("federation", "run", home_path, config, *run[1:], "-w", tmp_path / "federated")["files"]
                status = fedgram("federation", "status", home_path, "--json")
                assert {node["name"] for node in status["nodes"]} == {f"device-{n}" for n in DEVICES}
                assert (status["rounds_committed"], status["totals"]["reports"]) == (4, 12)
                a_round_is_tried_again(home, tmp_path / "killed", last, stores / f"{third}.sqlite")
            finally:
                end(last, seconds=1)
    assert not is_up(home)
    alone = fedgram("run", config, *run[1:], "-w", tmp_path / "alone")["files"]
    assert {"U.unigrams", "R_W.safetensors", "A_W_e.ngram", "A_W_r.ngram"} <= ours.keys()
    assert {name: ours[name] for name in ours if name != "R_W.json"} == {n: alone[n] for n in alone if n != "R_W.json"}
    story = [json.loads((tmp_path / workspace / "R_W.json").read_text()) for workspace in ("federated", "alone")]
    assert story[0] == story[1]


def a_round_is_tried_again(home: Folder, work: Path, running: "subprocess.Popen[bytes]", store: Path) -> None:
    """A device is killed while a masked round goes on, which needs all three: it succeeds once the device is back."""
    plan = RoundPlan(3, 1.0, minimum=3, wait_for=3, deadline=120, wait_seconds=300, attempts=9)
    job = UnigramJob(Vocabulary.of(["the", "you"]), 20.0, 3)
    write_order(work, Order(1, plan, str(home.server), masked_with=3), job)
    killed: list[bool] = []

    def kill(_: int) -> None:
        status = read_status(home.server)
        if not killed and status.get("state") in ("round began", "collecting") and status.get("rounds") == 1:
            os.killpg(running.pid, signal.SIGKILL)
            killed.append(True)
            back.enter_context(command("federation", "join", home.path, "--data", store))

    with ExitStack() as back:
        carry_out(home, work, on_round=kill)
    assert killed
    assert collected(work).rounds[0].devices == 3
