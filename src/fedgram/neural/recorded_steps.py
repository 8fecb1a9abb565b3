"""Steps of gradient descent on a GPU, recorded once and played back.

A step of `explicit_step.descend` is a few hundred kernels. When few clients are left they run faster than they can be
launched one by one, so a step is recorded as a CUDA graph for each number of clients, rounded up, and launched as one.
What a graph reads and writes lies in fixed places: the stack of weights, one batch a client, the rate and the losses.
They are kept, with the graphs, between calls, as long as these fit. Clients that round a number up have empty batches,
which leave their weights alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fedgram.neural import explicit_step, gpu_kernels
from fedgram.neural.batching import NOTHING
from fedgram.neural.cell import Weights
from fedgram.neural.model import ModelShape
from fedgram.text.vocabulary import BOS

_ROUND_TO = 32
_kept: "RecordedSteps | None" = None


def recorded_steps(
    shape: ModelShape, start: Weights, words: Tensor, targets: Tensor, active: Sequence[int], rate: float
) -> tuple[Weights, Tensor]:
    """Train clients on [clients, steps, length, rows], of which the first `active[t]` have a step t.

    Returns their weights and summed losses, which stand until the next call.
    """
    global _kept
    clients, _, length, rows = words.shape
    if _kept is None or not _kept.fits(shape, start, clients, length, rows):
        _kept = None  # before another takes its memory
        _kept = RecordedSteps(shape, start, clients, length, rows)
    _kept.begin(start, rate)
    for t, n in enumerate(active):
        _kept.step(n, words[:, t], targets[:, t])
    return {name: w[:clients] for name, w in _kept.stack.items()}, _kept.loss[:clients]


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
            gpu_kernels.spread(self.stack[name], w)
        self.loss.zero_()
        self.rate.fill_(rate)

    def step(self, n: int, words: Tensor, targets: Tensor) -> None:
        """One step of the first `n` clients, on [clients, length, rows]."""
        clients = min(-(-n // _ROUND_TO) * _ROUND_TO, self.capacity)
        self.words.fill_(BOS)
        self.targets.fill_(NOTHING)
        graph = self._graphs.get(clients) or self._record(clients)
        length = words.shape[1]
        self.words[:n, :length] = words[:n]
        self.targets[:n, :length] = targets[:n]
        graph.replay()

    def _record(self, clients: int) -> torch.cuda.CUDAGraph:
        """Batches are empty while it is done, so that the trial run before it, which compiles, changes nothing."""
        self._descend(clients)
        torch.cuda.synchronize()
        graph = self._graphs[clients] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            self._descend(clients)
        return graph

    @torch.no_grad()
    def _descend(self, clients: int) -> None:
        own = {name: w[:clients] for name, w in self.stack.items()}
        batch = self.words[:clients], self.targets[:clients]
        with _tf32():  # of the products that are torch's; those of the kernels are in bf16
            self.loss[:clients] += explicit_step.descend(self.shape, own, *batch, self.rate, gpu_kernels)


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
