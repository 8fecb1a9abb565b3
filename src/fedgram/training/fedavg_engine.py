"""The updates of many simulated devices at once.

The cohort's devices are put in order of their work and cut into chunks; a chunk trains as one stack of weights. On a
GPU a chunk is as large as memory allows; on a CPU it is small for small networks and a single device for large ones,
where stacking was measured not to pay. On a CPU each device's update is then judged and added as if it had come alone,
and has the same bits. On a GPU updates are never taken apart: the intake judges each by its norm, weight and loss, and
only those that it lets through are added, on the GPU, in fixed point.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, isinf

import numpy as np
import torch
from torch import Tensor

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.errors import InvariantError
from fedgram.core.storage import Record
from fedgram.federated.batched_task import Member
from fedgram.federated.intake import Intake
from fedgram.federated.task import Total, Update
from fedgram.federated.validation import MeasuredUpdate
from fedgram.neural import explicit_step
from fedgram.neural.batching import ClientBatches
from fedgram.neural.cell import Weights
from fedgram.neural.local_training import LocalResult, train_clients
from fedgram.neural.network import as_tensors
from fedgram.training.fedavg_device import LOSS, TARGETS, UNCLIPPED, DeviceTraining, unclipped

_CPU_STACK = 1_000_000  # weights in a stack that still fits the caches of a CPU
_GPU_SHARE = 0.4  # of the GPU's memory, for weights and what a step needs


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some devices of a round: their numbers, batches, weights and targets; there are no batches if none has words."""

    devices: tuple[int, ...]
    batches: ClientBatches | None
    weight: FloatArray

    @property
    def targets(self) -> LongArray:
        """How many words and sentence ends each device is asked for."""
        assert self.batches is not None
        return self.batches.asked


def chunks_of(task: DeviceTraining, members: Sequence[Member]) -> list[Chunk]:
    """The members in chunks; they depend on the members and the kind of GPU alone, whoever trains them."""
    busy = [m for m in members if len(m.data.sentences.values)]
    busy.sort(key=lambda m: (-min(len(m.data.sentences), task.plan.max_sentences), m.device))
    idle = tuple(m.device for m in members if not len(m.data.sentences.values))
    size, chunks = chunk_size(task), [Chunk(idle, None, np.zeros(len(idle)))] if idle else []
    for first in range(0, len(busy), size):
        own = busy[first : first + size]
        batches = task.pack([m.data for m in own], [m.rng for m in own])
        weight = np.array([task.weight(len(m.data.sentences)) for m in own])
        chunks.append(_ordered(tuple(m.device for m in own), batches, weight, for_gpu=task.on_gpu))
    return chunks


def _ordered(devices: tuple[int, ...], batches: ClientBatches, weight: FloatArray, *, for_gpu: bool) -> Chunk:
    """Devices with more batches first, so that those that are done can be left out.

    What a GPU is to read lies in memory that it can read at full speed.
    """
    order: LongArray = np.argsort(-batches.steps, kind="stable")
    words, targets = (torch.from_numpy(array[order]) for array in (batches.words, batches.targets))
    if for_gpu:
        words, targets = words.pin_memory(), targets.pin_memory()
    ordered = ClientBatches(
        words.numpy(), targets.numpy(), batches.steps[order], batches.asked[order], batches.seeds[order]
    )
    return Chunk(tuple(devices[i] for i in order.tolist()), ordered, weight[order])


def chunk_size(task: DeviceTraining) -> int:
    """How many devices train together."""
    weights = task.shape.parameters()
    if not task.on_gpu:
        by_hand = explicit_step.supports(task.shape) and task.plan.local.gradient_norm is None
        return max(1, _CPU_STACK // weights) if by_hand else 1  # autograd's products are rounded otherwise in a stack
    positions, hidden = task.plan.rows * task.plan.length, task.shape.hidden
    each = 4 * (3 * weights + positions * task.shape.layers * (16 * hidden + 8 * task.shape.embedding))
    memory = torch.cuda.get_device_properties(torch.device(task.torch_device)).total_memory
    return max(1, int(_GPU_SHARE * memory) // each)


def train_chunks(task: DeviceTraining, broadcast: Record, chunks: Sequence[Chunk], intake: Intake) -> None:
    """Train the chunks from the weights that were broadcast; the intake gets every device's update."""
    number, weights = task.received(broadcast)
    start, local = as_tensors(weights, task.torch_device), task.plan.local_in(number)
    finite = torch.stack([w.isfinite().all() for w in start.values()]).all()
    clip = task.clip_in(broadcast)
    gpu = _GpuSum(task, start, clip) if start["embedding"].device.type == "cuda" else None
    for chunk in chunks:
        if chunk.batches is None:
            for device in chunk.devices:
                intake.offer(device, Update.zero(task.size))
            continue
        trained = train_clients(task.shape, start, chunk.batches, local)
        if gpu is not None:
            gpu.add(chunk, trained, intake)
        else:
            _offer_each(task, start, clip, chunk, trained, intake)
    if not bool(finite):  # known by now: a GPU was not waited for
        raise InvariantError("a broadcast weight is not finite")
    if gpu is not None:
        gpu.finish(intake)


def _offer_each(
    task: DeviceTraining, start: Weights, clip: float, chunk: Chunk, trained: LocalResult, intake: Intake
) -> None:
    """Hand over each device's update, as `client_update` makes it."""
    for i, device in enumerate(chunk.devices):
        change = {name: (w[i] - start[name]).flatten().double().numpy() for name, w in trained.weights.items()}
        loss, targets, weight = float(trained.loss[i]), int(chunk.targets[i]), float(chunk.weight[i])
        intake.offer(device, task.update_of(change, loss, targets, weight, clip))


class _GpuSum:
    """The sum of accepted changes on the GPU, and the devices in it."""

    def __init__(self, task: DeviceTraining, start: Weights, clip: float) -> None:
        self._task, self._start, self._clip, self._scale = task, start, clip, 2.0**task.bits
        sizes = [w.numel() for w in start.values()]
        self._flat = torch.zeros(sum(sizes), dtype=torch.int64, device=start["embedding"].device)
        self._sums = dict(zip(start, self._flat.split(sizes), strict=True))
        self._loss = self._targets = self._weight = self._unclipped = 0
        self._devices: list[int] = []

    def add(self, chunk: Chunk, trained: LocalResult, intake: Intake) -> None:
        """Judge every device of a chunk, and add those that are let through; first those that are done first."""
        here = torch.cuda.current_stream()
        if trained.early is not None and trained.first:
            beside = torch.cuda.Stream()
            beside.wait_event(trained.early)
            with torch.cuda.stream(beside):
                self._add(chunk, trained, intake, slice(trained.first, len(chunk.devices)))
            here.wait_stream(beside)
            self._add(chunk, trained, intake, slice(0, trained.first))
        else:
            self._add(chunk, trained, intake, slice(0, len(chunk.devices)))

    def _add(self, chunk: Chunk, trained: LocalResult, intake: Intake, part: slice) -> None:
        stack = {name: w[part].flatten(1) for name, w in trained.weights.items()}
        norms, losses = _norms(stack, self._start).tolist(), trained.loss[part].double().tolist()
        factor, limit = np.zeros(len(norms)), self._clip
        weights, asked = chunk.weight[part].tolist(), chunk.targets[part].tolist()
        for i, (device, weight, targets) in enumerate(zip(chunk.devices[part], weights, asked, strict=True)):
            loss, own = self._task.reported_loss(losses[i]), weight * self._task.scale(norms[i], limit)
            sent = own * norms[i]  # at least as large as any entry
            finite = isfinite(sent) and isfinite(loss)
            bit = unclipped(norms[i], limit)
            limits = self._limits(float(targets), loss, sent, abs(bit))
            if intake.judge(
                device, MeasuredUpdate(weight, max(sent, loss, targets) if finite else inf, 0.0, False, limits)
            ):
                factor[i] = own
                self._loss += round(loss * self._scale)
                self._targets += targets << self._task.bits
                self._weight += round(weight * self._scale)
                self._unclipped += round(bit * self._scale)
                self._devices.append(device)
        from fedgram.neural.gpu.kernels import add_changes

        on_gpu = torch.from_numpy(factor).to(trained.loss.device)
        for name, changed in stack.items():
            add_changes(self._sums[name], changed, self._start[name].flatten(), on_gpu, self._scale)

    def _limits(self, targets: float, loss: float, norm: float, bit: float) -> tuple[float, ...]:
        """The norms that the bounds limit, in their order."""
        plan = self._task.plan
        limits = (targets, loss) if isinf(plan.update_norm) else (targets, loss, norm)
        return (*limits, bit) if plan.adaptive_clip else limits

    def finish(self, intake: Intake) -> None:
        """Hand over the sum, and what the rules look at of it."""
        weight, loss, targets = (x / self._scale for x in (self._weight, self._loss, self._targets))
        real = self._flat.double() / self._scale
        norm, largest = float(torch.linalg.vector_norm(real)), float(real.abs().max())
        limits = self._limits(targets, loss, norm, abs(self._unclipped) / self._scale)
        place = torch.empty(self._flat.shape, dtype=torch.int64, pin_memory=True)  # which a GPU writes at full speed
        parts = place.copy_(self._flat).split([x.numel() for x in self._sums.values()])
        arrays = {name: part.numpy() for name, part in zip(self._sums, parts, strict=True)}
        arrays |= {LOSS: np.array([self._loss], np.int64), TARGETS: np.array([self._targets], np.int64)}
        if self._task.plan.adaptive_clip:
            arrays[UNCLIPPED] = np.array([self._unclipped], np.int64)
        total = Total(self._task.bits, arrays, self._weight, len(self._devices))
        found = MeasuredUpdate(weight, max(largest, loss, targets), 0.0, False, limits)
        intake.add_stack(self._devices, total, found)


def _norms(stack: Weights, start: Weights) -> Tensor:
    """By device, the length of its change; the stack's weights are flat."""
    from fedgram.neural.gpu.kernels import change_squares

    squares = [change_squares(w, start[name].flatten()) for name, w in stack.items()]
    norms: Tensor = torch.stack(squares).sum(dim=0).sqrt().double()
    return norms
