"""Federated averaging as a `FederatedTask`: devices train the server's model on their own text and send the change.

    on device i    Δ_i, the change of the weights by the device's training                  (`fedavg_device.py`)
    on the server  Δ = Σ a_i·Δ_i / Σ a_i,   R ← move(R, Δ)                                  (`federated/averaging.py`)

With adaptive clipping the server moves the limit C so that a share γ of the devices is within it (Andrew et al. 2021):
log C ← log C − η·(share − γ). The share comes from the same sum, so that it has noise where the sum has.

A limit on the norm of a change is on by default: it bounds what one device can do to the model. Paper: §7.1; McMahan et
al. 2017.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import exp, inf, nan
from typing import ClassVar, Self

import numpy as np

from fedgram.core.arrays import IntArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record, limit_from_json, limit_to_json
from fedgram.federated.averaging import Arrays, ServerModel, averaged, move
from fedgram.federated.batched_task import Member
from fedgram.federated.intake import Intake
from fedgram.federated.task import Total
from fedgram.neural.model import ModelShape
from fedgram.neural.network import coding_arrays, coding_from, pinned_like
from fedgram.training.fedavg_device import LOSS, TARGETS, UNCLIPPED, DeviceTraining
from fedgram.training.fedavg_engine import Chunk, chunks_of, train_chunks
from fedgram.training.plan import TrainingPlan

_PARTS = ("weights", "first", "second")  # of a ServerModel


@dataclass(frozen=True, slots=True, eq=False)
class FedAvgState:
    """What the server has after `round` rounds: its model, and the mean loss per target of the last round.

    `average` is the exponential average of its weights over the rounds; empty if the plan asks for none. `clip` is the
    limit on the norm of a change in the next round. The loss is not a number if nobody trained, or if it is withheld.
    """

    round: int
    model: ServerModel
    average: Arrays = field(default_factory=dict)
    loss: float = float("nan")
    targets: int = 0
    devices: int = 0
    clip: float = inf


@dataclass(frozen=True, slots=True, eq=False)
class FederatedAveraging(DeviceTraining):
    """The task: what a device does, and what the server does with the sum."""

    name: ClassVar[str] = "fedavg"
    is_counting: ClassVar[bool] = False

    def settings(self) -> Record:
        """The network's shape, the plan, and how text is coded."""
        fields = {"shape": asdict(self.shape), "plan": self.plan.fields()}
        return Record(fields, coding_arrays(self.coding) if self.coding else {})

    @classmethod
    def from_settings(cls, settings: Record) -> Self:
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
        average = self.start if self.plan.average else {}
        return FedAvgState(0, ServerModel(self.start), average, clip=self.plan.update_norm)

    def broadcast(self, state: FedAvgState) -> Record:
        """The weights, the number of the round, and the limit on the norm if it is adapted."""
        clip = {"clip": state.clip} if self.plan.adaptive_clip else {}
        return Record({"round": state.round + 1, **clip}, state.model.weights)

    def batches(self, members: Sequence[Member]) -> list[Chunk]:
        """The members of a round in chunks that train together."""
        return chunks_of(self, members)

    def client_updates(self, broadcast: Record, batches: Sequence[Chunk], intake: Intake) -> None:
        """Train the chunks, and hand every device's update to the intake."""
        train_chunks(self, broadcast, batches, intake)

    def server_update(self, state: FedAvgState, total: Total) -> FedAvgState:
        """Move the model along the mean change; stay where nobody trained."""
        number = state.round + 1
        if total.weight == 0:
            return FedAvgState(number, state.model, state.average, clip=state.clip)
        change = {name: total.arrays[name] for name in state.model.weights}
        step = self.plan.server.scaled(self.plan.server_schedule.factor(number))
        scale = 1.0 / total.weight  # both are in the same fixed point
        if self.plan.adaptive_clip:
            scale *= state.clip / self.plan.update_norm
        model = move(state.model, change, step, scale, pinned_like if self.on_gpu else np.empty_like)
        decay = min(self.plan.average, (number - 1) / number)  # the first rounds count alike, the start does not
        average = averaged(state.average, model.weights, decay) if self.plan.average else {}
        targets = total.array(TARGETS)[0]
        loss = float(total.array(LOSS)[0] / targets) if targets else nan
        return FedAvgState(number, model, average, loss, int(targets), total.devices, self._next_clip(state, total))

    def _next_clip(self, state: FedAvgState, total: Total) -> float:
        """The limit of the next round."""
        if not self.plan.adaptive_clip:
            return state.clip
        share = 0.5 + float(total.arrays[UNCLIPPED][0] / total.weight)
        return state.clip * exp(-self.plan.clip_rate * (min(max(share, 0.0), 1.0) - self.plan.clip_target))

    def save(self, state: FedAvgState) -> Record:
        """The model with what its rule remembers."""
        parts = {part: getattr(state.model, part) for part in _PARTS}
        parts["average"] = state.average
        loss = None if np.isnan(state.loss) else state.loss
        fields = {
            "round": state.round, "loss": loss, "targets": state.targets, "devices": state.devices,
            "clip": limit_to_json(state.clip),
        }  # fmt: skip
        arrays = {f"{part}.{name}": array for part, given in parts.items() for name, array in given.items()}
        return Record(fields, arrays)

    def load(self, saved: Record) -> FedAvgState:
        """The state that was saved."""
        model = ServerModel(*(saved.part(part).arrays for part in _PARTS))
        f = saved.fields
        loss = float("nan") if f["loss"] is None else float(f["loss"])
        average = saved.part("average").arrays
        clip = limit_from_json(f["clip"])
        return FedAvgState(int(f["round"]), model, average, loss, int(f["targets"]), int(f["devices"]), clip)
