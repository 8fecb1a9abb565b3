"""Live experiments over devices in this process: who measures what, once, whatever becomes of devices and commands."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.deployment.published_models import WORDS, packed, predicted
from tests.unit.deployment.transports import MASKING, Clock, LocalLink, LocalTransport, admit_devices, fleet_of

from fedgram.core.errors import FedgramError
from fedgram.deployment import experiments
from fedgram.deployment.device import Device
from fedgram.deployment.evaluation import arm_ledger
from fedgram.deployment.experiment_options import ExperimentOptions
from fedgram.deployment.experiments import (
    Experiment,
    begin_experiment,
    experiment_result,
    measure_once,
    run_experiment,
)
from fedgram.deployment.folder import FederationConfig, RoundsConfig, make_folder
from fedgram.deployment.live_result import bucket_of
from fedgram.deployment.live_sums import ArmSums, BucketRules, collect_buckets, read_sums, write_sums
from fedgram.deployment.live_text import Window
from fedgram.deployment.published import DeviceVersions, Releases
from fedgram.deployment.rollout import Rollout
from fedgram.deployment.store import open_store, write_store
from fedgram.deployment.waiting import Timeouts
from fedgram.evaluate.comparison import evaluate
from fedgram.federated.job import Job
from fedgram.fgram.reader import open_model
from fedgram.privacy.accounting import Gaussian, compose
from fedgram.privacy.ledger import Budget, Ledger
from fedgram.text.population import Users, population_from_messages

DAY = 86_400.0
OPTIONS = ExperimentOptions(share=1.0, days=3.0, buckets=2)
CONTROL, TREATMENT = ("a.fgram", packed(0)), ("b.fgram", packed(1))


def lines(device: int, first: int, count: int) -> list[str]:
    """What a device types; the words that the models know, in some order."""
    rng = np.random.default_rng([device, first])
    known = ["we", "will", "see", "you", *WORDS[:2]]
    return [" ".join(rng.choice(known, 5)) for _ in range(count)]


class World:
    """Devices with times, twelve by default, and a federation that does not mask unless it is told to.

    A pass begins when no further device has come for `idle` seconds.
    """

    def __init__(
        self, folder: Path, masked_with: int = 0, *, timed: bool = True, count: int = 12, idle: float = 0.3
    ) -> None:
        rounds = RoundsConfig(idle_seconds=idle, deadline=300.0)
        self.home = make_folder(folder / "fed", FederationConfig(masked_with=masked_with, rounds=rounds))
        self.timed, self.folder = timed, folder
        self.typed: dict[int, list[tuple[float, str]]] = {n: [] for n in range(count)}
        self.devices: dict[int, Device] = {}
        for n in self.typed:
            own = folder / f"node-{n}"
            own.mkdir()
            (own / "secret").write_bytes(sha256(f"device {n}".encode()).digest())
            self.type(n, 0.0, 5)
            self.devices[100 + n] = Device(
                open_store(folder / f"{n}.sqlite"), own / "jobs", masking=MASKING if masked_with else None,
                release_key=self.home.release_key,
            )  # fmt: skip
        if masked_with:
            admit_devices(self.home.server, self.devices.values())

    def type(self, device: int, at: float, count: int) -> None:
        """Let a device type some messages at a time."""
        own = self.typed[device]
        own += [(at, line) for line in lines(device, len(own), count)]
        times = [time for time, _ in own] if self.timed else None
        write_store(self.folder / f"{device}.sqlite", device, [line for _, line in own], times)

    def everyone_types(self, at: float, count: int = 5) -> None:
        for device in self.typed:
            self.type(device, at, count)

    def install(self, at: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """Send the latest release to all devices."""
        monkeypatch.setattr("fedgram.deployment.installed.time", SimpleNamespace(time=lambda: at))
        clock = Clock()
        rollout = Rollout(
            LocalTransport(self.devices), Releases(self.home.server), DeviceVersions(self.home.server), clock=clock
        )
        for _ in range(5 + len(self.devices) // 8):  # some devices at a time
            rollout.refresh()
            clock.sleep(1.0)

    def arm(self, choice: int) -> list[int]:
        """The devices of an arm."""
        return [node - 100 for node, d in self.devices.items() if d.models.state().choice == choice]

    def expected(
        self, choice: int, content: bytes, since: float, upto: float, but: tuple[int, ...] = ()
    ) -> tuple[float, int]:
        """Top-1 hits and words of an arm, by an evaluation in one place."""
        rows = [
            (str(n), text, "test") for n in self.arm(choice) if n not in but
            for time, text in self.typed[n] if since <= time < upto
        ]  # fmt: skip
        path = self.folder / f"{choice}.fgram"
        path.write_bytes(content)
        people = population_from_messages(rows)
        found = evaluate(open_model(path), Users(people, people.clients()))
        return next(iter(found.models.values()))["top1"]["value"], found.words


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def link(world: World, monkeypatch: pytest.MonkeyPatch, devices: Mapping[int, Device] | None = None) -> LocalLink:
    monkeypatch.setattr(experiments, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(experiments, "_NOBODY_SECONDS", 2.0)
    monkeypatch.setattr("fedgram.deployment.collector._rollout", lambda *_: None)
    return LocalLink(monkeypatch, {world.home.path: LocalTransport(devices or world.devices)})


def begun(world: World, options: ExperimentOptions = OPTIONS, at: float = DAY) -> Experiment:
    return begin_experiment(world.home, CONTROL, TREATMENT, options, now=at)


@pytest.mark.parametrize("masked_with", [0, 3])
def test_each_arm_is_measured_on_what_it_typed_since_and_on_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masked_with: int
) -> None:
    world = World(tmp_path, masked_with, idle=1.5)  # each pass has all devices, on a busy machine too
    if masked_with:  # a bucket needs three devices: all of an arm are one bucket then
        monkeypatch.setattr("fedgram.deployment.live_sums.bucket_of", lambda *_: 0)
    experiment = begun(world)
    world.install(DAY, monkeypatch)
    control, treatment = world.arm(0), world.arm(1)
    assert len(control) + len(treatment) == 12
    assert min(len(control), len(treatment)) >= 3
    assert {predicted(world.devices[100 + n].models) for n in control} == {WORDS[0]}
    assert {predicted(world.devices[100 + n].models) for n in treatment} == {WORDS[1]}
    link(world, monkeypatch)
    world.everyone_types(1.2 * DAY)
    assert measure_once(world.home, experiment, now=1.5 * DAY)
    assert measure_once(world.home, experiment, now=1.6 * DAY) == 0  # each device once per period
    world.everyone_types(2.2 * DAY, 3)
    assert measure_once(world.home, experiment, now=2.5 * DAY)
    world.everyone_types(3.5 * DAY, 2)
    result = experiment_result(world.home, experiment, now=2.5 * DAY)
    assert not result["ended"]
    for arm, choice, content in (("control", 0, CONTROL[1]), ("treatment", 1, TREATMENT[1])):
        top1, words = world.expected(choice, content, DAY, 3 * DAY)
        assert result["words"][arm] == words
        assert result["levels"]["top1"][arm]["value"] == pytest.approx(top1, abs=1e-9)
    run_experiment(world.home, experiment, once=False, clock=lambda: 4.0 * DAY)  # the last report, after the end
    result = experiment_result(world.home, experiment, now=4.0 * DAY)
    assert result["ended"]
    assert result["devices"] == {"control": len(control), "treatment": len(treatment)}
    assert result["reports_without_times"] == {"control": 0, "treatment": 0}
    for arm, choice, content in (("control", 0, CONTROL[1]), ("treatment", 1, TREATMENT[1])):
        assert result["words"][arm] == world.expected(choice, content, DAY, 9 * DAY)[1]
    if not masked_with:
        change = result["change"]["top1"]
        assert change["value"] == pytest.approx(
            100 * (result["levels"]["top1"]["treatment"]["value"] / result["levels"]["top1"]["control"]["value"] - 1)
        )
        assert change["ci95"][0] < change["value"] < change["ci95"][1]
        assert result["aa_check"]["top1"]["ci95"] is None or len(result["aa_check"]["top1"]["ci95"]) == 2


def test_a_device_that_vanishes_and_comes_back_reports_what_it_typed_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = begun(world)
    world.install(DAY, monkeypatch)
    away = world.arm(0)[0]
    there = {node: device for node, device in world.devices.items() if node != 100 + away}
    linked = link(world, monkeypatch, there)
    world.everyone_types(1.2 * DAY)
    measure_once(world.home, experiment, now=1.5 * DAY)
    without = experiment_result(world.home, experiment, now=1.5 * DAY)
    assert without["words"]["control"] == world.expected(0, CONTROL[1], DAY, 9 * DAY, (away,))[1]
    linked.transports[world.home.path] = LocalTransport(world.devices)
    world.everyone_types(2.2 * DAY, 1)
    measure_once(world.home, experiment, now=2.5 * DAY)
    result = experiment_result(world.home, experiment, now=2.5 * DAY)
    assert result["words"]["control"] == world.expected(0, CONTROL[1], DAY, 9 * DAY)[1]


def test_stores_without_times_are_measured_whole_and_the_result_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, timed=False)
    experiment = begun(world)
    world.install(DAY, monkeypatch)
    link(world, monkeypatch)
    measure_once(world.home, experiment, now=1.5 * DAY)
    world.everyone_types(2.2 * DAY, 1)
    measure_once(world.home, experiment, now=2.5 * DAY)
    result = experiment_result(world.home, experiment, now=2.5 * DAY)
    for arm, choice, content in (("control", 0, CONTROL[1]), ("treatment", 1, TREATMENT[1])):
        assert result["words"][arm] == world.expected(choice, content, 0.0, 9 * DAY)[1]
        assert result["reports_without_times"][arm] == 2 * len(world.arm(choice))


def test_a_command_that_was_killed_finds_its_sum_or_asks_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = begun(world)
    world.install(DAY, monkeypatch)
    world.everyone_types(1.2 * DAY)
    link(world, monkeypatch)

    class KilledError(Exception):
        pass

    saved: list[int] = []

    def dying(path: Path, sums: ArmSums) -> None:
        saved.append(1)
        if len(saved) in (2, 5):  # after a sum came, before it is kept
            raise KilledError
        write_sums(path, sums)

    monkeypatch.setattr(experiments, "write_sums", dying)
    for _ in range(2):
        with pytest.raises(KilledError):
            measure_once(world.home, experiment, now=1.5 * DAY)
    measure_once(world.home, experiment, now=1.5 * DAY)
    result = experiment_result(world.home, experiment, now=1.5 * DAY)
    for arm, choice, content in (("control", 0, CONTROL[1]), ("treatment", 1, TREATMENT[1])):
        assert result["words"][arm] == world.expected(choice, content, DAY, 9 * DAY)[1]


def test_a_bucket_that_is_too_small_waits_and_loses_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = begun(world)
    world.install(DAY, monkeypatch)
    world.everyone_types(1.2 * DAY)
    job: Job[Any] = Job(experiment.task(0, 0), 0, participations=1)
    fleet = fleet_of(LocalTransport(world.devices), job, Timeouts(deadline=300.0, poll=0.01))
    sums = ArmSums()
    control = np.array(world.arm(0), np.int64)
    large = BucketRules(experiment.rollout, 2, len(control) + 1, None)
    while len(fleet.devices(0, np.zeros(0, np.int64))) < len(control):
        pass
    assert collect_buckets(fleet, job, sums, large, lambda _: None) == 0
    assert sums == ArmSums()
    assert collect_buckets(fleet, job, sums, replace(large, minimum=1), lambda _: None) == len(
        {bucket_of(experiment.rollout, device, 2) for device in control.tolist()}
    )
    assert sums.spent == control.tolist()
    assert collect_buckets(fleet, job, sums, replace(large, minimum=1), lambda _: None) == 0


def test_a_device_of_another_arm_or_experiment_does_not_measure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = begun(world)
    world.install(DAY, monkeypatch)
    device = world.devices[100 + world.arm(0)[0]]

    def ready(changed: Experiment, arm: int) -> bytes:
        job: Job[Any] = Job(changed.task(arm, 0), 0, participations=1)
        return device.join({"job": job.content})["ready"]

    assert ready(experiment, 0) == b"yes"
    assert ready(experiment, 1) == b"not ready"
    assert ready(replace(experiment, rollout="0" * 64), 0) == b"not ready"
    assert ready(replace(experiment, models=(experiment.models[1], experiment.models[0])), 0) == b"not ready"
    path = device.models.current()
    assert path is not None
    path.write_bytes(b"damaged")
    assert ready(experiment, 0) == b"not ready"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_500_devices_find_a_planted_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """People type the treatment's word more often than the control's. Some vanish, come back, and are asked twice."""
    world = World(tmp_path, count=500)
    experiment = begun(world, replace(OPTIONS, buckets=20))
    world.install(DAY, monkeypatch)
    rng = np.random.default_rng(3)
    for device, own in world.typed.items():
        chosen = rng.choice(WORDS[:2], rng.geometric(1 / 30), p=[0.4, 0.6])
        own += [(1.2 * DAY, f"see you {word}") for word in chosen]
        times, texts = zip(*own, strict=True)
        write_store(world.folder / f"{device}.sqlite", device, texts, times)
    linked = link(world, monkeypatch, {n: d for n, d in world.devices.items() if rng.random() < 0.8})
    monkeypatch.setattr(experiments, "_NOBODY_SECONDS", 60.0)  # so many devices take long to join
    measure_once(world.home, experiment, now=1.5 * DAY)
    linked.transports[world.home.path] = LocalTransport(world.devices)
    for _ in range(2):
        measure_once(world.home, experiment, now=1.6 * DAY)
    result = experiment_result(world.home, experiment, now=1.6 * DAY)
    levels = []
    for arm, (_, content) in enumerate((CONTROL, TREATMENT)):
        top1, words = world.expected(arm, content, DAY, 9 * DAY)
        name = ("control", "treatment")[arm]
        assert result["words"][name] == words
        assert result["levels"]["top1"][name]["value"] == pytest.approx(top1, abs=1e-9)
        people = population_from_messages((str(n), t, "test") for n, own in world.typed.items() for at, t in own if at)
        (tmp_path / name).mkdir()
        (tmp_path / name / "lm.fgram").write_bytes(content)
        found = evaluate(tmp_path / name / "lm.fgram", Users(people, people.clients())).models
        levels.append(next(iter(found.values()))["top1"]["value"])
    low, high = result["change"]["top1"]["ci95"]
    assert 0 < low < 100 * (levels[1] / levels[0] - 1) < high
    aa = result["aa_check"]["top1"]["ci95"]
    assert aa[0] < 0 < aa[1]
    assert sum(result["devices"].values()) == 500


class Liar(Device):
    """A device that claims to be in both arms."""

    def _not_live(self, job: Job[Any]) -> str | None:  # noqa: ARG002
        return None


def test_a_device_that_claims_both_arms_counts_in_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an A/A experiment, where it has the model of both arms; in later periods it stays in the first one."""
    experiment = begin_experiment(world.home, CONTROL, CONTROL, OPTIONS, now=DAY)
    world.install(DAY, monkeypatch)
    node, honest = 100 + world.arm(1)[0], world.devices[100 + world.arm(1)[0]]
    lying = {**world.devices, node: Liar(honest.store, honest.jobs, release_key=honest.release_key)}
    link(world, monkeypatch, lying)
    for day in (1, 2):
        world.everyone_types((day + 0.2) * DAY)
        measure_once(world.home, experiment, now=(day + 0.5) * DAY)
    result = experiment_result(world.home, experiment, now=2.5 * DAY)
    assert sum(result["devices"].values()) == 12
    assert result["devices"]["control"] == len(world.arm(0)) + 1


def test_with_an_epsilon_sums_get_noise_and_every_arm_an_entry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(OPTIONS, epsilon=50.0, clip=200.0)
    experiment = begun(world, options)
    assert begun(world, options, at=2 * DAY) == experiment  # its file has the ε
    world.install(DAY, monkeypatch)
    link(world, monkeypatch)
    world.everyone_types(1.2 * DAY)
    measure_once(world.home, experiment, now=1.5 * DAY)
    result = experiment_result(world.home, experiment, now=1.5 * DAY)
    exact = sum(world.expected(arm, content, DAY, 9 * DAY)[1] for arm, (_, content) in enumerate((CONTROL, TREATMENT)))
    assert experiment.noise is not None
    sums = 2 * OPTIONS.buckets
    assert 0 < abs(sum(result["words"].values()) - exact) < 6 * np.sqrt(sums) * experiment.noise.deviation
    for arm in ("train", "dev", "test"):
        (entry,) = arm_ledger(world.home, arm).entries
        assert (entry.name, entry.spent, entry.rounds) == ("experiment", 1, 4)
        assert compose([entry.event.after(4)], 1e-8).epsilon == pytest.approx(50.0, rel=1e-3)
    Ledger.open(world.home.server / "privacy-dev.json", Budget(60.0, 1e-8)).plan("other", Gaussian(9.0))
    with pytest.raises(FedgramError, match="it has a privacy budget; give an ε for the experiment"):
        begun(world, at=5 * DAY)


def test_an_experiment_goes_on_and_another_one_waits(world: World) -> None:
    first = begun(world)
    assert begun(world, at=2 * DAY) == first
    with pytest.raises(FedgramError, match=r"another experiment goes on, with a\.fgram and b\.fgram"):
        begin_experiment(world.home, TREATMENT, CONTROL, OPTIONS, now=2 * DAY)
    second = begin_experiment(world.home, TREATMENT, CONTROL, OPTIONS, now=5 * DAY)
    assert (first.version, second.version) == (1, 2)
    assert [first.period(day * DAY) for day in (0.5, 1.0, 1.99, 2.0, 3.5, 4.0, 99.0)] == [0, 0, 0, 1, 2, 3, 3]


def test_windows_neither_overlap_nor_leave_gaps() -> None:
    window = Window().next("r", "q1", 10)
    assert (window.after, window.upto) == (0, 10)
    assert window.next("r", "q1", 15) == window  # asked again: the same messages, byte for byte
    assert (window.next("r", "q2", 15).after, window.next("r", "q2", 15).upto) == (0, 15)  # it entered no sum
    sent = replace(window, sent=True).next("r", "q2", 15)
    assert (sent.after, sent.upto, sent.sent) == (10, 15, False)
    assert replace(sent, sent=True).next("other", "q3", 20).after == 0


def test_sums_survive_the_file(tmp_path: Path) -> None:
    sums = ArmSums(3, 1, [4, 9], 2, {5: {"count": [1, 2]}})
    write_sums(tmp_path / "sums.json", sums)
    assert read_sums(tmp_path / "sums.json") == sums
    assert read_sums(tmp_path / "none.json") == ArmSums()
    (tmp_path / "sums.json").write_text('{"number": 1}')
    with pytest.raises(FedgramError, match="does not hold the sums of an experiment"):
        read_sums(tmp_path / "sums.json")
