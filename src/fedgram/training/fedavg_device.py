"""Federated averaging on one device: train the server's model on the device's own text, and send the change.

    w ← R;  for each batch:  w ← w − η·∇loss(w);   Δ_i = w − R, clipped to a norm limit

The device sends a_i·Δ_i and its weight a_i, which is the number of sentences trained on, or 1 for all. It also sends
the sum of its losses and the number of its targets, so that the server can follow the training. Paper: §7.1.

With adaptive clipping (Andrew et al. 2021) the limit C of a round is broadcast. The device sends Δ_i·C₀/C, so that what
it sends has the same limit C₀ in every round, and one more number: ½ if its change was within C, else −½.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isinf, prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import FloatArray
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.federated.robust import RobustRule
from fedgram.federated.task import Update
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.neural.batching import ClientBatches, pack_clients
from fedgram.neural.local_training import train_clients
from fedgram.neural.model import ModelShape
from fedgram.neural.network import Coding, WeightArrays, as_tensors
from fedgram.text.population import ClientDataset
from fedgram.training.plan import TrainingPlan

FRACTION_BITS = 24
LOSS, TARGETS = "training.loss", "training.targets"  # sent beside the weights
UNCLIPPED = "training.unclipped"  # sent with adaptive clipping
_HALF = 0.5  # of a device whose change is within the limit
_MAX_LOSS = 50.0  # nats per target; a device reports at most this much


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTraining:
    """What a device needs to take part. `start` are the server's first weights; a device is sent them every round.

    `coding` says how words become the network's ids; `torch_device` is where simulated devices train together.
    """

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
        more = {UNCLIPPED: 1} if self.plan.adaptive_clip else {}
        object.__setattr__(self, "size", {**sizes, LOSS: 1, TARGETS: 1, **more})

    @property
    def bounds(self) -> UpdateBounds:
        """The most sentences a device weighs, and limits on the norm of its change, on its targets and on its loss."""
        most = 1.0 if self.plan.weighting == "uniform" else float(self.plan.max_sentences)
        targets = float(self.plan.most_targets)
        change = NormLimit(tuple(self.shape.sizes()), self.plan.update_norm, by_weight=True)
        sent = NormLimit((TARGETS,), targets, order=1), NormLimit((LOSS,), _MAX_LOSS * targets, order=1)
        norms = sent if isinf(self.plan.update_norm) else (*sent, change)
        bit = (NormLimit((UNCLIPPED,), _HALF, order=1),) if self.plan.adaptive_clip else ()
        return UpdateBounds(most, (*norms, *bit), non_negative=(TARGETS, LOSS))

    @property
    def robust(self) -> RobustRule | None:
        """How the server joins updates, if it does not add them."""
        return self.plan.robust

    @property
    def on_gpu(self) -> bool:
        """Whether simulated devices train on a GPU."""
        return self.torch_device.startswith("cuda")

    def received(self, broadcast: Record) -> tuple[int, Mapping[str, NDArray[Any]]]:
        """The round and the weights that were broadcast, if they are this network's."""
        number, weights = broadcast.fields.get("round"), broadcast.arrays
        if not isinstance(number, int) or number < 1:
            raise InvariantError("the broadcast names no round")
        if {name: w.shape for name, w in weights.items()} != self.shape.sizes():
            raise InvariantError("the broadcast weights do not have the network's shape")
        return number, weights

    def clip_in(self, broadcast: Record) -> float:
        """The limit on the norm of a change in a round."""
        if not self.plan.adaptive_clip:
            return self.plan.update_norm
        clip = broadcast.fields.get("clip")
        if not (isinstance(clip, float) and 0 < clip < inf):
            raise InvariantError("the broadcast has no limit on the norm of a change")
        return clip

    def scale(self, norm: float, clip: float) -> float:
        """The factor of a change of this norm: what is sent is never longer than the plan's limit."""
        factor = clip_factor(norm, clip)
        return factor * (self.plan.update_norm / clip) if self.plan.adaptive_clip else factor

    def pack(self, datasets: Sequence[ClientDataset], streams: Sequence[Stream]) -> ClientBatches:
        """What some devices train on in a round."""
        orders = [self.plan.order(len(d.sentences), s) for d, s in zip(datasets, streams, strict=True)]
        sentences = [d.sentences for d in datasets]
        seeds = [self.plan.dropout_seed(s) for s in streams]
        return pack_clients(
            sentences, rows=self.plan.rows, length=self.plan.length, orders=orders, full_rows=True, seeds=seeds
        )

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
        weight, clip = self.weight(len(data.sentences)), self.clip_in(broadcast)
        return self.update_of(change, float(trained.loss[0]), batches.tokens, weight, clip)

    def update_of(
        self, change: Mapping[str, FloatArray], loss: float, targets: int, weight: float, clip: float
    ) -> Update:
        """What a device sends whose training changed its weights like this, in a round with the limit `clip`."""
        norm = change_norm(change)
        factor = weight * self.scale(norm, clip)
        arrays = {name: factor * delta for name, delta in change.items()}
        if self.plan.adaptive_clip:
            arrays[UNCLIPPED] = np.array([unclipped(norm, clip)])
        arrays |= {LOSS: np.array([self.reported_loss(loss)]), TARGETS: np.array([float(targets)])}
        return Update.dense(arrays, weight)

    def reported_loss(self, loss: float) -> float:
        """The loss that a device reports: its own, up to a limit; a loss that is not finite stays so."""
        limit = _MAX_LOSS * self.plan.most_targets
        return limit if limit < loss < inf else loss


def change_norm(change: Mapping[str, FloatArray]) -> float:
    """The length of a device's change; not finite if it is beyond all numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(sum(float(np.dot(delta, delta)) for delta in change.values())))


def unclipped(norm: float, clip: float) -> float:
    """What a device sends on whether its change is within the limit."""
    return _HALF if norm <= clip else -_HALF


def clip_factor(norm: float, limit: float) -> float:
    """The factor that scales a change of this norm down to the limit; 1 for a norm that is not finite."""
    return limit / norm if norm > limit and norm < inf else 1.0
