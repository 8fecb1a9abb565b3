"""Rounds of many devices with one server on this machine.

    python -m benchmarks.federation_load [--devices 500] [--preset W_demo] [--rounds 3] [--masked] [--limit 900]

Devices are threads in separate processes. Each speaks a SuperNode's protocol over TLS with its own key, and sends an
update prepared beforehand, of the size of a network or of the counts of 1,000 words. So the measurements are those of
the server: its SuperLink and its ServerApp. The time of a report is that from a device's first byte to the server's
last acknowledgement. All devices are invited, and the first 95 % to report count. Progress is printed every ten
seconds, and the benchmark ends at the limit.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.federation_faults import server_app
from benchmarks.light_devices import LightDevice
from benchmarks.measure import save

from fedgram.deployment.device import Device
from fedgram.deployment.flower.control import admit
from fedgram.deployment.flower.processes import end, start_superlink, wait_until_served
from fedgram.deployment.folder import FederationConfig, Folder, make_folder, open_folder
from fedgram.deployment.journal import read_status
from fedgram.deployment.key_list import hold_keys
from fedgram.deployment.keys import free_port, read_private_key, read_public_key, write_device_key
from fedgram.deployment.served_fleet import ServedFleet
from fedgram.deployment.store import DeviceStore, write_store
from fedgram.deployment.waiting import Timeouts
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Job, job_from_bytes
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import Update
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.federated.wire import update_to_bytes
from fedgram.neural.model import PRESETS, initial_weights
from fedgram.neural.network import Coding, as_arrays
from fedgram.text.vocabulary import Vocabulary
from fedgram.training.fedavg_task import FederatedAveraging
from fedgram.training.plan import TrainingPlan

PROCESSES, WORDS, SAY = 4, 1000, 10.0
UNIGRAMS = "unigrams"


def make_job(preset: str) -> Job[Any]:
    """A job of a preset's size; words stand for its pieces too."""
    size = WORDS if preset == UNIGRAMS else PRESETS[preset].shape.words
    words = Vocabulary.of([f"w{k}" for k in range(size - 3)])
    if preset == UNIGRAMS:
        return Job(UnigramTask(words, clip=1000.0), 1)
    shape = PRESETS[preset].shape
    weights = as_arrays(initial_weights(shape, seed=0))
    return Job(FederatedAveraging(shape, weights, TrainingPlan(), Coding(words, words)), 1)


class Canned:
    """A job, and a prepared update of its size."""

    def __init__(self, job: Job[Any]) -> None:
        self.job = job
        self.update = Update.dense({name: np.full(n, 1e-4) for name, n in job.task.size.items()}, 1.0)
        self.sent = update_to_bytes(self.update)


_CANNED: dict[str, Canned] = {}
_MAKING = threading.Lock()


class CannedDevice(Device):
    """A device that computes nothing but masks, and takes part whenever it is invited."""

    __slots__ = ()

    def join(self, request: dict[str, bytes]) -> dict[str, bytes]:
        """Keep the job in memory: what devices write to disk is no load of the server's."""
        digest = hashlib.sha256(request["job"]).hexdigest()
        if self.masking is not None:
            hold_keys(self.jobs.parent, request["admitted"], self.release_key)
        with _MAKING:
            if digest not in _CANNED:
                _CANNED[digest] = Canned(job_from_bytes(request["job"]))
        return {"device": str(self.store.number).encode(), "ready": b"yes"}

    def job(self, digest: str) -> Job[Any]:
        """The job that all devices of the process share."""
        return _CANNED[digest].job

    def report(self, request: dict[str, bytes]) -> dict[str, bytes]:
        """The update, in bytes."""
        return {"update": _CANNED[request["job"].decode()].sent}

    def _limit(self, job: Job[Any]) -> int | None:  # noqa: ARG002
        return None

    def _update(self, job: Job[Any], round_number: int, broadcast: bytes) -> Update:  # noqa: ARG002
        return _CANNED[job.digest].update


def crowd(folder: str, numbers: list[int], store: str, masked: int, stop: Any, results: Any) -> None:
    """Run devices with these numbers, as threads, until `stop` is set."""
    home, stopping = open_folder(folder), threading.Event()
    masking = SecureSettings(min_devices=masked) if masked else None
    devices = []
    for number in numbers:
        own = home.node(number)
        device = CannedDevice(
            DeviceStore(Path(store), number), own / "jobs", 0, (), masking, release_key=home.release_key
        )

        def answer(action: str, content: dict[str, bytes], device: Device = device) -> dict[str, bytes]:
            act = {"query.join": device.join, "train.report": device.report, "train.secure": device.secure}[action]
            try:
                return act(content)
            except Exception as error:
                return {"failed": type(error).__name__.encode()}

        devices.append(LightDevice(home, read_private_key(own / "key"), answer, stopping, home.config.poll))
        devices[-1].start()
        time.sleep(0.05)
    stop.wait()
    stopping.set()
    results.put([seconds for device in devices for seconds in device.latencies])
    os._exit(0)


def cost(process: int) -> tuple[float, float]:
    """Processor time of a process in seconds, and its peak memory in MB."""
    about = Path(f"/proc/{process}")
    ticks = about.joinpath("stat").read_text().rsplit(") ", 1)[1].split()
    most = next(line for line in about.joinpath("status").read_text().splitlines() if line.startswith("VmHWM"))
    return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"), int(most.split()[1]) / 1e3


class Watch:
    """Follows a run: prints its progress, and measures what its processes use from the first round on."""

    def __init__(self, home: Folder, link: int, limit: float) -> None:
        self._home, self._link = home, link
        self._began, self._said, self._limit = time.monotonic(), 0.0, limit
        self.seen: dict[str, tuple[float, float]] = {}
        self.before: dict[str, float] = {}

    def look(self) -> bool:
        """Update the measurements; False when the time limit has passed."""
        for name, process in (("SuperLink", self._link), ("ServerApp", server_app(self._home.config.port))):
            if process is not None:
                with suppress(OSError, StopIteration):
                    self.seen[name] = cost(process)
        status = read_status(self._home.server)
        if not self.before and status.get("round", 0) >= 1:
            self.before.update({name: seconds for name, (seconds, _) in self.seen.items()})
        now = time.monotonic() - self._began
        if now - self._said > SAY:
            self._said = now
            counts = {
                k: status.get("current", {}).get(k, 0) for k in ("invited", "reports", "late", "failed", "refused")
            }
            state = f"{status.get('state', 'starting')}, round {status.get('round', 0)}"
            print(f"{now:.0f} s: {state}, {status.get('devices', 0)} devices, now {counts}", flush=True)
        return now < self._limit

    def spent(self, name: str, reports: int) -> float:
        """Processor time per report, in milliseconds."""
        return 1e3 * (self.seen[name][0] - self.before.get(name, 0.0)) / reports


def measure(folder: Path, o: argparse.Namespace) -> tuple[dict[str, object], bool]:
    count = o.devices
    config = FederationConfig(port=free_port(), masked_with=max(2, count // 2) if o.masked else 0, poll=o.poll)
    home = make_folder(folder / "federation", replace(config, in_memory=not o.on_disk))
    job, masking = make_job(o.preset), SecureSettings(min_devices=config.masked_with) if o.masked else None
    plan = RoundPlan(ceil(0.95 * count), 1 / 0.95, minimum=max(1, count // 2), attempts=1)
    timeouts = Timeouts(o.limit, o.limit, wait_for=ceil(0.98 * count))
    with (folder / "superlink.log").open("wb") as log:
        link = start_superlink(home, host="127.0.0.1", log=log)
    crowds: list[Any] = []
    trouble: list[BaseException] = []
    try:
        wait_until_served(home, link, seconds=120)
        write_store(folder / "empty.sqlite", 0, ["w1 w2 w3"])
        for number in range(count):
            write_device_key(home.node(number))
            admit(home, read_public_key(home.node(number) / "key.pub"), f"device-{number}")
        stop: Any = multiprocessing.Event()
        results: Any = multiprocessing.SimpleQueue()
        for first in range(PROCESSES):
            share = list(range(first, count, PROCESSES))
            args = (str(home.path), share, str(folder / "empty.sqlite"), config.masked_with, stop, results)
            crowds.append(multiprocessing.Process(target=crowd, args=args, daemon=True))
            crowds[-1].start()

        def run() -> None:
            try:
                with ServedFleet(home, folder / "work", job, timeouts).working(o.rounds) as fleet:
                    run_rounds(job, fleet, RunOptions(o.rounds, plan, masking))
            except BaseException as error:
                trouble.append(error)

        running, watch = threading.Thread(target=run, daemon=True), Watch(home, link.pid, o.limit)
        running.start()
        while running.is_alive() and watch.look():
            running.join(0.5)
        ended = not running.is_alive() and not trouble
        stop.set()
        latencies, heard, until = list[float](), 0, time.monotonic() + 20
        while heard < len(crowds) and time.monotonic() < until:
            if results.empty():
                time.sleep(0.05)
            else:
                latencies, heard = latencies + results.get(), heard + 1
    finally:
        for process in crowds:
            process.join(5)
            process.kill()
        end(link)
    for error in trouble:
        print(f"the run failed: {error}")
    return table(o, home, job, watch, latencies), ended


def table(
    o: argparse.Namespace, home: Folder, job: Job[Any], watch: Watch, latencies: list[float]
) -> dict[str, object]:
    log = home.server / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    summed = [line for line in lines if line["event"] == "round summed"]
    reports = sum(line["reports"] for line in summed)
    row: dict[str, object] = {
        "devices": o.devices, "of the size of": o.preset, "masked": "yes" if o.masked else "no",
        "numbers in an update": sum(job.task.size.values()), "rounds": f"{len(summed)} of {o.rounds}",
        "reports": reports,
    }  # fmt: skip
    if reports and latencies:
        seconds = [line["seconds"] for line in summed]
        row |= {
            "late": sum(line["late"] for line in summed), "failed": sum(sum(x["failed"].values()) for x in summed),
            "bytes sent per report": sum(line["bytes_sent"] for line in summed) // reports,
            "received": sum(line["bytes_received"] for line in summed) // reports,
            "seconds per round": float(np.median(seconds)), "reports/s": reports / sum(seconds),
            "report p50, s": float(np.quantile(latencies, 0.5)), "p99, s": float(np.quantile(latencies, 0.99)),
        }  # fmt: skip
        for name in ("SuperLink", "ServerApp"):
            row |= {f"{name} CPU ms per report": watch.spent(name, reports), f"{name} MB": watch.seen[name][1]}
    return {**row, "load": os.getloadavg()[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=500)
    parser.add_argument("--preset", choices=[UNIGRAMS, *PRESETS], default="W_demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--poll", type=float, default=5.0, help="polling interval of an idle device, in seconds")
    parser.add_argument("--limit", type=float, default=900.0, help="time limit, in seconds")
    parser.add_argument("--masked", action="store_true")
    parser.add_argument("--on-disk", action="store_true", help="keep Flower's state in a database on disk")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedgram-load-") as folder:
        row, ended = measure(Path(folder), o)
    marks = [str(o.devices), o.preset, *["masked"] * o.masked, *["disk"] * o.on_disk]
    save(f"federation_load_{'_'.join(marks)}", [row])
    if not ended:
        raise SystemExit(f"incomplete after {o.limit:.0f} s: {row['rounds']} rounds, {row['reports']} reports")


if __name__ == "__main__":
    main()
