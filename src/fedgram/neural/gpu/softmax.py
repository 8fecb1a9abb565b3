"""Triton kernels of the softmax layer: its loss, the gradient of its input, and its own step of gradient descent.

Together they compute `softmax_step` and `subtract_rows` of `neural/explicit_step.py`, their references.
`neural/gpu/kernels.py` launches them.

**What is computed.** Each client has an embedding E, a bias b, hidden outputs h[n] with a target[n] and a share[n] of
the loss (times the learning rate; 0 where there is no target):

    logit[n, v] = h[n]·E[v] + b[v],   Z[n] = Σ_v exp(logit[n, v]),   p[n, v] = exp(logit[n, v]) / Z[n]
    loss[n] = log Z[n] − logit[n, target[n]]
    dh[n]   = share[n]·(Σ_v p[n, v]·E[v] − E[target[n]])
    E[v]   ← E[v] − Σ_n share[n]·p[n, v]·h[n] + Σ_{n: target[n] = v} share[n]·h[n]
    b[v]   ← b[v] − Σ_n share[n]·p[n, v]      + Σ_{n: target[n] = v} share[n]

The probabilities p are not stored, since they would be as large as [positions, size]. Three kernels do the work:

1. `attend_kernel` goes over a span of words with a running maximum, as attention does. It writes for each position
   the maximum `largest` of the logits, `total` = Σ_v exp(logit − largest), and `mean` = Σ_v exp(logit − largest)·E[v].
   The launching function combines the spans into Z, the loss and dh.
2. `step_kernel` goes over the words again. It rebuilds share·p = exp(logit − log_divisor) tile by tile, where
   log_divisor[n] = log(Z[n] / share[n]), and subtracts the sums over n from E and b. A position without a target has
   an infinite log_divisor, which makes its part 0.
3. `subtract_rows_kernel` adds the terms of the targets. It also takes the step of E as the input layer.

**Data layout.** Arrays are contiguous, with the client first:

    h            [clients, positions, width]    in bf16 if PRECISION is "bf16", else in single precision
    embedding    [clients, size, width]         E
    bias         [clients, size]                b
    log_divisor  [clients, positions]
    largest      [clients, splits, positions]   total has the same shape
    mean         [clients, splits, positions, width]

**Terms.** `size` is the number of words, `width` the length of an embedding, N_e. The words are divided into `splits`
spans of `span` words; a program works on the span of number `split`. `n` are positions, `v` words, `d` columns of the
embedding. A name that ends in `_at` is a pointer to an array. Names in capitals are known when a kernel is compiled:

    POSITIONS, WORDS  the sides of a tile, the part of an array that a program holds: powers of two
    MORE              the positions of a second, smaller tile, or 0
    TILES             the number of tiles of POSITIONS
    STAGES            tiles of words that are loaded ahead
    PRECISION         of products: "bf16", "tf32" or "ieee"; sums are always in single precision
    LEFT, RIGHT       the widths of the two parts that a row of E or h is held in

A width of 96 would have to be padded to 128, a third more. So a row is held as a pair: its first 64 and its last 32
numbers. A width that needs no second part has a RIGHT of 0; the second part of the pair is then never used.
"""

import triton
import triton.language as tl

from fedgram.neural.gpu.stacks import product_kernel


@triton.jit
def attend_kernel(
    h_at, embedding_at, bias_at, largest_at, total_at, mean_at, positions, size, span, splits,
    width: tl.constexpr, POSITIONS: tl.constexpr, WORDS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write `largest`, `total` and `mean` of one client, one tile of positions and one span of words.

    The first part of `explicit_step.softmax_step`. One program per (client, tile of positions, split).
    """
    client, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    embedding_at += client * size * width
    bias_at += client * size
    n = tl.program_id(1) * POSITIONS + tl.arange(0, POSITIONS)
    h = _load_rows(h_at + client * positions * width, n, positions, width, LEFT, RIGHT)
    largest = tl.full((POSITIONS,), -1e30, tl.float32)
    total = tl.zeros((POSITIONS,), tl.float32)
    mean = tl.zeros((POSITIONS, LEFT), tl.float32), tl.zeros((POSITIONS, RIGHT if RIGHT else 1), tl.float32)
    until = tl.minimum((split + 1) * span, size)
    for first in tl.range(split * span, until, WORDS, num_stages=STAGES):
        v = first + tl.arange(0, WORDS)
        e = _operand(_load_rows(embedding_at, v, until, width, LEFT, RIGHT), PRECISION)
        bias = tl.load(bias_at + v, v < until, -1e30)
        logit = _product(h, e, RIGHT, PRECISION) + bias[None, :]
        peak = tl.maximum(largest, tl.max(logit, 1))
        shrink = tl.exp(largest - peak)
        p = tl.exp(logit - peak[:, None])
        total = total * shrink + tl.sum(p, 1)
        mean = _add_product(p, e, (mean[0] * shrink[:, None], mean[1] * shrink[:, None]), RIGHT, PRECISION)
        largest = peak
    row = (client * splits + split) * positions + n
    tl.store(largest_at + row, largest, n < positions)
    tl.store(total_at + row, total, n < positions)
    mean_at += (client * splits + split) * positions * width
    _store_rows(mean_at, n, positions, mean, width, LEFT, RIGHT)


@triton.jit
def step_kernel(
    h_at, embedding_at, bias_at, log_divisor_at, positions, size, span,
    width: tl.constexpr, TILES: tl.constexpr, POSITIONS: tl.constexpr, MORE: tl.constexpr, WORDS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Subtract Σ_n share·p·h from the embedding, and Σ_n share·p from the bias, for one span of words.

    The second part of `explicit_step.softmax_step`. One program per (client, split). A tile of words is loaded while
    the one before it is worked on. Positions that fit into one tile, or into one and a second of `MORE`, are loaded
    once for all words. With more positions, all their tiles are loaded again for every tile of words.
    """
    client, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    embedding_at += client * size * width
    bias_at += client * size
    h_at += client * positions * width
    log_divisor_at += client * positions
    h, log_divisor = _load_positions(h_at, log_divisor_at, 0, positions, width, POSITIONS, LEFT, RIGHT)
    if MORE:
        more, more_log_divisor = _load_positions(h_at, log_divisor_at, POSITIONS, positions, width, MORE, LEFT, RIGHT)
    until = tl.minimum((split + 1) * span, size)
    v = split * span + tl.arange(0, WORDS)
    next_old, next_bias = _load_rows(embedding_at, v, until, width, LEFT, RIGHT), tl.load(bias_at + v, v < until, -1e30)
    for first in tl.range(split * span, until, WORDS, num_stages=1):
        v = first + tl.arange(0, WORDS)
        old, bias = next_old, next_bias
        next_old = _load_rows(embedding_at, v + WORDS, until, width, LEFT, RIGHT)
        next_bias = tl.load(bias_at + v + WORDS, v + WORDS < until, -1e30)
        e = _operand(old, PRECISION)
        step = tl.zeros((WORDS, LEFT), tl.float32), tl.zeros((WORDS, RIGHT if RIGHT else 1), tl.float32)
        bias_step = tl.zeros((WORDS,), tl.float32)
        if TILES == 1:
            step, bias_step = _add_steps(e, bias, h, log_divisor, step, bias_step, RIGHT, PRECISION)
        else:
            for tile in range(TILES):
                h, log_divisor = _load_positions(
                    h_at, log_divisor_at, tile * POSITIONS, positions, width, POSITIONS, LEFT, RIGHT
                )  # fmt: skip
                step, bias_step = _add_steps(e, bias, h, log_divisor, step, bias_step, RIGHT, PRECISION)
        if MORE:
            step, bias_step = _add_steps(e, bias, more, more_log_divisor, step, bias_step, RIGHT, PRECISION)
        new = old[0] - step[0], old[1] - step[1] if RIGHT else step[1]
        _store_rows(embedding_at, v, until, new, width, LEFT, RIGHT)
        tl.store(bias_at + v, bias - bias_step, v < until)


@triton.jit
def _add_steps(e, bias, h, log_divisor, step, bias_step, RIGHT: tl.constexpr, PRECISION: tl.constexpr):
    """The steps of a tile of words, with those of some positions added: Σ_n share·p·h and Σ_n share·p."""
    p = tl.exp(_product(e, h, RIGHT, PRECISION) + (bias[:, None] - log_divisor[None, :]))
    return _add_product(p, h, step, RIGHT, PRECISION), bias_step + tl.sum(p, 1)


@triton.jit
def _load_positions(
    h_at, log_divisor_at, first, positions,
    width: tl.constexpr, POSITIONS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """A tile of h and of log_divisor, from position `first` on; infinite divisors after the last position."""
    n = first + tl.arange(0, POSITIONS)
    return _load_rows(h_at, n, positions, width, LEFT, RIGHT), tl.load(log_divisor_at + n, n < positions, float("inf"))


@triton.jit
def _load_rows(at, row, size, width: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Load rows of a matrix as pairs of LEFT and RIGHT columns; zeros after the last row and column."""
    d = tl.arange(0, LEFT)
    left = tl.load(at + row[:, None] * width + d[None, :], (row[:, None] < size) & (d[None, :] < width), 0.0)
    right = left
    if RIGHT:
        d = LEFT + tl.arange(0, RIGHT)
        right = tl.load(at + row[:, None] * width + d[None, :], (row[:, None] < size) & (d[None, :] < width), 0.0)
    return left, right


@triton.jit
def _store_rows(at, row, size, parts, width: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Store what `_load_rows` loads."""
    d = tl.arange(0, LEFT)
    tl.store(at + row[:, None] * width + d[None, :], parts[0], (row[:, None] < size) & (d[None, :] < width))
    if RIGHT:
        d = LEFT + tl.arange(0, RIGHT)
        tl.store(at + row[:, None] * width + d[None, :], parts[1], (row[:, None] < size) & (d[None, :] < width))


@triton.jit
def _operand(parts, PRECISION: tl.constexpr):
    """Pairs of rows in the precision of products."""
    left, right = parts
    if PRECISION == "bf16":
        left, right = left.to(tl.bfloat16), right.to(tl.bfloat16)
    return left, right


@triton.jit
def _product(x, y, RIGHT: tl.constexpr, PRECISION: tl.constexpr):
    """x·yᵀ, for rows held as pairs."""
    result = product_kernel(x[0], tl.trans(y[0]), PRECISION)
    if RIGHT:
        result += product_kernel(x[1], tl.trans(y[1]), PRECISION)
    return result


@triton.jit
def _add_product(p, x, total, RIGHT: tl.constexpr, PRECISION: tl.constexpr):
    """Add p·x to `total`, for rows held as pairs."""
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
    """Subtract dx from the embedding rows of `words`; if BIASED, subtract scale·dx, and the scale from the biases.

    Reference: `explicit_step.subtract_rows`; if BIASED, the terms of the targets in `explicit_step.softmax_step`. One
    program per (client, position). The first position of a word adds up the steps of all its positions, in order;
    the programs of its other positions do nothing. So no two programs write to the same row.
    """
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
