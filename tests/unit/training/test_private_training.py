"""Training with differential privacy: the noise in the models, adaptive clipping, resuming, and what is refused."""

from dataclasses import replace
from itertools import pairwise
from math import exp, inf, sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from tests.reference.federated_tasks import population
from tests.unit.training.test_fedavg_engine import a_task, people
from tests.unit.training.test_train_federated import ONE, a_network, equal

from fedgram.core.arrays import FloatArray
from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.progress import Advance
from fedgram.core.storage import Record
from fedgram.federated import devices
from fedgram.federated.averaging import ServerStep
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Job
from fedgram.federated.mechanism import Mechanism
from fedgram.federated.rounds import Checkpointing, Run, RunOptions, run_rounds
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.task import Update, device_stream
from fedgram.federated.watch import Unwatched
from fedgram.privacy.accounting import compose
from fedgram.privacy.blt import Blt, Participation, sensitivity
from fedgram.privacy.ledger import Budget, BudgetError, Ledger
from fedgram.privacy.mechanisms import GaussianSums
from fedgram.privacy.options import PrivacyOptions
from fedgram.training.fedavg_device import LOSS, TARGETS, UNCLIPPED
from fedgram.training.fedavg_task import FedAvgState, FederatedAveraging
from fedgram.training.noise_plan import NoisePlan, with_noise
from fedgram.training.options import FedAvgOptions
from fedgram.training.plan import TrainingPlan
from fedgram.training.train_federated import train_federated

pytest.importorskip("dp_accounting")
PEOPLE = people(0, 8)
NO_DATA = PEOPLE.load(0, a_task().encode(PEOPLE.words))  # crafted updates do not look at it
PRIVATE: dict[str, Any] = {"weighting": "uniform", "noise_seed": 4, "dev_users": 0}


class Crafted(FederatedAveraging):
    """Training where each user's change of the weights is given: a length, in a direction of its own."""

    lengths: dict[int, float] = {}  # noqa: RUF012

    def client_update(self, broadcast: Record, data: Any, rng: Any) -> Update:  # noqa: ARG002
        device = int(rng.names[-1])
        sizes = {name: self.size[name] for name in self.shape.sizes()}
        unit = np.random.default_rng(device).normal(size=sum(sizes.values()))
        unit *= self.lengths.get(device, 0.0) / np.linalg.norm(unit)
        parts = np.split(unit, np.cumsum(list(sizes.values()))[:-1])
        change = dict(zip(sizes, parts, strict=True))
        return self.update_of(change, 1.0, 1, 1.0, self.clip_in(broadcast))


def crafted(lengths: dict[int, float], **plan: Any) -> FederatedAveraging:
    made = a_task(precision=np.float64, weighting="uniform", **plan)
    task = Crafted(made.shape, made.start, made.plan, made.coding)
    Crafted.lengths = lengths
    return task


class Weights(Unwatched):
    """The weights after every round, and the limits of the next."""

    def __init__(self) -> None:
        self.after: list[FloatArray] = []
        self.clips: list[float] = []

    def begin(self, state: FedAvgState) -> None:
        self._note(state)

    def after_round(self, state: FedAvgState, *_: object) -> None:
        self._note(state)

    def _note(self, state: FedAvgState) -> None:
        self.after.append(np.concatenate([w.reshape(-1) for w in state.model.weights.values()]))
        self.clips.append(state.clip)


def run_crafted(
    task: FederatedAveraging, mechanism: Mechanism | None, rounds: int, limits: tuple[int | None, int] = (None, 1)
) -> tuple[Weights, Run[FedAvgState]]:
    job = Job(task, 5, *limits)
    fleet = SimulatedFleet(job, PEOPLE.users(), dropout=0.0, batched=False)
    watch = Weights()
    options = RunOptions(rounds, RoundPlan(len(PEOPLE), 1.0))
    return watch, run_rounds(job, fleet, options, watch=watch, mechanism=mechanism)


def sums_of(weights: list[FloatArray], momentum: float, rate: float, devices: int) -> FloatArray:
    """The released sums of rounds, from the models: Nesterov's momentum is undone."""
    v, sums = np.zeros_like(weights[0]), []
    for before, after in pairwise(weights):
        g = ((before - after) / rate - momentum**2 * v) / (1 + momentum)
        v = momentum * v + g
        sums.append(-g * devices)
    return np.array(sums)


@pytest.mark.parametrize("noise", ["blt", "poisson"])
@pytest.mark.parametrize("simulated", [None, 80])
def test_the_influence_of_a_user_on_the_models_relative_to_the_noise_is_the_accounts(
    noise: Literal["blt", "poisson"], simulated: int | None
) -> None:
    """Read from the weights of all rounds, with the server's momentum undone."""
    rounds, clip, z, user, m = 100, 0.7, 3.0, 3, len(PEOPLE)
    options = FedAvgOptions(
        rounds=rounds, devices_per_round=m, over_selection=1.0, noise=noise, noise_multiplier=z,
        update_norm=clip, simulated=simulated, **PRIVATE,
    )  # fmt: skip
    plan = NoisePlan.of(options, m)
    assert plan is not None
    found = []
    for lengths in ({}, {user: 50.0}):  # far beyond the limit
        task = crafted(lengths, update_norm=clip, server=ServerStep("nesterov", 0.5, 0.9))
        mechanism = plan.mechanism(Job(task, 5, *plan.limits), Ledger(), "training")
        watch, _ = run_crafted(task, mechanism, rounds, plan.limits)
        found.append(sums_of(watch.after, 0.9, 0.5, m))
    noisy, influence = found[0], found[1] - found[0]
    blt = plan.privacy.blt if noise == "blt" else Blt((), ())
    c = blt.coefficients(rounds)
    white, moved = (np.array([np.convolve(c, x)[:rounds] for x in part.T]).T for part in (noisy, influence))
    ratio = float(np.linalg.norm(moved)) / float(white.std())
    taking_part = Participation(rounds)  # every user is in every cohort here
    expected = sensitivity(blt, taking_part) / z * (simulated or m) / m
    assert ratio == pytest.approx(expected, rel=0.01)
    if noise == "blt":
        spent = compose([plan.event.scaled(1 / plan.stands_for)], 1e-6).zcdp
        assert spent is not None
        assert ratio == pytest.approx(sqrt(2 * spent), rel=0.01)


def test_losses_are_withheld_and_the_weight_is_the_plans() -> None:
    options = FedAvgOptions(rounds=1, devices_per_round=8, noise="poisson", **PRIVATE)
    task = a_task(weighting="uniform")
    plan = NoisePlan.of(options, 20)
    assert plan is not None
    job = Job(task, 5)
    mechanism = plan.mechanism(job, Ledger(), "training")
    fleet = SimulatedFleet(job, PEOPLE.users(), dropout=0.0)
    found = run_rounds(job, fleet, RunOptions(1, RoundPlan(8, 1.0)), mechanism=mechanism)
    assert (found.state.devices, found.state.targets) == (8, 0)
    assert np.isnan(found.state.loss)
    assert set(task.size) - set(plan.noise(task, plan.randomness, "").size) == {LOSS, TARGETS}


@pytest.mark.parametrize("target", [0.25, 0.5, 0.75])
def test_the_limit_adapts_to_the_share_of_devices_that_is_wanted(target: float) -> None:
    """Changes of lengths 1 to 8: the limit ends between those that are to be within it and the others."""
    task = crafted(
        {device: 1.0 + device for device in range(8)}, update_norm=0.1, adaptive_clip=True, clip_target=target
    )  # fmt: skip
    watch, found = run_crafted(task, None, 150)
    assert watch.clips[0] == 0.1
    share = np.mean([1.0 + device <= watch.clips[-1] for device in range(8)])
    assert abs(share - target) <= 0.125 + 1e-9
    assert watch.clips[1] == pytest.approx(0.1 * exp(task.plan.clip_rate * target))  # nobody is within the first
    loaded = task.load(task.save(found.state))
    assert loaded.clip == found.state.clip == watch.clips[-1]


def test_a_step_is_as_long_as_the_limit_of_its_round_allows() -> None:
    task = crafted({2: 50.0}, update_norm=0.1, adaptive_clip=True, server=ServerStep("momentum", 1.0, 0.0))
    watch, _ = run_crafted(task, None, 20)
    steps = [np.linalg.norm(b - a) for a, b in pairwise(watch.after)]
    assert np.allclose(steps, np.array(watch.clips[:-1]) / 8, rtol=1e-4)
    assert watch.clips[-1] != 0.1


def test_what_is_sent_never_exceeds_the_first_limit_whatever_the_server_says() -> None:
    task = crafted({0: 5.0, 1: 0.01}, update_norm=0.3, adaptive_clip=True)
    for clip in (1e-6, 0.3, 1e6):
        for device in (0, 1):
            sent = task.client_update(Record({"round": 1, "clip": clip}), NO_DATA, device_stream(5, 1, device))
            parts = np.concatenate([sent.values[name] for name in task.shape.sizes()])
            assert float(np.linalg.norm(parts)) <= 0.3 * (1 + 1e-9)
            assert abs(float(sent.values[UNCLIPPED][0])) == 0.5
    for wrong in (None, 0.0, -1.0, inf, "1"):
        with pytest.raises(InvariantError, match="no limit on the norm"):
            task.clip_in(Record({"round": 1, "clip": wrong}))


def test_the_bit_of_adaptive_clipping_is_noised_and_accounted() -> None:
    options = FedAvgOptions(
        rounds=5, devices_per_round=100, noise="blt", noise_multiplier=2.0, adaptive_clip=True, min_separation=2,
        **PRIVATE,
    )  # fmt: skip
    plan = NoisePlan.of(options, None)
    assert plan is not None
    weights, bit = plan.multipliers()
    assert bit == 5.0  # a twentieth of the cohort
    assert 1 / weights**2 + 1 / (2 * bit) ** 2 == pytest.approx(1 / 2.0**2)
    task = a_task(weighting="uniform", adaptive_clip=True)
    noise: Any = plan.noise(task, plan.randomness, "")
    assert noise.deviation[UNCLIPPED] == 5.0
    assert [noise.deviation[name] for name in task.shape.sizes()] == pytest.approx(
        [weights] * len(task.shape.sizes()), rel=1e-3
    )
    assert set(task.size) - set(noise.size) == {LOSS, TARGETS}
    small = FedAvgOptions(rounds=5, devices_per_round=10, noise="blt", min_separation=2, adaptive_clip=True, **PRIVATE)
    too_small = NoisePlan.of(small, None)
    assert too_small is not None
    with pytest.raises(FedgramError, match=r"clip_noise must be above 0\.05"):
        too_small.multipliers()


TRAINING = FedAvgOptions(
    rounds=6, devices_per_round=4, client_rate=0.2, server_rate=0.1, noise="blt", noise_multiplier=0.1,
    min_separation=3, **PRIVATE,
)  # fmt: skip


@pytest.mark.parametrize("change", [{}, {"noise": "poisson", "min_separation": None}, {"adaptive_clip": True}])
def test_an_interrupted_private_training_resumes_with_the_same_bits(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, seen = replace(TRAINING, **change), list[str]()

    def stopping(*_: object, **__: object) -> Advance:
        def advance(_: int, about: str | None = None, /) -> None:
            seen.append(about or "")
            if len(seen) == 4:
                raise KeyboardInterrupt

        return advance

    monkeypatch.setattr(devices, "_CHECKPOINT_PAUSE", 0.0)
    kept, ledger = Checkpointing(tmp_path), Ledger()
    whole = train_federated(a_network(), population(), options, seed=3, compute=ONE)
    given: dict[str, Any] = {"seed": 3, "compute": ONE, "checkpoints": kept, "ledger": ledger}
    with pytest.raises(KeyboardInterrupt):
        train_federated(a_network(), population(), options, begin=stopping, **given)
    resumed = train_federated(a_network(), population(), options, begin=stopping, **given)
    assert 6 <= len(seen) < 9  # some rounds were not repeated
    assert equal(whole, resumed)
    assert whole.history["privacy"]["operations"][0]["spent"] == 6
    assert whole.about["privacy"]["epsilon"] > 0
    assert set(whole.history["loss"]) == {None}
    other = replace(options, noise_multiplier=0.2)
    with pytest.raises(FedgramError, match="noise_multiplier"):
        train_federated(a_network(), population(), other, **given)


def test_workers_do_not_change_a_private_training() -> None:
    alone = train_federated(a_network(), population(), TRAINING, seed=3, compute=ONE)
    shared = train_federated(a_network(), population(), TRAINING, seed=3, compute=Compute("cpu", 2))
    assert equal(alone, shared)


def test_noise_of_the_system_differs_and_two_trainings_cost_twice() -> None:
    options, ledger = replace(TRAINING, noise_seed=None), Ledger()
    one, two = (
        train_federated(a_network(), population(), options, seed=3, compute=ONE, ledger=ledger) for _ in range(2)
    )
    assert not equal(one, two)
    assert [entry.spent for entry in ledger.entries] == [6, 6]
    assert "cryptographic" in ledger.entries[0].generator
    zcdp = ledger.spent().zcdp
    assert zcdp is not None
    assert zcdp == pytest.approx(2 * compose([ledger.entries[0].event], 1e-8).zcdp)  # type: ignore[operator]


def test_a_training_beyond_the_budget_is_not_begun() -> None:
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    with pytest.raises(BudgetError, match="training would exceed the privacy budget"):
        train_federated(a_network(), population(), TRAINING, compute=ONE, ledger=ledger)
    assert not ledger.entries


def test_a_simulated_population_has_less_noise_and_says_so() -> None:
    m = len(population().train)
    options = replace(TRAINING, simulated=100 * m)
    plan, real = NoisePlan.of(options, m), NoisePlan.of(TRAINING, m)
    assert plan is not None
    assert real is not None
    task = a_task(weighting="uniform")
    deviations = [next(iter(p.noise(task, p.randomness, "").deviation.values())) for p in (plan, real)]  # type: ignore[attr-defined]
    assert deviations[1] / deviations[0] == pytest.approx(100)
    assert plan.event == real.event
    found = train_federated(a_network(), population(), options, compute=ONE).history["privacy"]
    assert found["simulated"]
    assert found["real_epsilon"] > 100 * found["epsilon"]


def test_noise_fills_a_share_of_the_budget_and_noise_of_ones_own_must_be_enough() -> None:
    privacy, plain = PrivacyOptions("dp", epsilon=2.0, delta=1e-6), FedAvgOptions(rounds=50, devices_per_round=10)
    noisy = with_noise(plain, privacy, 1000)
    plan = NoisePlan.of(noisy, 1000)
    assert plan is not None
    assert compose([plan.event], 1e-6).epsilon == pytest.approx(2.0, rel=1e-6)
    assert with_noise(noisy, privacy, 1000) == noisy
    with pytest.raises(FedgramError, match="more than its share, 2; use more noise"):
        with_noise(replace(noisy, noise_multiplier=0.9 * noisy.noise_multiplier), privacy, 1000)
    assert with_noise(plain, PrivacyOptions("threshold"), 1000) == plain
    real = NoisePlan.of(with_noise(replace(plain, min_separation=10), privacy, None), None)  # on a federation
    assert real is not None
    assert compose([real.event], 1e-6).epsilon == pytest.approx(2.0, rel=1e-6)
    with pytest.raises(FedgramError, match="simulated is for simulations"):
        with_noise(replace(plain, min_separation=10), replace(privacy, simulated=10**6), None)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"noise": "blt"}, "weighting must be 'uniform' with noise"),
        ({"noise": "blt", "weighting": "uniform", "update_norm": inf}, "update_norm must be finite with noise"),
        ({"adaptive_clip": True}, "weighting must be 'uniform' with adaptive clipping"),
        ({"noise": "poisson", "weighting": "uniform", "min_separation": 3}, "cannot be combined with Poisson"),
        ({"noise": "poisson", "weighting": "uniform", "max_participations": 3}, "cannot be combined with Poisson"),
        ({"noise": "gauss"}, "must be one of"),
    ],
)
def test_options_that_cannot_be_private_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(FedgramError, match=problem):
        FedAvgOptions(**settings)


def test_devices_that_cannot_be_private_are_refused() -> None:
    blt = FedAvgOptions(noise="blt", devices_per_round=10, rounds=50, **PRIVATE)
    poisson = FedAvgOptions(noise="poisson", devices_per_round=10, secure_aggregation=True, **PRIVATE)
    for options, count, problem in (
        (blt, None, "min_separation must be given"),
        (poisson, None, "number of devices is not known"),
        (poisson, 100, "too small for Poisson sampling with secure aggregation"),
        (FedAvgOptions(noise="blt", devices_per_round=10, min_separation=11, **PRIVATE), 100, "at most 9"),
        (FedAvgOptions(noise="blt", devices_per_round=10, simulated=50, **PRIVATE), 100, "at least the number"),
        (FedAvgOptions(noise="poisson", devices_per_round=101, **PRIVATE), 100, "does not fit"),
    ):
        with pytest.raises(FedgramError, match=problem):
            NoisePlan.of(options, count)
    plan = NoisePlan.of(blt, 100)
    assert plan is not None
    assert plan.limits == (6, 9)  # 13 are invited to each round; 87 others are enough for 8 rounds more
    assert NoisePlan.of(FedAvgOptions(), 100) is None
    assert TrainingPlan.of(FedAvgOptions(weighting="uniform", adaptive_clip=True)).adaptive_clip
    large = FedAvgOptions(noise="poisson", devices_per_round=100, secure_aggregation=True, **PRIVATE)
    assert NoisePlan.of(large, 1000) is not None


def test_noise_covers_the_rounding_of_updates_to_the_grid() -> None:
    """An update of the longest norm may become longer when its entries are rounded: by half a step of the grid each."""
    task = a_task(weighting="uniform", update_norm=0.5)
    options = FedAvgOptions(noise="poisson", noise_multiplier=2.0, devices_per_round=4, update_norm=0.5, **PRIVATE)
    plan = NoisePlan.of(options, 8)
    assert plan is not None
    sums = plan.noise(task, plan.randomness, "rounding")
    assert isinstance(sums, GaussianSums)
    entries = sum(task.size[name] for name in task.shape.sizes())
    longest = 0.5 * (1 + 1e-6) + sqrt(entries) * 2.0 ** -(task.bits + 1)
    assert longest > 0.5 * (1 + 1e-6)
    assert sums.deviation == pytest.approx(dict.fromkeys(task.shape.sizes(), 2.0 * longest), rel=1e-12)
