"""The settings of audits; this module does not import torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedgram.core.settings import AtLeastOne, Between, Positive, SettingError, Settings, setting
from fedgram.privacy.options import PrivacyOptions, Protection


@dataclass(frozen=True, slots=True)
class EpsilonAuditOptions(Settings):
    """What is audited, and how."""

    mechanism: Literal["both", "counts", "rounds"] = setting(
        "both", "What to audit: the counts of n-grams, the rounds of a training, or both."
    )
    canaries: Annotated[int, Between(10, 20_000)] = setting(2000, "Number of canary devices.")
    epsilon: Positive = setting(3.42, "ε that the noise is made for.")
    delta: Annotated[float, Between(above=0, high=0.1)] = setting(1e-5, "δ.")
    confidence: Annotated[float, Between(0.5, 0.9999)] = setting(0.95, "Confidence of the lower bounds.")
    typists: AtLeastOne = setting(50, "Number of generated users among whom the canaries take part.")
    rounds: Annotated[int, Between(1, 1000)] = setting(4, "Number of rounds of the training.")
    noise_seed: Annotated[int, Between(0)] | None = setting(
        None, "Draw the noise from this seed, so that the audit is repeatable."
    )

    def privacy(self, protection: Protection) -> PrivacyOptions:
        """The privacy that is audited."""
        return PrivacyOptions(protection, epsilon=self.epsilon, delta=self.delta, noise_seed=self.noise_seed)


@dataclass(frozen=True, slots=True)
class CanaryOptions(Settings):
    """Which secrets are planted, and how hard they are looked for."""

    holders: Annotated[tuple[int, ...], Between(0)] = setting(
        (0, 1, 2, 5, 10, 20), "Numbers of devices that hold a secret; 0 is the control."
    )
    repeats: Annotated[tuple[int, ...], Between(1, 1000)] = setting(
        (1, 5, 20), "How often each of them types the secret."
    )
    copies: AtLeastOne = setting(4, "Number of secrets for each number of holders and repeats.")
    length: Annotated[int, Between(2, 20)] = setting(5, "Number of words of a secret.")
    words: Annotated[int, Between(2)] = setting(500, "Number of frequent words that secrets are drawn from.")
    references: Annotated[int, Between(10, 10_000_000)] = setting(
        10_000, "Number of random sequences among which a secret is ranked."
    )
    known: Annotated[int, Between(0)] = setting(2, "Number of words of a secret that are known when it is extracted.")
    width: Annotated[int, Between(1, 1000)] = setting(20, "Width of the beam search.")
    network: bool = setting(True, "Train and distill networks too; otherwise only the refit of a public model.")

    def __post_init__(self) -> None:
        """Check the values, and that something is left to be found."""
        Settings.__post_init__(self)
        if self.known >= self.length:
            raise SettingError("known", "must be below the length of a secret, or nothing is left to be found")


@dataclass(frozen=True, slots=True)
class InversionOptions(Settings):
    """Whose updates are attacked, and the noise of the last attack."""

    targets: AtLeastOne = setting(20, "Number of devices whose words are looked for.")
    cohort: Annotated[int, Between(2)] = setting(100, "Number of devices in a sum.")
    epsilon: Positive = setting(3.42, "ε of the sum with noise.")
    delta: Annotated[float, Between(above=0, high=0.1)] = setting(1e-5, "δ of the sum with noise.")
    typists: AtLeastOne = setting(150, "Number of generated users, if none are given.")
    noise_seed: Annotated[int, Between(0)] | None = setting(
        None, "Draw the noise from this seed, so that the audit is repeatable."
    )

    @property
    def privacy(self) -> PrivacyOptions:
        """The privacy of the sum with noise."""
        return PrivacyOptions("dp", epsilon=self.epsilon, delta=self.delta, noise_seed=self.noise_seed)


Defence = Literal["default", "none", "median", "trimmed"]


@dataclass(frozen=True, slots=True)
class PoisoningOptions(Settings):
    """Which attacks are made, by how many devices, and which defences they meet."""

    attacks: tuple[Literal["backdoor", "sabotage"], ...] = setting(("backdoor", "sabotage"), "What lying devices do.")
    shares: Annotated[tuple[float, ...], Between(above=0, high=0.5)] = setting(
        (0.01, 0.1), "Shares of the devices that lie."
    )
    defences: tuple[Defence, ...] = setting(
        ("default",),
        "Defences to try: the limits of the configuration, no limits, or besides the limits the median or the trimmed "
        "mean of updates.",
    )
    triggers: Annotated[int, Between(1, 1000)] = setting(
        20, "Number of backdoors, after the phrases of three words that most users type."
    )
    trigger: str | None = setting(None, "A single backdoor after this phrase, instead.")
    target: str | None = setting(None, "The word to suggest after it; by default, a random one.")
    words: Annotated[int, Between(2)] = setting(2000, "Number of frequent words that targets are drawn from.")
    test_users: AtLeastOne = setting(200, "Number of test users to measure the cost on.")
    network: bool = setting(True, "Attack the network too; otherwise only the refit of a public model.")

    def __post_init__(self) -> None:
        """Check the values."""
        Settings.__post_init__(self)
        if self.target is not None and self.trigger is None:
            raise SettingError("target", "needs a trigger")
