"""Real federations on this machine: SuperLinks and SuperNodes with TLS and keys; runs on them; faults."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record
from fedgram.deployment.checks import check_reachable, is_up
from fedgram.deployment.federation_devices import FederationDevices, Servers, masking_of
from fedgram.deployment.flower.processes import end, start_supernode, wait_until_served
from fedgram.deployment.flower.programs import environment
from fedgram.deployment.folder import Folder, open_folder
from fedgram.deployment.journal import read_status
from fedgram.deployment.keys import free_port, read_private_key, read_public_key, write_device_key
from fedgram.deployment.served_fleet import ServedFleet
from fedgram.deployment.store import open_store
from fedgram.deployment.waiting import Timeouts
from fedgram.distill.refit.refit import refit
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Job, find_task
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.fgram.pack import pack
from fedgram.fgram.reader import open_model
from fedgram.privacy.ledger import LEDGER_FILE, Budget, BudgetError, Ledger
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.messages import write_messages
from fedgram.text.population import open_population
from fedgram.text.synthetic.typists import SyntheticPopulation
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
[words.pretraining]
epochs = 0
[words.training]
rounds = 2
devices_per_round = 3
client_rate = 0.1
over_selection = 1.0
dropout = 0.0
max_sentences = 6
evaluate_every = 2
dev_users = 1
[budget]
max_ngrams = 2000
[distillation]
samples = 300
infer_samples = 300
order = 2
[refit]
devices_per_round = 3
over_selection = 1.0
dropout = 0.0
sketch_bits = 10
grow = 1
order = 3
"""
SPLITS = {0: "train", 1: "dev", 2: "train", 3: "test", 4: "train"}
DEVICES = [n for n, split in SPLITS.items() if split == "train"]


def write_text(folder: Path, splits: Mapping[int, str] = SPLITS) -> None:
    """Users, of whom those of the train split are devices; the server's text and whitelist."""
    source = SyntheticPopulation("en_us", seed=4)
    rows = list(source.rows(len(splits)))
    split = {user: splits[n] for n, user in enumerate(sorted({user for user, _, _ in rows}))}
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
    with pytest.raises(FedgramError, match="over TLS only"):
        check_reachable(open_folder(tmp_path / "plain"))
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://{home.address}/v1/fleet/activate-node", content=b"")


def set_up(home: Path, *options: object, fedgram: Callable[..., Any]) -> Folder:
    """A federation whose server does not wait long for further devices."""
    fedgram("federation", "init", home, "--port", free_port(), "--poll", 0.2, *options)
    path = home / "federation.toml"
    path.write_text(path.read_text().replace("idle_seconds = 60.0", "idle_seconds = 3.0"))
    return open_folder(home)


def without_bytes(story: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of rounds, without what a simulation does not send."""
    return {
        name: [without_bytes(part) for part in value] if name == "passes" else value
        for name, value in story.items()
        if not name.startswith("bytes_")
    }


@pytest.mark.early
@pytest.mark.timeout(900)
def test_a_federation_learns_what_one_process_learns(
    tmp_path: Path, fedgram: Callable[..., Any], refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masked unigrams, FedAvg and the refit, with the bits of the simulation; then a task of one's own, and a device
    that is killed in a round.
    """
    stores, home_path = tmp_path / "devices", tmp_path / "fed"
    register_example(tmp_path / "plugin", monkeypatch)
    write_text(tmp_path)
    assert fedgram("federation", "devices", tmp_path / "users.parquet", "-o", stores, "--json")["devices"] == 3
    home = set_up(home_path, "--masked-with", 3, fedgram=fedgram)
    first, second, third = DEVICES
    store = stores / f"{first}.sqlite"
    assert "no server answers" in refused("federation", "join", home_path, "--data", store, "--wait", 0)
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
                run = ("run.toml", "--until", "refit", "--workers", 1, "--json")
                config = tmp_path / run[0]
                ours = fedgram("federation", "run", home_path, config, *run[1:], "-w", tmp_path / "federated")["files"]
                status = fedgram("federation", "status", home_path, "--json")
                assert {node["name"] for node in status["nodes"]} == {f"device-{n}" for n in DEVICES}
                rounds = 1 + 2 + 2  # of unigrams, of FedAvg, and of the refit: pairs, n-grams
                assert (status["rounds_committed"], status["totals"]["reports"]) == (rounds, 3 * rounds)
                assert {"ngrams.clipping", "ngrams.words"} <= status["parts"].keys()
                a_refit_gets_noise(home, tmp_path, fedgram)
                models_are_published(home, tmp_path / "models", fedgram, refused)
                a_task_of_ones_own_runs(home, tmp_path / "own", tmp_path / "users.parquet")
                a_round_is_tried_again(home, tmp_path / "killed", last, stores / f"{third}.sqlite")
            finally:
                end(last, seconds=1)
    assert not is_up(home)
    alone = fedgram("run", config, *run[1:], "-w", tmp_path / "alone")["files"]
    assert {"U.unigrams", "R_W.safetensors", "A_W_e.ngram", "A_W_r.ngram", "refit.ngram"} <= ours.keys()
    told = {"R_W.json", "refit.json"}
    assert {name: ours[name] for name in ours if name not in told} == {n: alone[n] for n in alone if n not in told}
    for name in told:
        story = [json.loads((tmp_path / workspace / name).read_text()) for workspace in ("federated", "alone")]
        assert without_bytes(story[0]) == without_bytes(story[1])


def a_refit_gets_noise(home: Folder, folder: Path, fedgram: Callable[..., Any]) -> None:
    """Masked counts with noise over Flower: the bits of the simulation, one entry in the ledger, no exact sum kept."""
    pytest.importorskip("dp_accounting")
    lines = (folder / "supplement.txt").read_text().lower().split("\n")[:20]
    model = NGramModel.train(lines, order=2, smoothing="witten-bell")
    ledger = Ledger.open(home.server / LEDGER_FILE, Budget(2.5, 1e-6))
    privacy = PrivacyOptions("dp", epsilon=2.0, delta=1e-6, noise_seed=5)
    counting: dict[str, Any] = {"devices_per_round": 3, "over_selection": 1.0, "grow": 1, "order": 3, "norm": 4.0}
    devices = FederationDevices(Servers(home), folder / "noised" / "servers")
    ours = refit(model, devices, privacy=privacy, folder=folder / "noised" / "passes", ledger=ledger, **counting)
    alone = refit(model, open_population(folder / "users.parquet").train, privacy=privacy, dropout=0.0, **counting)
    assert [counted["reports"] for counted in ours.counted.passes] == [3, 3]
    assert np.array_equal(ours.counted.ngrams, alone.counted.ngrams)
    assert np.array_equal(ours.log_weight, alone.log_weight)
    kept = {path.name.split("-")[0] for path in (folder / "noised").rglob("*") if path.is_file()}
    assert not kept & {"call", "sum"}
    assert not list((folder / "noised" / "passes").glob("pass-*"))
    spent = fedgram("federation", "status", home.path, "--json")
    assert spent["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert [operation["name"] for operation in spent["privacy"]["operations"]] == ["n-gram counts"]
    with pytest.raises(BudgetError, match="n-gram counts would exceed the privacy budget"):
        refit(model, devices, privacy=privacy, seed=1, ledger=ledger, **counting)


def models_are_published(home: Folder, folder: Path, fedgram: Callable[..., Any], refused: Callable[..., str]) -> None:
    """Two models over Flower, in pieces, and back to the first one."""
    folder.mkdir()
    assert "nothing was published yet" in refused("federation", "publish", home.path)
    for name in ("there", "soon"):
        pack(NGramModel.train([f"see you {name}"], order=2, smoothing="witten-bell"), folder / f"{name}.fgram")

    def publish(*what: object) -> tuple[int, ...]:
        found = fedgram("federation", "publish", home.path, *what, "--wait", 0.5, "--json")
        return tuple(found[name] for name in ("version", "online", "installed", "outside", "waiting"))

    def predicted() -> set[str]:
        links = [home.node(number) / "models" / "lm.fgram" for number in DEVICES]
        return {open_model(link).predict("see you", 1)[0].word for link in links}

    assert publish(folder / "there.fgram") == (1, 3, 3, 0, 0)
    assert predicted() == {"there"}
    assert publish(folder / "soon.fgram") == (2, 3, 3, 0, 0)
    assert predicted() == {"soon"}
    assert publish("--rollback") == (3, 3, 3, 0, 0)
    assert predicted() == {"there"}
    models = fedgram("federation", "status", home.path, "--json")["models"]
    assert [(model["version"], model["devices"], model["kind"]) for model in models] == [(3, 3, "rollback")]


def register_example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the example's task, as a package of its own would: a module, and an entry point that names its class."""
    about = folder / "message_length-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[2] / "examples" / "message_length.py", folder)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: message-length\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fedgram.tasks]\nmessage-length = message_length:MessageLength\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def a_task_of_ones_own_runs(home: Folder, work: Path, users: Path) -> None:
    """The example's task over Flower, masked, and in this process, masked and not: the same sums."""
    job: Job[Any] = Job(find_task("message-length").from_settings(Record({"most": 100})), 3, participations=1)
    options = RunOptions(None, RoundPlan(3, 1.0, 3), masking_of(home))
    with ServedFleet(home, work, job, Timeouts(deadline=60, idle_seconds=0)).working(None) as fleet:
        ours = run_rounds(job, fleet, options).state
    people = open_population(users)
    for masking in (None, masking_of(home)):
        fleet_here = SimulatedFleet(job, people.train, dropout=0.0)
        alone = run_rounds(job, fleet_here, RunOptions(None, RoundPlan(3, 1.0, 3), masking)).state
        assert {name: int(ours[name][0]) for name in ours} == {name: int(alone[name][0]) for name in alone}
    assert ours["words"][0] > ours["messages"][0] > 0


def a_round_is_tried_again(home: Folder, work: Path, running: "subprocess.Popen[bytes]", store: Path) -> None:
    """A device is killed while a masked round goes on, which needs all three: it succeeds once the device is back."""
    job = Job(UnigramTask(Vocabulary.of(["the", "you"]), clip=20.0), 3, participations=1)
    done, killed = threading.Event(), list[bool]()

    def kill() -> None:
        while not killed and not done.wait(0.05):
            status = read_status(home.server)
            if status.get("state") in ("round began", "collecting") and status.get("job") == job.digest:
                os.killpg(running.pid, signal.SIGKILL)
                killed.append(True)
                back.enter_context(command("federation", "join", home.path, "--data", store))

    timeouts = Timeouts(deadline=60, wait_seconds=300)
    with ExitStack() as back, ServedFleet(home, work, job, timeouts).working(1) as fleet:
        killing = threading.Thread(target=kill)
        killing.start()
        try:
            run = run_rounds(job, fleet, RunOptions(1, RoundPlan(3, 1.0, 3, attempts=9), masking_of(home)))
        finally:
            done.set()
            killing.join()
    assert killed
    assert run.state.rounds[0].devices == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_servers_share_the_rounds_of_one_run(tmp_path: Path, fedgram: Callable[..., Any]) -> None:
    """Two devices each; what comes out are the bits of one process with all four."""
    write_text(tmp_path, {0: "train", 1: "train", 2: "dev", 3: "train", 4: "test", 5: "train"})
    config, stores = tmp_path / "run.toml", tmp_path / "devices"
    config.write_text(config.read_text().replace("devices_per_round = 3", "devices_per_round = 4"))
    fedgram("federation", "devices", tmp_path / "users.parquet", "-o", stores)
    paths = tmp_path / "one", tmp_path / "other"
    homes = [set_up(path, "--no-tls", "--masked-with", 2, fedgram=fedgram) for path in paths]
    with ExitStack() as stack:
        servers = [stack.enter_context(command("federation", "serve", path)) for path in paths]
        for home, server, numbers in zip(homes, servers, ((0, 5), (1, 3)), strict=True):
            wait_until_served(home, server, seconds=120)
            for number in numbers:
                stack.enter_context(command("federation", "join", home.path, "--data", stores / f"{number}.sqlite"))
        run = (config, "--until", "unigrams", "--json")
        shared = ("federation", "run", paths[0], *run, "--shard", paths[1], "-w", tmp_path / "shared")
        ours = fedgram(*shared)["files"]
        for path in paths:
            status = fedgram("federation", "status", path, "--json")
            assert (status["rounds_committed"], status["totals"]["reports"]) == (1, 2)
    alone = fedgram("run", *run, "-w", tmp_path / "alone")["files"]
    assert ours["U.unigrams"] == alone["U.unigrams"]
