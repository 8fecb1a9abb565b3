"""One Gaussian event: the sum of clipped contributions plus Gaussian noise, released once.

The noise multiplier σ is the noise's standard deviation divided by the largest contribution of one user, in L2 norm.
Adjacency is add-or-remove-one: two populations are neighbours if one has one user more. With μ = 1/σ the event is
(ε, δ)-differentially private if and only if (Balle and Wang 2018)

    δ ≥ Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2)

It also satisfies zero-concentrated differential privacy (zCDP) with ρ = 1/(2σ²) (Bun and Steinke 2016). The zCDP of
Gaussian events adds up, and the sum is that of one Gaussian event, so for Gaussian events the conversion of ρ to (ε, δ)
is exact. For other mechanisms of the same ρ it does not hold.

The formula is solved by dp-accounting. Without it, as on a machine that has only torch, bisection finds the same
numbers to nine digits.
"""

from collections.abc import Callable
from math import erfc, exp, inf, log, log1p, pi, sqrt
from typing import Any

from fedgram.core.errors import FedgramError, MissingDependencyError


def load_dp_accounting() -> Any:
    """The library dp-accounting, imported when it is needed."""
    if (library := _dp_accounting()) is None:
        raise MissingDependencyError("privacy accounting of sampled devices", "privacy")
    return library


def _dp_accounting() -> Any | None:
    try:
        import dp_accounting
    except ModuleNotFoundError:
        return None
    return dp_accounting


def check_delta(delta: float) -> None:
    """Refuse a δ outside (0, 1)."""
    if not 0 < delta < 1:
        raise FedgramError(f"delta must be between 0 and 1, not {delta}")


def check_multiplier(multiplier: float) -> None:
    """Refuse a noise multiplier that is not a positive, finite number."""
    if not 0 < multiplier < inf:
        raise FedgramError(f"the noise multiplier must be greater than 0 and finite, not {multiplier}")


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """The smallest δ of a Gaussian event at this ε.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    check_multiplier(multiplier)
    return exp(_log_delta(1.0 / multiplier, epsilon))


def _log_delta(mu: float, epsilon: float) -> float:
    above, below = _log_normal_cdf(-epsilon / mu + mu / 2), _log_normal_cdf(-epsilon / mu - mu / 2)
    share = exp(min(epsilon + below - above, 0.0))
    return above + log1p(-share) if share < 1.0 else -inf


def _log_normal_cdf(x: float) -> float:
    """The logarithm of Φ(x); far below 0 by the first terms of its asymptotic series."""
    if x > -30.0:
        return log(0.5 * erfc(-x / sqrt(2.0)))
    return -0.5 * x * x - log(-x) - 0.5 * log(2.0 * pi) + log1p(-1.0 / x**2 + 3.0 / x**4)


def _root(is_enough: Callable[[float], bool]) -> float:
    """The smallest x > 0, up to rounding, from which on `is_enough` holds; on the side where it does."""
    high = 1.0
    while not is_enough(high):
        high *= 2.0
    low = high / 2.0
    while is_enough(low):
        low, high = low / 2.0, low
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The smallest ε of a Gaussian event at this δ."""
    check_multiplier(multiplier)
    check_delta(delta)
    if (library := _dp_accounting()) is not None:
        return float(library.get_epsilon_gaussian(multiplier, delta))
    if _log_delta(1.0 / multiplier, 0.0) <= log(delta):
        return 0.0
    return _root(lambda epsilon: _log_delta(1.0 / multiplier, epsilon) <= log(delta))


def multiplier_for(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier with which a Gaussian event is (ε, δ)-differentially private."""
    if not 0 < epsilon < inf:
        raise FedgramError(f"epsilon must be greater than 0 and finite, not {epsilon}")
    check_delta(delta)
    if (library := _dp_accounting()) is not None:
        return float(library.get_sigma_gaussian(epsilon, delta))
    return _root(lambda multiplier: _log_delta(1.0 / multiplier, epsilon) <= log(delta))


def gaussian_zcdp(multiplier: float) -> float:
    """ρ = 1/(2σ²), the zCDP of a Gaussian event.

    >>> gaussian_zcdp(2.0)
    0.125
    """
    check_multiplier(multiplier)
    return 0.5 / multiplier**2


def multiplier_of_zcdp(rho: float) -> float:
    """The noise multiplier of the Gaussian event with this zCDP.

    >>> multiplier_of_zcdp(0.125)
    2.0
    """
    if not 0 < rho < inf:
        raise FedgramError(f"zCDP must be greater than 0 and finite, not {rho}")
    return 1.0 / sqrt(2.0 * rho)


def epsilon_of_zcdp(rho: float, delta: float) -> float:
    """The smallest ε at this δ of one or more Gaussian events whose zCDP sums to ρ."""
    return gaussian_epsilon(multiplier_of_zcdp(rho), delta)
