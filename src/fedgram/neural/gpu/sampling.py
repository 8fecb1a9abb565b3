"""Sampling a recurrent network on a GPU, with Triton kernels for what `neural/sampling.py` does in tensor operations.

Products are taken in TF32, tile by tile, so that a row's numbers do not depend on the rows beside it, and tiles need
not be filled. A row's softmax, entropy, fixed-point probabilities and their running sums are one kernel that reads the
scores once and writes over them; drawing looks at the running sums and at one block of labels.
"""

from functools import cached_property

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgram.neural.gpu.kernels import gates_forward, wide
from fedgram.neural.network import Network
from fedgram.neural.sampling import Drawn, RecurrentDecoder, State

_BLOCK = 256
_MOST_LABELS = 1 << 16  # that one program can hold
_SCALE = tl.constexpr(2.0**34)
_WHOLE = tl.constexpr(8388608.0)  # 2²³: adding and subtracting it rounds to whole numbers, halves to even


class KernelDecoder(RecurrentDecoder):
    """A CIFG network without groups. Rows of memory are a multiple of 16 numbers long, with zeros behind the last."""

    fills_tiles = False

    def __init__(self, network: Network, device: torch.device) -> None:
        super().__init__(network, device)
        self.can_draw = self.labels <= _MOST_LABELS
        self._keep: Tensor = torch.ones(0, device=device)
        self._products = [
            {name: _columns(layer[name].squeeze(0)) for name in ("input", "recurrent", "projection")}
            for layer in self.layers
        ]

    def initial(self, rows: int) -> State:
        """Zeros: (r, c) of each layer."""
        sizes = (wide(self.shape.embedding), wide(self.shape.hidden)) * self.shape.layers
        return tuple(torch.zeros(rows, size, device=self.device) for size in sizes)

    def step(self, state: State, labels: Tensor) -> tuple[State, Tensor]:
        """One step of every layer."""
        if len(self._keep) < len(labels):
            self._keep = torch.ones(len(labels), device=self.device)
        x, after = self._embedding[labels], []
        for k in range(self.shape.layers):
            r, c = self._cell(k, x, state[2 * k], state[2 * k + 1])
            x = x + r
            after += [r, c]
        return tuple(after), linear(x, self._embedding, self.bias, align=_BLOCK)[:, : self.labels]

    @cached_property
    def _embedding(self) -> Tensor:
        return _columns(self.output)

    def _cell(self, k: int, x: Tensor, r: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        hidden, weights = self.shape.hidden, self._products[k]
        a, b = linear(x, weights["input"]), linear(r, weights["recurrent"])
        c_after, h, keep = torch.zeros_like(c), torch.zeros_like(c), self._keep[: len(c)]
        cell = (y[:, :hidden] for y in (c, c_after, h))
        gates_forward(self.layers[k], *(y.unsqueeze(0) for y in (a, b, keep, *cell)))
        return linear(h, weights["projection"]), c_after


def _columns(weight: Tensor) -> Tensor:
    """A matrix by its columns, each of which becomes a row of memory."""
    inner, outer = weight.shape
    columns = weight.new_zeros(outer, wide(inner))
    columns[:, :inner] = weight.t()
    return columns


def linear(x: Tensor, columns: Tensor, bias: Tensor | None = None, *, align: int = 16) -> Tensor:
    """x·W + b, where W is given by its columns; rows of the result are a multiple of `align` numbers long."""
    (rows, inner), outer = x.shape, len(columns)
    out = x.new_empty(rows, triton.cdiv(outer, align) * align)
    _linear_kernel[triton.cdiv(rows, 128), triton.cdiv(out.shape[1], 128)](
        x, columns, bias, out, rows, inner, outer, out.shape[1],
        BIASED=bias is not None, ROWS=128, INNER=32, OUTER=128, num_warps=8,
    )  # fmt: skip
    return out


def draw_in_kernels(scores: Tensor, row: Tensor, u: Tensor, given: Tensor | None) -> Drawn:
    """As `sampling.draw_in_tensors`; the scores, which a `KernelDecoder` made, turn into the probabilities."""
    (rows, labels), stride = scores.shape, scores.stride(0)
    blocks = triton.next_power_of_2(triton.cdiv(labels, _BLOCK))
    until = torch.empty(rows, blocks, dtype=torch.float64, device=scores.device)
    entropy = torch.empty(rows, dtype=torch.float64, device=scores.device)
    _distribute_kernel[(rows,)](
        scores, until, entropy, labels, stride, BLOCKS=blocks, BLOCK=_BLOCK, num_warps=max(1, min(16, blocks // 8))
    )
    if given is not None:
        return given, entropy, None, scores
    label = torch.empty_like(row)
    _draw_kernel[(len(row),)](scores, until, row, u, label, labels, stride, BLOCKS=blocks, BLOCK=_BLOCK, num_warps=1)
    return label, entropy, None, scores


def uniforms(key: np.uint64, first: int, alive: Tensor, position: Tensor) -> Tensor:
    """`core.random.uniform_at` of samples `first + alive` at their positions."""
    u = torch.empty(len(alive), dtype=torch.float64, device=alive.device)
    bits = int(key.astype(np.int64))  # a signed number has one type whatever its size
    _uniform_kernel[(triton.cdiv(len(alive), 256),)](
        torch.tensor([bits], device=alive.device), alive, position, u, len(alive), first, BLOCK=256
    )
    return u


@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x_at, columns_at, bias_at, out_at, rows, inner, outer, stride,
    BIASED: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
):  # fmt: skip
    """Columns of W are rows of memory: so the tensor cores want them in TF32, and they are loaded in wide pieces."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(1) * OUTER + tl.arange(0, OUTER)
    total = tl.zeros((ROWS, OUTER), tl.float32)
    for first in range(0, inner, INNER):
        k = first + tl.arange(0, INNER)
        x = tl.load(x_at + row[:, None] * inner + k[None, :], (row[:, None] < rows) & (k[None, :] < inner), 0.0)
        at = columns_at + column[:, None] * inner + k[None, :]
        weight = tl.load(at, (column[:, None] < outer) & (k[None, :] < inner), 0.0)
        total = tl.dot(x, tl.trans(weight), total, input_precision="tf32")
    if BIASED:
        total += tl.load(bias_at + column, column < outer, 0.0)[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < stride)
    tl.store(out_at + row[:, None] * stride + column[None, :], total, inside)


@triton.jit
def _distribute_kernel(scores_at, until_at, entropy_at, labels, stride, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """A program a row: probabilities in fixed point over the scores, and their sums up to each block's end."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    x = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    score = tl.load(scores_at + row * stride + x, x < labels, -1e30)
    score -= tl.max(score)
    p = tl.exp(score)
    mean = tl.sum(p * score)  # before the other sum, so that scores and probabilities need not be kept side by side
    z = tl.sum(p)
    tl.store(entropy_at + row, (tl.log(z) - mean / z).to(tl.float64))
    p *= _SCALE / z
    p = tl.where(p < _WHOLE, (p + _WHOLE) - _WHOLE, p)
    tl.store(scores_at + row * stride + x, p, x < stride)
    until = tl.cumsum(tl.sum(p.to(tl.float64), 1), 0)
    tl.store(until_at + row * BLOCKS + block, until)


@triton.jit
def _draw_kernel(fixed_at, until_at, row_at, u_at, label_at, labels, stride, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """A program a sample. Sums of whole numbers below 2⁵³ are exact in double precision."""
    i = tl.program_id(0)
    row = tl.load(row_at + i)
    block = tl.arange(0, BLOCKS)
    until = tl.load(until_at + row * BLOCKS + block)
    total = tl.max(until, 0)
    target = tl.minimum(tl.floor(tl.load(u_at + i) * total), total - 1.0)
    chosen = tl.sum((until <= target).to(tl.int32), 0)
    before = tl.sum(tl.where(block == chosen - 1, until, 0.0), 0)
    x = chosen * BLOCK + tl.arange(0, BLOCK)
    inner = before + tl.cumsum(tl.load(fixed_at + row * stride + x, x < labels, 0.0).to(tl.float64), 0)
    tl.store(label_at + i, (chosen * BLOCK + tl.sum((inner <= target).to(tl.int32), 0)).to(tl.int64))


@triton.jit(do_not_specialize=["count", "first"])
def _uniform_kernel(key_at, alive_at, position_at, u_at, count, first, BLOCK: tl.constexpr):
    """Philox 4×64-10 with the counter (position / 4, sample, 0, 0) and the key (key, 0)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sample = tl.load(alive_at + i, i < count, 0) + first
    position = tl.load(position_at + i, i < count, 0)
    zero = (sample * 0).to(tl.uint64)
    c0, c1, c2, c3 = (position >> 2).to(tl.uint64), sample.to(tl.uint64), zero, zero
    k0, k1 = zero + tl.load(key_at).to(tl.uint64), zero
    m0, m1 = zero + 0xD2E7470EE14C6C93, zero + 0xCA5A826395121157
    for _ in tl.static_range(10):
        h0, l0, h1, l1 = tl.umulhi(m0, c0), m0 * c0, tl.umulhi(m1, c2), m1 * c2
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0 += 0x9E3779B97F4A7C15
        k1 += 0xBB67AE8584CAA73B
    lane = position & 3
    word = tl.where(lane == 0, c0, tl.where(lane == 1, c1, tl.where(lane == 2, c2, c3)))
    tl.store(u_at + i, (word >> 11).to(tl.float64) * (2.0**-53), i < count)
