"""A round of FederatedAveraging for many simulated devices at once.

The cohort's devices are put in order of their work and cut into chunks; a chunk trains as one stack of weights. On a
GPU a chunk is as large as memory allows; on a CPU it is small for small networks and a single device for large ones,
where stacking was measured not to pay. Chunks depend on the cohort alone, and sums are exact, so the result does not
depend on the number of workers that share the chunks (`neural/ranks.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.jit import kernel
from fedgram.core.random import Stream
from fedgram.fedavg.task import LOSS, TARGETS, FedAvgState, FederatedAveraging
from fedgram.federated.cohort import Cohort
from fedgram.federated.driver import Devices, device_stream
from fedgram.federated.task import Total
from fedgram.neural.batching import ClientBatches
from fedgram.neural.cell import Weights
from fedgram.neural.local_training import train_clients
from fedgram.neural.network import as_tensors
from fedgram.neural.ranks import Ranks

Plan = TypeVar("Plan")
_CPU_STACK = 1_000_000  # weights in a stack that still fits the caches of a CPU
_GPU_SHARE = 0.5  # of the GPU's memory, for weights and what a step needs


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some devices of a round: their batches, and the weight of each in the average."""

    batches: ClientBatches
    weight: FloatArray


@dataclass(frozen=True, slots=True)
class RoundReport:
    """How many of a round's devices report, how many of them have no words, and the targets of the others."""

    reports: int
    empty: int
    targets: int


def train_round(
    task: FederatedAveraging, state: FedAvgState, chunks: list[Chunk], *, device: torch.device, ranks: Ranks
) -> tuple[Total, int]:
    """The sum of the updates of all chunks, and how many were refused; each rank trains its share of the chunks."""
    start = as_tensors(state.model.weights, device)
    sums = {name: torch.zeros(n, dtype=torch.int64, device=device) for name, n in task.size.items()}
    counts = torch.zeros(3, dtype=torch.int64)  # weight in fixed point, devices, refused
    local = task.plan.local_in(state.round + 1)
    for chunk in chunks[ranks.rank :: ranks.size]:
        trained = train_clients(task.shape, start, chunk.batches, local)
        targets = (torch.from_numpy(chunk.batches.targets) >= 0).sum(dim=(1, 2, 3)).to(device)
        norm = _norms(trained.weights, start)
        fine = norm.isfinite() & trained.loss.isfinite()
        weight = torch.from_numpy(chunk.weight).to(device) * fine
        limit = task.plan.update_norm
        factor = weight if limit is None else weight * (limit / norm).clamp(max=1.0)
        for name, stack in trained.weights.items():
            add_changes(sums[name], stack.flatten(1), start[name].flatten(), factor, 2.0**task.bits)
        zero = torch.zeros(1, dtype=start["embedding"].dtype, device=device)
        loss = torch.where(fine, trained.loss, 0.0).unsqueeze(1)
        add_changes(sums[LOSS], loss, zero, fine.double(), 2.0**task.bits)
        sums[TARGETS] += (targets * fine).sum() << task.bits
        counts += torch.tensor([int((weight * 2**task.bits).sum().item()), int(fine.sum()), int((~fine).sum())])
    ranks.add([*sums.values(), counts])
    arrays = {name: _on_host(total) for name, total in sums.items()}
    return Total(task.bits, arrays, int(counts[0]), int(counts[1])), int(counts[2])


def plan_round(
    task: FederatedAveraging, devices: Devices, cohort: Cohort, *, seed: int, round_number: int, chunk: int
) -> tuple[list[Chunk], RoundReport]:
    """The chunks of a round; it depends on the seed and the round alone, so that it can be made ahead of time."""
    clients = [int(c) for c in cohort.reporting]
    data = {c: devices.load(c) for c in clients}
    busy = [c for c in clients if len(data[c].sentences.values)]
    busy.sort(key=lambda c: (-min(len(data[c].sentences), task.plan.max_sentences), c))
    chunks = []
    for first in range(0, len(busy), chunk):
        own = busy[first : first + chunk]
        streams: list[Stream] = [device_stream(seed, round_number, c) for c in own]
        batches = task.batches([data[c] for c in own], streams)
        chunks.append(_ordered(batches, np.array([task.weight(len(data[c].sentences)) for c in own])))
    report = RoundReport(len(clients), len(clients) - len(busy), sum(c.batches.tokens for c in chunks))
    return chunks, report


def _ordered(batches: ClientBatches, weight: FloatArray) -> Chunk:
    """Devices with more batches first, so that those that are done can be left out."""
    order: LongArray = np.argsort(-batches.steps, kind="stable")
    return Chunk(ClientBatches(batches.words[order], batches.targets[order], batches.steps[order]), weight[order])


def chunk_size(task: FederatedAveraging, device: torch.device) -> int:
    """How many devices train together."""
    weights = task.shape.parameters()
    if device.type != "cuda":
        return max(1, _CPU_STACK // weights)
    positions, hidden = task.plan.rows * task.plan.length, task.shape.hidden
    each = 4 * (3 * weights + positions * task.shape.layers * (16 * hidden + 8 * task.shape.embedding))
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, int(_GPU_SHARE * free) // each)


def add_changes(total: Tensor, stack: Tensor, start: Tensor, factor: Tensor, scale: float) -> None:
    """Add factor·(stack − start) of all devices to a total in fixed point; a factor of 0 leaves a device out."""
    if total.device.type == "cuda":
        from fedgram.neural.gpu_kernels import add_changes as add_on_gpu

        add_on_gpu(total, stack, start, factor, scale)
    else:
        _add_changes(total.numpy(), stack.numpy(), start.numpy(), factor.double().numpy(), scale)


@kernel
def _add_changes(total: LongArray, stack: FloatArray, start: FloatArray, factor: FloatArray, scale: float) -> None:
    for c in range(len(stack)):
        if factor[c] != 0.0:
            for k in range(len(total)):
                change = np.float64(stack[c, k] - start[k])
                total[k] += np.int64(np.rint(factor[c] * change * scale))


def _norms(stack: Weights, start: Weights) -> Tensor:
    """By device, the length of its change."""
    if start["embedding"].device.type == "cuda":
        from fedgram.neural.gpu_kernels import change_squares

        squares = [change_squares(w.flatten(1), start[name].flatten()) for name, w in stack.items()]
    else:
        squares = [torch.linalg.vector_norm((w - start[name]).flatten(1), dim=1).square() for name, w in stack.items()]
    norms: Tensor = torch.stack(squares).sum(dim=0).sqrt().double()
    return norms


def _on_host(sums: Tensor) -> LongArray:
    """The sums as an array; from a GPU they come through memory that it can write to at full speed."""
    if sums.device.type == "cpu":
        return sums.numpy()
    place = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
    return place.copy_(sums).numpy()


def prefetched(plans: Iterator[Plan]) -> Iterator[Plan]:
    """The same plans, each made while the one before it is trained on."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, plans, None)
        while (plan := following.result()) is not None:
            following = pool.submit(next, plans, None)
            yield plan
