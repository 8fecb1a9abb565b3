"""One Gaussian event: published conversions, the closed formula, and what is refused."""

import sys
from math import inf, nan

import pytest

from fedgram.core.errors import FedgramError, MissingDependencyError
from fedgram.privacy.accounting import PoissonGaussian, compose
from fedgram.privacy.gaussian import (
    epsilon_of_zcdp,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_zcdp,
    multiplier_for,
    multiplier_of_zcdp,
)

pytest.importorskip("dp_accounting")


@pytest.mark.parametrize(("rho", "epsilon"), [(0.1506840301548885, 3.4240074), (0.014342572340349278, 0.9935501)])
def test_published_zcdp_is_converted(rho: float, epsilon: float) -> None:
    """Of two keyboard models in production, at δ = 1e-10."""
    assert epsilon_of_zcdp(rho, 1e-10) == pytest.approx(epsilon, abs=1e-6)
    assert gaussian_zcdp(multiplier_of_zcdp(rho)) == pytest.approx(rho, rel=1e-14)


@pytest.mark.parametrize(
    ("delta", "multipliers"), [(1e-8, (5.10, 1.61, 0.748)), (1e-10, (5.87, 1.82, 0.834))]
)  # fmt: skip
def test_multipliers_of_common_budgets(delta: float, multipliers: tuple[float, ...]) -> None:
    for epsilon, multiplier in zip((1, 3.42, 8), multipliers, strict=True):
        assert multiplier_for(epsilon, delta) == pytest.approx(multiplier, abs=0.006)


@pytest.mark.parametrize("multiplier", [0.05, 0.5, 1.0, 5.0, 100.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_epsilon_solves_the_formula(multiplier: float, delta: float) -> None:
    epsilon = gaussian_epsilon(multiplier, delta)
    if epsilon > 0:
        if epsilon < 500:  # the formula overflows beyond
            assert gaussian_delta(multiplier, epsilon) == pytest.approx(delta, rel=1e-6)
        assert multiplier_for(epsilon, delta) == pytest.approx(multiplier, rel=1e-6)
    else:
        assert gaussian_delta(multiplier, 0.0) <= delta
    assert gaussian_epsilon(multiplier * 1.01, delta) <= epsilon


@pytest.mark.parametrize("multiplier", [0.0, -1.0, inf, nan])
def test_a_multiplier_that_is_no_noise_is_refused(multiplier: float) -> None:
    for function in (gaussian_zcdp, lambda m: gaussian_epsilon(m, 1e-8), lambda m: gaussian_delta(m, 1.0)):
        with pytest.raises(FedgramError, match="noise multiplier must be greater than 0"):
            function(multiplier)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, nan])
def test_a_delta_that_is_no_probability_is_refused(delta: float) -> None:
    with pytest.raises(FedgramError, match="delta must be between 0 and 1"):
        gaussian_epsilon(1.0, delta)
    with pytest.raises(FedgramError, match="delta must be between 0 and 1"):
        multiplier_for(1.0, delta)


def test_an_epsilon_or_zcdp_of_nothing_is_refused() -> None:
    with pytest.raises(FedgramError, match="epsilon must be greater than 0"):
        multiplier_for(0.0, 1e-8)
    with pytest.raises(FedgramError, match="zCDP must be greater than 0"):
        multiplier_of_zcdp(0.0)


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_without_the_library_the_numbers_are_the_same(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    multipliers, budgets = (0.05, 0.748, 1.61, 5.1, 100.0, 1e4), (0.01, 1.0, 3.42, 8.0, 200.0)
    epsilons = [gaussian_epsilon(multiplier, delta) for multiplier in multipliers]
    needed = [multiplier_for(epsilon, delta) for epsilon in budgets]
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert [gaussian_epsilon(m, delta) for m in multipliers] == pytest.approx(epsilons, rel=1e-9, abs=1e-12)
    assert [multiplier_for(epsilon, delta) for epsilon in budgets] == pytest.approx(needed, rel=1e-9)


def test_without_the_library_samples_cannot_be_accounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'fedgram\[privacy\]'"):
        compose([PoissonGaussian(1.0, 0.012345, 7)], 1e-8)
