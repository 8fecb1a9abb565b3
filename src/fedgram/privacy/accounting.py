"""Events that cost privacy, and their composition to (ε, δ) and zCDP.

The unit of privacy is one user, with all of the user's text. Adjacency is add-or-remove-one: two populations are
neighbours if one has one user more. Four kinds of events:

    Gaussian         a sum with independent Gaussian noise, in which a user takes part every time
    PoissonGaussian  the same over a random cohort, which every user joins independently with the same probability
    BltGaussian      all rounds of a training with correlated noise (`blt.py`), which together are one Gaussian event
    Approximate      anything else that is (ε, δ)-differentially private; its ε and δ are added to those of the rest

Any number of Gaussian events is again one Gaussian event, so their composition is exact. Poisson sampling is accounted
by privacy loss distributions (dp-accounting; Koskela et al. 2020, Doroshenko et al. 2022), whose rounding is
pessimistic: ε is never too small. No useful zCDP is known for Poisson sampling, so it is not given there.
Post-processing costs nothing: what the server computes from released sums (momentum, Adam, averages) is no event.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.privacy.gaussian import (
    check_delta,
    check_multiplier,
    epsilon_of_zcdp,
    gaussian_zcdp,
    load_dp_accounting,
    multiplier_of_zcdp,
)

ADJACENCY = "add-or-remove-one"
_LEAST_DISTRIBUTED = 0.2  # a smaller multiplier makes loss distributions too large to compute


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Sums with Gaussian noise; the same user may be in all of them. With `rounds` sums, ρ = rounds/(2σ²)."""

    multiplier: float
    rounds: int = 1

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier)
        _check_rounds(self.rounds)

    @property
    def zcdp(self) -> float:
        """ρ."""
        return self.rounds * gaussian_zcdp(self.multiplier)

    def after(self, rounds: int) -> "Gaussian":
        """The event after so many rounds, at least 1; a user takes part in at most `self.rounds`."""
        return replace(self, rounds=min(rounds, self.rounds))

    def scaled(self, factor: float) -> "Gaussian":
        """The event with the noise multiplied by `factor`."""
        return replace(self, multiplier=self.multiplier * factor)


@dataclass(frozen=True, slots=True)
class PoissonGaussian:
    """Sums with Gaussian noise over cohorts that every user joins independently with `sampling_probability`."""

    multiplier: float
    sampling_probability: float
    rounds: int

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier)
        _check_rounds(self.rounds)
        if not 0 < self.sampling_probability <= 1:
            raise FedgramError(f"the sampling probability must lie in (0, 1], not {self.sampling_probability}")

    @property
    def zcdp(self) -> None:
        """Not given: no useful zCDP is known."""
        return

    def after(self, rounds: int) -> "PoissonGaussian":
        """The event after so many rounds, at least 1."""
        return replace(self, rounds=min(rounds, self.rounds))

    def scaled(self, factor: float) -> "PoissonGaussian":
        """The event with the noise multiplied by `factor`."""
        return replace(self, multiplier=self.multiplier * factor)


@dataclass(frozen=True, slots=True)
class BltGaussian:
    """All rounds of a training with BLT noise: one Gaussian event of multiplier/sensitivity.

    `multiplier` is the standard deviation of the fresh noise divided by the clip norm. `sensitivity` is that of the BLT
    matrix for the participations that the training allows (`blt.sensitivity`).
    """

    multiplier: float
    sensitivity: float

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier)
        if not 1 <= self.sensitivity < inf:
            raise FedgramError(f"the sensitivity of BLT noise is at least 1, not {self.sensitivity}")

    @property
    def zcdp(self) -> float:
        """ρ."""
        return gaussian_zcdp(self.multiplier / self.sensitivity)

    def after(self, rounds: int) -> "BltGaussian":  # noqa: ARG002
        """The whole event: its rounds are accounted together."""
        return self

    def scaled(self, factor: float) -> "BltGaussian":
        """The event with the noise multiplied by `factor`."""
        return replace(self, multiplier=self.multiplier * factor)


@dataclass(frozen=True, slots=True)
class Approximate:
    """Something that is (ε, δ)-differentially private, whatever its mechanism."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if not 0 < self.epsilon < inf:
            raise FedgramError(f"epsilon must be greater than 0 and finite, not {self.epsilon}")

    @property
    def zcdp(self) -> None:
        """Not known."""
        return

    def after(self, rounds: int) -> "Approximate":  # noqa: ARG002
        """The whole event."""
        return self

    def scaled(self, factor: float) -> "Approximate":
        """Not known for other noise."""
        if factor != 1.0:
            raise FedgramError("the cost of this mechanism is not known for other noise")
        return self


Event = Gaussian | PoissonGaussian | BltGaussian | Approximate
_KINDS: dict[str, type[Event]] = {
    "gaussian": Gaussian, "poisson": PoissonGaussian, "blt": BltGaussian, "approximate": Approximate
}  # fmt: skip


def _check_rounds(rounds: int) -> None:
    if rounds < 1:
        raise FedgramError(f"the number of rounds must be at least 1, not {rounds}")


class Spent(NamedTuple):
    """The privacy cost of some events: ε at δ, and ρ, which is None where no zCDP is known."""

    epsilon: float
    delta: float
    zcdp: float | None


def compose(events: Iterable[Event], delta: float) -> Spent:
    """The cost of all events together, each of which may depend on the results of earlier ones.

    Events may use the same users. For the Gaussian mechanism the sum of ρ is exact also under adaptive composition.
    """
    check_delta(delta)
    return _composed(tuple(events), delta)


@lru_cache(maxsize=256)
def _composed(events: tuple[Event, ...], delta: float) -> Spent:
    others = [event for event in events if isinstance(event, Approximate)]
    if others:
        left = delta - sum(event.delta for event in others)
        rest = _composed(tuple(event for event in events if event not in others), left).epsilon if left > 0 else inf
        return Spent(rest + sum(event.epsilon for event in others), delta, None)
    sampled = [event for event in events if isinstance(event, PoissonGaussian)]
    rho = sum(event.zcdp for event in events if isinstance(event, Gaussian | BltGaussian))
    if not sampled:
        return Spent(epsilon_of_zcdp(rho, delta) if rho else 0.0, delta, rho)
    unsampled = rho + sum(Gaussian(event.multiplier, event.rounds).zcdp for event in sampled)
    epsilon = epsilon_of_zcdp(unsampled, delta)  # an upper bound: sampling never costs more than taking part
    multipliers = [event.multiplier for event in sampled] + ([multiplier_of_zcdp(rho)] if rho else [])
    if min(multipliers) >= _LEAST_DISTRIBUTED:
        epsilon = min(epsilon, _distributed_epsilon(sampled, rho, delta))
    return Spent(epsilon, delta, None)


def _distributed_epsilon(sampled: Iterable[PoissonGaussian], rho: float, delta: float) -> float:
    """ε by privacy loss distributions of sampled events, and of Gaussian events whose zCDP sums to ρ."""
    dp = load_dp_accounting()
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    rounds: dict[tuple[float, float], int] = {}
    for event in sampled:
        key = event.multiplier, event.sampling_probability
        rounds[key] = rounds.get(key, 0) + event.rounds
    for (multiplier, probability), count in rounds.items():
        accountant.compose(dp.PoissonSampledDpEvent(probability, dp.GaussianDpEvent(multiplier)), count)
    if rho:
        accountant.compose(dp.GaussianDpEvent(multiplier_of_zcdp(rho)))
    return float(accountant.get_epsilon(delta))


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as JSON values.

    >>> event_to_json(Gaussian(2.0))
    {'kind': 'gaussian', 'multiplier': 2.0, 'rounds': 1}
    """
    kind = next(name for name, known in _KINDS.items() if isinstance(event, known))
    return {"kind": kind, **asdict(event)}


def event_from_json(values: Mapping[str, Any]) -> Event:
    """The event that `event_to_json` wrote."""
    try:
        given = {name: value for name, value in values.items() if name != "kind"}
        if any(
            type(value) is not int and (name == "rounds" or type(value) is not float) for name, value in given.items()
        ):
            raise TypeError("a value is not a number")
        return _KINDS[values["kind"]](**given)
    except (KeyError, TypeError) as error:
        raise InvariantError(f"this is not a privacy event: {error}") from None
