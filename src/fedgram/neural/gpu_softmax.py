"""Triton kernels of the softmax, and products for stacks of models; `neural/gpu_kernels.py` says what they are for."""

import triton
import triton.language as tl


@triton.jit
def product_kernel(left, right, PRECISION: tl.constexpr):
    """A product of tiles; sums are in single precision."""
    if PRECISION == "bf16":
        result = tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16))
    else:
        result = tl.dot(left, right, input_precision=PRECISION)
    return result


@triton.jit
def attend_kernel(
    h_at, embedding_at, bias_at, largest_at, total_at, mean_at, positions, size, span, splits,
    width: tl.constexpr, POSITIONS: tl.constexpr, WORDS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For a tile of positions and a span of words: max, Σ exp(logit − max), and Σ exp(logit − max)·E."""
    client, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    embedding_at += client * size * width
    bias_at += client * size
    n = tl.program_id(1) * POSITIONS + tl.arange(0, POSITIONS)
    d = tl.arange(0, WIDTH)
    inside = (n[:, None] < positions) & (d[None, :] < width)
    h = tl.load(h_at + client * positions * width + n[:, None] * width + d[None, :], inside, 0.0)
    largest = tl.full((POSITIONS,), -1e30, tl.float32)
    total = tl.zeros((POSITIONS,), tl.float32)
    mean = tl.zeros((POSITIONS, WIDTH), tl.float32)
    for first in range(split * span, tl.minimum((split + 1) * span, size), WORDS):
        v = first + tl.arange(0, WORDS)
        e = tl.load(embedding_at + v[:, None] * width + d[None, :], (v[:, None] < size) & (d[None, :] < width), 0.0)
        bias = tl.load(bias_at + v, v < size, -1e30)
        logit = product_kernel(h, tl.trans(e), PRECISION) + bias[None, :]
        peak = tl.maximum(largest, tl.max(logit, 1))
        shrink = tl.exp(largest - peak)
        p = tl.exp(logit - peak[:, None])
        total = total * shrink + tl.sum(p, 1)
        mean = mean * shrink[:, None] + product_kernel(p, e, PRECISION)
        largest = peak
    row = (client * splits + split) * positions + n
    tl.store(largest_at + row, largest, n < positions)
    tl.store(total_at + row, total, n < positions)
    tl.store(mean_at + (client * splits + split) * positions * width + n[:, None] * width + d[None, :], mean, inside)


@triton.jit
def step_kernel(
    h_at, embedding_at, bias_at, level_at, positions, size, span,
    width: tl.constexpr, TILES: tl.constexpr, POSITIONS: tl.constexpr, WORDS: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """For a span of words, tile by tile: subtract pᵀ·h from the embedding, and p's sum over positions from the bias.

    Positions that fit one tile are loaded once for all words; where they are more, again for every tile of words.
    """
    client, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    embedding_at += client * size * width
    bias_at += client * size
    h_at += client * positions * width
    level_at += client * positions
    d = tl.arange(0, WIDTH)
    h, level = _positions(h_at, level_at, d, 0, positions, width, POSITIONS)
    for first in tl.range(split * span, tl.minimum((split + 1) * span, size), WORDS, num_stages=1):
        v = first + tl.arange(0, WORDS)
        at = embedding_at + v[:, None] * width + d[None, :]
        inside = (v[:, None] < size) & (d[None, :] < width)
        old = tl.load(at, inside, 0.0)
        bias = tl.load(bias_at + v, v < size, -1e30)
        e = old.to(tl.bfloat16) if PRECISION == "bf16" else old
        slope = tl.zeros((WORDS, WIDTH), tl.float32)
        bias_slope = tl.zeros((WORDS,), tl.float32)
        for tile in tl.static_range(TILES):
            if TILES > 1:
                h, level = _positions(h_at, level_at, d, tile * POSITIONS, positions, width, POSITIONS)
            p = tl.exp(product_kernel(e, tl.trans(h), PRECISION) + (bias[:, None] - level[None, :]))
            slope += product_kernel(p, h, PRECISION)
            bias_slope += tl.sum(p, 1)
        tl.store(at, old - slope, inside)
        tl.store(bias_at + v, bias - bias_slope, v < size)


@triton.jit
def _positions(h_at, level_at, d, first, positions, width: tl.constexpr, POSITIONS: tl.constexpr):
    """A tile of h, and its levels."""
    n = first + tl.arange(0, POSITIONS)
    h = tl.load(h_at + n[:, None] * width + d[None, :], (n[:, None] < positions) & (d[None, :] < width), 0.0)
    return h, tl.load(level_at + n, n < positions, float("inf"))


@triton.jit
def subtract_rows_kernel(
    embedding_at, bias_at, words_at, dx_at, scale_at, positions, size, width,
    BIASED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A program a client, position after position: a word that occurs twice is changed twice, always in this order."""
    client = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, WIDTH)
    for n in range(positions):
        row = client * positions + n
        word = client * size + tl.load(words_at + row)
        at = embedding_at + word * width + d
        dx = tl.load(dx_at + row * width + d, d < width, 0.0)
        if BIASED:
            scale = tl.load(scale_at + row)
            dx *= scale
            tl.store(bias_at + word, tl.load(bias_at + word) - scale)
        tl.store(at, tl.load(at, d < width, 0.0) - dx, d < width)


@triton.jit
def multiply_kernel(
    x_at, weight_at, scale_at, out_at, rows, inner, outer, x_stride, scale_stride, out_stride,
    weight_stride, inner_stride, outer_stride,
    SCALED: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """For a client and a block of columns: out = x·W, where x has few rows, so that reading W is the work."""
    client = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, ROWS), tl.program_id(1) * OUTER + tl.arange(0, OUTER)
    x_at += client * x_stride
    weight_at += client * weight_stride
    total = tl.zeros((ROWS, OUTER), tl.float32)
    for first in range(0, inner, INNER):
        k = first + tl.arange(0, INNER)
        x = tl.load(x_at + row[:, None] * inner + k[None, :], (row[:, None] < rows) & (k[None, :] < inner), 0.0)
        at = weight_at + k[:, None] * inner_stride + column[None, :] * outer_stride
        weight = tl.load(at, (k[:, None] < inner) & (column[None, :] < outer), 0.0)
        total += product_kernel(x, weight, PRECISION)
    if SCALED:
        total *= tl.load(scale_at + client * scale_stride + row, row < rows, 0.0)[:, None]
    at = out_at + client * out_stride + row[:, None] * outer + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < outer)
    if ADD:
        total += tl.load(at, inside, 0.0)
    tl.store(at, total, inside)


@triton.jit
def spread_kernel(stack_at, start_at, clients, size, BLOCK: tl.constexpr):
    """For a block of weights: write them to every client's place."""
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    start = tl.load(start_at + k, k < size, 0.0)
    for _ in range(clients):
        tl.store(stack_at + k, start, k < size)
        stack_at += size


@triton.jit
def add_changes_kernel(
    total_at, stack_at, start_at, factor_at, clients, size, scale, CLIENTS: tl.constexpr, BLOCK: tl.constexpr
):
    """For a block of weights: round every client's change to fixed point, and add."""
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = k < size
    start = tl.load(start_at + k, inside, 0.0)
    total = tl.load(total_at + k, inside, 0)
    rounder = 6755399441055744.0  # 1.5·2⁵²: adding and subtracting it rounds to whole numbers, halves to even
    for first in range(0, clients, CLIENTS):
        c = first + tl.arange(0, CLIENTS).to(tl.int64)
        factor = tl.load(factor_at + c, c < clients, 0.0)[:, None]
        new = tl.load(stack_at + c[:, None] * size + k[None, :], (c < clients)[:, None] & inside[None, :], 0.0)
        change = tl.where(factor != 0.0, factor * (new - start[None, :]).to(tl.float64) * scale, 0.0)
        total += tl.sum(((change + rounder) - rounder).to(tl.int64), 0)
    tl.store(total_at + k, total, inside)


@triton.jit
def change_squares_kernel(square_at, stack_at, start_at, size, BLOCK: tl.constexpr, SPAN: tl.constexpr):
    """For a client and a span of weights: the sum of its squared changes."""
    client, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, SPAN, BLOCK):
        k = part.to(tl.int64) * SPAN + first + tl.arange(0, BLOCK)
        change = tl.load(stack_at + client * size + k, k < size, 0.0) - tl.load(start_at + k, k < size, 0.0)
        total += change * change
    tl.store(square_at + client * tl.num_programs(1) + part, tl.sum(total, 0))
