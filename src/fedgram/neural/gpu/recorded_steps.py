"""Steps of gradient descent on a GPU, recorded once and played back.

A step of `explicit_step.descend` is a few hundred kernels. When few clients are left they run faster than they can be
launched one by one, so a step is recorded as a CUDA graph for each number of clients, rounded up, and launched as one.
What a graph reads and writes lies in fixed places: the stack of weights, one batch a client, the rate and the losses.
They are kept, with the graphs, between calls, as long as these fit. Clients that round a number up have empty batches,
which leave their weights alone.

A few clients have many more batches than the others, and keep the GPU half idle for long. An event says when most are
done, so that their weights can be used meanwhile.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from fedgram.neural import explicit_step
from fedgram.neural.batching import NOTHING
from fedgram.neural.cell import Weights
from fedgram.neural.gpu import kernels
from fedgram.neural.model import ModelShape
from fedgram.text.vocabulary import BOS

_kept: "RecordedSteps | None" = None


class Recorded(NamedTuple):
    """The clients' weights and summed losses; those from `first` on are done when `early` has come."""

    weights: Weights
    loss: Tensor
    first: int
    early: torch.cuda.Event


def recorded_steps(
    shape: ModelShape, start: Weights, words: Tensor, targets: Tensor, active: Sequence[int], rate: float
) -> Recorded:
    """Train clients on [steps, clients, length, rows], of which the first `active[t]` have a step t.

    The result stands until the next call.
    """
    global _kept
    _, clients, length, rows = words.shape
    if _kept is None or not _kept.fits(shape, start, clients, length, rows):
        _kept = None  # before another takes its memory
        _kept = RecordedSteps(shape, start, clients, length, rows)
    _kept.begin(start, rate)
    most, early = len(active) // 4, torch.cuda.Event()
    for t, n in enumerate(active):
        _kept.step(n, words[t], targets[t])
        if t == most:
            early.record()
    first = active[most + 1] if most + 1 < len(active) else 0
    return Recorded({name: w[:clients] for name, w in _kept.stack.items()}, _kept.loss[:clients], first, early)


class RecordedSteps:
    """The fixed places for up to so many clients, and the graphs recorded so far."""

    def __init__(self, shape: ModelShape, start: Weights, clients: int, length: int, rows: int) -> None:
        self.shape, self.capacity = shape, clients
        place = start["embedding"].device
        self.stack = {name: w.expand(self.capacity, *w.shape).clone() for name, w in start.items()}
        self.words = torch.full((self.capacity, length, rows), BOS, dtype=torch.int64, device=place)
        self.targets = torch.full_like(self.words, NOTHING)
        self.loss, self.rate = torch.zeros(self.capacity, device=place), torch.zeros(1, device=place)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle()

    def fits(self, shape: ModelShape, start: Weights, clients: int, length: int, rows: int) -> bool:
        """Whether such clients can be trained here."""
        _, own_length, own_rows = self.words.shape
        same = shape == self.shape and start["embedding"].device == self.loss.device and rows == own_rows
        return same and clients <= self.capacity and length <= own_length

    def begin(self, start: Weights, rate: float) -> None:
        """Put every client at the start."""
        for name, w in start.items():
            kernels.spread(self.stack[name], w)
        self.loss.zero_()
        self.rate.fill_(rate)

    def step(self, n: int, words: Tensor, targets: Tensor) -> None:
        """One step of the first `n` clients, on [clients, length, rows]."""
        to = 8 if n <= 128 else 16 if n <= 256 else 32
        clients, length = min(-(-n // to) * to, self.capacity), words.shape[1]
        graph = self._graphs.get(clients) or self._record(clients)
        for place, own, nothing in ((self.words, words, BOS), (self.targets, targets, NOTHING)):
            place[:n, :length] = own[:n]
            place[:n, length:] = nothing
            place[n:clients] = nothing
        graph.replay()

    def _record(self, clients: int) -> torch.cuda.CUDAGraph:
        """Capture a step as a CUDA graph; batches are empty meanwhile, so that the warm-up run changes no weights."""
        self.words.fill_(BOS)
        self.targets.fill_(NOTHING)
        self._descend(clients)
        torch.cuda.synchronize()
        graph = self._graphs[clients] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):  # others may allocate
            self._descend(clients)
        return graph

    @torch.no_grad()
    def _descend(self, clients: int) -> None:
        own = {name: w[:clients] for name, w in self.stack.items()}
        batch = self.words[:clients], self.targets[:clients]
        with _tf32():  # of the products that are torch's; those of the kernels are in bf16
            self.loss[:clients] += explicit_step.descend(self.shape, own, *batch, self.rate, kernels)


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
