"""Live experiments on a served federation: two models, two arms of devices, and what each arm typed with its model.

    server/experiments/NAME/experiment.json       what is compared, for which share of the devices, for how long
    server/experiments/NAME/sums-PERIOD-ARM.json  what was collected (`live_sums.py`)

An experiment is a release with two models (`releases.py`): every device finds its arm by a keyed hash of its own
secret. Then, in every period, each device of an arm reports once what it typed since its last report (`live_task.py`).
One more report after the end covers the rest. The command may be ended and started again at any time.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.storage import atomic_write, limit_from_json, limit_to_json
from fedgram.deployment.arms import LEDGERS
from fedgram.deployment.evaluation import arm_ledger
from fedgram.deployment.exchange import Exchange
from fedgram.deployment.experiment_options import ExperimentOptions
from fedgram.deployment.federation_devices import masking_of, timeouts_of
from fedgram.deployment.folder import Folder
from fedgram.deployment.live_noise import LiveNoise
from fedgram.deployment.live_result import ARMS, add_buckets, compare_arms
from fedgram.deployment.live_sums import ArmSums, BucketRules, collect_buckets, read_sums, write_sums
from fedgram.deployment.live_task import COMPARED, UNTIMED, LiveSettings, LiveTask
from fedgram.deployment.published import Releases, publish
from fedgram.deployment.releases import digest_of
from fedgram.deployment.served_fleet import ServedFleet
from fedgram.evaluate.jackknife import Estimate
from fedgram.evaluate.summary import as_dict
from fedgram.federated.fleet import Fleet
from fedgram.federated.job import Job
from fedgram.privacy.ledger import Ledger

EXPERIMENTS, ABOUT = "experiments", "experiment.json"
_DAY = 86_400.0
_PASSES = 12  # times per period that devices are looked for
_MIN_PAUSE, _SETTLE_SECONDS, _POLL_SECONDS = 30.0, 5.0, 0.2
_NOBODY_SECONDS = 60.0  # until a server that sees no device is believed


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment that has begun: its options, the files and digests of its models, its release, and its start."""

    options: ExperimentOptions
    names: tuple[str, str]
    models: tuple[str, str]
    rollout: str
    version: int
    began: float

    @property
    def periods(self) -> int:
        """Number of periods."""
        return ceil(self.options.days / self.options.period)

    @property
    def end(self) -> float:
        """When it ends, in seconds since 1970."""
        return self.began + self.options.days * _DAY

    def period(self, now: float) -> int:
        """The period at a time; after the end, one more, for what was typed since the last report."""
        if now >= self.end:
            return self.periods
        return max(0, min(int((now - self.began) / (self.options.period * _DAY)), self.periods - 1))

    @property
    def noise(self) -> LiveNoise | None:
        """What protects devices, if anything does: noise for a report per period, and one more."""
        o = self.options
        return LiveNoise(o.epsilon, o.delta, o.clip, self.periods + 1) if o.is_private else None

    def task(self, arm: int, period: int) -> LiveTask:
        """What the devices of an arm are asked in a period."""
        return LiveTask(
            LiveSettings(self.rollout, arm, period, self.models[arm], self.options.cased, self.options.clip)
        )


def begin_experiment(
    folder: Folder, control: tuple[str, bytes], treatment: tuple[str, bytes], options: ExperimentOptions, *, now: float
) -> Experiment:
    """The experiment with these models, each with a name, and options: the one that goes on, or a new one.

    A new one is published. The same experiment is not begun again before something else was published.
    """
    names, digests = (control[0], treatment[0]), (digest_of(control[1]), digest_of(treatment[1]))
    if not options.is_private and any(ledger.budget for ledger in _ledgers(folder)):
        remedy = "give an ε for the experiment (--epsilon, with --clip 2500)"
        raise InputError(folder.server, "limits what devices may reveal: it has a privacy budget", remedy=remedy)
    latest = Releases(folder.server).latest()
    for known in experiments_of(folder):
        goes_on = latest is not None and known.version == latest.version
        if goes_on and (known.models, known.options) == (digests, options):
            return known
        if goes_on and now < known.end:
            remedy = "wait for its end, or end it with: fedgram federation publish"
            raise FedgramError(f"another experiment goes on, with {' and '.join(known.names)}; {remedy}")
    rollout = hashlib.sha256(f"experiment {now} {' '.join(digests)}".encode()).hexdigest()
    half = options.share / 2
    release = publish(folder, (control, treatment), (half, half), "experiment", rollout)
    made = Experiment(options, names, digests, rollout, release.version, now)
    home = _home(folder, made)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with atomic_write(home / ABOUT) as file:
        fields = asdict(made)
        fields["options"]["epsilon"] = limit_to_json(options.epsilon)
        file.write(json.dumps(fields).encode())
    return made


def experiments_of(folder: Folder) -> list[Experiment]:
    """All experiments of a federation, in order."""
    found = [_read(path) for path in (folder.server / EXPERIMENTS).glob(f"*/{ABOUT}")]
    return sorted(found, key=lambda experiment: experiment.version)


def _read(path: Path) -> Experiment:
    try:
        f = json.loads(path.read_text("utf-8"))
        (control, treatment), (old, new) = f["names"], f["models"]
        options = ExperimentOptions(**(f["options"] | {"epsilon": limit_from_json(f["options"].get("epsilon"))}))
        return Experiment(
            options, (control, treatment), (old, new), str(f["rollout"]), int(f["version"]), float(f["began"])
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(path, "does not describe an experiment", remedy="restore it") from None


def _home(folder: Folder, experiment: Experiment) -> Path:
    return folder.server / EXPERIMENTS / f"{experiment.version:06d}"


def _sums_file(folder: Folder, experiment: Experiment, period: int, arm: int) -> Path:
    return _home(folder, experiment) / f"sums-{period:04d}-{ARMS[arm]}.json"


def measure_once(folder: Folder, experiment: Experiment, *, now: float) -> int:
    """Ask the devices of both arms that are there and were not asked yet in this period; returns how many sums."""
    period, masking = experiment.period(now), masking_of(folder)
    minimum = max(2, folder.config.masked_with) if masking else 1
    if experiment.noise:
        experiment.noise.record(_ledgers(folder), experiment.rollout[:16], period)
    made = 0
    for arm in range(len(ARMS)):
        path = _sums_file(folder, experiment, period, arm)
        job: Job[Any] = Job(experiment.task(arm, period), 0, participations=1)
        sums = read_sums(path)

        def save(current: ArmSums, path: Path = path) -> None:
            write_sums(path, current)

        rules = BucketRules(
            experiment.rollout, experiment.options.buckets, minimum, masking, experiment.noise,
            _reported(folder, experiment, 1 - arm),
        )  # fmt: skip
        work = _home(folder, experiment) / f"work-{ARMS[arm]}"
        with ServedFleet(folder, work, job, timeouts_of(folder)).working(None) as fleet:
            _wait_for_devices(folder, fleet, Exchange(work))
            made += collect_buckets(fleet, job, sums, rules, save)
    return made


def _ledgers(folder: Folder) -> list[Ledger]:
    """Those of all arms: devices of each may take part."""
    return [arm_ledger(folder, arm) for arm in LEDGERS]


def _reported(folder: Folder, experiment: Experiment, arm: int) -> frozenset[int]:
    """The devices that have reported in an arm. A device that claims to be in both counts in the first one only."""
    files = [_sums_file(folder, experiment, period, arm) for period in range(experiment.periods + 1)]
    return frozenset(device for path in files for device in read_sums(path).spent)


def _wait_for_devices(folder: Folder, fleet: Fleet, exchange: Exchange) -> None:
    """Wait until the list of devices is there and has not changed for a while."""
    c = folder.config
    seconds, began, seen = min(max(_SETTLE_SECONDS, 3 * c.poll), c.rounds.idle_seconds), time.monotonic(), ""
    since = began
    while time.monotonic() - since < seconds:
        fleet.devices(0, np.zeros(0, np.int64))  # starts a ServerApp if none works
        present = exchange.devices()
        now = f"{present.devices.tolist()} {present.online} {present.turned_away}"
        if now != seen or (not present.online and time.monotonic() - began < _NOBODY_SECONDS):
            seen, since = now, time.monotonic()
        time.sleep(_POLL_SECONDS)


def run_experiment(
    folder: Folder, experiment: Experiment, *, once: bool, on_pass: Callable[[int, int], object] = lambda *_: None,
    clock: Callable[[], float] = time.time, sleep: Callable[[float], object] = time.sleep,
) -> None:  # fmt: skip
    """Measure again and again until the experiment has ended, or once; `on_pass` is told the period and the sums."""
    pause = max(_MIN_PAUSE, experiment.options.period * _DAY / _PASSES)
    while True:
        now = clock()
        on_pass(experiment.period(now), measure_once(folder, experiment, now=now))
        if once or now >= experiment.end:
            return
        sleep(max(0.0, min(pause, experiment.end - clock())))


def experiment_result(folder: Folder, experiment: Experiment, *, now: float) -> dict[str, Any]:
    """What was found so far, with intervals; figures are in per cent, and None where there is no text yet."""
    buckets, arms = experiment.options.buckets, []
    devices, untimed, words = {}, {}, {}
    for arm, name in enumerate(ARMS):
        parts = [
            read_sums(_sums_file(folder, experiment, period, arm)) for period in range(experiment.periods + 1)
        ]  # fmt: skip
        task, total = experiment.task(arm, 0), add_buckets([part.buckets for part in parts])
        sums = [total.get(bucket, _zero(task)) for bucket in range(buckets)]
        measures = task.measures(sums)
        arms.append(measures)
        devices[name] = len({device for part in parts for device in part.spent})
        untimed[name] = max(0.0, sum(s[UNTIMED][0] for s in sums) / 2.0**task.bits)
        words[name] = round(float(measures["top1"].count.sum()))
    compared = {name: compare_arms(arms[0][name], arms[1][name]) for name in COMPARED}
    return {
        "version": experiment.version, "control": experiment.names[0], "treatment": experiment.names[1],
        "share": experiment.options.share, "days": experiment.options.days,
        "day": round(min(max(now - experiment.began, 0.0) / _DAY, experiment.options.days), 3),
        "epsilon": experiment.options.epsilon if experiment.options.is_private else None,
        "ended": now >= experiment.end, "devices": devices, "words": words, "reports_without_times": untimed,
        "levels": {n: {a: _figure(getattr(c, a), 100.0) for a in ARMS} for n, c in compared.items()},
        "change": {n: _figure(c.change) for n, c in compared.items()},
        "aa_check": {n: _figure(c.aa) for n, c in compared.items()},
    }  # fmt: skip


def _zero(task: LiveTask) -> dict[str, list[int]]:
    return {name: [0] * size for name, size in task.size.items()}


def _figure(estimate: Estimate | None, scale: float = 1.0) -> dict[str, Any] | None:
    return None if estimate is None else as_dict(estimate, scale)
