"""The engine equals the readable specification, for every cell, and does not depend on chunks or on who trains them."""

from typing import Any

import numpy as np
import pytest
import torch
from examples import fed_avg
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import FedgramError
from fedgram.fedavg.engine import add_changes, chunk_size, plan_round, prefetched, train_round
from fedgram.fedavg.task import FedAvgState, FederatedAveraging, Schedule, TrainingPlan
from fedgram.federated.averaging import ServerStep
from fedgram.federated.cohort import CohortPlan, choose_cohort
from fedgram.federated.driver import Devices, Tally, collect_round
from fedgram.federated.secure.settings import AbandonedRoundError, SecureSettings
from fedgram.federated.validation import Reason
from fedgram.neural.cell import GATES
from fedgram.neural.local_training import LocalTraining
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import as_arrays, as_tensors
from fedgram.neural.ranks import Ranks
from fedgram.text.population import population_from_messages
from fedgram.text.vocabulary import Vocabulary

CPU = torch.device("cpu")
LETTERS = "abcdefghij"
WORDS = Vocabulary.of(LETTERS)


def people(seed: int, clients: int) -> Devices:
    """Users with between no and many sentences; one writes only words that nobody knows."""
    rng = np.random.default_rng(seed)
    messages = []
    for client in range(clients):
        for _ in range(int(rng.integers(1, 12)) if client else 30):
            words = rng.choice(list(LETTERS) if client != 1 else ["zz"], int(rng.integers(1, 14)))
            messages.append((f"u{client:02d}", " ".join(words), "train"))
    population = population_from_messages(messages)
    return Devices(population, population.word_ids(WORDS), population.clients("train"))


def a_task(cell: str = "cifg", precision: type = np.float32, **plan: Any) -> FederatedAveraging:
    shape = ModelShape(len(WORDS), 10, 15, layers=2, cell=cell, groups=5 if cell == "lstm" else 1)
    settings: dict[str, Any] = {"rows": 2, "length": 9, "max_sentences": 10, **plan}
    start: dict[str, Any] = {n: w.astype(precision) for n, w in as_arrays(initial_weights(shape, seed=2)).items()}
    return FederatedAveraging(shape, start, TrainingPlan(**settings))


def run(task: FederatedAveraging, devices: Devices, *, rounds: int, chunk: int, ranks: int = 1) -> FedAvgState:
    """Some rounds, the chunks shared by some workers, one after the other."""
    state = task.init()
    for number in range(1, rounds + 1):
        cohort = choose_cohort(CohortPlan(6, 1.3, 0.1), devices.clients, seed=5, round_number=number)
        chunks, _ = plan_round(task, devices, cohort, seed=5, round_number=number, chunk=chunk)
        parts = [train_round(task, state, chunks[r::ranks], device=CPU, ranks=Ranks())[0] for r in range(ranks)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        state = task.server_update(state, total)
    return state


@pytest.mark.parametrize(("precision", "tolerance"), [(np.float32, 1e-4), (np.float64, 1e-6)])
@pytest.mark.parametrize("cell", GATES)
def test_the_engine_is_the_specification(cell: str, precision: type, tolerance: float) -> None:
    """Three rounds; small steps, since with large ones training is chaotic and magnifies rounding."""
    devices, task = people(0, 9), a_task(cell, precision, epochs=2, local=LocalTraining(0.01))
    state = run(task, devices, rounds=3, chunk=4)
    expected = fed_avg.fed_avg(task.shape, as_tensors(task.start), devices, task.plan, CohortPlan(6, 1.3, 0.1), 3, 5)
    largest = max(float(weight.abs().max()) for weight in expected.values())
    for name, weight in expected.items():
        assert np.abs(state.model.weights[name] - weight.numpy()).max() < tolerance * largest, name
        assert not np.array_equal(state.model.weights[name], task.start[name])


@pytest.mark.parametrize("plan", [{}, {"update_norm": 0.05}, {"weighting": "uniform"}])
def test_the_engine_is_the_task_device_by_device(plan: dict[str, Any]) -> None:
    """In double precision: at the paper's rate a step magnifies rounding, and that differs between processors."""
    devices, task = people(1, 8), a_task(precision=np.float64, **plan)
    state = task.init()
    cohort = choose_cohort(CohortPlan(8, 1.0, 0.0), devices.clients, seed=1, round_number=1)
    chunks, report = plan_round(task, devices, cohort, seed=1, round_number=1, chunk=3)
    total, refused = train_round(task, state, chunks, device=CPU, ranks=Ranks())
    alone = collect_round(task, state, devices, cohort, seed=1, round_number=1)
    assert (total.weight, report.reports, report.empty, refused) == (alone.weight, 8, 0, 0)
    moved = task.server_update(state, total)
    one_by_one = task.server_update(state, alone)
    for name, weight in moved.model.weights.items():
        np.testing.assert_allclose(weight, one_by_one.model.weights[name], atol=2e-6)
    assert moved.loss == pytest.approx(one_by_one.loss, rel=1e-5)
    assert moved.targets == one_by_one.targets == report.targets


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_number_of_workers_changes_no_bit(ranks: int) -> None:
    devices, task = people(2, 9), a_task()
    alone, shared = (run(task, devices, rounds=2, chunk=2, ranks=r) for r in (1, ranks))
    for name, weight in alone.model.weights.items():
        assert np.array_equal(weight, shared.model.weights[name])


def test_a_limit_holds_each_devices_change() -> None:
    devices, task = people(3, 5), a_task(update_norm=0.01, weighting="uniform", server=ServerStep("momentum", 1.0, 0.0))
    after = run(task, devices, rounds=1, chunk=5).model.weights
    norm = np.sqrt(sum(float(((after[n] - task.start[n]) ** 2).sum()) for n in after))
    assert 0 < norm <= 0.01 * (1 + 1e-5)


def test_a_device_that_diverges_is_refused_and_counted() -> None:
    devices, task = people(4, 6), a_task(local=LocalTraining(1e30))
    cohort = choose_cohort(CohortPlan(6, 1.0, 0.0), devices.clients, seed=1, round_number=1)
    chunks, _ = plan_round(task, devices, cohort, seed=1, round_number=1, chunk=6)
    total, refused = train_round(task, task.init(), chunks, device=CPU, ranks=Ranks())
    assert refused == 6
    assert total.weight == total.devices == 0
    state = task.server_update(task.init(), total)
    assert state.round == 1
    assert all(np.array_equal(w, task.start[n]) for n, w in state.model.weights.items())


@pytest.mark.parametrize("plan", [{}, {"update_norm": 0.05, "weighting": "uniform"}])
def test_a_secure_round_is_the_plain_one_bit_for_bit(plan: dict[str, Any]) -> None:
    devices, task, tally = people(5, 9), a_task(**plan), Tally()
    cohort = choose_cohort(CohortPlan(6, 1.4, 0.1), devices.clients, seed=1, round_number=1)
    assert len(cohort.missing) >= 2
    plain, masked = (
        collect_round(task, task.init(), devices, cohort, seed=1, round_number=1, secure=secure, tally=tally)
        for secure in (None, SecureSettings())
    )
    assert (masked.weight, masked.devices) == (plain.weight, plain.devices) == (plain.weight, len(cohort.reporting))
    for name, array in plain.arrays.items():
        assert np.array_equal(masked.arrays[name], array)
    assert not tally.refused
    assert not tally.abandoned
    assert tally.traffic.up > 7 * len(cohort.reporting) * sum(task.size.values())


def test_a_device_that_diverges_leaves_a_secure_round() -> None:
    devices, task, tally = people(4, 6), a_task(local=LocalTraining(1e30)), Tally()
    cohort = choose_cohort(CohortPlan(6, 1.0, 0.0), devices.clients, seed=1, round_number=1)
    settings = SecureSettings()
    with pytest.raises(AbandonedRoundError, match="0 devices sent their vectors"):
        collect_round(task, task.init(), devices, cohort, seed=1, round_number=1, secure=settings)
    total = collect_round(
        task, task.init(), devices, cohort, seed=1, round_number=1, secure=settings, tally=tally
    )  # fmt: skip
    assert (total.devices, len(tally.abandoned), tally.refused[Reason.NOT_FINITE]) == (0, 1, 6)
    with pytest.raises(FedgramError, match="refused: not finite"):
        collect_round(task, task.init(), devices, cohort, seed=1, round_number=1)


def test_devices_without_words_are_skipped_and_counted() -> None:
    population = population_from_messages([("a", "a b", "train"), ("b", "!!", "train"), ("c", "c", "train")])
    devices = Devices(population, population.word_ids(WORDS), population.clients())
    task = a_task()
    cohort = choose_cohort(CohortPlan(3, 1.0, 0.0), devices.clients, seed=0, round_number=1)
    chunks, report = plan_round(task, devices, cohort, seed=0, round_number=1, chunk=2)
    assert report.reports - report.empty == sum(len(c.weight) for c in chunks)
    assert report.targets == 5


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**31))
def test_changes_add_up_exactly_in_any_order(clients: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    stack, start = rng.normal(size=(clients, size)).astype(np.float32), rng.normal(size=size).astype(np.float32)
    factor = rng.random(clients) * rng.integers(0, 2, clients)
    stack[factor == 0] = np.nan
    totals = []
    for order in (np.arange(clients), np.arange(clients)[::-1].copy()):
        total = torch.zeros(size, dtype=torch.int64)
        parts = torch.from_numpy(stack[order]), torch.from_numpy(start), torch.from_numpy(factor[order])
        add_changes(total, *parts, 2.0**24)
        totals.append(total.numpy())
    assert np.array_equal(totals[0], totals[1])
    used = factor > 0
    expected = (factor[used, None] * (stack[used] - start)).sum(axis=0)
    np.testing.assert_allclose(totals[0] / 2.0**24, expected, atol=clients * 2.0**-24)


def test_plans_are_made_ahead_and_in_order() -> None:
    plans: list[Any] = [([], k) for k in range(5)]
    assert list(prefetched(iter(plans))) == plans


def test_small_networks_train_in_small_stacks_on_a_cpu() -> None:
    assert chunk_size(a_task(), CPU) > 4
    shape = ModelShape(30_000, 96, 670)
    large = FederatedAveraging(shape, {n: np.zeros(s, np.float32) for n, s in shape.sizes().items()}, TrainingPlan())
    assert chunk_size(large, CPU) == 1


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
