"""Plans: cost from noise, noise from cost, and two trust models."""

from collections.abc import Sequence
from math import sqrt
from typing import Any, Literal

import pytest

from fedgram.core.errors import FedgramError
from fedgram.privacy import planning
from fedgram.privacy.accounting import BltGaussian, Gaussian, PoissonGaussian, Spent, compose
from fedgram.privacy.blt import Participation, prefix_errors, sensitivity
from fedgram.privacy.gaussian import multiplier_for
from fedgram.privacy.planning import PrivacyPlan, trust_models

dp = pytest.importorskip("dp_accounting")
DELTA = 1e-8
Kind = Literal["gaussian", "poisson", "blt"]


def test_poisson_sampling_is_accounted_by_privacy_loss_distributions() -> None:
    plan = PrivacyPlan("poisson", Participation(240), 1_000_000, 5_000)
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp.PoissonSampledDpEvent(0.005, dp.GaussianDpEvent(1.0)), 240)
    assert plan.cost(1.0, DELTA).epsilon == pytest.approx(float(accountant.get_epsilon(DELTA)), rel=1e-9)
    assert plan.cost(1.0, DELTA).zcdp is None


def test_participations_of_independent_noise_are_those_that_fit() -> None:
    assert PrivacyPlan("gaussian", Participation(100, 30)).event(2.0) == Gaussian(2.0, 4)
    assert PrivacyPlan("gaussian", Participation(100, 30, 2)).event(2.0) == Gaussian(2.0, 2)


@pytest.mark.parametrize(
    ("kind", "rounds", "apart"), [("gaussian", 1, 1), ("gaussian", 100, 20), ("blt", 300, 60), ("poisson", 50, 1)]
)
@pytest.mark.parametrize("epsilon", [0.5, 3.42])
def test_the_noise_of_an_epsilon_is_enough_and_hardly_more(kind: Kind, rounds: int, apart: int, epsilon: float) -> None:
    sizes = (10_000, 100) if kind == "poisson" else (None, None)
    plan = PrivacyPlan(kind, Participation(rounds, apart), *sizes)
    multiplier = plan.multiplier(epsilon, DELTA)
    assert plan.cost(multiplier, DELTA).epsilon <= epsilon * (1 + 1e-7)
    assert plan.cost(multiplier * 0.99, DELTA).epsilon > epsilon


@pytest.mark.parametrize("off", [-2.5e-6, 0.0, 2.5e-6])
def test_the_noise_of_sampled_rounds_is_enough_on_whichever_side_a_root_is_found(
    monkeypatch: pytest.MonkeyPatch, off: float
) -> None:
    """With a cost of 3/σ in place of the true one, an ε of 1.5 asks for a multiplier of 2, and never for less."""
    import scipy.optimize

    def cost(events: Sequence[PoissonGaussian], delta: float) -> Spent:
        return Spent(3.0 / events[0].multiplier, delta, None)

    def found(*asked: Any, find: Any = scipy.optimize.brentq, **options: Any) -> float:
        return float(find(*asked, **options)) + off

    monkeypatch.setattr(planning, "compose", cost)
    monkeypatch.setattr(scipy.optimize, "brentq", found)
    plan = PrivacyPlan("poisson", Participation(50), 10_000, 100)
    multiplier = plan.multiplier(1.5, DELTA)
    assert plan.cost(multiplier, DELTA).epsilon <= 1.5
    assert multiplier == pytest.approx(2.0, rel=1e-5)


def test_one_pass_of_counts_needs_the_noise_of_every_cohort_if_devices_add_it() -> None:
    plan = PrivacyPlan("gaussian", Participation(1), 1_000_000, 500)
    server, devices = trust_models(plan, 1.61, DELTA)
    assert (server.noise, server.share) == (1.61, None)
    assert devices.noise / server.noise == pytest.approx(sqrt(2000))
    assert devices.epsilon == server.epsilon
    assert devices.share == pytest.approx(1.61 / sqrt(500))
    alone = trust_models(PrivacyPlan("gaussian", Participation(1), 500, 500), 1.61, DELTA)[1]
    assert alone.noise == 1.61
    rest = trust_models(PrivacyPlan("gaussian", Participation(1), 1001, 500), 1.61, DELTA)[1]
    assert rest.noise == pytest.approx(1.61 * sqrt(3))  # the one device that is left is a cohort too


def test_training_with_shares_has_the_same_noise_per_round_but_nothing_hides_the_cohort_from_the_server() -> None:
    plan = PrivacyPlan("poisson", Participation(20), 10_000, 100)
    server, devices = trust_models(plan, 1.5, DELTA)
    assert devices.noise == server.noise == 1.5
    assert devices.epsilon == pytest.approx(compose([Gaussian(1.5, 20)], DELTA).epsilon)
    assert server.epsilon < devices.epsilon / 3


def test_correlated_noise_needs_a_server() -> None:
    plan = PrivacyPlan("blt", Participation(2000, 400), 1_000_000, 500)
    multiplier = plan.multiplier(3.42, DELTA)
    server, devices = trust_models(plan, multiplier, DELTA)
    assert server.epsilon == pytest.approx(devices.epsilon) == pytest.approx(3.42)
    assert devices.noise == pytest.approx(multiplier_for(3.42, DELTA) * sqrt(5))
    assert server.last_sum == pytest.approx(multiplier * prefix_errors(plan.blt, 2000)[-1])
    assert devices.last_sum / server.last_sum > 10
    event = plan.event(multiplier)
    assert isinstance(event, BltGaussian)
    assert event.sensitivity == sensitivity(plan.blt, plan.taking_part)


def test_plans_without_a_meaning_are_refused() -> None:
    taking_part = Participation(5)
    with pytest.raises(FedgramError, match="needs the sizes"):
        PrivacyPlan("poisson", taking_part)
    with pytest.raises(FedgramError, match="no minimum separation"):
        PrivacyPlan("poisson", Participation(5, 2), 10, 2)
    with pytest.raises(FedgramError, match="no limit of participations"):
        PrivacyPlan("poisson", Participation(5, 1, 2), 10, 2)
    with pytest.raises(FedgramError, match="does not fit"):
        PrivacyPlan("gaussian", taking_part, 10, 11)
    with pytest.raises(FedgramError, match="at least 1"):
        PrivacyPlan("gaussian", taking_part, 0, 1)
