"""The settings of trainings; this module does not import torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedgram.core.settings import AtLeastOne, Between, Limit, Positive, Settings, setting
from fedgram.federated.cohort import CohortOptions


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
    patience: AtLeastOne | None = setting(None, "Stop after this many scores on dev users without a better SLL^e.")
