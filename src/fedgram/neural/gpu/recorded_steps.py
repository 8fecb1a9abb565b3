"""Steps of gradient descent on a GPU as CUDA graphs.

The reference is the loop over steps in `local_training.train_clients`, with `explicit_step.descend`.

A step launches a few hundred kernels. With few clients, kernels finish faster than they can be launched one by one. So
a step is captured as a CUDA graph, which is launched as a whole. There is one graph per number of clients, rounded up;
the additional clients have empty batches, which leave their weights unchanged.

A graph reads and writes fixed buffers: the stack of weights, one batch per client, the learning rate and the losses.
The buffers and graphs are kept between calls, as long as the next clients fit into them.

A few clients have many more batches than the others, and do not keep the GPU busy alone. An event marks the moment when
most clients have finished, so that the caller can use their weights while the others still train.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from fedgram.neural import explicit_step
from fedgram.neural.batching import NOTHING
from fedgram.neural.cell import Weights
from fedgram.neural.dropout import Dropout, seeds_in_step
from fedgram.neural.gpu import kernels
from fedgram.neural.model import ModelShape
from fedgram.text.vocabulary import BOS

_kept: "RecordedSteps | None" = None


class Recorded(NamedTuple):
    """The clients' weights and summed losses; clients from `first` on have finished when the event `early` occurs."""

    weights: Weights
    loss: Tensor
    first: int
    early: torch.cuda.Event


def recorded_steps(
    shape: ModelShape, start: Weights, words: Tensor, targets: Tensor, active: Sequence[int], rate: float,
    dropout: Dropout | None = None,
) -> Recorded:  # fmt: skip
    """Train clients on [steps, clients, length, rows]; the first `active[t]` clients take part in step t.

    The next call overwrites the result.
    """
    global _kept
    _, clients, length, rows = words.shape
    share = dropout.share if dropout else 0.0
    if _kept is None or not _kept.fits(shape, start, clients, length, rows, share):
        _kept = None  # frees its memory first
        _kept = RecordedSteps(shape, start, clients, length, rows, share)
    _kept.begin(start, rate)
    most, early = len(active) // 4, torch.cuda.Event()
    for t, n in enumerate(active):
        if dropout is not None:
            _kept.seeds[:clients] = seeds_in_step(dropout.seeds, t)
        _kept.step(n, words[t], targets[t])
        if t == most:
            early.record()
    first = active[most + 1] if most + 1 < len(active) else 0
    return Recorded({name: w[:clients] for name, w in _kept.stack.items()}, _kept.loss[:clients], first, early)


class RecordedSteps:
    """The buffers for a number of clients, and the graphs captured so far."""

    def __init__(self, shape: ModelShape, start: Weights, clients: int, length: int, rows: int, dropout: float) -> None:
        self.shape, self.capacity, self.dropout = shape, clients, dropout
        torch_device = start["embedding"].device
        self.stack = {name: w.expand(self.capacity, *w.shape).clone() for name, w in start.items()}
        self.words = torch.full((self.capacity, length, rows), BOS, dtype=torch.int64, device=torch_device)
        self.targets = torch.full_like(self.words, NOTHING)
        self.loss = torch.zeros(self.capacity, device=torch_device)
        self.rate = torch.zeros(1, device=torch_device)
        self.seeds = torch.zeros(self.capacity, dtype=torch.int32, device=torch_device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle()

    def fits(self, shape: ModelShape, start: Weights, clients: int, length: int, rows: int, dropout: float) -> bool:
        """Whether these buffers can hold such clients."""
        _, own_length, own_rows = self.words.shape
        same = shape == self.shape and start["embedding"].device == self.loss.device and rows == own_rows
        same = same and dropout == self.dropout
        return same and clients <= self.capacity and length <= own_length

    def begin(self, start: Weights, rate: float) -> None:
        """Set every client's weights to `start`."""
        for name, w in start.items():
            kernels.spread(self.stack[name], w)
        self.loss.zero_()
        self.rate.fill_(rate)

    def step(self, n: int, words: Tensor, targets: Tensor) -> None:
        """One step of the first `n` clients, on [clients, length, rows]."""
        to = 8 if n <= 128 else 16 if n <= 256 else 32
        clients, length = min(-(-n // to) * to, self.capacity), words.shape[1]
        graph = self._graphs.get(clients) or self._record(clients)
        for buffer, own, padding in ((self.words, words, BOS), (self.targets, targets, NOTHING)):
            buffer[:n, :length] = own[:n]
            buffer[:n, length:] = padding
            buffer[n:clients] = padding
        graph.replay()

    def _record(self, clients: int) -> torch.cuda.CUDAGraph:
        """Capture a step as a CUDA graph. The batches are empty meanwhile, so the warm-up run changes no weights."""
        self.words.fill_(BOS)
        self.targets.fill_(NOTHING)
        self._descend(clients)
        torch.cuda.synchronize()
        graph = self._graphs[clients] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):  # other threads allocate
            self._descend(clients)
        return graph

    @torch.no_grad()
    def _descend(self, clients: int) -> None:
        own = {name: w[:clients] for name, w in self.stack.items()}
        batch = self.words[:clients], self.targets[:clients]
        dropout = Dropout(self.dropout, self.seeds[:clients]) if self.dropout else None
        with _tf32():  # for torch's own products; those of the kernels are in bf16
            self.loss[:clients] += explicit_step.descend(self.shape, own, *batch, self.rate, kernels, dropout)


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
