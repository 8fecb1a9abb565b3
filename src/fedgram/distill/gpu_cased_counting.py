"""`tensor_cased_counting.add_visits`, the reference, as GPU kernels in Triton.

Both kernels add whole numbers with atomics; the sums do not depend on the order. One kernel adds to the arcs on the
visits' backoff paths, the other to the words whose ratios A_W's states change.

In kernels, a name that ends in `_at` is a pointer to an array, and `stride` is the distance between rows of p.
"""

from typing import Protocol

import triton
import triton.language as tl
from torch import Tensor

from fedgram.distill.gpu_counting import Arcs


class Ratios(Protocol):
    """A casing, as in `tensor_cased_counting.TensorCasing`."""

    uncased: Tensor
    base: Tensor
    first: Tensor
    word: Tensor
    ratio: Tensor
    backoff: Tensor
    depth: int


def add_visits(
    p: Tensor, visits: tuple[Tensor, Tensor, Tensor, Tensor], t: Arcs, c: Ratios, summed: Tensor, changed: Tensor
) -> None:
    """As `tensor_cased_counting.add_visits`; visits have rows, states of A_W, states of the topology, and times."""
    row, a, q, times = visits
    casing = c.uncased, c.base, c.first, c.word, c.ratio, c.backoff
    if t.depth:
        _add_paths_kernel[len(row), t.depth](
            p, row, a, q, times, t.first_arc, t.label, t.backoff, *casing, summed, p.stride(0),
            DEPTH=c.depth, BLOCK=256, num_warps=4,
        )  # fmt: skip
    if c.depth:
        _add_changes_kernel[len(row), c.depth](p, row, a, times, *casing, changed, p.stride(0), BLOCK=256, num_warps=4)


@triton.jit
def _find(first_at, word_at, a, y, BLOCK: tl.constexpr):
    """The place of each word among the entries of state a, and whether it is one of them; a word below 0 is not."""
    first = tl.load(first_at + a)
    place, size = tl.zeros((BLOCK,), tl.int64) + first, tl.where(a > 0, tl.load(first_at + a + 1) - first, 0)
    end = place + size
    while size > 1:  # the word is in one of `size` places from `place` on, if it is there
        half = size // 2
        place = tl.where(tl.load(word_at + place + half) <= y, place + half, place)
        size -= half
    return place, (y >= 0) & (tl.load(word_at + place, place < end, -2) == y)


@triton.jit
def _fixed(p, ratio):
    """A product with a ratio, rounded to a whole number."""
    return tl.floor(p.to(tl.float64) * ratio + 0.5).to(tl.int64)


@triton.jit
def _add_paths_kernel(
    p_at, row_at, a_at, q_at, times_at, first_arc_at, label_at, arc_backoff_at, uncased_at, base_at, first_at, word_at,
    ratio_at, backoff_at, summed_at, stride, DEPTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add to the arcs of one state. One program per (visit, state on its backoff path, but the empty history)."""
    visit = tl.program_id(0)
    q = tl.load(q_at + visit)
    for _state in range(tl.program_id(1)):
        q = tl.where(q > 0, tl.load(arc_backoff_at + q), 0)
    if q > 0:
        row, times, end = tl.load(row_at + visit), tl.load(times_at + visit), tl.load(first_arc_at + q + 1)
        for begin in range(tl.load(first_arc_at + q), end, BLOCK):
            arc = begin + tl.arange(0, BLOCK)
            y = tl.load(label_at + arc, arc < end, -1)
            ratio, known = tl.load(base_at + y, y >= 0, 0.0), tl.zeros((BLOCK,), tl.int32)
            a = tl.load(a_at + visit)
            for _history in tl.static_range(DEPTH):  # the longest history that has the word decides
                place, found = _find(first_at, word_at, a, y, BLOCK)
                found = found & (known == 0)
                ratio = tl.where(found, tl.load(ratio_at + place, found, 0.0), ratio)
                known = tl.where(found, 1, known)
                a = tl.load(backoff_at + a)
            p = tl.load(p_at + row * stride + tl.load(uncased_at + y, y >= 0, 0), y >= 0, 0.0)
            tl.atomic_add(summed_at + arc, _fixed(p, ratio) * times, arc < end, sem="relaxed")


@triton.jit
def _add_changes_kernel(
    p_at, row_at, a_at, times_at, uncased_at, base_at, first_at, word_at, ratio_at, backoff_at, changed_at, stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Add what one state of A_W changes. One program per (visit, state on a's backoff path, but the empty history)."""
    visit, level = tl.program_id(0), tl.program_id(1)
    a = tl.load(a_at + visit)
    for _state in range(level):
        a = tl.load(backoff_at + a)
    if a > 0:
        row, times, end = tl.load(row_at + visit), tl.load(times_at + visit), tl.load(first_at + a + 1)
        for begin in range(tl.load(first_at + a), end, BLOCK):
            entry = begin + tl.arange(0, BLOCK)
            y = tl.load(word_at + entry, entry < end, -1)
            known, longer = tl.zeros((BLOCK,), tl.int32), tl.load(a_at + visit)
            for _history in range(level):  # a longer history that has the word decides instead
                _place, found = _find(first_at, word_at, longer, y, BLOCK)
                known = tl.where(found, 1, known)
                longer = tl.load(backoff_at + longer)
            decides = (y >= 0) & (known == 0)
            p = tl.load(p_at + row * stride + tl.load(uncased_at + y, decides, 0), decides, 0.0)
            change = _fixed(p, tl.load(ratio_at + entry, decides, 0.0)) - _fixed(p, tl.load(base_at + y, decides, 0.0))
            tl.atomic_add(changed_at + y, change * times, decides, sem="relaxed")
