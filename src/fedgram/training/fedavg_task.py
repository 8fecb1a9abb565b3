"""FederatedAveraging as a `FederatedTask`: devices train the server's model on their own text and send the change.

    on device i    w ← R;  for each batch:  w ← w − η·∇loss(w);   Δ_i = w − R, shortened to a norm limit
    on the server  Δ = Σ a_i·Δ_i / Σ a_i,   R ← move(R, Δ)                            (`federated/averaging.py`)

a_i is the number of sentences trained on, or 1 for all. What a device sends is a_i·Δ_i and a_i, and the sum of its
losses and targets, which the server needs to follow the training. A limit on the norm of a change is on by default:
it bounds what one device can do to the model. Paper: §7.1; McMahan et al. 2017.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import cos, inf, isinf, pi, prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.federated.averaging import ServerModel, ServerStep, move
from fedgram.federated.intake import Intake
from fedgram.federated.task import Member, Total, Update
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.neural.batching import ClientBatches, pack_clients
from fedgram.neural.local_training import LocalTraining, train_clients
from fedgram.neural.model import ModelShape
from fedgram.neural.network import Coding, WeightArrays, as_tensors, coding_arrays, coding_from, pinned_like
from fedgram.text.population import ClientDataset

if TYPE_CHECKING:
    from fedgram.training.fedavg_engine import Chunk

WEIGHTINGS = ("sentences", "uniform")
SCHEDULES = ("constant", "linear", "cosine")
FRACTION_BITS = 24
LOSS, TARGETS = "training.loss", "training.targets"  # sent beside the weights
UPDATE_NORM = 1.0  # with the paper's server and rates, training diverges without a limit
_MOST_LOSS = 50.0  # nats per target; a device reports at most this much


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
    """Everything that devices and server must agree on; an `update_norm` of inf sets no limit."""

    local: LocalTraining = field(default_factory=LocalTraining)
    rows: int = 8
    length: int = 20
    epochs: int = 1
    max_sentences: int = 256
    weighting: str = "sentences"
    update_norm: float = UPDATE_NORM
    server: ServerStep = field(default_factory=ServerStep)
    client_schedule: Schedule = field(default_factory=Schedule)
    server_schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        if min(self.rows, self.length, self.epochs, self.max_sentences) < 1:
            raise FedgramError("rows, length, epochs and sentences must be at least 1")
        if self.weighting not in WEIGHTINGS:
            raise FedgramError(f"unknown weighting {self.weighting!r}; choose one of {', '.join(WEIGHTINGS)}")
        if not self.update_norm > 0:
            raise FedgramError(f"the update's norm limit must be greater than 0, not {self.update_norm}")

    def local_in(self, round_number: int) -> LocalTraining:
        """How devices train in a round."""
        rate = self.local.learning_rate * self.client_schedule.factor(round_number)
        return LocalTraining(max(rate, 1e-12), self.local.gradient_norm)

    def fields(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {**asdict(self), "update_norm": None if isinf(self.update_norm) else self.update_norm}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "TrainingPlan":
        """The plan that `fields` came from."""
        parts: dict[str, Any] = {
            "local": LocalTraining, "server": ServerStep, "client_schedule": Schedule, "server_schedule": Schedule
        }  # fmt: skip
        given = {name: parts[name](**value) if name in parts else value for name, value in fields.items()}
        return cls(**{**given, "update_norm": inf if fields["update_norm"] is None else fields["update_norm"]})

    @property
    def most_targets(self) -> int:
        """The most words and sentence ends that a device trains on in a round."""
        return self.max_sentences * self.epochs * self.length

    def order(self, sentences: int, rng: Stream) -> LongArray:
        """The sentences that a device with so many trains on, in order: shuffled, at most the limit, epoch by epoch."""
        draw = rng.generator()
        chosen = draw.permutation(sentences)[: self.max_sentences]
        return np.concatenate([chosen, *(draw.permutation(chosen) for _ in range(self.epochs - 1))])


@dataclass(frozen=True, slots=True, eq=False)
class FedAvgState:
    """What the server has after `round` rounds: its model, and the mean loss per target of the last round."""

    round: int
    model: ServerModel
    loss: float = float("nan")
    targets: int = 0
    devices: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FederatedAveraging:
    """The task. `start` are the server's first weights; a device's task has none, as it is sent the weights.

    `coding` says how words become the network's ids; `torch_device` is where simulated devices train together.
    """

    name: ClassVar[str] = "fedavg"
    counting: ClassVar[bool] = False
    bits: ClassVar[int] = FRACTION_BITS

    shape: ModelShape
    start: WeightArrays
    plan: TrainingPlan
    coding: Coding | None = None
    torch_device: str = "cpu"
    size: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        if self.start and {name: w.shape for name, w in self.start.items()} != self.shape.sizes():
            raise FedgramError("the weights to start from do not have the network's shape")
        sizes = {name: prod(size) for name, size in self.shape.sizes().items()}
        object.__setattr__(self, "size", {**sizes, LOSS: 1, TARGETS: 1})

    @property
    def bounds(self) -> UpdateBounds:
        """The most sentences a device weighs, and limits on the norm of its change, on its targets and on its loss."""
        most = 1.0 if self.plan.weighting == "uniform" else float(self.plan.max_sentences)
        targets = float(self.plan.most_targets)
        change = NormLimit(tuple(self.shape.sizes()), self.plan.update_norm, by_weight=True)
        sent = NormLimit((TARGETS,), targets, order=1), NormLimit((LOSS,), _MOST_LOSS * targets, order=1)
        norms = sent if isinf(self.plan.update_norm) else (*sent, change)
        return UpdateBounds(most, norms, non_negative=(TARGETS, LOSS))

    @property
    def on_gpu(self) -> bool:
        """Whether simulated devices train on a GPU."""
        return self.torch_device.startswith("cuda")

    def settings(self) -> Record:
        """The network's shape, the plan, and how text is coded."""
        fields = {"shape": asdict(self.shape), "plan": self.plan.fields()}
        return Record(fields, coding_arrays(self.coding) if self.coding else {})

    @classmethod
    def from_settings(cls, settings: Record) -> "FederatedAveraging":
        """The task of these settings, without weights."""
        shape, plan = ModelShape(**settings.fields["shape"]), TrainingPlan.from_fields(settings.fields["plan"])
        return cls(shape, {}, plan, coding_from(settings.arrays))

    def encode(self, words: Sequence[str]) -> IntArray | Ragged:
        """The ids of words: one each, or of word pieces a row."""
        if self.coding is None:
            raise FedgramError("this task was made without a coding of text")
        codes = self.coding.codes(words)
        return codes if self.coding.pieces is not None else codes.values

    def init(self) -> FedAvgState:
        """The weights to start from."""
        return FedAvgState(0, ServerModel(self.start))

    def broadcast(self, state: FedAvgState) -> Record:
        """The weights, and the number of the round."""
        return Record({"round": state.round + 1}, state.model.weights)

    def received(self, broadcast: Record) -> tuple[int, Mapping[str, NDArray[Any]]]:
        """The round and the weights that were broadcast, if they are this network's."""
        number, weights = broadcast.fields.get("round"), broadcast.arrays
        if not isinstance(number, int) or number < 1:
            raise InvariantError("the broadcast names no round")
        if {name: w.shape for name, w in weights.items()} != self.shape.sizes():
            raise InvariantError("the broadcast weights do not have the network's shape")
        return number, weights

    def pack(self, datasets: Sequence[ClientDataset], streams: Sequence[Stream]) -> ClientBatches:
        """What some devices train on in a round."""
        orders = [self.plan.order(len(d.sentences), s) for d, s in zip(datasets, streams, strict=True)]
        sentences = [d.sentences for d in datasets]
        return pack_clients(
            sentences, rows=self.plan.rows, length=self.plan.length, orders=orders, full_rows=True
        )  # fmt: skip

    def weight(self, sentences: int) -> float:
        """a_i of a device with so many sentences."""
        return 1.0 if self.plan.weighting == "uniform" else float(min(sentences, self.plan.max_sentences))

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:
        """Train on one device. One that has no words sends nothing but zeros, with weight 0."""
        number, weights = self.received(broadcast)
        if not all(np.isfinite(w).all() for w in weights.values()):
            raise InvariantError("a broadcast weight is not finite")
        if not len(data.sentences.values):
            return Update.zero(self.size)
        batches = self.pack([data], [rng])
        start = as_tensors(weights)
        trained = train_clients(self.shape, start, batches, self.plan.local_in(number))
        change = {name: (w[0] - start[name]).flatten().double().numpy() for name, w in trained.weights.items()}
        return self.update_of(change, float(trained.loss[0]), batches.tokens, self.weight(len(data.sentences)))

    def update_of(self, change: Mapping[str, FloatArray], loss: float, targets: int, weight: float) -> Update:
        """What a device sends whose training changed its weights like this."""
        factor = weight * shortening(change_norm(change), self.plan.update_norm)
        arrays = {name: factor * delta for name, delta in change.items()}
        arrays |= {LOSS: np.array([self.reported_loss(loss)]), TARGETS: np.array([float(targets)])}
        return Update.dense(arrays, weight)

    def reported_loss(self, loss: float) -> float:
        """The loss that a device reports: its own, up to a limit; a loss that is not finite stays so."""
        return (
            loss
            if not loss > _MOST_LOSS * self.plan.most_targets or isinf(loss)
            else _MOST_LOSS * self.plan.most_targets
        )

    def batches(self, members: Sequence[Member]) -> "list[Chunk]":
        """The members of a round in chunks that train together."""
        from fedgram.training.fedavg_engine import chunks_of

        return chunks_of(self, members)

    def client_updates(self, broadcast: Record, batches: "Sequence[Chunk]", intake: Intake) -> None:
        """Train the chunks, and hand every device's update to the intake."""
        from fedgram.training.fedavg_engine import train_chunks

        train_chunks(self, broadcast, batches, intake)

    def server_update(self, state: FedAvgState, total: Total) -> FedAvgState:
        """Move the model along the mean change; stay where nobody trained."""
        number = state.round + 1
        if total.weight == 0:
            return FedAvgState(number, state.model)
        change = {name: total.arrays[name] for name in state.model.weights}
        step = self.plan.server.scaled(self.plan.server_schedule.factor(number))
        scale = 1.0 / total.weight  # both are in the same fixed point
        model = move(state.model, change, step, scale, pinned_like if self.on_gpu else np.empty_like)
        targets = total.array(TARGETS)[0]
        return FedAvgState(number, model, float(total.array(LOSS)[0] / max(targets, 1.0)), int(targets), total.devices)

    def save(self, state: FedAvgState) -> Record:
        """The model with what its rule remembers."""
        parts = {part: getattr(state.model, part) for part in ("weights", "first", "second")}
        loss = None if np.isnan(state.loss) else state.loss
        fields = {"round": state.round, "loss": loss, "targets": state.targets, "devices": state.devices}
        arrays = {f"{part}.{name}": array for part, given in parts.items() for name, array in given.items()}
        return Record(fields, arrays)

    def load(self, saved: Record) -> FedAvgState:
        """The state that was saved."""
        model = ServerModel(*(saved.part(part).arrays for part in ("weights", "first", "second")))
        f = saved.fields
        loss = float("nan") if f["loss"] is None else float(f["loss"])
        return FedAvgState(int(f["round"]), model, loss, int(f["targets"]), int(f["devices"]))


def change_norm(change: Mapping[str, FloatArray]) -> float:
    """The length of a device's change; not finite if it is beyond all numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(sum(float(np.dot(delta, delta)) for delta in change.values())))


def shortening(norm: float, limit: float) -> float:
    """What a change of this norm is multiplied with to keep to the limit; 1 for one that is not finite."""
    return limit / norm if norm > limit and norm < inf else 1.0
