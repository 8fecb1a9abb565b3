"""The settings of trainings; this module does not import torch."""

from dataclasses import dataclass
from math import isinf
from typing import Annotated, Literal

from fedgram.core.settings import (
    NEEDS_NOISE,
    AtLeastOne,
    Between,
    Limit,
    Needs,
    Positive,
    SettingError,
    Settings,
    setting,
)
from fedgram.federated.cohort import CohortOptions

_NEEDS_BLT = Needs("noise", ("blt",), in_files=False)  # a run with protection dp adds this noise


@dataclass(frozen=True, slots=True)
class PretrainingOptions(Settings):
    """Training on text that a server may see, so that federated training has a warm start."""

    epochs: Annotated[int, Between(0)] = setting(3, "Passes over the text; 0 means random weights.")
    learning_rate: Positive = setting(3e-3, "Largest learning rate.")
    rows: AtLeastOne = setting(128, "Rows per batch.")
    unit_dropout: Annotated[float, Between(0, 0.9)] = setting(
        0.0, "Share of the network's units that are dropped at random in each training step."
    )


@dataclass(frozen=True, slots=True)
class FedAvgOptions(CohortOptions):
    """Federated averaging, with the paper's settings as defaults where the paper has one (§7.1)."""

    rounds: AtLeastOne = setting(1000, "Number of rounds.")
    client_rate: Positive = setting(0.5, "Learning rate on devices.", formerly="client_lr")
    client_schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant", "How the devices' learning rate changes over the rounds."
    )
    rows: AtLeastOne = setting(6, "Rows per batch on a device.")
    length: Annotated[int, Between(2)] = setting(21, "Maximum length of a sentence, its end included.")
    epochs: AtLeastOne = setting(1, "Passes over a device's text per round.")
    max_sentences: AtLeastOne = setting(64, "Maximum number of sentences that a device trains on per round.")
    weighting: Literal["sentences", "uniform"] = setting(
        "sentences", "Weight of a device's update: its number of sentences, or the same for all."
    )
    update_norm: Limit = setting(
        1.0,  # with the paper's server and rates, training diverges without a limit
        "Limit on the norm of a device's update: a longer update is scaled down to it; inf means no limit.",
    )
    aggregation: Literal["mean", "median", "trimmed"] = setting(
        "mean",
        "How the server joins updates: by their mean, or for every weight by the median or the trimmed mean, which few "
        "devices cannot move far.",
    )
    trim: Annotated[float, Between(above=0, high=0.49)] = setting(
        0.1, "With a trimmed mean: the share of the devices that is cut at either end."
    )
    server_rule: Literal["nesterov", "momentum", "adam"] = setting("nesterov", "The server's optimiser.")
    server_rate: Positive = setting(1.0, "Learning rate of the server.", formerly="server_lr")
    server_momentum: Annotated[float, Between(0, 0.999)] = setting(0.9, "Momentum of the server.")
    server_tau: Positive = setting(
        1e-3, "Adam's τ: with a smaller one, words that few devices have are learned as fast as common ones."
    )
    server_schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant", "How the server's learning rate changes over the rounds.", formerly="schedule"
    )
    server_warmup: Annotated[int, Between(0)] = setting(
        0, "Number of rounds in which the server's learning rate rises.", formerly="warmup"
    )
    weight_average: Annotated[float, Between(0, 0.9999)] = setting(
        0.97,
        "Decay per round of an exponential average of the server's weights, which competes with them on dev users; "
        "0 means none.",
    )
    unit_dropout: Annotated[float, Between(0, 0.9)] = setting(
        0.0, "Share of the network's units that devices drop at random in each training step."
    )
    dev_users: Annotated[int, Between(0)] = setting(100, "Number of dev users to score on; 0 means none.")
    evaluate_every: AtLeastOne = setting(10, "Number of rounds between scores on dev users.")
    noise: Literal["none", "poisson", "blt"] = setting(
        "none",
        "Noise for differential privacy: none, independent noise on Poisson samples of devices, or correlated (BLT).",
    )
    noise_multiplier: Positive = setting(
        1.0, "Standard deviation of the (fresh) noise in the sum of a round, per unit of the norm limit.",
        needs=NEEDS_NOISE,
    )  # fmt: skip
    min_separation: AtLeastOne | None = setting(
        None,
        "With BLT noise: minimum number of rounds from one participation of a device to its next; by default, as many "
        "as the number of devices allows.",
        needs=_NEEDS_BLT,
    )
    max_participations: AtLeastOne | None = setting(
        None, "With BLT noise: maximum number of rounds per device; by default, as many as the separation allows.",
        needs=_NEEDS_BLT,
    )  # fmt: skip
    adaptive_clip: bool = setting(
        False, "Adapt the limit on the norm to the devices' changes; update-norm is the first limit."
    )
    clip_target: Annotated[float, Between(0.01, 0.99)] = setting(
        0.5, "Adaptive clipping: the share of devices whose change should be within the limit."
    )
    clip_rate: Positive = setting(0.2, "Adaptive clipping: learning rate of the limit's logarithm.")
    clip_noise: Positive = setting(
        0.05, "Adaptive clipping: standard deviation of the noise in the share of devices within the limit."
    )
    simulated: AtLeastOne | None = setting(
        None, "Simulate a population of this size: the noise is as small as if each device stood for many.",
        needs=NEEDS_NOISE,
    )  # fmt: skip
    noise_seed: Annotated[int, Between(0)] | None = setting(
        None, "Draw the noise from this seed, for experiments: the result is repeatable, but not private.",
        needs=NEEDS_NOISE,
    )  # fmt: skip
    patience: AtLeastOne | None = setting(None, "Stop after this many scores on dev users without a better SLL^e.")

    def __post_init__(self) -> None:
        """Check the values, and that noise is possible with them."""
        Settings.__post_init__(self)
        if self.aggregation != "mean":
            self._check_aggregation()
        if self.noise == "none" and not self.adaptive_clip:
            return
        what = "adaptive clipping" if self.noise == "none" else "noise"
        if self.weighting != "uniform":
            raise SettingError("weighting", f"must be 'uniform' with {what}, so that all devices have the same limit")
        if isinf(self.update_norm):
            raise SettingError("update_norm", f"must be finite with {what}: it limits what one device can change")
        if self.noise == "poisson" and (self.min_separation or self.max_participations):
            problem = "cannot be combined with Poisson sampling, which decides by chance who takes part"
            raise SettingError("min_separation" if self.min_separation else "max_participations", problem)

    def _check_aggregation(self) -> None:
        if self.secure_aggregation:
            raise SettingError("aggregation", "must be 'mean' with secure aggregation, which hides single updates")
        if self.noise != "none" or self.adaptive_clip:
            what = "adaptive clipping" if self.noise == "none" else "noise"
            raise SettingError("aggregation", f"must be 'mean' with {what}, which is made for sums")
