"""Triton kernels of the CIFG cell: its layer norms and gates at one moment, forward and backward.

References: `gates_forward`, `gates_backward` and `vector_gradients` of `neural/explicit_step.py`, which also explains
the symbols (a, b, c, h, z, n, and d for gradients). `neural/gpu/kernels.py` launches the kernels.

**What is computed.** Each gate has `hidden` numbers, and z = LN(a)·a_scale + LN(b)·b_scale + bias before its
nonlinearity. The three gates are f, o and g, in this order:

    f, o, g = σ(z_f), σ(z_o), tanh(z_g),   c_after = f·keep·c_before + (1 − f)·g
    n = LN(c_after)·c_scale + c_bias,      h = o·tanh(n)

One program works on one row of one client. Everything between the load of a and b and the store of the results stays in
registers.

**Data layout.** A moment of a and b is [clients, rows, 3·hidden], one of c, h and n [clients, rows, hidden]; both may be
slices of larger arrays. Distances in memory are given apart:

    gates_stride, cell_stride   between clients, in arrays of 3·hidden and of hidden columns; also keep_stride,
                                h_stride and dn_stride, of the arrays they name
    gates_row, cell_row         between rows, in arrays of 3·hidden and of hidden columns

Vectors of weights are [clients, 3·hidden] (`bias`, `a_scale`, `b_scale`) and [clients, hidden] (`c_scale`, `c_bias`).

**Terms.** `u` are hidden units, and `inside` masks those below `hidden`; BLOCK is the power of two that holds them. A
name that ends in `_at` is a pointer to an array. `rate` is 1 / the standard deviation of a layer norm, and a hat marks
a normalised row.
"""

import triton
import triton.language as tl

_EPSILON = tl.constexpr(1e-5)


@triton.jit
def _norm(x_at, inside, size):
    """The layer norm of one row: its mean, 1 / its standard deviation, and the normalised row."""
    x = tl.load(x_at, inside, 0.0)
    mean = tl.sum(x, 0) / size
    centred = tl.where(inside, x - mean, 0.0)
    rate = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / size + _EPSILON)
    return mean, rate, centred * rate


@triton.jit
def _unnormed(dy, normed, rate, size):
    """The gradient of a layer norm's input. Reference: `explicit_step._unnormed`."""
    return (dy - tl.sum(dy, 0) / size - normed * (tl.sum(dy * normed, 0) / size)) * rate


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
def _gate(a_at, b_at, bias_at, a_scale_at, b_scale_at, at, inside, hidden):
    """One gate before its nonlinearity, and the means and rates of its two layer norms."""
    a_mean, a_rate, z = _norm(a_at, inside, hidden)
    z = z * tl.load(a_scale_at + at, inside, 0.0) + tl.load(bias_at + at, inside, 0.0)
    b_mean, b_rate, b_hat = _norm(b_at, inside, hidden)
    return z + b_hat * tl.load(b_scale_at + at, inside, 0.0), (a_mean, a_rate, b_mean, b_rate)


@triton.jit
def gates_forward_kernel(
    a_at, b_at, keep_at, c_before_at, c_after_at, h_at, bias_at, a_scale_at, b_scale_at, c_scale_at, c_bias_at,
    gates_stride, keep_stride, cell_stride, h_stride, gates_row, cell_row, hidden: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write c and h of one moment. Reference: `explicit_step.gates_forward`. One program per (client, row)."""
    client, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    u = tl.arange(0, BLOCK)
    inside = u < hidden
    gates, at, cell = client * gates_stride + row * gates_row + u, client * 3 * hidden + u, row * cell_row + u
    f, _norms = _gate(a_at + gates, b_at + gates, bias_at, a_scale_at, b_scale_at, at, inside, hidden)
    f = _sigmoid(f)
    gates, at = gates + hidden, at + hidden
    o, _norms = _gate(a_at + gates, b_at + gates, bias_at, a_scale_at, b_scale_at, at, inside, hidden)
    o = _sigmoid(o)
    gates, at = gates + hidden, at + hidden
    g, _norms = _gate(a_at + gates, b_at + gates, bias_at, a_scale_at, b_scale_at, at, inside, hidden)
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
    """Write da, db, dz and dn of one moment, and replace dc by the gradient of the cell before it.

    Reference: `explicit_step.gates_backward`. One program per (client, row). dh and dc are contiguous,
    [clients, rows, cell_row].
    """
    client, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    u = tl.arange(0, BLOCK)
    inside = u < hidden
    f_gate, f_own = client * gates_stride + row * gates_row + u, client * 3 * hidden + u
    o_gate, o_own, g_gate, g_own = f_gate + hidden, f_own + hidden, f_gate + 2 * hidden, f_own + 2 * hidden
    o, o_norms = _gate(a_at + o_gate, b_at + o_gate, bias_at, a_scale_at, b_scale_at, o_own, inside, hidden)
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
    inputs, outputs = (a_at, b_at, a_scale_at, b_scale_at), (da_at, db_at, dz_at)
    _store_gate_gradients(do, o_norms, inputs, outputs, o_gate, o_own, inside, hidden)
    f, f_norms = _gate(a_at + f_gate, b_at + f_gate, bias_at, a_scale_at, b_scale_at, f_own, inside, hidden)
    g, g_norms = _gate(a_at + g_gate, b_at + g_gate, bias_at, a_scale_at, b_scale_at, g_own, inside, hidden)
    f, g = _sigmoid(f), _tanh(g)
    dc = tl.where(inside, dc, 0.0)
    keep = tl.load(keep_at + client * keep_stride + row)
    tl.store(dc_at + here, dc * f * keep, inside)
    df = dc * (keep * tl.load(c_before_at + cell, inside, 0.0) - g) * f * (1.0 - f)
    _store_gate_gradients(df, f_norms, inputs, outputs, f_gate, f_own, inside, hidden)
    dg = dc * (1.0 - f) * (1.0 - g * g)
    _store_gate_gradients(dg, g_norms, inputs, outputs, g_gate, g_own, inside, hidden)


@triton.jit
def _store_gate_gradients(dz, norms, inputs, outputs, gate, own, inside, hidden):
    """Store dz of one gate, and its parts of da and db.

    a and b are loaded again, from the cache, since keeping them would take too many registers.
    """
    a_mean, a_rate, b_mean, b_rate = norms
    a_at, b_at, a_scale_at, b_scale_at = inputs
    da_at, db_at, dz_at = outputs
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
    """Write sums over a span of positions for the gradients of biases and scales.

    Reference: `explicit_step.vector_gradients`. One program per (client, part, span); part 0 to 2 is a gate, part 3 the
    cell. a, b, dz and dn are [clients, positions, …] and contiguous but for the distance between rows. Results of
    different clients and spans are `sums_row` apart; each number is written by one program, so no atomics are needed.
    """
    client, part, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    first, last = split * span, tl.minimum((split + 1) * span, positions)
    sums = (client * tl.num_programs(2) + split) * sums_row
    u = tl.arange(0, BLOCK)
    inside = u < hidden
    bias = tl.zeros((BLOCK,), tl.float32)
    a_scale = tl.zeros((BLOCK,), tl.float32)
    b_scale = tl.zeros((BLOCK,), tl.float32)
    if part < 3:
        at = (client * positions + first) * gates_row + part * hidden + u
        for _n in range(first, last):
            dz = tl.load(dz_at + at, inside, 0.0)
            _mean, _rate, a_hat = _norm(a_at + at, inside, hidden)
            _mean, _rate, b_hat = _norm(b_at + at, inside, hidden)
            bias, a_scale, b_scale = bias + dz, a_scale + dz * a_hat, b_scale + dz * b_hat
            at += gates_row
        own = sums + part * hidden + u
        tl.store(bias_at + own, bias, inside)
        tl.store(a_scale_at + own, a_scale, inside)
        tl.store(b_scale_at + own, b_scale, inside)
    else:
        c_bias, c_scale = bias, a_scale
        for n in range(first, last):
            dn = tl.load(dn_at + (client * positions + n) * cell_row + u, inside, 0.0)
            _mean, _rate, c_hat = _norm(c_at + client * cell_stride + n * cell_row + u, inside, hidden)
            c_bias, c_scale = c_bias + dn, c_scale + dn * c_hat
        tl.store(c_bias_at + sums + u, c_bias, inside)
        tl.store(c_scale_at + sums + u, c_scale, inside)
