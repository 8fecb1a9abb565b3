"""What a mechanism costs, before anything is run: ε of a noise multiplier, and the noise multiplier of an ε.

Two trust models are compared (`trust_models`). In both, devices mask their updates, so the server sees sums alone.

    honest server   the server adds the noise, once, to the sum that is released
    device shares   every device adds a share of the noise (Skellam or discrete Gaussian numbers, which can be masked),
                    so that nobody ever sees a sum without noise. The sum of a cohort then has the noise already, and
                    the sum of several cohorts has the noise of each
"""

from dataclasses import dataclass
from math import ceil, exp, log, sqrt
from typing import Literal, NamedTuple

from fedgram.core.errors import FedgramError, MissingDependencyError
from fedgram.privacy.accounting import BltGaussian, Event, Gaussian, PoissonGaussian, Spent, compose
from fedgram.privacy.blt import Blt, Participation, prefix_errors, sensitivity
from fedgram.privacy.blt_design import design_blt
from fedgram.privacy.gaussian import multiplier_for

MECHANISMS = ("gaussian", "poisson", "blt")
_LEAST_SAMPLED = 0.2  # the smallest multiplier that is searched for with Poisson sampling


@dataclass(frozen=True, slots=True)
class PrivacyPlan:
    """A mechanism, the rounds in which sums are released, and who takes part.

    `population` and `cohort` are numbers of devices; Poisson sampling needs both. A device takes part as `taking_part`
    says, except with Poisson sampling, which decides by chance.
    """

    mechanism: Literal["gaussian", "poisson", "blt"]
    taking_part: Participation
    population: int | None = None
    cohort: int | None = None

    def __post_init__(self) -> None:
        n, m = self.population, self.cohort
        if (n is not None and n < 1) or (m is not None and m < 1):
            raise FedgramError("population and cohort must be at least 1 device")
        if n is not None and m is not None and m > n:
            raise FedgramError(f"a cohort of {m:,} devices does not fit into a population of {n:,}")
        if self.mechanism == "poisson":
            if n is None or m is None:
                raise FedgramError("Poisson sampling needs the sizes of the population and of the cohort")
            if self.taking_part.min_separation > 1 or self.taking_part.participations is not None:
                raise FedgramError("Poisson sampling allows no minimum separation and no limit of participations")

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.taking_part.rounds

    @property
    def sampling_probability(self) -> float:
        """The probability with which Poisson sampling picks a device."""
        assert self.population is not None
        assert self.cohort is not None
        return self.cohort / self.population

    @property
    def blt(self) -> Blt:
        """The matrix of BLT noise."""
        return design_blt(self.taking_part)

    def event(self, multiplier: float) -> Event:
        """The event of all rounds together, with noise of this multiplier."""
        if self.mechanism == "poisson":
            return PoissonGaussian(multiplier, self.sampling_probability, self.rounds)
        if self.mechanism == "blt":
            return BltGaussian(multiplier, sensitivity(self.blt, self.taking_part))
        return Gaussian(multiplier, self.taking_part.most)

    def cost(self, multiplier: float, delta: float) -> Spent:
        """ε and zCDP of all rounds together."""
        return compose([self.event(multiplier)], delta)

    def multiplier(self, epsilon: float, delta: float) -> float:
        """The smallest noise multiplier with which all rounds together are (ε, δ)-differentially private."""
        once = multiplier_for(epsilon, delta)
        if self.mechanism == "poisson":
            return self._sampled_multiplier(epsilon, delta, once * sqrt(self.rounds))
        event = self.event(1.0)
        return once * (event.sensitivity if isinstance(event, BltGaussian) else sqrt(self.taking_part.most))

    def _sampled_multiplier(self, epsilon: float, delta: float, largest: float) -> float:
        """By a search; `largest` is the multiplier without sampling, which is enough."""

        def excess(log_multiplier: float) -> float:
            return self.cost(exp(log_multiplier), delta).epsilon / epsilon - 1.0

        try:
            from scipy.optimize import brentq
        except ModuleNotFoundError:
            raise MissingDependencyError("the search for a noise multiplier", "privacy") from None
        least, most = log(_LEAST_SAMPLED), log(max(largest, _LEAST_SAMPLED))
        if excess(least) <= 0:
            return _LEAST_SAMPLED
        found = float(brentq(excess, least, most, xtol=1e-6))
        while excess(found) > 0:  # on the safe side of the root
            found += 1e-6
        return exp(found)


class TrustModel(NamedTuple):
    """Who adds the noise, and what it costs.

    `noise` is the standard deviation of the noise in what is released in a round (for sums of counts: in the sum over
    the population), in units of the norm limit. `last_sum` is that of the noise in the sum of all rounds. `share` is
    what each device adds.
    """

    name: str
    noise: float
    last_sum: float
    share: float | None
    epsilon: float
    about: str


def trust_models(plan: PrivacyPlan, multiplier: float, delta: float) -> tuple[TrustModel, TrustModel]:
    """The two trust models: an honest server, and shares of the devices that cost the same ε."""
    epsilon = plan.cost(multiplier, delta).epsilon
    error = float(prefix_errors(plan.blt, plan.rounds)[-1]) if plan.mechanism == "blt" else sqrt(plan.rounds)
    server = TrustModel(
        "honest server", multiplier, multiplier * error, None, epsilon,
        "the server adds the noise once, to the sum that is released; it must be trusted to do so",
    )  # fmt: skip
    return server, _device_shares(plan, multiplier, delta)


def _device_shares(plan: PrivacyPlan, multiplier: float, delta: float) -> TrustModel:
    noise, cohort = multiplier, plan.cohort
    if plan.mechanism == "blt":
        event = plan.event(multiplier)
        assert isinstance(event, BltGaussian)
        noise = multiplier / event.sensitivity * sqrt(plan.taking_part.most)
        about = (
            "devices cannot know the noise of earlier rounds, so it is independent: "
            f"the sum of all rounds has {noise * sqrt(plan.rounds) / _last_sum(plan, multiplier):.1f} times the noise"
        )
        epsilon = compose([Gaussian(noise, plan.taking_part.most)], delta).epsilon
    elif plan.mechanism == "poisson":
        epsilon = compose([Gaussian(noise, plan.rounds)], delta).epsilon
        about = (
            "the same noise per round; but the server knows the cohorts, so against the server sampling does not "
            f"count: this ε is for a device that takes part in all {plan.rounds:,} rounds"
        )
    else:
        cohorts = ceil(plan.population / cohort) if plan.population and cohort else 1
        noise, epsilon = multiplier * sqrt(cohorts), plan.cost(multiplier, delta).epsilon
        about = (
            f"each of {cohorts:,} masked cohorts has the noise, so that their sum has √{cohorts:,} times as much"
            if cohorts > 1
            else "one masked cohort has the noise of an honest server"
        )
        return TrustModel(
            "device shares", noise, noise * sqrt(plan.rounds), multiplier / sqrt(cohort) if cohort else None, epsilon,
            about,
        )  # fmt: skip
    share = noise / sqrt(cohort) if cohort else None
    return TrustModel("device shares", noise, noise * sqrt(plan.rounds), share, epsilon, about)


def _last_sum(plan: PrivacyPlan, multiplier: float) -> float:
    return multiplier * float(prefix_errors(plan.blt, plan.rounds)[-1])
