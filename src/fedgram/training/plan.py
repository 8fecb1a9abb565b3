"""The plan of a training: what devices and server agree on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import cos, inf, pi
from typing import Any

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.random import Stream
from fedgram.core.storage import limit_from_json, limit_to_json
from fedgram.federated.averaging import ServerStep
from fedgram.federated.robust import Aggregation, RobustRule
from fedgram.neural.local_training import LocalTraining
from fedgram.training.options import FedAvgOptions

WEIGHTINGS = ("sentences", "uniform")
SCHEDULES = ("constant", "linear", "cosine")
_DEFAULT = FedAvgOptions()


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a learning rate changes over the rounds: a linear warm-up, then constant, or falling to `last` of it."""

    kind: str = "constant"
    rounds: int = 1
    warmup: int = 0
    last: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in SCHEDULES:
            raise FedgramError(f"unknown schedule {self.kind!r}; choose one of {', '.join(SCHEDULES)}")
        if self.rounds < 1 or self.warmup < 0 or not 0 <= self.last <= 1:
            raise FedgramError("a schedule needs at least 1 round, no negative warm-up, and an end between 0 and 1")

    def factor(self, round_number: int) -> float:
        """What the rate is multiplied with in this round, the first being 1."""
        if round_number <= self.warmup:
            return round_number / (self.warmup + 1)
        gone = min(1.0, (round_number - 1 - self.warmup) / max(self.rounds - self.warmup, 1))
        falling = {"constant": 1.0, "linear": 1.0 - gone, "cosine": (1.0 + cos(pi * gone)) / 2.0}[self.kind]
        return self.last + (1.0 - self.last) * falling


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Everything that devices and server must agree on; an `update_norm` of inf sets no limit.

    `average` is the decay of the average of the server's weights, 0 for none. With `adaptive_clip` the limit of each
    round is broadcast, and `update_norm` is the first one.
    """

    local: LocalTraining = field(default_factory=LocalTraining)
    rows: int = _DEFAULT.rows
    length: int = _DEFAULT.length
    epochs: int = _DEFAULT.epochs
    max_sentences: int = _DEFAULT.max_sentences
    weighting: str = _DEFAULT.weighting
    update_norm: float = _DEFAULT.update_norm
    server: ServerStep = field(default_factory=ServerStep)
    client_schedule: Schedule = field(default_factory=Schedule)
    server_schedule: Schedule = field(default_factory=Schedule)
    average: float = 0.0
    adaptive_clip: bool = False
    clip_target: float = _DEFAULT.clip_target
    clip_rate: float = _DEFAULT.clip_rate
    aggregation: Aggregation = "mean"
    trim: float = _DEFAULT.trim

    def __post_init__(self) -> None:
        if min(self.rows, self.length, self.epochs, self.max_sentences) < 1:
            raise FedgramError("rows, length, epochs and sentences must be at least 1")
        if self.weighting not in WEIGHTINGS:
            raise FedgramError(f"unknown weighting {self.weighting!r}; choose one of {', '.join(WEIGHTINGS)}")
        if not self.update_norm > 0:
            raise FedgramError(f"the update's norm limit must be greater than 0, not {self.update_norm}")
        if not 0 <= self.average < 1:
            raise FedgramError(f"the decay of the weights' average must be at least 0 and below 1, not {self.average}")
        if self.adaptive_clip and (self.weighting != "uniform" or self.update_norm == inf):
            raise FedgramError("adaptive clipping needs uniform weights and a finite limit to start from")
        if not (0 < self.clip_target < 1 and self.clip_rate > 0):
            raise FedgramError("the target of adaptive clipping lies between 0 and 1, and its rate above 0")

    @classmethod
    def of(cls, options: FedAvgOptions) -> "TrainingPlan":
        """The plan that these options ask for."""
        o = options
        return cls(
            LocalTraining(o.client_rate, dropout=o.unit_dropout), o.rows, o.length, o.epochs, o.max_sentences,
            o.weighting, o.update_norm,
            ServerStep(o.server_rule, o.server_rate, o.server_momentum, tau=o.server_tau),
            Schedule(o.client_schedule, o.rounds), Schedule(o.server_schedule, o.rounds, o.server_warmup),
            o.weight_average, o.adaptive_clip, o.clip_target, o.clip_rate, o.aggregation, o.trim,
        )  # fmt: skip

    def local_in(self, round_number: int) -> LocalTraining:
        """How devices train in a round."""
        rate = self.local.learning_rate * self.client_schedule.factor(round_number)
        return replace(self.local, learning_rate=max(rate, 1e-12))

    def fields(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {**asdict(self), "update_norm": limit_to_json(self.update_norm)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "TrainingPlan":
        """The plan that `fields` came from."""
        parts: dict[str, Any] = {
            "local": LocalTraining, "server": ServerStep, "client_schedule": Schedule, "server_schedule": Schedule
        }  # fmt: skip
        given = {name: parts[name](**value) if name in parts else value for name, value in fields.items()}
        return cls(**{**given, "update_norm": limit_from_json(fields["update_norm"])})

    @property
    def robust(self) -> RobustRule | None:
        """The rule by which updates are joined; None if they are added."""
        return None if self.aggregation == "mean" else RobustRule(self.aggregation, self.trim)

    @property
    def most_targets(self) -> int:
        """The most words and sentence ends that a device trains on in a round."""
        return self.max_sentences * self.epochs * self.length

    def dropout_seed(self, rng: Stream) -> int:
        """The seed of a device's dropout in a round."""
        return int(Stream(rng.seed, *rng.names, "dropout").generator().integers(1 << 31)) if self.local.dropout else 0

    def order(self, sentences: int, rng: Stream) -> LongArray:
        """The sentences that a device with so many trains on, in order: shuffled, at most the limit, epoch by epoch."""
        draw = rng.generator()
        chosen = draw.permutation(sentences)[: self.max_sentences]
        return np.concatenate([chosen, *(draw.permutation(chosen) for _ in range(self.epochs - 1))])
