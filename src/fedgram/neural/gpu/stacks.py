"""Triton kernels for stacks of models, one per client: matrix products, and the sums of the clients' changes.

`neural/gpu/kernels.py` launches them. A stack of one weight is [clients, size], with `size` numbers per client; `start`
is the weight that all clients begin with, [size]. A name that ends in `_at` is a pointer to an array. Names in capitals
are known when a kernel is compiled; they are the sides of a tile, powers of two, unless their kernel says otherwise.
"""

import triton
import triton.language as tl


@triton.jit
def product_kernel(left, right, PRECISION: tl.constexpr):
    """The product of two tiles, in a precision of "bf16", "tf32" or "ieee"; sums are in single precision."""
    if PRECISION == "bf16":
        result = tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16))
    else:
        result = tl.dot(left, right, input_precision=PRECISION)
    return result


@triton.jit
def multiply_kernel(
    x_at, weight_at, scale_at, out_at, rows, inner, x_reach, weight_inner, weight_outer, out_reach,
    x_stride, x_row, scale_stride, out_stride, out_row, weight_stride, inner_stride, outer_stride,
    SCALED: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write out = x·W, with rows scaled if SCALED, and added to `out` if ADD.

    Reference: `explicit_step.multiply`. One program per (client, block of OUTER columns). x has few rows, so most of
    the time goes into reading W, in loads of 16 bytes. For these, rows are read and written beyond their length, up to
    `x_reach`, `weight_inner`, `weight_outer` and `out_reach`, into memory that is reserved for it. Only x is masked to
    its true length `inner`.

    `x_stride`, `scale_stride`, `out_stride` and `weight_stride` are the distances between clients, `x_row` and
    `out_row` those between rows, and `inner_stride` and `outer_stride` those along the two dimensions of W.
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
    """Copy `start` to every client. Reference: `stack.copy_(start)`. One program per BLOCK weights."""
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    start = tl.load(start_at + k, k < size, 0.0)
    for _ in range(clients):
        tl.store(stack_at + k, start, k < size)
        stack_at += size


@triton.jit
def add_changes_kernel(
    total_at, stack_at, start_at, factor_at, clients, size, scale, CLIENTS: tl.constexpr, BLOCK: tl.constexpr
):
    """Add Σ_clients round(factor·(stack − start)·scale) to `total`, as integers. One program per BLOCK weights.

    Reference: `federated.task.Total.add`, client by client. A factor of 0 leaves a client out, even if its weights are
    not finite.
    """
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
    """The sum of the squares of stack − start, for one client and SPAN weights, of which BLOCK are loaded at a time.

    Reference: `(stack - start).square().sum(1)`.
    """
    client, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, SPAN, BLOCK):
        k = part.to(tl.int64) * SPAN + first + tl.arange(0, BLOCK)
        change = tl.load(stack_at + client * size + k, k < size, 0.0) - tl.load(start_at + k, k < size, 0.0)
        total += change * change
    tl.store(square_at + client * tl.num_programs(1) + part, tl.sum(total, 0))
