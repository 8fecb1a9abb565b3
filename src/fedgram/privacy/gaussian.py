"""One Gaussian event: the sum of clipped contributions plus Gaussian noise, released once.

The noise multiplier σ is the noise's standard deviation divided by the largest contribution of one user, in L2 norm.
Adjacency is add-or-remove-one: two populations are neighbours if one has one user more. With μ = 1/σ the event is
(ε, δ)-differentially private if and only if (Balle and Wang 2018)

    δ ≥ Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2)

It also satisfies zero-concentrated differential privacy (zCDP) with ρ = 1/(2σ²) (Bun and Steinke 2016). The zCDP of
Gaussian events adds up, and the sum is that of one Gaussian event, so for Gaussian events the conversion of ρ to (ε, δ)
is exact. For other mechanisms of the same ρ it does not hold.
"""

from math import erfc, exp, inf, sqrt
from typing import Any

from fedgram.core.errors import FedgramError, MissingDependencyError


def load_dp_accounting() -> Any:
    """The library dp-accounting, imported when it is needed."""
    try:
        import dp_accounting
    except ModuleNotFoundError:
        raise MissingDependencyError("privacy accounting", "privacy") from None
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
    mu = 1.0 / multiplier
    return _normal_cdf(-epsilon / mu + mu / 2) - exp(epsilon) * _normal_cdf(-epsilon / mu - mu / 2)


def _normal_cdf(x: float) -> float:
    return 0.5 * erfc(-x / sqrt(2.0))


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The smallest ε of a Gaussian event at this δ."""
    check_multiplier(multiplier)
    check_delta(delta)
    return float(load_dp_accounting().get_epsilon_gaussian(multiplier, delta))


def multiplier_for(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier with which a Gaussian event is (ε, δ)-differentially private."""
    if not 0 < epsilon < inf:
        raise FedgramError(f"epsilon must be greater than 0 and finite, not {epsilon}")
    check_delta(delta)
    return float(load_dp_accounting().get_sigma_gaussian(epsilon, delta))


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
