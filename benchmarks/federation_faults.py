"""A federation whose server is killed again and again: SIGKILL, at random moments, and started anew each time.

    python -m benchmarks.federation_faults [--kills 20] [--rounds 60] [--devices 4]

Devices are threads that compute real updates. Both of the server's processes are killed in turn: the SuperLink, with
all that it started, and the ServerApp alone, each time up to a second after a round was seen to go on, which is in it
or in the next. At the end the network must be, bit for bit, the one that the in-process driver trains: had a report
been lost, counted twice or a round been half applied, it would differ.
"""

import argparse
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.light_devices import LightDevice
from benchmarks.measure import save

from fedgram.fedavg.task import FederatedAveraging, TrainingPlan
from fedgram.federated.cohort import CohortPlan
from fedgram.federated.driver import Devices, run_rounds
from fedgram.flower.control import admit
from fedgram.flower.device import Device
from fedgram.flower.folder import FederationConfig, make_folder
from fedgram.flower.job import FedAvgJob
from fedgram.flower.journal import read_status
from fedgram.flower.keys import free_port, read_private_key, read_public_key, write_device_key
from fedgram.flower.orders import Order, trained, write_order
from fedgram.flower.processes import end, start_superlink, wait_until_served
from fedgram.flower.rounds import RoundPlan
from fedgram.flower.store import open_store, write_store
from fedgram.flower.submit import carry_out
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import Coding, Network, as_arrays
from fedgram.text.population import population_from_messages
from fedgram.text.synthetic import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary

SEED, AFTER = 3, 1.0  # seconds, longer than a round


def server_app(port: int) -> int | None:
    """The process of the ServerApp that talks to this port."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(w.endswith(b"flwr-serverapp") for w in words[:2]) and f"127.0.0.1:{port}".encode() in words:
            return int(path.parent.name)
    return None


def in_a_round_since(folder: Path, moment: float, done: threading.Event, seconds: float = 120.0) -> bool:
    """Wait until a round is going on that was not before."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not done.wait(0.1):
        status = read_status(folder)
        if status.get("time", 0.0) > moment and status["state"] in ("round began", "collecting"):
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("kills", 20), ("rounds", 60), ("devices", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedgram-faults-") as folder:
        measure(Path(folder), options.kills, options.rounds, options.devices)


def measure(folder: Path, kills: int, rounds: int, count: int) -> None:
    rows = list(SyntheticPopulation("en_us", seed=SEED).rows(count))
    people = population_from_messages((user, text, "train") for user, text, _ in rows)
    words = Vocabulary.of(list(dict.fromkeys(w.lower() for w in people.words))[:200])
    shape, plan, coding = ModelShape(len(words), 16, 24), TrainingPlan(max_sentences=8), Coding(words, words)
    start = Network(shape, as_arrays(initial_weights(shape, seed=0)), coding)
    home = make_folder(folder / "federation", FederationConfig(port=free_port()))
    job, work = FedAvgJob(shape, plan, coding, SEED), folder / "work"
    in_a_round = max(2, count - 1)
    write_order(
        work,
        Order(rounds, RoundPlan(in_a_round, 1.0, minimum=in_a_round, wait_for=count), str(home.server)),
        job,
        start,
    )
    stop, done = threading.Event(), threading.Event()
    log = (folder / "superlink.log").open("ab")
    link = start_superlink(home, host="127.0.0.1", log=log)
    wait_until_served(home, link)
    devices = []
    for number, name in enumerate(people.client_ids):
        write_store(folder / f"{number}.sqlite", number, [text for user, text, _ in rows if user == name])
        write_device_key(home.node(number))
        admit(home, read_public_key(home.node(number) / "key.pub"), f"device-{number}")
        own = Device(open_store(folder / f"{number}.sqlite"), home.node(number) / "jobs")
        devices.append(LightDevice(home, read_private_key(home.node(number) / "key"), answering(own), stop, 0.3))
        devices[-1].start()

    trouble: list[BaseException] = []

    def look_after() -> None:
        try:
            carry_out(home, work)
        except BaseException as error:
            trouble.append(error)
        finally:
            done.set()

    began = time.perf_counter()
    looking = threading.Thread(target=look_after)
    looking.start()
    rng = np.random.default_rng(SEED)
    killed: dict[str, int] = {"SuperLink": 0, "ServerApp": 0}
    while sum(killed.values()) < kills and not done.is_set():
        if not in_a_round_since(home.server, time.time(), done):
            continue
        done.wait(float(rng.uniform(0.0, AFTER)))
        app = server_app(home.config.port)
        if app is not None and rng.random() < 0.5:
            os.kill(app, signal.SIGKILL)
            killed["ServerApp"] += 1
            continue
        link.kill()
        end(link)
        killed["SuperLink"] += 1
        link = start_superlink(home, host="127.0.0.1", log=log)
    looking.join()
    stop.set()
    end(link)
    if trouble:
        raise trouble[0]
    network, story = trained(work)
    alone: Any = run_rounds(
        FederatedAveraging(shape, start.weights, plan),
        Devices(people, coding.codes(people.words).values, people.clients()),
        CohortPlan(in_a_round, 1.0, 0.0), rounds=rounds, seed=SEED,
    )  # fmt: skip
    same = all(np.array_equal(w, alone.model.weights[name]) for name, w in network.weights.items())
    save(
        "federation_faults",
        [{"kills of the SuperLink": killed["SuperLink"], "of the ServerApp": killed["ServerApp"],
          "rounds": len(story["loss"]), "reports counted": story["reports"], "seconds": time.perf_counter() - began,
          "the driver's network, bit for bit": "yes" if same else "no"}],
    )  # fmt: skip
    if sum(killed.values()) < kills:
        raise SystemExit(f"all rounds were done after {sum(killed.values())} of {kills} kills; use more --rounds")
    if not same:
        raise SystemExit("the network differs from the driver's")


def answering(device: Device) -> Any:
    def answer(kind: str, content: dict[str, bytes]) -> dict[str, bytes]:
        try:
            return device.join(content) if kind == "query.join" else device.report(content)
        except Exception as error:
            return {"failed": type(error).__name__.encode()}

    return answer


if __name__ == "__main__":
    main()
