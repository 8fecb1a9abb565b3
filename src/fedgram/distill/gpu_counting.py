"""`tensor_counting.add_rows`, the reference, as GPU kernels in Triton.

Both kernels add whole numbers with atomics; the sums do not depend on the order. One kernel adds up the columns of the
probabilities, for the unigrams. The other adds the probabilities of the arcs on the rows' backoff paths.

In kernels, a name that ends in `_at` is a pointer to an array, `stride` is the distance between rows of p, and names in
capitals are the sides of tiles.
"""

from typing import Protocol

import triton
import triton.language as tl
from torch import Tensor


class Arcs(Protocol):
    """The arrays of a topology, as in `tensor_counting.TensorTopology`."""

    first_arc: Tensor
    label: Tensor
    backoff: Tensor
    unigrams: int
    depth: int


def add_rows(p: Tensor, times: Tensor, q: Tensor, t: Arcs, summed: Tensor) -> None:
    """As `tensor_counting.add_rows`: add p, multiplied by `times`, to the arcs on the backoff paths of `q`."""
    summed[: t.unigrams] += column_sums(p, times)[t.label[: t.unigrams]]
    if t.depth:
        _add_paths_kernel[len(p), t.depth](
            p, times, q, t.first_arc, t.label, t.backoff, summed, p.stride(0), BLOCK=256, num_warps=4
        )


def column_sums(p: Tensor, times: Tensor) -> Tensor:
    """As `tensor_counting.column_sums`."""
    rows, labels = p.shape
    total = times.new_zeros(labels)
    _add_columns_kernel[triton.cdiv(labels, 256), triton.cdiv(rows, 128)](
        p, times, total, rows, labels, p.stride(0), SPAN=128, ROWS=8, COLUMNS=256, num_warps=4
    )
    return total


@triton.jit(do_not_specialize=["rows"])
def _add_columns_kernel(
    p_at, times_at, total_at, rows, labels, stride, SPAN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Add p·times to `total`, by label. One program per (block of labels, span of rows)."""
    x = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.int64)
    for first in range(0, SPAN, ROWS):
        row = tl.program_id(1) * SPAN + first + tl.arange(0, ROWS)
        times = tl.load(times_at + row, row < rows, 0)
        inside = (row[:, None] < rows) & (x[None, :] < labels)
        p = tl.load(p_at + row[:, None].to(tl.int64) * stride + x[None, :], inside, 0.0)
        total += p.to(tl.int64) * times[:, None]
    tl.atomic_add(total_at + x, tl.sum(total, 0), x < labels, sem="relaxed")


@triton.jit
def _add_paths_kernel(p_at, times_at, q_at, first_arc_at, label_at, backoff_at, summed_at, stride, BLOCK: tl.constexpr):
    """Add p·times to the arcs of one state. One program per (row, state on its backoff path, but the empty history)."""
    row = tl.program_id(0).to(tl.int64)
    q = tl.load(q_at + row)
    for _ in range(tl.program_id(1)):
        q = tl.where(q > 0, tl.load(backoff_at + q), 0)
    if q > 0:
        times, end = tl.load(times_at + row), tl.load(first_arc_at + q + 1)
        for first in range(tl.load(first_arc_at + q), end, BLOCK):
            arc = first + tl.arange(0, BLOCK)
            label = tl.load(label_at + arc, arc < end, 0)
            p = tl.load(p_at + row * stride + label, arc < end, 0.0)
            tl.atomic_add(summed_at + arc, p.to(tl.int64) * times, arc < end, sem="relaxed")
