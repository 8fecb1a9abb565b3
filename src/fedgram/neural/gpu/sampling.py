"""Sampling a recurrent network on a GPU with Triton kernels.

    KernelDecoder.step   reference: `decoder.RecurrentDecoder.step`, for a CIFG cell without groups
    draw_in_kernels      reference: `drawing.draw_in_tensors`
    uniforms             reference: `core.random.uniform_at`

Products are in TF32, tile by tile. The numbers of a row do not depend on the rows beside it, so tiles need not be
filled up. One kernel computes a row's softmax, entropy, fixed-point probabilities and their cumulative sums: it reads
the scores once and overwrites them. Drawing reads the cumulative sums and one block of labels.

Rows of memory are a multiple of 16 numbers long. Labels are divided into blocks of `_BLOCK`. In kernels, a name that
ends in `_at` is a pointer to an array, `stride` is the distance between its rows, and names in capitals are known when
the kernel is compiled: they are the sides of tiles.
"""

from functools import cached_property

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgram.neural.cell import State
from fedgram.neural.decoder import RecurrentDecoder
from fedgram.neural.drawing import Drawn
from fedgram.neural.gpu.kernels import gates_forward, wide
from fedgram.neural.network import Network

_BLOCK = 256
_MOST_LABELS = 1 << 16  # that one program can hold
_SCALE = tl.constexpr(2.0**34)  # core.fixed_point.SCALE
_WHOLE = tl.constexpr(8388608.0)  # 2²³: adding and subtracting it rounds to whole numbers, halves to even


class KernelDecoder(RecurrentDecoder):
    """A CIFG network without groups; rows of its state and weights are padded with zeros."""

    fills_tiles = False

    def __init__(self, network: Network, torch_device: torch.device) -> None:
        super().__init__(network, torch_device)
        self.can_draw = self.labels <= _MOST_LABELS
        self._keep: Tensor = torch.ones(0, device=torch_device)
        self._products = [
            {name: _columns(layer[name].squeeze(0)) for name in ("input", "recurrent", "projection")}
            for layer in self.layers
        ]

    def initial(self, rows: int) -> State:
        """Zeros: (r, c) of each layer."""
        sizes = (wide(self.shape.embedding), wide(self.shape.hidden)) * self.shape.layers
        return tuple(torch.zeros(rows, size, device=self.torch_device) for size in sizes)

    def step(self, state: State, labels: Tensor) -> tuple[State, Tensor]:
        """One step of every layer."""
        if len(self._keep) < len(labels):
            self._keep = torch.ones(len(labels), device=self.torch_device)
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
    """The transpose of a matrix: each column becomes a row of memory."""
    inner, outer = weight.shape
    columns = weight.new_zeros(outer, wide(inner))
    columns[:, :inner] = weight.t()
    return columns


def linear(x: Tensor, columns: Tensor, bias: Tensor | None = None, *, align: int = 16) -> Tensor:
    """x·W + b, where `columns` is the transpose of W; rows of the result are a multiple of `align` numbers long."""
    (rows, inner), outer = x.shape, len(columns)
    out = x.new_empty(rows, triton.cdiv(outer, align) * align)
    _linear_kernel[triton.cdiv(rows, 128), triton.cdiv(out.shape[1], 128)](
        x, columns, bias, out, rows, inner, outer, out.shape[1],
        BIASED=bias is not None, ROWS=128, INNER=32, OUTER=128, num_warps=8,
    )  # fmt: skip
    return out


def draw_in_kernels(scores: Tensor, row: Tensor, u: Tensor, known: Tensor | None) -> Drawn:
    """As `drawing.draw_in_tensors`, from the scores of a `KernelDecoder`; the probabilities overwrite them."""
    (rows, labels), stride = scores.shape, scores.stride(0)
    blocks = triton.next_power_of_2(triton.cdiv(labels, _BLOCK))
    until = torch.empty(rows, blocks, dtype=torch.float64, device=scores.device)
    entropy = torch.empty(rows, dtype=torch.float64, device=scores.device)
    _distribute_kernel[(rows,)](
        scores, until, entropy, labels, stride, BLOCKS=blocks, BLOCK=_BLOCK, num_warps=max(1, min(16, blocks // 8))
    )
    if known is not None:
        return Drawn(known, entropy, None, scores)
    label = torch.empty_like(row)
    _draw_kernel[(len(row),)](scores, until, row, u, label, labels, stride, BLOCKS=blocks, BLOCK=_BLOCK, num_warps=1)
    return Drawn(label, entropy, None, scores)


def uniforms(key: np.uint64, first: int, sample: Tensor, position: Tensor) -> Tensor:
    """`core.random.uniform_at` of the samples `first + sample` at their positions."""
    u = torch.empty(len(sample), dtype=torch.float64, device=sample.device)
    bits = int(key.astype(np.int64))  # a signed number has the same type whatever its size
    _uniform_kernel[(triton.cdiv(len(sample), 256),)](
        torch.tensor([bits], device=sample.device), sample, position, u, len(sample), first, BLOCK=256
    )
    return u


@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x_at, columns_at, bias_at, out_at, rows, inner, outer, stride,
    BIASED: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
):  # fmt: skip
    """Write x·W + b. One program per (tile of rows, tile of columns).

    Columns of W are rows of memory: the tensor cores need this order for TF32, and it allows loads of 16 bytes.
    """
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
    """Replace the scores of a row by its probabilities in fixed point; write its entropy and cumulative sums.

    `until` are the sums up to the end of each block of labels. Reference: the first half of `drawing.draw_in_tensors`.
    One program per row.
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    x = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    score = tl.load(scores_at + row * stride + x, x < labels, -1e30)
    score -= tl.max(score)
    p = tl.exp(score)
    mean = tl.sum(p * score)  # before the sum of p, so that scores and probabilities are not kept at the same time
    z = tl.sum(p)
    tl.store(entropy_at + row, (tl.log(z) - mean / z).to(tl.float64))
    p *= _SCALE / z
    p = tl.where(p < _WHOLE, (p + _WHOLE) - _WHOLE, p)
    tl.store(scores_at + row * stride + x, p, x < stride)
    until = tl.cumsum(tl.sum(p.to(tl.float64), 1), 0)
    tl.store(until_at + row * BLOCKS + block, until)


@triton.jit
def _draw_kernel(fixed_at, until_at, row_at, u_at, label_at, labels, stride, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the label of a sample. One program per sample.

    Reference: the second half of `drawing.draw_in_tensors`. Sums of whole numbers below 2⁵³ are exact in double
    precision.
    """
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
def _uniform_kernel(key_at, sample_at, position_at, u_at, count, first, BLOCK: tl.constexpr):
    """Philox 4×64-10 with the counter (position / 4, sample, 0, 0) and the key (key, 0).

    Reference: `core.random.uniform_at`. One program per BLOCK samples.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sample = tl.load(sample_at + i, i < count, 0) + first
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
