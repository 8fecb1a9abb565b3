"""Triton kernels of the cell: layer norms and gates of one moment; `neural/gpu/kernels.py` says what they are for.

Rows of memory are `gates_row` apart where they hold all gates, and `cell_row` where they are as wide as the cell.
"""

import triton
import triton.language as tl

_EPSILON = tl.constexpr(1e-5)


@triton.jit
def _norm(x_at, inside, size):
    """Layer norm of a row: its mean and 1 / its standard deviation, and the row."""
    x = tl.load(x_at, inside, 0.0)
    mean = tl.sum(x, 0) / size
    centred = tl.where(inside, x - mean, 0.0)
    rate = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / size + _EPSILON)
    return mean, rate, centred * rate


@triton.jit
def _unnormed(dy, normed, rate, size):
    return (dy - tl.sum(dy, 0) / size - normed * (tl.sum(dy * normed, 0) / size)) * rate


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
def _gate(a_at, b_at, bias_at, a_scale_at, b_scale_at, at, inside, hidden):
    """A gate before its nonlinearity, with the means and rates of its two layer norms."""
    a_mean, a_rate, z = _norm(a_at, inside, hidden)
    z = z * tl.load(a_scale_at + at, inside, 0.0) + tl.load(bias_at + at, inside, 0.0)
    b_mean, b_rate, b_hat = _norm(b_at, inside, hidden)
    return z + b_hat * tl.load(b_scale_at + at, inside, 0.0), a_mean, a_rate, b_mean, b_rate


@triton.jit
def gates_forward_kernel(
    a_at, b_at, keep_at, c_before_at, c_after_at, h_at, bias_at, a_scale_at, b_scale_at, c_scale_at, c_bias_at,
    gates_stride, keep_stride, cell_stride, h_stride, gates_row, cell_row, hidden: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program a client and row."""
    client, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    u = tl.arange(0, BLOCK)
    inside = u < hidden
    gates, at, cell = client * gates_stride + row * gates_row + u, client * 3 * hidden + u, row * cell_row + u
    f, _m, _r, _n, _s = _gate(a_at + gates, b_at + gates, bias_at, a_scale_at, b_scale_at, at, inside, hidden)
    f = _sigmoid(f)
    gates, at = gates + hidden, at + hidden
    o, _m, _r, _n, _s = _gate(a_at + gates, b_at + gates, bias_at, a_scale_at, b_scale_at, at, inside, hidden)
    o = _sigmoid(o)
    gates, at = gates + hidden, at + hidden
    g, _m, _r, _n, _s = _gate(a_at + gates, b_at + gates, bias_at, a_scale_at, b_scale_at, at, inside, hidden)
    g = _tanh(g)
    keep = tl.load(keep_at + client * keep_stride + row)
    c = f * keep * tl.load(c_before_at + client * cell_stride + cell, inside, 0.0) + (1.0 - f) * g
    tl.store(c_after_at + client * cell_stride + cell, c, inside)
    mean = tl.sum(tl.where(inside, c, 0.0), 0) / hidden
    centred = tl.where(inside, c - mean, 0.0)
    n = centred / tl.sqrt(tl.sum(centred * centred, 0) / hidden + _EPSILON)
    n = n * tl.load(c_scale_at + client * hidden + u, inside, 0.0) + tl.load(
        c_bias_at + client * hidden + u, inside, 0.0
    )
    tl.store(h_at + client * h_stride + cell, o * _tanh(n), inside)


@triton.jit
def gates_backward_kernel(
    a_at, b_at, keep_at, c_before_at, c_after_at, dh_at, dc_at, da_at, db_at, dz_at, dn_at,
    bias_at, a_scale_at, b_scale_at, c_scale_at, c_bias_at,
    gates_stride, keep_stride, cell_stride, dn_stride, gates_row, cell_row, rows,
    hidden: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program a client and row."""
    client, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    u = tl.arange(0, BLOCK)
    inside = u < hidden
    f_gate, f_own = client * gates_stride + row * gates_row + u, client * 3 * hidden + u
    o_gate, o_own, g_gate, g_own = f_gate + hidden, f_own + hidden, f_gate + 2 * hidden, f_own + 2 * hidden
    o, oam, oar, obm, obr = _gate(a_at + o_gate, b_at + o_gate, bias_at, a_scale_at, b_scale_at, o_own, inside, hidden)
    o = _sigmoid(o)
    cell = client * cell_stride + row * cell_row + u
    _mean, c_rate, c_hat = _norm(c_after_at + cell, inside, hidden)
    c_scale = tl.load(c_scale_at + client * hidden + u, inside, 0.0)
    th = _tanh(c_hat * c_scale + tl.load(c_bias_at + client * hidden + u, inside, 0.0))
    here = (client * rows + row) * cell_row + u
    dh = tl.load(dh_at + here, inside, 0.0)
    dn = dh * o * (1.0 - th * th)
    tl.store(dn_at + client * dn_stride + row * cell_row + u, dn, inside)
    dc = tl.load(dc_at + here, inside, 0.0) + _unnormed(dn * c_scale, c_hat, c_rate, hidden)
    do = dh * th * o * (1.0 - o)
    _give(
        do, a_at, b_at, a_scale_at, b_scale_at, da_at, db_at, dz_at, o_gate, o_own, oam, oar, obm, obr, inside, hidden
    )
    f, fam, far, fbm, fbr = _gate(a_at + f_gate, b_at + f_gate, bias_at, a_scale_at, b_scale_at, f_own, inside, hidden)
    g, gam, gar, gbm, gbr = _gate(a_at + g_gate, b_at + g_gate, bias_at, a_scale_at, b_scale_at, g_own, inside, hidden)
    f, g = _sigmoid(f), _tanh(g)
    dc = tl.where(inside, dc, 0.0)
    keep = tl.load(keep_at + client * keep_stride + row)
    tl.store(dc_at + here, dc * f * keep, inside)
    df = dc * (keep * tl.load(c_before_at + cell, inside, 0.0) - g) * f * (1.0 - f)
    _give(
        df, a_at, b_at, a_scale_at, b_scale_at, da_at, db_at, dz_at, f_gate, f_own, fam, far, fbm, fbr, inside, hidden
    )
    dg = dc * (1.0 - f) * (1.0 - g * g)
    _give(
        dg, a_at, b_at, a_scale_at, b_scale_at, da_at, db_at, dz_at, g_gate, g_own, gam, gar, gbm, gbr, inside, hidden
    )


@triton.jit
def _give(
    dz,
    a_at,
    b_at,
    a_scale_at,
    b_scale_at,
    da_at,
    db_at,
    dz_at,
    gate,
    own,
    a_mean,
    a_rate,
    b_mean,
    b_rate,
    inside,
    hidden,
):
    """Write what one gate's gradient gives; the rows are loaded again, from the cache, so as not to keep them."""
    tl.store(dz_at + gate, dz, inside)
    normed = tl.where(inside, (tl.load(a_at + gate, inside, 0.0) - a_mean) * a_rate, 0.0)
    tl.store(da_at + gate, _unnormed(dz * tl.load(a_scale_at + own, inside, 0.0), normed, a_rate, hidden), inside)
    normed = tl.where(inside, (tl.load(b_at + gate, inside, 0.0) - b_mean) * b_rate, 0.0)
    tl.store(db_at + gate, _unnormed(dz * tl.load(b_scale_at + own, inside, 0.0), normed, b_rate, hidden), inside)


@triton.jit
def vector_gradients_kernel(
    a_at, b_at, c_at, dz_at, dn_at, bias_at, a_scale_at, b_scale_at, c_scale_at, c_bias_at,
    cell_stride, gates_row, cell_row, positions, span, sums_row, hidden: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program a client, gate (or the cell) and span of positions, one after the other: the sums need no atomics."""
    client, part, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    first, last = split * span, tl.minimum((split + 1) * span, positions)
    sums = (client * tl.num_programs(2) + split) * sums_row
    u = tl.arange(0, BLOCK)
    inside = u < hidden
    plain = tl.zeros((BLOCK,), tl.float32)
    left = tl.zeros((BLOCK,), tl.float32)
    right = tl.zeros((BLOCK,), tl.float32)
    if part < 3:
        at = (client * positions + first) * gates_row + part * hidden + u
        for _n in range(first, last):
            dz = tl.load(dz_at + at, inside, 0.0)
            _mean, _rate, a_hat = _norm(a_at + at, inside, hidden)
            _mean, _rate, b_hat = _norm(b_at + at, inside, hidden)
            plain, left, right = plain + dz, left + dz * a_hat, right + dz * b_hat
            at += gates_row
        own = sums + part * hidden + u
        tl.store(bias_at + own, plain, inside)
        tl.store(a_scale_at + own, left, inside)
        tl.store(b_scale_at + own, right, inside)
    else:
        for n in range(first, last):
            dn = tl.load(dn_at + (client * positions + n) * cell_row + u, inside, 0.0)
            _mean, _rate, c_hat = _norm(c_at + client * cell_stride + n * cell_row + u, inside, hidden)
            plain, left = plain + dn, left + dn * c_hat
        tl.store(c_bias_at + sums + u, plain, inside)
        tl.store(c_scale_at + sums + u, left, inside)
