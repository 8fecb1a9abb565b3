"""FederatedAveraging as a `FederatedTask`: devices train the server's model on their own text and send the change.

    on device i    w ← R;  for each batch:  w ← w − η·∇loss(w);   Δ_i = w − R, shortened to a norm limit
    on the server  Δ = Σ a_i·Δ_i / Σ a_i,   R ← move(R, Δ)                            (`federated/averaging.py`)

a_i is the number of sentences trained on, or 1 for all. What a device sends is a_i·Δ_i and a_i, and the sum of its
losses and targets, which the server needs to follow the training. Paper: §7.1; McMahan et al. 2017.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import cos, pi, prod

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.random import Stream
from fedgram.federated.averaging import ServerModel, ServerStep, move
from fedgram.federated.task import Total, Update
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.neural.batching import ClientBatches, pack_clients
from fedgram.neural.local_training import LocalTraining, train_clients
from fedgram.neural.model import ModelShape
from fedgram.neural.network import WeightArrays, as_tensors
from fedgram.text.population import ClientDataset

WEIGHTINGS = ("sentences", "uniform")
SCHEDULES = ("constant", "linear", "cosine")
FRACTION_BITS = 24
LOSS, TARGETS = "training.loss", "training.targets"  # sent beside the weights


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a learning rate goes over the rounds: a linear start, then constant, or falling to `last` of it."""

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
    """Everything that devices and server must agree on."""

    local: LocalTraining = field(default_factory=LocalTraining)
    rows: int = 8
    length: int = 20
    epochs: int = 1
    max_sentences: int = 256
    weighting: str = "sentences"
    update_norm: float | None = None
    server: ServerStep = field(default_factory=ServerStep)
    client_schedule: Schedule = field(default_factory=Schedule)
    server_schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        if min(self.rows, self.length, self.epochs, self.max_sentences) < 1:
            raise FedgramError("rows, length, epochs and sentences must be at least 1")
        if self.weighting not in WEIGHTINGS:
            raise FedgramError(f"unknown weighting {self.weighting!r}; choose one of {', '.join(WEIGHTINGS)}")
        if self.update_norm is not None and not self.update_norm > 0:
            raise FedgramError(f"the update's norm limit must be greater than 0, not {self.update_norm}")

    def local_in(self, round_number: int) -> LocalTraining:
        """How devices train in a round."""
        rate = self.local.learning_rate * self.client_schedule.factor(round_number)
        return LocalTraining(max(rate, 1e-12), self.local.gradient_norm)

    def order(self, sentences: int, rng: Stream) -> LongArray:
        """The sentences that a device with so many trains on, in order: shuffled, at most the limit, epoch by epoch."""
        draw = rng.generator()
        chosen = draw.permutation(sentences)[: self.max_sentences]
        return np.concatenate([chosen, *(draw.permutation(chosen) for _ in range(self.epochs - 1))])


@dataclass(frozen=True, slots=True, eq=False)
class FedAvgState:
    """What the server has after `round` rounds: its model, and the mean loss a target of the last round."""

    round: int
    model: ServerModel
    loss: float = float("nan")
    targets: int = 0
    devices: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FederatedAveraging:
    """The task; device data must be in the ids of the network."""

    shape: ModelShape
    start: WeightArrays
    plan: TrainingPlan
    bits: int = FRACTION_BITS
    size: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        if {name: w.shape for name, w in self.start.items()} != self.shape.sizes():
            raise FedgramError("the weights to start from do not have the network's shape")
        sizes = {name: prod(size) for name, size in self.shape.sizes().items()}
        object.__setattr__(self, "size", {**sizes, LOSS: 1, TARGETS: 1})

    @property
    def bounds(self) -> UpdateBounds:
        """The most sentences a device weighs, and the norm limit on its change."""
        most = 1.0 if self.plan.weighting == "uniform" else float(self.plan.max_sentences)
        limit = self.plan.update_norm
        norms = () if limit is None else (NormLimit(tuple(self.shape.sizes()), limit, by_weight=True),)
        return UpdateBounds(most, norms)

    def init(self) -> FedAvgState:
        """The weights to start from."""
        return FedAvgState(0, ServerModel(self.start))

    def batches(self, datasets: list[ClientDataset], streams: list[Stream]) -> ClientBatches:
        """What some devices train on in a round."""
        orders = [self.plan.order(len(d.sentences), s) for d, s in zip(datasets, streams, strict=True)]
        return pack_clients(
            [d.sentences for d in datasets], rows=self.plan.rows, length=self.plan.length, orders=orders
        )

    def weight(self, sentences: int) -> float:
        """a_i of a device with so many sentences."""
        return 1.0 if self.plan.weighting == "uniform" else float(min(sentences, self.plan.max_sentences))

    def client_update(self, state: FedAvgState, data: ClientDataset, rng: Stream) -> Update:
        """Train on one device. One that has no words sends nothing but zeros, with weight 0."""
        if not len(data.sentences.values):
            return Update.zero(self.size)
        batches = self.batches([data], [rng])
        start = as_tensors(state.model.weights)
        trained = train_clients(self.shape, start, batches, self.plan.local_in(state.round + 1))
        change = {name: (w[0] - start[name]).flatten().double().numpy() for name, w in trained.weights.items()}
        weight = self.weight(len(data.sentences)) * shortening(change_norm(change), self.plan.update_norm)
        arrays = {name: weight * delta for name, delta in change.items()}
        arrays |= {LOSS: trained.loss.double().numpy(), TARGETS: np.array([float(batches.tokens)])}
        return Update.dense(arrays, self.weight(len(data.sentences)))

    def server_update(self, state: FedAvgState, total: Total) -> FedAvgState:
        """Move the model along the mean change; stay where nobody trained."""
        number = state.round + 1
        if total.weight == 0:
            return FedAvgState(number, state.model)
        scale = 1.0 / total.weight  # both are in the same fixed point
        change = {
            name: (total.arrays[name] * scale).astype(w.dtype).reshape(w.shape)
            for name, w in state.model.weights.items()
        }
        model = move(state.model, change, self.plan.server.scaled(self.plan.server_schedule.factor(number)))
        targets = total.array(TARGETS)[0]
        return FedAvgState(number, model, float(total.array(LOSS)[0] / max(targets, 1.0)), int(targets), total.devices)


def change_norm(change: Mapping[str, FloatArray]) -> float:
    """The length of a device's change."""
    return float(np.sqrt(sum(float(np.dot(delta, delta)) for delta in change.values())))


def shortening(norm: float, limit: float | None) -> float:
    """What a change of this norm is multiplied with."""
    return 1.0 if limit is None or norm <= limit else limit / norm
