"""Twelve people, their devices in this process, and a transport to them that can be made to misbehave."""

import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgram.deployment import collector, served_fleet, server_app_runs
from fedgram.deployment.collector import serve_rounds
from fedgram.deployment.device import Device
from fedgram.deployment.folder import Folder
from fedgram.deployment.key_list import KEY_LIST, SIGNING_KEY, SignedKeys, admit_keys, hold_keys, read_key_list
from fedgram.deployment.keys import compressed_key, read_public_key, write_device_key, write_release_key
from fedgram.deployment.remote_fleet import RemoteFleet
from fedgram.deployment.store import open_store, write_store
from fedgram.deployment.transport import Reply, Request, Transport
from fedgram.deployment.waiting import Timeouts
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.federated.secure.admitted_keys import AdmittedKeys
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.task import State
from fedgram.federated.unigram_collection import UnigramState, UnigramTask
from fedgram.neural.local_training import LocalTraining
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import Coding, as_arrays
from fedgram.text.population import Users, population_from_messages
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary
from fedgram.training.fedavg_task import FedAvgState, FederatedAveraging
from fedgram.training.plan import TrainingPlan

Misbehave = Callable[[Request, dict[str, bytes]], dict[str, bytes] | None]
ROWS = list(SyntheticPopulation("en_us", seed=4).rows(12))
POPULATION = population_from_messages((user, text, "train") for user, text, _ in ROWS)
TEXTS = {n: [text for user, text, _ in ROWS if user == name] for n, name in enumerate(POPULATION.client_ids)}
ALL = POPULATION.clients()
NOBODY = np.zeros(0, np.int64)
WORDS = Vocabulary.of(sorted({word.lower() for word in POPULATION.words}))
UNIGRAMS = UnigramTask(WORDS, clip=20.0)
ONCE, OFTEN = Job(UNIGRAMS, 5, participations=1), Job(UNIGRAMS, 5)
SHAPE, CODING = ModelShape(len(WORDS), 8, 12), Coding(WORDS, WORDS)
START = as_arrays(initial_weights(SHAPE, seed=0))
TRAINING = Job(FederatedAveraging(SHAPE, START, TrainingPlan(LocalTraining(0.1), max_sentences=6), CODING), 5)
MASKING = SecureSettings(min_devices=3)
MANY = 1000  # rounds in which a device takes part, where its own limit is not the matter


def make_devices(
    folder: Path, texts: Mapping[int, Sequence[str]], masking: SecureSettings | None = None, participations: int = 1
) -> dict[int, Device]:
    """Devices by node; node 100 + n is device n. For masked rounds their keys are admitted (`key_list_of`)."""
    devices = {}
    release_key = folder / "release.pub"
    for number, own in texts.items():
        path = folder / f"{number}.sqlite"
        write_store(path, number, own)
        jobs = Path(tempfile.mkdtemp(dir=folder)) / "jobs"
        devices[100 + number] = Device(
            open_store(path), jobs, masking=masking, participations=participations, release_key=release_key
        )
    if masking is not None:
        write_release_key(folder / SIGNING_KEY, release_key)
        admit_devices(folder, devices.values())
    return devices


def admit_devices(server: Path, devices: Collection[Device]) -> None:
    """Give devices keys, and sign them into the list of a server's folder."""
    keys = []
    for device in devices:
        write_device_key(device.jobs.parent)
        keys.append(compressed_key(read_public_key(device.jobs.parent / "key.pub")))
    admit_keys(server, keys)
    found = read_key_list(server)
    assert found is not None
    for device in devices:
        hold_keys(device.jobs.parent, found.signed, device.release_key)


def admitted_of(devices: Mapping[int, Device]) -> AdmittedKeys:
    """The list of admitted keys of devices that were made together."""
    found = key_list_of(devices)()
    assert found is not None
    return found.admitted


def key_list_of(devices: Mapping[int, Device]) -> Callable[[], SignedKeys | None]:
    """What reads the list of admitted keys of devices that were made together."""
    return lambda: next(
        (read_key_list(d.release_key.parent) for d in devices.values() if d.masking is not None and d.release_key), None
    )


class Killed(BaseException):
    """What no code expects: the process ends here."""


class LocalTransport:
    """Devices answer at once, unless `misbehave` changes or swallows (None) a reply."""

    def __init__(self, devices: Mapping[int, Device], misbehave: Misbehave = lambda _, reply: reply) -> None:
        self.devices, self.misbehave = dict(devices), misbehave
        self.sent: list[Request] = []
        self.replies: dict[str, Reply] = {}
        self.largest_batch = 0

    def nodes(self) -> Mapping[int, str]:
        return dict.fromkeys(self.devices, "")

    def send(self, requests: Sequence[Request], *, seconds: float) -> list[str]:
        assert seconds > 0
        names = []
        for request in requests:
            name = str(len(self.sent))
            self.sent.append(request)
            names.append(name)
            reply = answer_of(self.devices[request.node], request.action, {**request.content, **request.shared})
            changed = self.misbehave(request, reply)
            if changed is not None:
                self.replies[name] = Reply(name, changed)
        return names

    def poll(self, requests: Iterable[str], *, most: int = 32) -> list[Reply]:
        came = [self.replies.pop(name) for name in [name for name in requests if name in self.replies][:most]]
        self.largest_batch = max(self.largest_batch, len(came))
        return came

    def requests_for(self, action: str) -> list[Request]:
        """The requests of an action."""
        return [request for request in self.sent if request.action == action]


def answer_of(device: Device, action: str, content: dict[str, bytes]) -> dict[str, bytes]:
    """What a device's ClientApp answers."""
    act = {"join": device.join, "report": device.report, "secure": device.secure, "release": device.release}[action]
    try:
        return act(content)
    except Exception as error:
        return {"failed": type(error).__name__.encode()}


class Clock:
    """Time passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Told(list[tuple[str, dict[str, Any]]]):
    """What was told of a run."""

    def __call__(self, event: str, about: Mapping[str, Any]) -> None:
        self.append((event, dict(about)))

    def events(self) -> list[str]:
        """The events, in order."""
        return [event for event, _ in self]

    def first(self, event: str) -> dict[str, Any]:
        """What was told with the first event of this name."""
        return next(about for told, about in self if told == event)


ALL_THERE = Timeouts(wait_for=12)


def fleet_of(transport: Transport, job: Job[Any], timeouts: Timeouts = ALL_THERE) -> RemoteFleet:
    """A fleet over a transport, on a clock of its own."""
    clock = Clock()
    key_list = key_list_of(getattr(transport, "devices", {}))
    return RemoteFleet(transport, job, timeouts, clock=clock, sleep=clock.sleep, key_list=key_list)


def run(
    transport: Transport, job: Job[State], plan: RoundPlan, rounds: int | None, *, timeouts: Timeouts = ALL_THERE,
    masking: SecureSettings | None = None, **more: Any,
) -> tuple[State, Told]:  # fmt: skip
    """The state after rounds over a transport, and what was told of them."""
    told = Told()
    options = RunOptions(rounds, plan, masking)
    return run_rounds(job, fleet_of(transport, job, timeouts), options, tell=told, **more).state, told


class LocalLink:
    """SuperLinks by folder whose ServerApps are threads of this process; `before` is called with each that starts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, transports: Mapping[Path, Transport]) -> None:
        self.transports, self.threads = dict(transports), list[threading.Thread]()
        self.errors: list[BaseException] = []
        monkeypatch.setattr(server_app_runs, "start_run", self.start)
        monkeypatch.setattr(server_app_runs, "run_status", self.status)
        monkeypatch.setattr(server_app_runs, "stop_run", lambda *_: None)
        for module, name, value in (
            (server_app_runs, "_POLL_SECONDS", 0.02), (server_app_runs, "_LOST_SECONDS", 0.2),
            (served_fleet, "_POLL_SECONDS", 0.01), (collector, "_POLL_SECONDS", 0.01),
            (collector, "_PRESENCE_SECONDS", 0.02),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, value)

    def start(self, folder: Folder, config: Mapping[str, str]) -> int:
        def run() -> None:
            try:
                transport = self.transports[folder.path]
                found = key_list_of(getattr(transport, "devices", {}))()
                if found is not None:
                    (folder.server / KEY_LIST).write_bytes(found.signed)
                serve_rounds(Path(config["work"]), transport, folder.server)
            except BaseException as error:
                self.errors.append(error)

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()
        return len(self.threads) - 1

    def status(self, _: Folder, run: int) -> str:
        return "running" if self.threads[run].is_alive() else "failed"

    def join(self) -> None:
        """Wait until all ServerApps have ended."""
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive()


def simulated(job: Job[State], plan: RoundPlan, rounds: int | None, clients: Any = ALL) -> State:
    """The state after rounds in which no simulated device drops out."""
    fleet = SimulatedFleet(job, Users(POPULATION, clients), dropout=0.0)
    return run_rounds(job, fleet, RunOptions(rounds, plan)).state


def same(a: UnigramState | FedAvgState, b: UnigramState | FedAvgState) -> bool:
    """Whether two states have the same bits."""
    if isinstance(a, FedAvgState):
        assert isinstance(b, FedAvgState)
        pairs = [(a.model.weights[name], b.model.weights[name]) for name in b.model.weights]
        return (a.round, a.loss, a.devices) == (b.round, b.loss, b.devices) and all(
            np.array_equal(x, y) for x, y in pairs
        )
    assert isinstance(b, UnigramState)
    return len(a.rounds) == len(b.rounds) and all(
        np.array_equal(x.index, y.index) and np.array_equal(x.weight, y.weight) and x.devices == y.devices
        for x, y in zip(a.rounds, b.rounds, strict=True)
    )
