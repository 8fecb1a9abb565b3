"""The lower bounds on ε: they agree with published numbers, never pass the true ε, and are large without noise."""

from math import exp, log

import numpy as np
import pytest

from fedgram.audit.one_run import Guesses, epsilon_bound, estimate_mu, gaussian_bound, guess, lower_bound
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.privacy.gaussian import gaussian_epsilon

DELTA = 1e-5


def simulated(mu: float, canaries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    included = rng.random(canaries) < 0.5
    return included * mu + rng.normal(size=canaries), included


def test_all_guesses_right_have_a_bound_in_closed_form() -> None:
    # P[Binomial(r, q) = r] = q^r = 0.05 at ε = log(q / (1 − q))
    for made in (10, 100, 1000):
        q = 0.05 ** (1 / made)
        assert epsilon_bound(Guesses(made, made, made), 0.0, 0.05) == pytest.approx(log(q / (1 - q)), abs=1e-6)


def test_the_bound_is_the_binomial_quantile_and_falls_with_delta() -> None:
    stats = pytest.importorskip("scipy.stats")
    found = epsilon_bound(Guesses(1000, 200, 150), 0.0, 0.05)
    assert stats.binom.sf(149, 200, 1 / (1 + exp(-found))) == pytest.approx(0.05, abs=1e-6)
    with_delta = [epsilon_bound(Guesses(1000, 200, 150), delta, 0.05) for delta in (0.0, 1e-6, 1e-5, 1e-3)]
    assert with_delta == sorted(with_delta, reverse=True)
    assert with_delta[-1] < with_delta[0]


def test_half_of_the_guesses_right_prove_nothing() -> None:
    assert epsilon_bound(Guesses(1000, 1000, 500), DELTA, 0.05) == 0.0
    assert gaussian_bound(Guesses(1000, 1000, 500), 0.05) == 0.0


@pytest.mark.parametrize("mu", [0.2, 1.0, 2.5])
def test_the_bounds_never_pass_the_true_epsilon(mu: float) -> None:
    true = gaussian_epsilon(1 / mu, DELTA)
    found = [lower_bound(*simulated(mu, 600, seed), delta=DELTA) for seed in range(60)]
    assert max(bound.epsilon for bound in found) <= true
    gaussian = [bound.gaussian for bound in found if bound.gaussian is not None]
    assert len(gaussian) == 60
    assert max(gaussian) <= true
    if mu >= 1:  # they say something, and the one for Gaussian noise says more
        assert min(gaussian) > 0.2 * true
        assert all(g > bound.epsilon for g, bound in zip(gaussian, found, strict=True))


def test_each_bound_alone_errs_as_seldom_as_it_says() -> None:
    """Randomized response: a mechanism with exactly this ε, whose guesses are right with the largest chance."""
    epsilon, made = 1.0, 300
    right = np.random.default_rng(1).binomial(made, 1 / (1 + exp(-epsilon)), 2000)
    by_count = {int(v): epsilon_bound(Guesses(made, made, int(v)), 0.0, 0.05) for v in np.unique(right)}
    wrong = np.mean([by_count[int(v)] > epsilon for v in right])
    assert 0.02 < wrong <= 0.05 + 0.015  # not above the risk, and the bound is not loose


def test_without_noise_the_bounds_are_large_and_grow_with_the_canaries() -> None:
    found = []
    for canaries in (100, 1000, 5000):
        included = np.arange(canaries) % 2 == 0
        found.append(lower_bound(included.astype(float), included, delta=DELTA))
    assert [f.epsilon for f in found] == sorted(f.epsilon for f in found)
    assert found[0].epsilon > 2.5
    assert found[-1].epsilon > 6
    assert found[-1].gaussian is not None
    assert found[-1].gaussian > 11
    assert found[-1].guesses[-1].right == 5000


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_the_estimate_is_close_and_its_limit_covers(mu: float) -> None:
    true = gaussian_epsilon(1 / mu, DELTA)
    found = [lower_bound(*simulated(mu, 2000, seed), delta=DELTA).estimate for seed in range(40)]
    assert np.mean([f[0] for f in found if f]) == pytest.approx(true, rel=0.1)
    assert max(f[1] for f in found if f) <= true


def test_noise_that_was_halved_is_caught() -> None:
    stated = gaussian_epsilon(2.0, DELTA)  # μ = 0.5
    score, included = simulated(1.0, 15_000, 3)  # half the noise
    found = lower_bound(score, included, delta=DELTA)
    assert found.gaussian is not None
    assert found.gaussian > stated
    assert found.estimate is not None
    assert found.estimate[1] > stated


def test_guesses_are_the_two_ends() -> None:
    score = np.array([0.0, 5.0, 1.0, 4.0, 2.0, 3.0])
    included = np.array([True, True, False, True, False, False])
    assert guess(score, included, 2) == Guesses(6, 2, 1)  # 5 is in; 0 was in too
    assert guess(score, included, 4) == Guesses(6, 4, 3)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvariantError):
        Guesses(10, 5, 6)
    with pytest.raises(FedgramError, match="confidence"):
        lower_bound(np.zeros(4), np.ones(4, bool), delta=DELTA, confidence=1.0)
    with pytest.raises(FedgramError, match="at least 2"):
        lower_bound(np.zeros(1), np.ones(1, bool), delta=DELTA)
    with pytest.raises(FedgramError, match="too few"):
        estimate_mu(np.zeros(4), np.ones(4, bool))
