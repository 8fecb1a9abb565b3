"""Noise in the round loop: as much as the account says, the same after a resume, and never beyond the budget."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.federated_tasks import TASKS, ThreadRanks
from tests.unit.federated.runs import CLIENTS, PEOPLE, PLAN, FaultyFleet, a_fleet, a_job, run, same
from tests.unit.federated.test_resuming import Interruption

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.storage import Record
from fedgram.federated.cohort import PoissonCohorts, RoundPlan
from fedgram.federated.fleet import RoundCall, RoundSum
from fedgram.federated.job import Job, job_from_bytes
from fedgram.federated.mechanism import Account, NoisySums
from fedgram.federated.task import Total, Update
from fedgram.federated.validation import Reason
from fedgram.privacy.accounting import BltGaussian, Event, Gaussian, PoissonGaussian
from fedgram.privacy.blt import Blt, Participation, sensitivity
from fedgram.privacy.ledger import Budget, BudgetError, Ledger
from fedgram.privacy.mechanisms import BltSums, GaussianSums
from fedgram.privacy.noise import Randomness, SeededRandomness, SystemRandomness

pytest.importorskip("dp_accounting")
BLT = Blt((0.98, 0.6), (0.2, 0.3))
SEEDED = SeededRandomness(3)


def noisy(
    job: Job[Any], *, kind: str = "gaussian", multiplier: float = 1.0, rounds: int = 5, ledger: Ledger | None = None,
    randomness: Randomness = SEEDED, **options: Any,
) -> NoisySums:  # fmt: skip
    """A mechanism with noise on all vectors of a counting task."""
    limit = job.task.bounds.norms[0]
    size = {name: job.task.size[name] for name in limit.vectors}
    deviation = dict.fromkeys(size, multiplier * limit.most(sum(size.values()), 1.0, job.task.bits))
    noise = BltSums(BLT, size, deviation, randomness) if kind == "blt" else GaussianSums(size, deviation, randomness)
    event: Event = Gaussian(multiplier, rounds)
    if kind == "blt":
        event = BltGaussian(multiplier, sensitivity(BLT, Participation(rounds)))
    if probability := options.get("sampling_probability"):
        event = PoissonGaussian(multiplier, probability, rounds)
    account = Account(ledger or Ledger(), "counts", event, rounds, randomness.name)
    return NoisySums(noise, randomness, account, expected=4.0, **options)


class Released:
    """Remembers what a mechanism released."""

    def __init__(self, inner: NoisySums) -> None:
        self._inner = inner
        self.sums: list[Total] = []
        self.numbers: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def release(self, number: int, total: Total) -> Total:
        self.sums.append(self._inner.release(number, total))
        self.numbers.append(number)
        return self.sums[-1]


class Crafted(TASKS["clipped-ngrams"]().__class__):  # type: ignore[misc]
    """Counting where the user `user` sends what is given, and others send nothing."""

    user, sent = -1, np.zeros(0)

    def client_update(self, broadcast: Record, data: Any, rng: Any) -> Update:  # noqa: ARG002
        values = self.sent if rng.names[-1] == self.user else np.zeros(self.size["count"])
        return Update.dense({"count": values}, 1.0)


def crafted(norm: float, user: int) -> Job[Any]:
    made = TASKS["clipped-ngrams"]()
    task = Crafted(made.ngrams, made.clipping)  # type: ignore[attr-defined]
    task.user, n = user, task.size["count"]
    task.sent = np.full(n, norm / sqrt(n))
    return Job(task, 5)


@pytest.mark.parametrize("kind", ["gaussian", "blt"])
def test_the_influence_of_a_user_on_counts_relative_to_the_noise_is_the_accounts(kind: str) -> None:
    """Over all rounds, after undoing the correlation: √(2ρ), where ρ is the zCDP that the account has."""
    rounds, limit = 1200, 3.0
    everybody = RoundPlan(len(CLIENTS), 1.0)
    found = {}
    for user in (-1, int(CLIENTS[4])):
        job, ledger = crafted(limit, user), Ledger()
        mechanism = Released(noisy(job, kind=kind, rounds=rounds, multiplier=2.5, ledger=ledger))
        run(job, rounds=rounds, plan=everybody, fleet=a_fleet(job, dropout=0.0, batched=False), mechanism=mechanism)
        found[user] = np.array([total.array("count") for total in mechanism.sums])
        spent = ledger.spent(1e-6)
    noise, influence = found[-1], found[int(CLIENTS[4])] - found[-1]
    if kind == "blt":
        c = BLT.coefficients(rounds)
        noise, influence = (np.array([np.convolve(c, x)[:rounds] for x in part.T]).T for part in (noise, influence))
    ratio = float(np.linalg.norm(influence)) / float(noise.std())
    assert spent.zcdp is not None
    assert ratio == pytest.approx(sqrt(2 * spent.zcdp), rel=0.01)


def test_a_crafted_update_never_passes_the_limit() -> None:
    limit, user = 3.0, int(CLIENTS[4])
    for norm, is_counted in ((2.999, True), (3.001, False), (1e6, False), (float("nan"), False)):
        job = crafted(norm, user)
        plan = RoundPlan(len(CLIENTS), 1.0)
        found = run(job, rounds=1, plan=plan, fleet=a_fleet(job, dropout=0.0, batched=False, as_bytes=True))
        total = np.ldexp(found.state["count"].astype(float), -job.task.bits)
        assert float(np.linalg.norm(total)) <= limit * (1 + 1e-4)
        assert (found.progress.tally.refused.total() == 0) == is_counted
        assert bool(total.any()) == is_counted
        reasons = {str(Reason.NORM), str(Reason.NOT_FINITE)}
        assert set(found.progress.tally.refused) <= reasons


def test_vectors_without_noise_and_numbers_of_devices_are_withheld() -> None:
    total = Total(4, {"a": np.arange(5), "b": np.arange(3)}, weight=7 << 4, devices=7)
    account = Account(Ledger(), "x", Gaussian(1.0), 1, "")
    mechanism = NoisySums(GaussianSums({"a": 5}, {"a": 10.0}, SEEDED), SEEDED, account, expected=4.0)
    mechanism.begin()
    released = mechanism.release(1, total)
    assert released.arrays["b"].tolist() == [0, 0, 0]
    assert (released.arrays["a"] != total.arrays["a"]).all()
    assert (released.weight, released.devices) == (4 << 4, 4)
    other = NoisySums(GaussianSums({"z": 5}, {"z": 10.0}, SEEDED), SEEDED, account, expected=4.0)
    with pytest.raises(InvariantError, match="a vector that the sum does not have"):
        other.release(1, total)


OPTIONS: list[dict[str, Any]] = [
    {"kind": "gaussian"},
    {"kind": "blt"},
    {"kind": "gaussian", "sampling_probability": 0.3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["gaussian", "blt", "poisson"])
@pytest.mark.parametrize(("event", "number"), [("round summed", 3), ("round committed", 3), ("round began", 1)])
def test_a_resumed_run_has_the_same_bits(options: dict[str, Any], event: str, number: int, tmp_path: Path) -> None:
    job, ledger = a_job("clipped-ngrams"), Ledger()
    whole = run(job, mechanism=noisy(job, **options))
    with pytest.raises(KeyboardInterrupt):
        run(
            job, mechanism=noisy(job, ledger=ledger, **options), folder=tmp_path, every=2,
            tell=Interruption(event, number),
        )  # fmt: skip
    resumed = run(job, mechanism=noisy(job, ledger=ledger, **options), folder=tmp_path, every=2)
    assert same(job, whole, resumed)
    assert [(e.spent, e.rounds) for e in ledger.entries] == [(5, 5)]  # the account has the run once


def test_several_processes_release_the_same_sum() -> None:
    job = a_job("clipped-ngrams")
    for options in OPTIONS:
        alone = run(job, mechanism=noisy(job, **options))
        together = ThreadRanks(3)

        def work(rank: Any, options: dict[str, Any] = options) -> Any:
            own = SeededRandomness(3 + rank.rank)  # the generators of other processes do not matter
            return run(job, fleet=a_fleet(job, ranks=rank), mechanism=noisy(job, ranks=rank, randomness=own, **options))

        with ThreadPoolExecutor(3) as pool:
            assert all(same(job, alone, found) for found in pool.map(work, together.all))


def test_noise_of_the_system_generator_is_never_drawn_twice_for_a_round(tmp_path: Path) -> None:
    """Every round is in a checkpoint before the next begins, whatever the pause between checkpoints."""
    job = a_job("clipped-ngrams")
    numbers = []
    for last in (2, 4, 9):
        mechanism = Released(noisy(job, kind="blt", randomness=SystemRandomness()))
        with suppress(KeyboardInterrupt):
            run(
                job, mechanism=mechanism, folder=tmp_path, every=50, checkpoint_pause=1000.0,
                tell=Interruption("round committed", last),
            )  # fmt: skip
        numbers.append(mechanism.numbers)
    assert numbers == [[1, 2], [3, 4], [5]]
    (newest,) = tmp_path.glob("*.safetensors")  # an older one would repeat a round with other noise
    newest.write_bytes(b"damaged")
    with pytest.raises(FedgramError, match="no checkpoint can be read"):
        run(job, mechanism=noisy(job, kind="blt", randomness=SystemRandomness()), folder=tmp_path)


def test_rounds_are_drawn_in_order() -> None:
    for noise in (GaussianSums({"a": 2}, {"a": 1.0}, SEEDED), BltSums(BLT, {"a": 2}, {"a": 1.0}, SEEDED)):
        noise.draw(1, 8)
        for number in (1, 3):
            with pytest.raises(InvariantError, match=f"round {number} is asked for after that of round 1"):
                noise.draw(number, 8)
    with pytest.raises(InvariantError, match="length and a standard deviation"):
        GaussianSums({"a": 2}, {}, SEEDED)
    with pytest.raises(FedgramError, match="greater than 0"):
        GaussianSums({"a": 2}, {"a": 0.0}, SEEDED)


def test_a_run_ends_before_the_round_that_exceeds_the_budget(tmp_path: Path) -> None:
    job, delta = a_job("clipped-ngrams"), 1e-6
    enough = Ledger(budget=Budget(50.0, delta))
    run(job, mechanism=noisy(job, multiplier=2.0, ledger=enough))
    least = enough.spent().epsilon
    ledger = Ledger.open(tmp_path / "privacy.json", Budget(least * 1.0001, delta))
    fleet = FaultyFleet(a_fleet(job), set())

    def others(event: str, about: Mapping[str, Any]) -> None:
        if (event, about["round"]) == ("round committed", 3):  # another operation spends what was left
            other = Ledger.open(tmp_path / "privacy.json")
            other.plan("other", Gaussian(2.0))
            other.spend("other")

    with pytest.raises(BudgetError, match="round 5 of counts would exceed the privacy budget"):
        run(job, mechanism=noisy(job, multiplier=2.0, ledger=ledger), fleet=fleet, tell=others)
    assert [call.number for call in fleet.calls] == [1, 2, 3, 4]  # nobody was invited to the fifth
    assert ledger.spent().epsilon <= least * 1.0001
    small = Ledger(budget=Budget(least * 0.99, delta))
    fleet = FaultyFleet(a_fleet(job), set())
    with pytest.raises(BudgetError, match="counts would exceed"):
        run(job, mechanism=noisy(job, multiplier=2.0, ledger=small), fleet=fleet)
    assert not fleet.calls


class Watched:
    """A fleet that remembers who took part in which round."""

    def __init__(self, job: Job[Any], rounds: dict[int, LongArray]) -> None:
        self._fleet, self.rounds = a_fleet(job), rounds

    def devices(self, wanted: int, spent: LongArray) -> LongArray:
        return self._fleet.devices(wanted, spent)

    def prepare(self, call: RoundCall) -> None:
        self._fleet.prepare(call)

    def collect(self, call: RoundCall) -> RoundSum:
        found = self._fleet.collect(call)
        self.rounds[call.number] = found.participants
        return found


@pytest.mark.parametrize(("apart", "most"), [(3, 4), (5, None), (4, 2)])
def test_separation_and_limit_hold_over_resumed_runs(apart: int, most: int | None, tmp_path: Path) -> None:
    job = Job(TASKS["clipped-ngrams"](), 5, most, apart)
    whole: dict[int, LongArray] = {}
    expected = run(job, rounds=14, fleet=Watched(job, whole))
    rounds: dict[int, LongArray] = {}
    for event, number in (("round committed", 2), ("round summed", 5), ("round committed", 9)):
        with pytest.raises(KeyboardInterrupt):
            run(job, rounds=14, fleet=Watched(job, rounds), folder=tmp_path, tell=Interruption(event, number))
    assert same(job, expected, run(job, rounds=14, fleet=Watched(job, rounds), folder=tmp_path))
    assert {n: d.tolist() for n, d in rounds.items()} == {n: d.tolist() for n, d in whole.items()}
    times: dict[int, list[int]] = {}
    for number, devices in sorted(rounds.items()):
        for device in devices.tolist():
            times.setdefault(device, []).append(number)
    assert max(map(len, times.values())) == min(most or 99, -(-14 // apart))
    gaps = [later - earlier for found in times.values() for earlier, later in pairwise(found)]
    assert min(gaps) >= apart


def test_too_few_devices_for_a_separation_is_said() -> None:
    job = Job(TASKS["clipped-ngrams"](), 5, None, 12)
    with pytest.raises(FedgramError, match="lower the minimum separation"):
        run(job, rounds=14, plan=RoundPlan(4, 1.5, minimum=4))
    with pytest.raises(FedgramError, match="minimum separation"):
        Job(job.task, 5, None, 0)
    assert job_from_bytes(job.content).min_separation == 12


def test_poisson_cohorts_are_independent_draws() -> None:
    devices = np.arange(2000)
    cohorts = [PoissonCohorts(0.1, 7).draw(devices, round_number=n) for n in range(200)]
    sizes = np.array([len(cohort) for cohort in cohorts])
    assert sizes.mean() == pytest.approx(200, abs=5 * sqrt(180 / 200))
    assert sizes.std() == pytest.approx(sqrt(180), rel=0.2)
    joined = np.bincount(np.concatenate(cohorts), minlength=2000)
    assert joined.std() == pytest.approx(sqrt(200 * 0.1 * 0.9), rel=0.1)
    assert np.array_equal(cohorts[3], PoissonCohorts(0.1, 7).draw(devices[::-1], round_number=3))
    assert not np.array_equal(cohorts[3], PoissonCohorts(0.1, 8).draw(devices, round_number=3))
    assert "7" not in repr(PoissonCohorts(0.1, 7))
    with pytest.raises(FedgramError, match="sampling probability"):
        PoissonCohorts(0.0, 7)


def test_a_sample_may_be_empty_and_its_sum_gets_noise_all_the_same() -> None:
    job = a_job("clipped-ngrams")
    rounds: dict[int, LongArray] = {}
    mechanism = Released(noisy(job, rounds=60, sampling_probability=0.05))
    found = run(job, rounds=60, mechanism=mechanism, fleet=Watched(job, rounds))
    assert found.progress.round == 60
    assert 0 < sum(not len(rounds.get(n, ())) for n in range(1, 61)) < 60
    assert all(total.arrays["count"].any() for total in mechanism.sums)
    assert max(len(devices) for devices in rounds.values()) > PLAN.devices * 0.5
    assert len({total.weight for total in mechanism.sums}) == 1
    assert len(PEOPLE.clients("train")) == len(CLIENTS)
