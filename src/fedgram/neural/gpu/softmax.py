"""Triton kernels of the softmax, and products for stacks of models; `neural/gpu/kernels.py` says what they are for.

Tiles have a power of two of rows and columns. A width of 96 would be padded by a third, so a row of the embedding is held
in two parts, 64 and 32 wide: `LEFT` and `RIGHT` are their widths; a width that needs no second part has a `RIGHT` of 0,
and its second parts are never used.
"""

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
    width: tl.constexpr, POSITIONS: tl.constexpr, WORDS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For a tile of positions and a span of words: max, Σ exp(logit − max), and Σ exp(logit − max)·E."""
    client, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    embedding_at += client * size * width
    bias_at += client * size
    n = tl.program_id(1) * POSITIONS + tl.arange(0, POSITIONS)
    h = _rows(h_at + client * positions * width, n, positions, width, LEFT, RIGHT)
    largest = tl.full((POSITIONS,), -1e30, tl.float32)
    total = tl.zeros((POSITIONS,), tl.float32)
    mean = tl.zeros((POSITIONS, LEFT), tl.float32), tl.zeros((POSITIONS, RIGHT if RIGHT else 1), tl.float32)
    until = tl.minimum((split + 1) * span, size)
    for first in tl.range(split * span, until, WORDS, num_stages=STAGES):
        v = first + tl.arange(0, WORDS)
        e = _operand(_rows(embedding_at, v, until, width, LEFT, RIGHT), PRECISION)
        bias = tl.load(bias_at + v, v < until, -1e30)
        logit = _scores(h, e, RIGHT, PRECISION) + bias[None, :]
        peak = tl.maximum(largest, tl.max(logit, 1))
        shrink = tl.exp(largest - peak)
        p = tl.exp(logit - peak[:, None])
        total = total * shrink + tl.sum(p, 1)
        mean = _combined(p, e, (mean[0] * shrink[:, None], mean[1] * shrink[:, None]), RIGHT, PRECISION)
        largest = peak
    row = (client * splits + split) * positions + n
    tl.store(largest_at + row, largest, n < positions)
    tl.store(total_at + row, total, n < positions)
    mean_at += (client * splits + split) * positions * width
    _store_rows(mean_at, n, positions, mean, width, LEFT, RIGHT)


@triton.jit
def step_kernel(
    h_at, embedding_at, bias_at, level_at, positions, size, span,
    width: tl.constexpr, TILES: tl.constexpr, POSITIONS: tl.constexpr, MORE: tl.constexpr, WORDS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For a span of words, tile by tile: subtract pᵀ·h from the embedding, and p's sum over positions from the bias.

    A tile of words is loaded while the one before it is worked on. Positions that fit one tile, or one and a smaller
    one of `MORE`, are loaded once for all words; where they are more, again for every tile of words.
    """
    client, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    embedding_at += client * size * width
    bias_at += client * size
    h_at += client * positions * width
    level_at += client * positions
    h, level = _positions(h_at, level_at, 0, positions, width, POSITIONS, LEFT, RIGHT)
    if MORE:
        more, more_level = _positions(h_at, level_at, POSITIONS, positions, width, MORE, LEFT, RIGHT)
    until = tl.minimum((split + 1) * span, size)
    v = split * span + tl.arange(0, WORDS)
    next_old, next_bias = _rows(embedding_at, v, until, width, LEFT, RIGHT), tl.load(bias_at + v, v < until, -1e30)
    for first in tl.range(split * span, until, WORDS, num_stages=1):
        v = first + tl.arange(0, WORDS)
        old, bias = next_old, next_bias
        next_old = _rows(embedding_at, v + WORDS, until, width, LEFT, RIGHT)
        next_bias = tl.load(bias_at + v + WORDS, v + WORDS < until, -1e30)
        e = _operand(old, PRECISION)
        slope = tl.zeros((WORDS, LEFT), tl.float32), tl.zeros((WORDS, RIGHT if RIGHT else 1), tl.float32)
        bias_slope = tl.zeros((WORDS,), tl.float32)
        for tile in tl.static_range(TILES):
            if TILES > 1:
                h, level = _positions(
                    h_at, level_at, tile * POSITIONS, positions, width, POSITIONS, LEFT, RIGHT
                )  # fmt: skip
            slope, bias_slope = _slopes(e, bias, h, level, slope, bias_slope, RIGHT, PRECISION)
        if MORE:
            slope, bias_slope = _slopes(e, bias, more, more_level, slope, bias_slope, RIGHT, PRECISION)
        new = old[0] - slope[0], old[1] - slope[1] if RIGHT else slope[1]
        _store_rows(embedding_at, v, until, new, width, LEFT, RIGHT)
        tl.store(bias_at + v, bias - bias_slope, v < until)


@triton.jit
def _slopes(e, bias, h, level, slope, bias_slope, RIGHT: tl.constexpr, PRECISION: tl.constexpr):
    """The slopes of a tile of words, with those of some positions added."""
    p = tl.exp(_scores(e, h, RIGHT, PRECISION) + (bias[:, None] - level[None, :]))
    return _combined(p, h, slope, RIGHT, PRECISION), bias_slope + tl.sum(p, 1)


@triton.jit
def _positions(
    h_at, level_at, first, positions,
    width: tl.constexpr, POSITIONS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """A tile of h, and its levels."""
    n = first + tl.arange(0, POSITIONS)
    return _rows(h_at, n, positions, width, LEFT, RIGHT), tl.load(level_at + n, n < positions, float("inf"))


@triton.jit
def _rows(at, row, size, width: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Rows of a matrix in two parts, zeros behind the last."""
    d = tl.arange(0, LEFT)
    left = tl.load(at + row[:, None] * width + d[None, :], (row[:, None] < size) & (d[None, :] < width), 0.0)
    right = left
    if RIGHT:
        d = LEFT + tl.arange(0, RIGHT)
        right = tl.load(at + row[:, None] * width + d[None, :], (row[:, None] < size) & (d[None, :] < width), 0.0)
    return left, right


@triton.jit
def _store_rows(at, row, size, parts, width: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    d = tl.arange(0, LEFT)
    tl.store(at + row[:, None] * width + d[None, :], parts[0], (row[:, None] < size) & (d[None, :] < width))
    if RIGHT:
        d = LEFT + tl.arange(0, RIGHT)
        tl.store(at + row[:, None] * width + d[None, :], parts[1], (row[:, None] < size) & (d[None, :] < width))


@triton.jit
def _operand(parts, PRECISION: tl.constexpr):
    """Rows as products want them."""
    left, right = parts
    if PRECISION == "bf16":
        left, right = left.to(tl.bfloat16), right.to(tl.bfloat16)
    return left, right


@triton.jit
def _scores(x, y, RIGHT: tl.constexpr, PRECISION: tl.constexpr):
    """x·yᵀ."""
    result = product_kernel(x[0], tl.trans(y[0]), PRECISION)
    if RIGHT:
        result += product_kernel(x[1], tl.trans(y[1]), PRECISION)
    return result


@triton.jit
def _combined(p, x, total, RIGHT: tl.constexpr, PRECISION: tl.constexpr):
    """Total + p·x."""
    left = total[0] + product_kernel(p, x[0], PRECISION)
    right = total[1]
    if RIGHT:
        right += product_kernel(p, x[1], PRECISION)
    return left, right


@triton.jit
def subtract_rows_kernel(
    embedding_at, bias_at, words_at, dx_at, scale_at, positions, size, width: tl.constexpr,
    BIASED: tl.constexpr, POSITIONS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A program a client and position. A word's first position takes the steps of all that have it, added in order."""
    client, own = tl.program_id(0).to(tl.int64), tl.program_id(1)
    words_at += client * positions
    word = tl.load(words_at + own)
    before = tl.zeros((POSITIONS,), tl.int32)
    for first in range(0, own, POSITIONS):
        n = first + tl.arange(0, POSITIONS)
        before += (tl.load(words_at + n, n < own, -1) == word).to(tl.int32)
    if tl.sum(before, 0) == 0:
        d = tl.arange(0, WIDTH)
        step = tl.zeros((WIDTH,), tl.float32)
        bias_step = 0.0
        for first in range(own // POSITIONS * POSITIONS, positions, POSITIONS):
            n = first + tl.arange(0, POSITIONS)
            same = tl.load(words_at + n, n < positions, -1) == word
            row = client * positions + n
            dx = tl.load(dx_at + row[:, None] * width + d[None, :], same[:, None] & (d[None, :] < width), 0.0)
            if BIASED:
                scale = tl.load(scale_at + row, same, 0.0)
                dx *= scale[:, None]
                bias_step += tl.sum(scale, 0)
            step += tl.sum(dx, 0)
        row = client * size + word
        at = embedding_at + row * width + d
        tl.store(at, tl.load(at, d < width, 0.0) - step, d < width)
        if BIASED:
            tl.store(bias_at + row, tl.load(bias_at + row) - bias_step)


@triton.jit
def multiply_kernel(
    x_at, weight_at, scale_at, out_at, rows, inner, x_reach, weight_inner, weight_outer, out_reach,
    x_stride, x_row, scale_stride, out_stride, out_row, weight_stride, inner_stride, outer_stride,
    SCALED: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """For a client and a block of columns: out = x·W, where x has few rows, so that reading W is the work.

    Rows of memory are read and written as far as they reach, in wide pieces; only x is cut to its true length.
    """
    client = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, ROWS), tl.program_id(1) * OUTER + tl.arange(0, OUTER)
    x_at += client * x_stride
    weight_at += client * weight_stride
    total = tl.zeros((ROWS, OUTER), tl.float32)
    for first in range(0, inner, INNER):
        k = first + tl.arange(0, INNER)
        x = tl.load(x_at + row[:, None] * x_row + k[None, :], (row[:, None] < rows) & (k[None, :] < x_reach), 0.0)
        x = tl.where(k[None, :] < inner, x, 0.0)
        at = weight_at + k[:, None] * inner_stride + column[None, :] * outer_stride
        weight = tl.load(at, (k[:, None] < weight_inner) & (column[None, :] < weight_outer), 0.0)
        total += product_kernel(x, weight, PRECISION)
    if SCALED:
        total *= tl.load(scale_at + client * scale_stride + row, row < rows, 0.0)[:, None]
    at = out_at + client * out_stride + row[:, None] * out_row + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < out_reach)
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
