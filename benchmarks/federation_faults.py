"""A federation whose server and run are killed again and again with SIGKILL, at random times, and restarted each time.

    python -m benchmarks.federation_faults [--kills 20] [--rounds 60] [--devices 4]

Devices are threads that compute real updates. Three kinds of processes are killed at random: the SuperLink with its
child processes, the ServerApp only, and the run with the round loop. Each kill comes up to a second after a round was
seen in progress, so it falls into that round or the next. A round is hit at most twice, because a ServerApp that dies
five times without an answer ends a run. At the end the network must be, bit for bit, the one that the simulation
trains: it would differ if a report were lost or counted twice, or if a round were applied by half.
"""

import argparse
import multiprocessing
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

from fedgram.deployment.device import Device
from fedgram.deployment.flower.control import admit
from fedgram.deployment.flower.processes import end, start_superlink, wait_until_served
from fedgram.deployment.folder import FederationConfig, make_folder, open_folder
from fedgram.deployment.journal import read_status
from fedgram.deployment.keys import free_port, read_private_key, read_public_key, write_device_key
from fedgram.deployment.served_fleet import ServedFleet
from fedgram.deployment.store import open_store, write_store
from fedgram.deployment.waiting import Timeouts
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.fleet import Fleet
from fedgram.federated.job import Job
from fedgram.federated.rounds import Checkpointing, Run, RunOptions, run_rounds
from fedgram.federated.simulation import SimulatedFleet
from fedgram.neural.local_training import LocalTraining
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import Coding, as_arrays
from fedgram.text.population import Population, population_from_messages
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary
from fedgram.training.fedavg_task import FedAvgState, FederatedAveraging
from fedgram.training.plan import TrainingPlan

SEED, AFTER, IN_A_ROUND = 3, 1.0, 2  # seconds, longer than a round; and kills


def rows(count: int) -> list[tuple[str, str, str | None]]:
    return list(SyntheticPopulation("en_us", seed=SEED).rows(count))


def people_of(count: int) -> Population:
    return population_from_messages((user, text, "train") for user, text, _ in rows(count))


def job_of(people: Population) -> Job[FedAvgState]:
    words = Vocabulary.of(list(dict.fromkeys(w.lower() for w in people.words))[:200])
    shape, plan = ModelShape(len(words), 16, 24), TrainingPlan(LocalTraining(0.1), max_sentences=8)
    weights = as_arrays(initial_weights(shape, seed=0))
    return Job(FederatedAveraging(shape, weights, plan, Coding(words, words)), SEED)


def train(job: Job[FedAvgState], fleet: Fleet, rounds: int, count: int, folder: Path | None = None) -> Run[FedAvgState]:
    devices = max(2, count - 1)
    options = RunOptions(rounds, RoundPlan(devices, 1.0, minimum=devices))
    return run_rounds(job, fleet, options, checkpoints=Checkpointing(folder) if folder else None)


def run_process(home: str, work: str, rounds: int, count: int) -> None:
    """The run, in a process that may be killed."""
    job = job_of(people_of(count))
    with ServedFleet(open_folder(home), Path(work), job, Timeouts(wait_for=count)).working(rounds) as fleet:
        train(job, fleet, rounds, count, Path(work) / "rounds")


def server_app(port: int) -> int | None:
    """The process ID of the ServerApp that is connected to this port."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"fedgram.deployment.flower.server_apps" in words and f"127.0.0.1:{port}".encode() in words:
            return int(path.parent.name)
    return None


def in_a_round_since(folder: Path, moment: float, done: threading.Event, seconds: float = 120.0) -> bool:
    """Wait until a round is in progress that began after a moment; False if none began in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not done.wait(0.1):
        status = read_status(folder)
        if status.get("time", 0.0) > moment and status["state"] in ("round began", "collecting"):
            return True
    return False


class Runs:
    """Starts the run again whenever it is killed; `done` is set when it has ended by itself."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments, self._context = arguments, multiprocessing.get_context("spawn")
        self.done, self.code = threading.Event(), -1
        self._process = self._start()
        self._thread = threading.Thread(target=self._look_after)
        self._thread.start()

    def _start(self) -> Any:
        process = self._context.Process(target=run_process, args=self._arguments, daemon=True)
        process.start()
        return process

    def _look_after(self) -> None:
        while True:
            self._process.join()
            if self._process.exitcode != -signal.SIGKILL:
                break
            self._process = self._start()
        self.code = self._process.exitcode
        self.done.set()

    def kill(self) -> None:
        self._process.kill()

    def join(self) -> None:
        self._thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("kills", 20), ("rounds", 60), ("devices", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedgram-faults-") as folder:
        measure(Path(folder), options.kills, options.rounds, options.devices)


def measure(folder: Path, kills: int, rounds: int, count: int) -> None:
    people, texts = people_of(count), rows(count)
    home = make_folder(folder / "federation", FederationConfig(port=free_port(), masked_with=0))
    job, work = job_of(people), folder / "work"
    stop = threading.Event()
    log = (folder / "superlink.log").open("ab")
    link = start_superlink(home, host="127.0.0.1", log=log)
    wait_until_served(home, link)
    for number, name in enumerate(people.client_ids):
        write_store(folder / f"{number}.sqlite", number, [text for user, text, _ in texts if user == name])
        write_device_key(home.node(number))
        admit(home, read_public_key(home.node(number) / "key.pub"), f"device-{number}")
        own = Device(open_store(folder / f"{number}.sqlite"), home.node(number) / "jobs")
        LightDevice(home, read_private_key(home.node(number) / "key"), answering(own), stop, 0.3).start()
    began = time.perf_counter()
    runs = Runs(str(home.path), str(work), rounds, count)
    rng = np.random.default_rng(SEED)
    killed: dict[str, int] = {"SuperLink": 0, "ServerApp": 0, "run": 0}
    hit = list[int]()
    while sum(killed.values()) < kills and not runs.done.is_set():
        if not in_a_round_since(home.server, time.time(), runs.done):
            continue
        if hit[-IN_A_ROUND:].count(number := read_status(home.server)["round"]) == IN_A_ROUND:
            continue
        hit.append(number)
        runs.done.wait(float(rng.uniform(0.0, AFTER)))
        app, which = server_app(home.config.port), str(rng.choice(list(killed)))
        if which == "run":
            runs.kill()
        elif which == "ServerApp" and app is not None:
            os.kill(app, signal.SIGKILL)
        else:
            which = "SuperLink"
            link.kill()
            end(link)
            link = start_superlink(home, host="127.0.0.1", log=log)
        killed[which] += 1
    runs.join()
    stop.set()
    end(link)
    if runs.code:
        raise SystemExit(f"the run ended with code {runs.code}")
    alone = SimulatedFleet(job, people.users(), dropout=0.0)
    ours, wanted = train(job, alone, rounds, count, work / "rounds"), train(job, alone, rounds, count)
    same = all(np.array_equal(w, wanted.state.model.weights[name]) for name, w in ours.state.model.weights.items())
    save(
        "federation_faults",
        [{"kills of the SuperLink": killed["SuperLink"], "of the ServerApp": killed["ServerApp"],
          "of the run": killed["run"], "rounds": ours.progress.round, "reports counted": ours.progress.tally.reports,
          "rounds tried again": ours.progress.abandoned, "seconds": time.perf_counter() - began,
          "the simulation's network, bit for bit": "yes" if same else "no"}],
    )  # fmt: skip
    if sum(killed.values()) < kills:
        raise SystemExit(f"all rounds ended after {sum(killed.values())} of {kills} kills; use more --rounds")
    if not same:
        raise SystemExit("the network differs from the simulation's")


def answering(device: Device) -> Any:
    def answer(kind: str, content: dict[str, bytes]) -> dict[str, bytes]:
        try:
            return device.join(content) if kind == "query.join" else device.report(content)
        except Exception as error:
            return {"failed": type(error).__name__.encode()}

    return answer


if __name__ == "__main__":
    main()
