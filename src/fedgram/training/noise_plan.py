"""Differential privacy of a training: how much noise its sums get, who may take part when, and what that costs.

The unit of privacy is a user. Every update has at most the norm C that the task enforces, its rounding included, and
the sum of a round gets noise of standard deviation z·C on every weight (`NoisySums`). Losses and numbers of targets are
not released. The server's optimiser works on released sums alone, so it costs nothing.

With adaptive clipping every device also sends ±½, whose sum gets noise of standard deviation σ_b. So that both together
have the multiplier z, the weights get a little more noise: 1/z² = 1/z_Δ² + 1/(2·σ_b)² (Andrew et al. 2021).

In a simulated population every device stands for f users. Then the sum of f times as many updates, with noise, divided
by f, is the sum of the updates with noise of standard deviation z·C/f.
"""

from dataclasses import dataclass, replace
from math import exp, sqrt
from typing import Any

from fedgram.core.errors import FedgramError
from fedgram.core.settings import SettingError
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Job
from fedgram.federated.mechanism import Account, NoisySums
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.simulation import Ranks
from fedgram.privacy.accounting import Event, compose
from fedgram.privacy.blt import Participation
from fedgram.privacy.ledger import Ledger
from fedgram.privacy.mechanisms import BltSums, GaussianSums, SumNoise
from fedgram.privacy.noise import Randomness, SeededRandomness, SystemRandomness
from fedgram.privacy.options import PrivacyOptions
from fedgram.privacy.planning import PrivacyPlan
from fedgram.training.fedavg_device import UNCLIPPED, DeviceTraining
from fedgram.training.options import FedAvgOptions

_HALF = 0.5  # what a device sends of its clipping
_IMPROBABLE = 1e-15  # chance per round of a Poisson sample too small to be masked, which the account leaves out


@dataclass(frozen=True, slots=True)
class NoisePlan:
    """The noise of a training on `population` devices, if that number is known."""

    options: FedAvgOptions
    privacy: PrivacyPlan
    stands_for: float = 1.0

    @classmethod
    def of(cls, options: FedAvgOptions, population: int | None) -> "NoisePlan | None":
        """The plan that these options ask for; None without noise."""
        o = options
        if o.noise == "none":
            return None
        if o.simulated is not None and (population is None or o.simulated < population):
            raise SettingError("simulated", "is for simulations, and must be at least the number of their users")
        stands_for = o.simulated / population if o.simulated and population else 1.0
        if o.noise == "poisson":
            return cls(o, _poisson(o, population), stands_for)
        taking_part = Participation(o.rounds, _separation(o, population), o.max_participations)
        return cls(o, PrivacyPlan("blt", taking_part, population, o.devices_per_round), stands_for)

    @property
    def event(self) -> Event:
        """What all rounds cost together, in the population that is simulated."""
        return self.privacy.event(self.options.noise_multiplier)

    @property
    def limits(self) -> tuple[int | None, int]:
        """In how many rounds a device may take part, and their separation."""
        if self.options.noise == "poisson":
            return None, 1
        return self.privacy.taking_part.most, self.privacy.taking_part.min_separation

    @property
    def randomness(self) -> Randomness:
        """Where the noise comes from."""
        seed = self.options.noise_seed
        return SystemRandomness() if seed is None else SeededRandomness(seed)

    @property
    def about(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be resumed."""
        o = self.options
        names = ("noise", "noise_multiplier", "simulated", "noise_seed", "clip_noise")
        return {name: getattr(o, name) for name in names}

    def multipliers(self) -> tuple[float, float | None]:
        """z_Δ of the weights, and the deviation σ_b of the sum of clipping bits, if they are sent."""
        o, z = self.options, self.options.noise_multiplier
        if not o.adaptive_clip:
            return z, None
        bit = o.clip_noise * o.devices_per_round * self.stands_for
        if bit / _HALF <= z:
            least = z * _HALF / (o.devices_per_round * self.stands_for)
            raise SettingError("clip_noise", f"must be above {least:.3g} for this noise multiplier and cohort")
        return 1.0 / sqrt(z**-2 - (bit / _HALF) ** -2), bit

    def noise(self, task: DeviceTraining, randomness: Randomness, label: str) -> SumNoise:
        """The noise for the sums of a task."""
        weights = {name: task.size[name] for name in task.shape.sizes()}
        limit = next(limit for limit in task.bounds.norms if set(limit.vectors) == set(weights))
        most = limit.most(sum(weights.values()), task.bounds.weight, task.bits)
        multiplier, bit = self.multipliers()
        size, deviation = dict(weights), dict.fromkeys(weights, multiplier * most / self.stands_for)
        if bit is not None:
            size[UNCLIPPED], deviation[UNCLIPPED] = 1, bit / self.stands_for
        if self.options.noise == "blt":
            return BltSums(self.privacy.blt, size, deviation, randomness, label=label)
        return GaussianSums(size, deviation, randomness, label=label)

    def mechanism(self, job: Job[Any], ledger: Ledger, name: str, ranks: Ranks | None = None) -> NoisySums:
        """The mechanism of a run, which records its rounds in a ledger under a name."""
        task, randomness, o = job.task, self.randomness, self.options
        assert isinstance(task, DeviceTraining)
        account = Account(ledger, name, self.event, o.rounds, randomness.name, self.stands_for)
        return NoisySums(
            self.noise(task, randomness, job.digest[:16]), randomness, account, expected=o.devices_per_round,
            sampling_probability=self.privacy.sampling_probability if o.noise == "poisson" else None, ranks=ranks,
        )  # fmt: skip


def with_noise(options: FedAvgOptions, privacy: PrivacyOptions, population: int | None) -> FedAvgOptions:
    """The options with as much BLT noise as this privacy needs; noise that they ask for themselves must be enough."""
    if not privacy.is_dp:
        return options
    if options.noise != "none":
        plan = NoisePlan.of(options, population)
        assert plan is not None
        if (cost := compose([plan.event], privacy.delta).epsilon) > privacy.epsilon * (1 + 1e-6):
            share = f"costs ε = {cost:.4g} at δ = {privacy.delta:g}, more than its share, {privacy.epsilon:.4g}"
            raise SettingError("noise_multiplier", f"{share}; use more noise, or noise = 'none' to have it computed")
        return options
    noisy = replace(
        options, noise="blt", noise_multiplier=1.0, weighting="uniform", simulated=privacy.simulated,
        noise_seed=privacy.noise_seed,
    )  # fmt: skip
    plan = NoisePlan.of(noisy, population)
    assert plan is not None
    unit = plan.event.zcdp  # falls with the square of the multiplier
    assert unit is not None
    return replace(noisy, noise_multiplier=sqrt(unit / privacy.event.zcdp))


def _poisson(options: FedAvgOptions, population: int | None) -> PrivacyPlan:
    m = options.devices_per_round
    if population is None:
        raise SettingError("noise", "cannot be 'poisson' where the number of devices is not known; use 'blt'")
    if options.secure_aggregation and _chance_below(SecureSettings().min_devices, m) > _IMPROBABLE:
        problem = "is too small for Poisson sampling with secure aggregation: a sample may have too few devices"
        raise SettingError("devices_per_round", problem)
    return PrivacyPlan("poisson", Participation(options.rounds), population, m)


def _chance_below(least: int, mean: float) -> float:
    """The chance that a Poisson number of this mean is below `least`."""
    term, total = exp(-mean), 0.0
    for i in range(least):
        total += term
        term *= mean / (i + 1)
    return total


def _separation(options: FedAvgOptions, population: int | None) -> int:
    """The separation of participations that is asked for, or the largest one that these devices allow."""
    if population is None:
        if options.min_separation is None:
            raise SettingError("min_separation", "must be given where the number of devices is not known")
        return options.min_separation
    m = options.devices_per_round
    invited = RoundPlan(m, options.over_selection).invited
    largest = max(1, (population - invited) // m + 1)
    if options.min_separation is not None and options.min_separation > largest:
        cohorts = f"cohorts of {m:,} allow at most {largest:,}"
        raise FedgramError(
            f"min_separation = {options.min_separation:,} is too large for {population:,} devices: {cohorts}"
        )
    return min(options.min_separation or largest, options.rounds)
