"""Whatever devices send, the sum is that of the accepted updates, on every kind of fleet.

Ten thousand random updates, a third of them hostile, go through each fleet of the round loop. This file decides which
must be accepted with its own implementation of the rules, and adds them up with Python's integers.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from threading import Thread
from typing import Any

import numpy as np
import pytest
from tests.reference.federated_tasks import ThreadRanks

from fedgram.core.arrays import IntArray
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.deployment.remote_fleet import RemoteFleet
from fedgram.deployment.transport import Reply, Request
from fedgram.deployment.waiting import Timeouts
from fedgram.federated import job as jobs
from fedgram.federated.batched_task import Member
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.counting import CountingTask, Sums
from fedgram.federated.fleet import Fleet
from fedgram.federated.intake import Intake
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.shards import ShardedFleet
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.task import Total, Update
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.federated.wire import update_to_bytes
from fedgram.text.population import ClientDataset, Population, Users

DEVICES, BITS = 10_000, 12
SIZE = {"a": 4, "b": 2}
WEIGHT, ENTRY, NORM_A, NORM_B = 3.0, 6.0, 5.0, 7.0  # L2 norm of a at most 5 times the weight; L1 norm of b at most 7


class Scripted(CountingTask):
    """A task whose devices send what the script says."""

    name, bits, size = "scripted", BITS, SIZE
    bounds = UpdateBounds(
        WEIGHT, (NormLimit(("a",), NORM_A, by_weight=True), NormLimit(("b",), NORM_B, order=1)), entry=ENTRY
    )

    def settings(self) -> Record:
        return Record()

    @classmethod
    def from_settings(cls, _: Record) -> "Scripted":
        return cls()

    def encode(self, words: Sequence[str]) -> IntArray:
        return np.zeros(len(words), np.int32)

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:  # noqa: ARG002
        return script(int(rng.names[-1]))

    def server_update(self, state: Sums, total: Total) -> Sums:
        return super().server_update(state, total)


class ScriptedInStacks(Scripted):
    """The same task, summed in stacks as on a GPU: updates are checked by their measures, and added as a stack."""

    def batches(self, members: Sequence[Member]) -> list[Sequence[Member]]:
        return [members[k : k + 70] for k in range(0, len(members), 70)]

    def client_updates(self, broadcast: Record, batches: Sequence[Sequence[Member]], intake: Intake) -> None:
        for batch in batches:
            total, accepted = Total.zero(SIZE, BITS), []
            for member in batch:
                update = self.client_update(broadcast, member.data, member.rng)
                if {n: len(v) for n, v in update.values.items()} != SIZE:
                    assert intake.offer(member.device, update)  # a stack has one shape; other shapes are offered alone
                elif intake.judge(member.device, self.bounds.measure(update.values, update.weight)):
                    accepted.append(member.device)
                    total.add(update, self.bounds)
            found = self.bounds.measure({n: total.array(n) for n in SIZE}, total.weight * 2.0**-BITS)
            intake.add_stack(accepted, total, found)
            for member in batch[:3]:  # replays
                assert intake.offer(member.device, script(member.device)) is not None


def _honest(rng: np.random.Generator) -> tuple[dict[str, Any], float]:
    weight = float(rng.choice([0.0, 0.5, 1.0, WEIGHT]))
    if weight == 0.0:
        return {n: np.zeros(k) for n, k in SIZE.items()}, weight
    a, b = rng.normal(size=4), rng.normal(size=2)
    a *= min(1.0, ENTRY / np.abs(a).max()) * min(1.0, NORM_A * weight / np.linalg.norm(a)) * rng.random()
    return {"a": a, "b": b * min(1.0, NORM_B / np.abs(b).sum())}, weight


def _hostile(rng: np.random.Generator) -> tuple[dict[str, Any], float]:
    arrays, weight = _honest(rng)
    weight = weight or 1.0
    place = int(rng.integers(0, 4))
    match int(rng.integers(0, 12)):
        case 0:
            arrays["a"][place] = math.nan
        case 1:
            arrays["a"][place] = math.inf
        case 2:
            arrays["b"][0] = -math.inf
        case 3:
            arrays["a"][place] = 10.0 ** rng.uniform(1, 300) * rng.choice([-1, 1])
        case 4:
            arrays["b"][:] = NORM_B * (1 + 10.0 ** -rng.uniform(0, 4))
        case 5:
            weight = float(rng.choice([-1.0, -1e-9, math.nan, math.inf, -math.inf, WEIGHT + 1e-6, 1e30]))
        case 6:
            weight, arrays["a"][place] = 0.0, 1e-3  # values without weight
        case 7:
            arrays["a"] = np.zeros(int(rng.choice([0, 3, 5, 1000])))
        case 8:
            arrays["c"] = np.zeros(2)
        case 9:
            del arrays["b"]
        case 10:
            arrays["a"] = np.full(4, (NORM_A * weight + 1e-3) / 2)
        case _:
            arrays["a"][:] = ENTRY + 1e-6
    return arrays, weight


@cache
def script(device: int) -> Update:
    """What a device sends; every third device is hostile."""
    rng = np.random.default_rng(device)
    return Update.dense(*(_hostile(rng) if device % 3 == 0 else _honest(rng)))


def is_acceptable(update: Update) -> bool:
    """An independent implementation of the rules, entry by entry."""
    values = {name: v.tolist() for name, v in update.values.items()}
    if {name: len(v) for name, v in values.items()} != SIZE or not 0 <= update.weight <= WEIGHT:
        return False
    numbers = [*values["a"], *values["b"]]
    if any(not math.isfinite(x) or abs(x) > ENTRY for x in numbers) or (update.weight == 0 and any(numbers)):
        return False
    within = 1 + 1e-6
    return math.hypot(*values["a"]) <= NORM_A * update.weight * within and sum(map(abs, values["b"])) <= NORM_B * within


def accepted_sum(devices: Iterable[int]) -> dict[str, list[int]]:
    sums = {name: [0] * n for name, n in SIZE.items()}
    for update in filter(is_acceptable, map(script, devices)):
        for name, values in update.values.items():
            sums[name] = [s + round(float(v) * 2**BITS) for s, v in zip(sums[name], values, strict=True)]
    return sums


@cache
def people(count: int) -> Population:
    """Users with one word each; their text does not matter."""
    return Population(
        tuple(f"{k:06d}" for k in range(count)), np.zeros(count, np.uint8), np.arange(count + 1, dtype=np.int64),
        np.arange(count + 1, dtype=np.int64), np.zeros(count, np.int32), ("w",),
    )  # fmt: skip


class ScriptedTransport:
    """Nodes that send the script's updates as bytes, some of them damaged; many replies are repeated or unrequested."""

    def __init__(self, devices: Iterable[int]) -> None:
        self._nodes = {100_000 + device: device for device in devices}
        self._sent: dict[str, Request] = {}
        self._heard: list[Reply] = []

    def nodes(self) -> Mapping[int, str]:
        return dict.fromkeys(self._nodes, "")

    def send(self, requests: Sequence[Request], *, seconds: float) -> list[str]:
        assert seconds > 0
        names = [str(len(self._sent) + k) for k in range(len(requests))]
        self._sent |= dict(zip(names, requests, strict=True))
        return names

    def poll(self, requests: Iterable[str], *, most: int = 32) -> list[Reply]:  # noqa: ARG002
        came = [self._answer(name) for name in requests]
        self._heard += came[:2]
        return [*came, *came[:1], Reply("nobody asked", {"update": b"x"}), *self._heard[-2:]]

    def _answer(self, name: str) -> Reply:
        request = self._sent[name]
        device = self._nodes[request.node]
        if request.action == "join":
            return Reply(name, {"device": str(device).encode(), "ready": b"yes"})
        report = update_to_bytes(script(device))
        if device % 3 == 0 and device % 5 == 0:
            report = report[: len(report) // 2] if device % 2 else report.replace(b"values", b"valuez")
        return Reply(name, {"update": report})


def _simulated(job: Job[Any], count: int, **options: Any) -> Fleet:
    return SimulatedFleet(job, people(count).users(), dropout=0.0, **options)


def _sharded(job: Job[Any], count: int) -> Fleet:
    clients = people(count).clients()
    parts = [Users(people(count), part) for part in (clients[: count // 3], clients[count // 3 :])]
    return ShardedFleet([SimulatedFleet(job, part, dropout=0.0, batched=False) for part in parts])


def _remote(job: Job[Any], count: int) -> Fleet:
    return RemoteFleet(ScriptedTransport(range(count)), job, Timeouts(batch=1000, idle_seconds=0, poll=1e-3))


FLEETS: dict[str, Callable[[Job[Any], int], Fleet]] = {
    "one by one": lambda job, n: _simulated(job, n, batched=False),
    "through bytes": lambda job, n: _simulated(job, n, batched=False, as_bytes=True),
    "in stacks": _simulated,
    "over two servers": _sharded,
    "over a transport": _remote,
}
PLAN = RoundPlan(1000, 1.0)


def collected(task: Scripted, fleet: Callable[[Job[Any], int], Fleet], count: int, options: RunOptions) -> Any:
    job: Job[Any] = Job(task, seed=1, participations=1)
    return run_rounds(job, fleet(job, count), options)


def check(run: Any, count: int) -> None:
    assert {name: sums.tolist() for name, sums in run.state.items()} == accepted_sum(range(count))
    assert run.progress.tally.reports == sum(is_acceptable(script(d)) for d in range(count))


@pytest.mark.parametrize("name", FLEETS)
def test_the_sum_is_that_of_the_accepted_updates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(jobs._OWN, "scripted", f"{__name__}:Scripted")
    task = ScriptedInStacks() if name == "in stacks" else Scripted()
    run = collected(task, FLEETS[name], DEVICES, RunOptions(None, PLAN))
    check(run, DEVICES)
    hostile = sum(not is_acceptable(script(d)) for d in range(DEVICES))
    assert run.progress.tally.refused.total() >= hostile > DEVICES / 4


def test_ranks_have_the_same_sum() -> None:
    together, runs = ThreadRanks(2), [None, None]

    def work(rank: int) -> None:
        def fleet(job: Job[Any], count: int) -> Fleet:
            return _simulated(job, count, ranks=together.all[rank])

        runs[rank] = collected(ScriptedInStacks(), fleet, DEVICES, RunOptions(None, PLAN))

    threads = [Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in runs:
        check(run, DEVICES)


@pytest.mark.parametrize("count", [400, pytest.param(DEVICES, marks=pytest.mark.slow)])
def test_a_masked_sum_is_that_of_the_accepted_updates(count: int) -> None:
    """A device checks its own update, and leaves the round if the update is not acceptable."""
    options = RunOptions(None, RoundPlan(20, 1.0, attempts=50), SecureSettings(min_devices=2, majority=0.5))
    run = collected(Scripted(), FLEETS["one by one"], count, options)
    left_out = count - run.progress.tally.reports - sum(not is_acceptable(script(d)) for d in range(count))
    assert 0 <= left_out < 20  # the last devices are too few to be masked
    if not left_out:
        check(run, count)
    taken = [d for d in run.progress.device.tolist() if is_acceptable(script(d))]
    assert {name: sums.tolist() for name, sums in run.state.items()} == accepted_sum(taken)
