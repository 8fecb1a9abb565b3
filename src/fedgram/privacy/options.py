"""The settings of privacy: what keeps single users out of what the server learns from devices."""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Annotated, Literal

from fedgram.core.settings import NEEDS_DP, AtLeastOne, Between, Needs, Positive, SettingError, Settings, setting
from fedgram.privacy.accounting import Gaussian
from fedgram.privacy.gaussian import gaussian_epsilon, multiplier_for
from fedgram.privacy.noise import Randomness, SeededRandomness, SystemRandomness

Protection = Literal["threshold", "dp", "none"]
_NEEDS_THRESHOLD = Needs("protection", ("threshold",), otherwise="no number of devices is asked for")


@dataclass(frozen=True, slots=True)
class PrivacyOptions(Settings):
    """What keeps single users out of a model.

    - `threshold`: an n-gram of the model must be on a minimum number of devices, or public. Counts are exact.
    - `dp`: user-level (ε, δ)-differential privacy, by limits on the device and noise at the server.
    - `none`: nothing. An n-gram of a single user can enter the model.
    """

    protection: Protection = setting(
        "threshold",
        "What keeps single users out of the model: a minimum number of devices per n-gram, differential privacy, or "
        "nothing.",
    )
    min_devices: Annotated[int, Between(2)] = setting(
        10, "With threshold: minimum number of devices of an n-gram that devices add.", formerly="least",
        needs=_NEEDS_THRESHOLD,
    )  # fmt: skip
    network_devices: Annotated[int, Between(2)] = setting(
        2, "With threshold: minimum number of devices of an n-gram that the network learned and that is not public.",
        needs=_NEEDS_THRESHOLD,
    )  # fmt: skip
    epsilon: Positive = setting(3.42, "With dp: ε of everything together.", needs=NEEDS_DP)
    delta: Annotated[float, Between(above=0, high=0.1)] = setting(1e-8, "With dp: δ.", needs=NEEDS_DP)
    simulated: AtLeastOne | None = setting(
        None, "With dp: simulate a population of this size; the noise is as small as if each device stood for many.",
        needs=NEEDS_DP,
    )  # fmt: skip
    noise_seed: Annotated[int, Between(0)] | None = setting(
        None, "With dp: draw the noise from this seed, for experiments: the result is repeatable, but not private.",
        needs=NEEDS_DP,
    )  # fmt: skip

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.network_devices > self.min_devices:
            raise SettingError("network_devices", f"must be at most min_devices, {self.min_devices}")

    @property
    def is_dp(self) -> bool:
        """Whether noise is added."""
        return self.protection == "dp"

    @property
    def event(self) -> Gaussian:
        """One Gaussian event that costs ε at δ."""
        return Gaussian(multiplier_for(self.epsilon, self.delta))

    @property
    def randomness(self) -> Randomness:
        """Where noise comes from."""
        return SystemRandomness() if self.noise_seed is None else SeededRandomness(self.noise_seed)

    def stands_for(self, devices: int | None) -> float:
        """The number of users that each of so many devices stands for; real devices stand for themselves."""
        if not (self.is_dp and self.simulated):
            return 1.0
        if devices is None:
            raise SettingError("simulated", "is for simulations: a device of a federation stands for one user")
        return self.simulated / devices if devices else 1.0

    def part(self, share: float) -> "PrivacyOptions":
        """A share of the budget: as Gaussian events, the parts of all shares together cost ε at δ."""
        multiplier = multiplier_for(self.epsilon, self.delta) / sqrt(share)
        return replace(self, epsilon=gaussian_epsilon(multiplier, self.delta)) if self.is_dp else self


def as_privacy(given: "PrivacyOptions | Protection | None") -> PrivacyOptions:
    """The options, or those of a protection by name; by default, `threshold`."""
    return given if isinstance(given, PrivacyOptions) else PrivacyOptions(given or "threshold")
