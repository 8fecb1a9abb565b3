"""The inner functions of `neural/explicit_step.py`, their reference, as GPU kernels in Triton.

Every function here has the name and the arguments of its reference, and launches kernels:

    softmax_step, subtract_rows                       `neural/gpu/softmax.py`
    gates_forward, gates_backward, vector_gradients   `neural/gpu/cell.py`
    multiply, spread, add_changes, change_squares     `neural/gpu/stacks.py`

A step reads the embedding twice and writes it once. Rows of memory begin at multiples of 16 numbers (`wide`), because a
load of 16 bytes must begin at a multiple of 16 bytes. There are no atomics, so the same input gives the same bits.
"""

import torch
import triton
from torch import Tensor

from fedgram.neural.cell import Weights
from fedgram.neural.gpu.cell import gates_backward_kernel, gates_forward_kernel, vector_gradients_kernel
from fedgram.neural.gpu.softmax import attend_kernel, step_kernel, subtract_rows_kernel
from fedgram.neural.gpu.stacks import add_changes_kernel, change_squares_kernel, multiply_kernel, spread_kernel

PRECISION = "bf16"  # of the kernels' products: bf16, tf32 or ieee; sums are always in single precision
_TILE = 128 * 128  # positions × width of a tile of the softmax
_WORDS = 64  # of a tile of the softmax
_PROGRAMS = 1024  # enough to fill a GPU
_ROWS = 16  # of a tile of a product
_ATTEND = {"STAGES": 3, "num_warps": 8, "maxnreg": 128}  # two programs per multiprocessor, with almost no spills


def softmax_step(embedding: Tensor, bias: Tensor, h: Tensor, targets: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """As `explicit_step.softmax_step`; `neural/gpu/softmax.py` has the formulas and explains the names."""
    clients, size, width = embedding.shape
    h, targets, share = h.contiguous(), targets.contiguous(), share.contiguous()
    positions = h.shape[1]
    left, right = _parts(width)
    tile = min(128, max(16, _TILE // triton.next_power_of_2(left + right)))
    tiles, vocabulary_tiles = triton.cdiv(positions, tile), triton.cdiv(size, _WORDS)
    splits = min(max(1, _PROGRAMS // (clients * tiles)), vocabulary_tiles)
    span = triton.cdiv(vocabulary_tiles, splits) * _WORDS
    operand = h.to(torch.bfloat16) if PRECISION == "bf16" else h
    largest, total = h.new_empty(2, clients, splits, positions)
    mean = h.new_empty(clients, splits, positions, width)
    sizes = {"WORDS": _WORDS, "LEFT": left, "RIGHT": right, "PRECISION": PRECISION}
    attend_kernel[clients, tiles, splits](
        operand, embedding, bias, largest, total, mean, positions, size, span, splits, width,
        POSITIONS=tile, **sizes, **_ATTEND,
    )  # fmt: skip
    peak = largest.amax(dim=1)
    part = (largest - peak.unsqueeze(1)).exp()
    normalizer = (part * total).sum(dim=1)  # Z / exp(peak)
    log_normalizer = peak + normalizer.log()  # log Z
    at = targets.clamp(min=0)
    rows = torch.arange(clients, device=h.device).unsqueeze(1)
    wanted = embedding[rows, at]
    loss = log_normalizer - (h * wanted).sum(dim=-1) - bias[rows, at]
    mean = ((part / normalizer.unsqueeze(1)).unsqueeze(-1) * mean).sum(dim=1)
    dh = (mean - wanted) * share.unsqueeze(-1)
    whole, more = _parts(positions) if positions <= 128 else (128, 0)
    span = triton.cdiv(vocabulary_tiles, min(max(1, _PROGRAMS // clients), vocabulary_tiles)) * _WORDS
    step_kernel[clients, triton.cdiv(size, span)](
        operand, embedding, bias, log_normalizer - share.log(), positions, size, span, width,
        TILES=triton.cdiv(positions, 128), POSITIONS=whole, MORE=more, **sizes, num_warps=4 if width <= 128 else 8,
    )  # fmt: skip
    _subtract(embedding, bias, at, h, -share)
    return loss, dh


def _parts(n: int) -> tuple[int, int]:
    """The sides of one or two tiles that hold n with little padding: powers of two of at least 16, or 0."""
    whole = max(16, triton.next_power_of_2(n))
    half, rest = whole // 2, max(16, triton.next_power_of_2(n - whole // 2))
    return (half, rest) if half >= 16 and half + rest < whole else (whole, 0)


def subtract_rows(embedding: Tensor, words: Tensor, dx: Tensor) -> None:
    """As `explicit_step.subtract_rows`."""
    _subtract(embedding, None, words, dx, None)


def _subtract(embedding: Tensor, bias: Tensor | None, words: Tensor, dx: Tensor, scale: Tensor | None) -> None:
    """Subtract scale·dx from the embeddings of words, and the scale from their biases; None: no scale, no biases."""
    clients, size, width = embedding.shape
    subtract_rows_kernel[clients, words.shape[1]](
        embedding, bias, words.contiguous(), dx.contiguous(), scale, words.shape[1], size, width,
        BIASED=bias is not None, POSITIONS=16, WIDTH=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip


def room(like: Tensor, *size: int) -> Tensor:
    """As `explicit_step.room`; rows begin at multiples of 16 numbers, and the gaps between them may be overwritten."""
    return like.new_empty(*size[:-1], wide(size[-1]))[..., : size[-1]]


def prepare(weight: Tensor) -> Tensor:
    """As `explicit_step.prepare`; in bf16, rows begin at multiples of 16 numbers, with zeros between them."""
    if PRECISION != "bf16":
        return weight
    clients, inner, outer = weight.shape
    padded = weight.new_empty(clients, inner, wide(outer), dtype=torch.bfloat16)
    padded[:, :, outer:] = 0.0
    return padded[:, :, :outer].copy_(weight)


def wide(size: int) -> int:
    """The distance of rows of this size in memory: the next multiple of 16."""
    return -(-size // 16) * 16


def _reach(x: Tensor) -> int:
    """The length up to which rows may be read and written; more than their own if `room` or `prepare` made them."""
    length, row = wide(x.shape[-1]), x.stride(-2)
    return length if row % 16 == 0 and row >= length else x.shape[-1]


def multiply(x: Tensor, weight: Tensor, scale: Tensor | None, out: Tensor, *, add: bool = False) -> None:
    """As `explicit_step.multiply`; the rows of a single client are divided among programs."""
    clients, rows, inner = x.shape
    if clients == 1 and rows > _ROWS and rows % _ROWS == 0:
        x, out = x[0].unflatten(0, (-1, _ROWS)), out[0].unflatten(0, (-1, _ROWS))
        scale = None if scale is None else scale.view(-1, _ROWS)
        clients, rows, weight = len(x), _ROWS, weight.expand(len(x), -1, -1)
    outer, along = weight.shape[2], weight.stride(2) == 1  # otherwise the weight is transposed
    width, column = (32, 256 if outer > 256 else 128) if along else (128, 32)
    if along and outer <= 128 and clients <= 64:  # few programs: shorter loops in more of them
        width, column = 128, 32
    reach = (inner, _reach(weight)) if along else (_reach(weight.mT), outer)
    multiply_kernel[clients, triton.cdiv(outer, column)](
        x, weight, x if scale is None else scale, out, rows, inner, _reach(x), *reach, _reach(out),
        *x.stride()[:2], 0 if scale is None else scale.stride(0), *out.stride()[:2], *weight.stride(),
        SCALED=scale is not None, ADD=add, ROWS=max(_ROWS, triton.next_power_of_2(rows)), INNER=width, OUTER=column,
        PRECISION=PRECISION, num_warps=4 if along else 2,
    )  # fmt: skip


def gates_forward(
    layer: Weights, a: Tensor, b: Tensor, keep: Tensor, c_before: Tensor, c_after: Tensor, h: Tensor
) -> None:
    """As `explicit_step.gates_forward`."""
    clients, rows, hidden = h.shape
    gates_forward_kernel[clients, rows](
        a, b, keep, c_before, c_after, h, *_vectors(layer), a.stride(0), keep.stride(0), c_after.stride(0), h.stride(0),
        a.stride(1), h.stride(1), hidden, **_block(hidden, clients * rows),
    )  # fmt: skip


def gates_backward(
    layer: Weights, a: Tensor, b: Tensor, keep: Tensor, c_before: Tensor, c_after: Tensor, dh: Tensor, dc: Tensor,
    da: Tensor, db: Tensor, dz: Tensor, dn: Tensor,
) -> None:  # fmt: skip
    """As `explicit_step.gates_backward`."""
    clients, rows, hidden = dc.shape
    gates_backward_kernel[clients, rows](
        a, b, keep, c_before, c_after, dh, dc, da, db, dz, dn, *_vectors(layer),
        a.stride(0), keep.stride(0), c_after.stride(0), dn.stride(0), a.stride(1), dn.stride(1), rows, hidden,
        **_block(hidden, clients * rows),
    )  # fmt: skip


def vector_gradients(a: Tensor, b: Tensor, c: Tensor, dz: Tensor, dn: Tensor) -> Weights:
    """As `explicit_step.vector_gradients`."""
    clients, positions, hidden = dn.shape
    span = triton.cdiv(positions, max(1, min(_ROWS_AT_ONCE // (4 * clients), positions // 8)))
    splits = triton.cdiv(positions, span)
    parts = a.new_empty(clients, splits, 11 * hidden)
    vectors = dict(zip(_VECTORS, parts.split([3 * hidden] * 3 + [hidden] * 2, dim=2), strict=True))
    vector_gradients_kernel[clients, 4, splits](
        a, b, c, dz, dn, *_vectors(vectors), c.stride(0), a.stride(1), c.stride(1), positions, span, parts.stride(1),
        hidden, **_block(hidden, 4 * clients * splits),
    )  # fmt: skip
    sums = parts.sum(dim=1) if splits > 1 else parts.squeeze(1)
    return dict(zip(_VECTORS, sums.split([3 * hidden] * 3 + [hidden] * 2, dim=1), strict=True))


_VECTORS = ("bias", "input_scale", "recurrent_scale", "cell_scale", "cell_bias")


def _vectors(layer: Weights) -> tuple[Tensor, ...]:
    return tuple(layer[name] for name in _VECTORS)


_ROWS_AT_ONCE, _FEW_ROWS = 2048, 640  # rows of gates that keep a GPU busy, and a number that is too few for that


def _block(hidden: int, rows: int) -> dict[str, int]:
    """BLOCK and warps of a row's program: one warp, whose sums need no exchange, or more where there are few rows."""
    block = triton.next_power_of_2(hidden)
    return {"BLOCK": block, "num_warps": max(4 if rows < _FEW_ROWS else 1, block // 1024)}


def spread(stack: Tensor, start: Tensor) -> None:
    """Set every client's weights to `start`."""
    size = start.numel()
    spread_kernel[(triton.cdiv(size, 1024),)](stack, start.contiguous(), len(stack), size, BLOCK=1024)


def add_changes(total: Tensor, stack: Tensor, start: Tensor, factor: Tensor, scale: float) -> None:
    """Add factor·(stack − start) of all clients to `total`, in fixed point; a factor of 0 leaves a client out."""
    clients, size = stack.shape
    add_changes_kernel[(triton.cdiv(size, 256),)](
        total, stack, start, factor.double(), clients, size, scale, CLIENTS=8, BLOCK=256
    )


def change_squares(stack: Tensor, start: Tensor) -> Tensor:
    """The sum of (stack − start)² for each client."""
    clients, size = stack.shape
    parts = triton.cdiv(size, 32 * 1024)
    square = stack.new_empty(clients, parts)
    change_squares_kernel[clients, parts](square, stack, start, size, BLOCK=1024, SPAN=32 * 1024)
    return square.double().sum(dim=1)
