"""Many devices a round against one server on this machine.

    python -m benchmarks.federation_load [--devices 500] [--words 1000] [--rounds 3] [--masked]

Devices are threads in processes of their own that speak a SuperNode's protocol over TLS with keys of their own, and
send an update made beforehand: what is measured is the server, its SuperLink and its ServerApp. A report's time is that
from a device's first byte to the server's last acknowledgement. All are asked, and the first 95 % to report count.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import threading
import time
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.federation_faults import server_app
from benchmarks.light_devices import LightDevice
from benchmarks.measure import save

from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import Update
from fedgram.federated.wire import update_to_bytes
from fedgram.flower.control import admit
from fedgram.flower.device import Device
from fedgram.flower.folder import FederationConfig, make_folder, open_folder
from fedgram.flower.job import FedAvgJob, UnigramJob
from fedgram.flower.journal import read_status
from fedgram.flower.keys import free_port, read_private_key, read_public_key, write_device_key
from fedgram.flower.orders import Order, write_order
from fedgram.flower.processes import end, start_superlink, wait_until_served
from fedgram.flower.rounds import RoundPlan
from fedgram.flower.store import DeviceStore, open_store, write_store
from fedgram.flower.submit import carry_out
from fedgram.text.vocabulary import Vocabulary

PROCESSES = 4


def make_job(words: int) -> UnigramJob:
    return UnigramJob(Vocabulary.of([f"w{k}" for k in range(words - 3)]), 1000.0, 1)


class CannedDevice(Device):
    """A device that has nothing to compute."""

    __slots__ = ()

    def report(self, request: dict[str, bytes]) -> dict[str, bytes]:
        """Every word once."""
        job = self.job(request["job"].decode())
        assert isinstance(job, UnigramJob | FedAvgJob)
        task = job.task()
        return {"update": canned(tuple(task.size.items()))}


_CANNED: dict[tuple[tuple[str, int], ...], bytes] = {}


def canned(size: tuple[tuple[str, int], ...]) -> bytes:
    if size not in _CANNED:
        _CANNED[size] = update_to_bytes(Update.dense({name: np.full(n, 1e-4) for name, n in size}, 1.0))
    return _CANNED[size]


def crowd(folder: str, numbers: list[int], store: str, masked: int, poll: float, stop: Any, results: Any) -> None:
    """Devices of these numbers, as threads, until told to stop."""
    home, stopping = open_folder(folder), threading.Event()
    masking = SecureSettings(min_devices=masked) if masked else None
    devices = []
    for number in numbers:
        own = home.node(number)
        kind = Device if masked else CannedDevice
        device = kind(DeviceStore(Path(store), number), own / "jobs", 0, (), masking)

        def answer(action: str, content: dict[str, bytes], device: Device = device) -> dict[str, bytes]:
            act = {"query.join": device.join, "train.report": device.report, "train.secure": device.secure}[action]
            try:
                return act(content)
            except Exception as error:
                return {"failed": type(error).__name__.encode()}

        devices.append(LightDevice(home, read_private_key(own / "key"), answer, stopping, poll))
        devices[-1].start()
        time.sleep(0.2)  # connections cost the server more than messages do
    stop.wait()
    stopping.set()
    results.put([seconds for device in devices for seconds in device.latencies])
    os._exit(0)


def cost(process: int) -> tuple[float, float]:
    """Seconds of processor time of a process, and the most memory it had, in MB."""
    about = Path(f"/proc/{process}")
    ticks = about.joinpath("stat").read_text().rsplit(") ", 1)[1].split()
    most = next(line for line in about.joinpath("status").read_text().splitlines() if line.startswith("VmHWM"))
    return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"), int(most.split()[1]) / 1e3


def measure(folder: Path, count: int, words: int, rounds: int, masked: bool, poll: float) -> dict[str, object]:
    config = FederationConfig(port=free_port(), masked_with=count // 2 if masked else 0)
    home = make_folder(folder / "federation", config)
    job, work = make_job(words), folder / "work"
    plan = RoundPlan(
        ceil(0.95 * count), 1 / 0.95, minimum=count // 2, wait_for=ceil(0.98 * count), wait_seconds=1800, deadline=1200,
        attempts=1,
    )  # fmt: skip
    write_order(work, Order(rounds, plan, str(home.server), masked_with=config.masked_with), job)
    with (folder / "superlink.log").open("wb") as log:
        link = start_superlink(home, host="127.0.0.1", log=log)
    try:
        wait_until_served(home, link, seconds=120)
        write_store(folder / "empty.sqlite", 0, ["w1 w2 w3"])
        open_store(folder / "empty.sqlite")
        for number in range(count):
            write_device_key(home.node(number))
            admit(home, read_public_key(home.node(number) / "key.pub"), f"device-{number}")
        stop: Any = multiprocessing.Event()
        results: Any = multiprocessing.SimpleQueue()
        shares = [list(range(first, count, PROCESSES)) for first in range(PROCESSES)]
        crowds = [
            multiprocessing.Process(
                target=crowd,
                args=(str(home.path), share, str(folder / "empty.sqlite"), config.masked_with, poll, stop, results),
            )
            for share in shares
        ]
        for process in crowds:
            process.start()
        seen: dict[str, tuple[float, float]] = {}
        before: dict[str, float] = {}  # processor time when the first round began

        def look(_: int) -> None:
            for name, process in (("SuperLink", link.pid), ("ServerApp", server_app(home.config.port))):
                if process is not None:
                    with suppress(OSError, StopIteration):
                        seen[name] = cost(process)
            if not before and read_status(home.server).get("state") in ("round began", "collecting"):
                before.update({name: seconds for name, (seconds, _) in seen.items()})

        carry_out(home, work, on_round=look)
        stop.set()
        latencies = [seconds for _ in crowds for seconds in results.get()]
        for process in crowds:
            process.join()
    finally:
        end(link)
    log_lines = [json.loads(line) for line in (home.server / "log.jsonl").read_text().splitlines()]
    summed = [line for line in log_lines if line["event"] == "round summed"]
    seconds = [line["seconds"] for line in summed]
    reports = sum(line["reports"] for line in summed)
    size = sum(make_job(words).task().size.values())
    spent = {name: 1e3 * (seen[name][0] - before[name]) / reports for name in ("SuperLink", "ServerApp")}
    return {
        "devices": count, "masked": "yes" if masked else "no", "numbers in an update": size,
        "bytes sent a report": sum(line["bytes_sent"] for line in summed) // reports,
        "received": sum(line["bytes_received"] for line in summed) // reports,
        "seconds a round": float(np.median(seconds)), "reports/s": reports / sum(seconds),
        "report p50, s": float(np.quantile(latencies, 0.5)), "p99, s": float(np.quantile(latencies, 0.99)),
        "SuperLink CPU ms a report": spent["SuperLink"], "MB": seen["SuperLink"][1],
        "ServerApp CPU ms a report": spent["ServerApp"], "its MB": seen["ServerApp"][1],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("devices", 500), ("words", 1000), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--poll", type=float, default=3.0)
    parser.add_argument("--masked", action="store_true")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedgram-load-") as folder:
        row = measure(Path(folder), o.devices, o.words, o.rounds, o.masked, o.poll)
    save(f"federation_load_{o.devices}_{o.words}{'_masked' if o.masked else ''}", [row])


if __name__ == "__main__":
    main()
