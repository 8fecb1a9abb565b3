"""The engine equals the readable specification, for every cell, and does not depend on chunks or on who trains them.

A training follows its dev users: it stops in time, resumes with the same bits, and says so if it led nowhere.
"""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import fed_avg
from tests.reference.federated_tasks import ThreadRanks

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.storage import Record
from fedgram.federated.averaging import ServerStep
from fedgram.federated.batched_task import Member
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Job
from fedgram.federated.rounds import GaveUpError, Run, RunOptions, run_rounds
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.task import device_stream
from fedgram.federated.validation import Reason
from fedgram.neural.cell_registry import BUILT_IN_CELLS
from fedgram.neural.local_training import LocalResult, LocalTraining, train_clients
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import Coding, as_arrays, as_tensors
from fedgram.text.population import ClientDataset, Population, population_from_messages
from fedgram.text.vocabulary import Vocabulary
from fedgram.training import fedavg_engine as engine
from fedgram.training.fedavg_engine import chunk_size
from fedgram.training.fedavg_task import FedAvgState, FederatedAveraging
from fedgram.training.plan import Schedule, TrainingPlan

LETTERS = "abcdefghij"
WORDS = Vocabulary.of(LETTERS)
LIMITS = {"cifg": 0.04, "lstm": 0.034, "gru": 0.09}  # on the norms of changes: these hold some of them
REMEDY = "lower the clients' or the server's learning rate"


def people(seed: int, clients: int) -> Population:
    """Users with between no and many sentences; one writes only words that nobody knows."""
    rng = np.random.default_rng(seed)
    messages: list[tuple[str, str, str | None]] = []
    for client in range(clients):
        for _ in range(int(rng.integers(1, 12)) if client else 30):
            words = rng.choice(list(LETTERS) if client != 1 else ["zz"], int(rng.integers(1, 14)))
            messages.append((f"u{client:02d}", " ".join(words), "train"))
    return population_from_messages(messages)


def a_task(cell: str = "cifg", precision: type = np.float32, **plan: Any) -> FederatedAveraging:
    shape = ModelShape(len(WORDS), 10, 15, layers=2, cell=cell, groups=5 if cell == "lstm" else 1)
    settings: dict[str, Any] = {"rows": 2, "length": 9, "max_sentences": 10, **plan}
    start: dict[str, Any] = {n: w.astype(precision) for n, w in as_arrays(initial_weights(shape, seed=2)).items()}
    return FederatedAveraging(shape, start, TrainingPlan(**settings), Coding(WORDS, WORDS))


def members_of(task: FederatedAveraging, population: Population) -> list[Member]:
    """All users as the devices of round 1."""
    codes = task.encode(population.words)
    return [Member(c, population.load(c, codes), device_stream(5, 1, c)) for c in range(len(population))]


def change_norm_of(task: FederatedAveraging, member: Member) -> float:
    """How long a device's change is, as it sends it."""
    update = task.client_update(task.broadcast(task.init()), member.data, member.rng)
    change = [update.values[name] / update.weight for name in task.shape.sizes()]
    return round(float(np.linalg.norm(np.concatenate(change))), 6)


def run(
    task: FederatedAveraging, population: Population, *, rounds: int = 1, plan: RoundPlan | None = None,
    masking: SecureSettings | None = None, **fleet: Any,
) -> Run[FedAvgState]:  # fmt: skip
    job = Job(task, 5)
    devices = SimulatedFleet(job, population.users(), **{"dropout": 0.0, **fleet})
    return run_rounds(job, devices, RunOptions(rounds, plan or RoundPlan(6, 1.3), masking))


@pytest.fixture
def chunks_of_devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many devices of `a_task` train together."""

    def set_size(devices: int) -> None:
        monkeypatch.setattr(engine, "_CPU_STACK", devices * a_task().shape.parameters())

    return set_size


def same(one: Run[FedAvgState], other: Run[FedAvgState]) -> bool:
    a, b = one.state, other.state
    weights = all(np.array_equal(w, b.model.weights[name]) for name, w in a.model.weights.items())
    return weights and (a.loss, a.targets, a.devices) == (b.loss, b.targets, b.devices)


@pytest.mark.parametrize(("precision", "tolerance", "limited"), [(np.float32, 1e-4, False), (np.float64, 1e-6, True)])
@pytest.mark.parametrize("cell", BUILT_IN_CELLS)
def test_the_engine_is_the_specification(
    cell: str, precision: type, tolerance: float, limited: bool, chunks_of_devices: Callable[[int], None]
) -> None:
    """Three rounds; small steps, since with large ones training is chaotic and magnifies rounding."""
    chunks_of_devices(4)
    population = people(0, 9)
    plan: dict[str, Any] = {"epochs": 2, "local": LocalTraining(0.01), "max_sentences": 5}
    task = a_task(cell, precision, update_norm=LIMITS[cell] if limited else math.inf, **plan)
    found = run(task, population, rounds=3).state.model.weights
    lengths = {change_norm_of(task, member) for member in members_of(task, population) if member.device != 1}
    assert not limited or min(lengths) < LIMITS[cell] == max(lengths)
    texts = {m.device: m.data.sentences for m in members_of(task, population)}
    start = as_tensors(task.start)
    expected = fed_avg.fed_avg(task.shape, start, texts, task.plan, devices=6, rounds=3, seed=5)
    largest = max(float(weight.abs().max()) for weight in expected.values())
    for name, weight in expected.items():
        assert np.abs(found[name] - weight.numpy()).max() < tolerance * largest, name
        assert not np.array_equal(found[name], task.start[name])


@pytest.mark.parametrize("chunk", [1, 3, 8])
@pytest.mark.parametrize(
    "plan",
    [
        {"update_norm": 0.05},
        {"update_norm": math.inf, "weighting": "uniform"},
        {"local": LocalTraining(0.5, dropout=0.3), "average": 0.9},
    ],
)
@pytest.mark.parametrize("cell", BUILT_IN_CELLS)
def test_the_engine_is_the_task_device_by_device(
    cell: str, plan: dict[str, Any], chunk: int, chunks_of_devices: Callable[[int], None]
) -> None:
    """Bit for bit, whatever trains together."""
    chunks_of_devices(chunk)
    population, task = people(1, 8), a_task(cell, **plan)
    assert chunk_size(task) == (chunk if cell == "cifg" else 1)
    together, alone = (run(task, population, rounds=2, plan=RoundPlan(8, 1.3), batched=b) for b in (True, False))
    assert same(together, alone)
    assert together.progress.tally.fields() == alone.progress.tally.fields()
    assert together.state.targets > 100


def test_devices_with_more_batches_come_first_each_with_its_own_text_and_weight() -> None:
    task = a_task()
    members = [m for m in members_of(task, people(6, 9)) if m.device != 1]
    members.sort(key=lambda m: len(m.data.sentences.values))  # the other way round
    batches = task.pack([m.data for m in members], [m.rng for m in members])
    weight = np.arange(1.0, len(members) + 1)
    chunk = engine._ordered(tuple(m.device for m in members), batches, weight, for_gpu=False)
    assert chunk.batches is not None
    steps = chunk.batches.steps.tolist()
    assert steps == sorted(steps, reverse=True) != batches.steps.tolist()
    before = {m.device: i for i, m in enumerate(members)}
    for i, device in enumerate(chunk.devices):
        was = before[device]
        assert chunk.weight[i] == weight[was]
        assert (steps[i], chunk.targets[i]) == (batches.steps[was], batches.asked[was])
        assert np.array_equal(chunk.batches.words[i], batches.words[was])
        assert np.array_equal(chunk.batches.targets[i], batches.targets[was])


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_number_of_workers_changes_no_bit(ranks: int, chunks_of_devices: Callable[[int], None]) -> None:
    chunks_of_devices(2)
    population, task = people(2, 9), a_task()
    alone = run(task, population, rounds=2, dropout=0.1)
    with ThreadPoolExecutor(ranks) as pool:
        shared = list(pool.map(lambda r: run(task, population, rounds=2, dropout=0.1, ranks=r), ThreadRanks(ranks).all))
    assert all(same(alone, one) for one in shared)


def test_a_limit_holds_each_devices_change() -> None:
    task = a_task(update_norm=0.01, weighting="uniform", server=ServerStep("momentum", 1.0, 0.0))
    after = run(task, people(3, 5)).state.model.weights
    norm = np.sqrt(sum(float(((after[n] - task.start[n]) ** 2).sum()) for n in after))
    assert 0 < norm <= 0.01 * (1 + 1e-5)
    assert TrainingPlan().update_norm == 1.0  # there is a limit unless told


def test_devices_that_diverge_are_refused_and_counted() -> None:
    with pytest.raises(
        GaveUpError, match=r"round 1 was abandoned 5 times, .*: 0 of at least 1 reports \(6 not finite\)"
    ):
        run(a_task(local=LocalTraining(1e30)), people(4, 6))


def test_one_that_diverges_does_not_spoil_the_others(
    monkeypatch: pytest.MonkeyPatch, chunks_of_devices: Callable[[int], None]
) -> None:
    chunks_of_devices(3)
    population, task = people(4, 6), a_task()
    spoilt: list[int] = []

    def spoil(*arguments: Any) -> LocalResult:
        trained = train_clients(*arguments)
        trained.weights["output_bias"][0, 3] = math.nan
        spoilt.append(1)
        return trained

    expected = run(task, population)
    monkeypatch.setattr(engine, "train_clients", spoil)
    found = run(task, population)
    assert found.progress.tally.refused == {str(Reason.NOT_FINITE): 2} == {str(Reason.NOT_FINITE): len(spoilt)}
    assert (expected.state.devices, found.state.devices, found.progress.tally.reports) == (6, 4, 4)
    assert all(np.isfinite(w).all() for w in found.state.model.weights.values())
    assert not same(expected, found)


@pytest.mark.parametrize("plan", [{}, {"update_norm": 0.05, "weighting": "uniform"}])
def test_a_secure_round_is_the_plain_one_bit_for_bit(plan: dict[str, Any]) -> None:
    population, task = people(5, 9), a_task(**plan)
    cohort = RoundPlan(6, 1.4)
    plain, masked = (
        run(task, population, plan=cohort, masking=masking, dropout=0.2) for masking in (None, SecureSettings())
    )
    tally = masked.progress.tally
    assert tally.failed["dropped out"] + tally.late >= 2
    assert same(plain, masked)
    assert np.array_equal(plain.progress.device, masked.progress.device)
    assert not tally.refused
    assert not masked.progress.abandoned
    assert tally.bytes_received > 7 * tally.reports * sum(task.size.values())


def test_devices_that_diverge_leave_a_secure_round() -> None:
    with pytest.raises(GaveUpError, match="0 devices sent their vectors") as error:
        run(a_task(local=LocalTraining(1e30)), people(4, 6), masking=SecureSettings())
    assert error.value.tally.refused == {str(Reason.NOT_FINITE): 6 * 5}


def test_devices_without_words_are_skipped_and_counted() -> None:
    population = population_from_messages([("a", "a b", "train"), ("b", "!!", "train"), ("c", "c", "train")])
    for batched in (True, False):
        found = run(a_task(), population, plan=RoundPlan(3, 1.0), batched=batched)
        assert (found.progress.tally.reports, found.progress.tally.empty) == (3, 1)
        assert found.state.targets == 5
    silent = run(a_task(), population_from_messages([("b", "!!", "train")]), plan=RoundPlan(1, 1.0))
    assert all(np.array_equal(w, a_task().start[name]) for name, w in silent.state.model.weights.items())
    assert (silent.state.round, silent.state.targets, math.isnan(silent.state.loss)) == (1, 0, True)


def test_a_broadcast_that_is_not_this_networks_is_refused() -> None:
    task = a_task()
    data = ClientDataset("x", members_of(task, people(0, 3))[2].data.sentences)
    weights = dict(task.start)
    first = next(iter(weights))
    for fields, arrays, match in (
        ({}, weights, "names no round"),
        ({"round": 0}, weights, "names no round"),
        ({"round": "1"}, weights, "names no round"),
        ({"round": 1}, {}, "shape"),
        ({"round": 1}, {**weights, first: weights[first][1:]}, "shape"),
        ({"round": 1}, {**weights, first: weights[first] * np.nan}, "not finite"),
    ):  # fmt: skip
        with pytest.raises(InvariantError, match=match):
            task.client_update(Record(fields, arrays), data, device_stream(0, 1, 0))


STACKS = """
import math
import numpy as np, torch
from tests.unit.training.test_fedavg_engine import a_task, members_of, people
from fedgram.training import fedavg_engine as engine
from fedgram.training.fedavg_device import LOSS, TARGETS
from fedgram.federated.intake import Intake
from fedgram.neural.gpu import kernels as gpu_kernels
from fedgram.neural.network import as_tensors

rng = np.random.default_rng(0)
for clients, size in ((1, 1), (2, 40), (5, 7), (4, 300)):
    stack, start = rng.normal(size=(clients, size)).astype(np.float32), rng.normal(size=size).astype(np.float32)
    factor = rng.random(clients) * (np.arange(clients) != 1)
    stack[factor == 0] = np.nan
    totals = []
    for order in (np.arange(clients), np.arange(clients)[::-1].copy()):
        total = torch.zeros(size, dtype=torch.int64)
        parts = torch.from_numpy(stack[order]), torch.from_numpy(start), torch.from_numpy(factor[order])
        gpu_kernels.add_changes(total, *parts, 2.0**24)
        totals.append(total.numpy())
    assert np.array_equal(totals[0], totals[1])
    expected = (factor[factor > 0, None] * (stack[factor > 0] - start)).sum(axis=0)
    np.testing.assert_allclose(totals[0] / 2.0**24, expected, atol=1e-6)

empty = torch.empty
torch.empty = lambda *size, pin_memory, **kind: empty(*size, **kind)  # without a GPU no memory can be pinned for it
torch.cuda.current_stream = lambda: None
gpu_kernels.change_squares = lambda stack, start: (stack - start).double().square().sum(1)  # slow here, tested alone
engine._CPU_STACK = 5 * a_task().shape.parameters()
clipped = {"update_norm": 0.05, "weighting": "uniform"}
for plan in ({}, clipped, {**clipped, "adaptive_clip": True}, {"update_norm": math.inf}):
    task = a_task(**plan)
    clip = 0.2 if "adaptive_clip" in plan else task.plan.update_norm
    start = as_tensors(task.start)
    one_by_one, stacked = Intake(task, range(7)), Intake(task, range(7))
    gpu = engine._GpuSum(task, start, clip)
    for chunk in engine.chunks_of(task, members_of(task, people(0, 8))):
        trained = engine.train_clients(task.shape, start, chunk.batches, task.plan.local_in(1))
        trained.weights["layer0.bias"][1, 2] = math.nan
        trained.loss[2] = math.inf if plan else 1e9
        engine._offer_each(task, start, clip, chunk, trained, one_by_one)
        gpu.add(chunk, trained, stacked)
    gpu.finish(stacked)
    assert stacked.refused == one_by_one.refused and stacked.refused.total() >= 3, stacked.refused
    assert stacked.counted == one_by_one.counted and len(stacked.counted) >= 3
    a, b = one_by_one.total, stacked.total
    assert (a.weight, a.devices) == (b.weight, b.devices)
    for name in a.arrays:
        np.testing.assert_allclose(b.array(name), a.array(name), rtol=1e-5, atol=1e-5)
    assert a.arrays[TARGETS] == b.arrays[TARGETS] and np.isfinite(a.array(LOSS)).all()
"""


def test_the_sum_of_a_stack_is_that_of_its_devices() -> None:
    """As on a GPU, in Triton's interpreter: the same are let through, and what is left out leaves no trace."""
    environment = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", STACKS], env=environment, capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_small_networks_train_in_small_stacks_on_a_cpu() -> None:
    assert chunk_size(a_task()) > 4
    shape = ModelShape(30_000, 96, 670)
    large = FederatedAveraging(shape, {n: np.zeros(s, np.float32) for n, s in shape.sizes().items()}, TrainingPlan())
    assert chunk_size(large) == 1


def test_schedules() -> None:
    cosine = Schedule("cosine", rounds=10, warmup=2, last=0.1)
    factors = [cosine.factor(n) for n in range(1, 12)]
    assert factors[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert factors == sorted(factors[:3]) + sorted(factors[3:], reverse=True)
    assert factors[-1] == pytest.approx(0.1)
    assert Schedule("linear", rounds=4).factor(3) == 0.5
    assert Schedule().factor(99) == 1.0
    with pytest.raises(FedgramError, match="unknown schedule"):
        Schedule("saw")


@pytest.mark.parametrize("plan", [{"rows": 0}, {"epochs": 0}, {"weighting": "x"}, {"update_norm": 0.0}])
def test_plans_that_make_no_sense_are_refused(plan: dict[str, Any]) -> None:
    with pytest.raises(FedgramError):
        a_task(**plan)


@pytest.mark.parametrize("update_norm", [1.0, 0.25, math.inf])
def test_a_plan_is_its_fields(update_norm: float) -> None:
    plan = TrainingPlan(LocalTraining(0.1, 2.0), 3, update_norm=update_norm, server=ServerStep("adam", 0.01))
    assert TrainingPlan.from_fields(json.loads(json.dumps(plan.fields()))) == plan


def test_weights_of_another_shape_are_no_start() -> None:
    task = a_task()
    with pytest.raises(FedgramError, match="shape"):
        FederatedAveraging(ModelShape(len(WORDS), 10, 16), task.start, task.plan)
    with pytest.raises(FedgramError, match="coding"):
        FederatedAveraging(task.shape, task.start, task.plan).encode(["a"])
