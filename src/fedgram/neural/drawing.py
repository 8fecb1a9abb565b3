"""Drawing labels from scores, by inverting cumulative distributions of whole numbers.

The probabilities of a row are rounded to fixed point (`core.fixed_point`). Their sums are sums of whole numbers, so the
same uniform number gives the same label in any order of summation. These fixed-point probabilities are also the ones
that are counted (`distill/sample_counts.py`). Two of the three ways to draw are here; the third, in GPU kernels, is in
`neural/gpu/sampling.py`. They give the same labels from the same probabilities.

All take the same arguments: scores [rows, labels]; for each sample the row it belongs to, sorted, and a uniform number;
and the samples' labels where these are known already.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.fixed_point import SCALE
from fedgram.core.jit import kernel

_BLOCK = 256  # labels whose sum is taken first; a label is searched within one block


class Drawn(NamedTuple):
    """What drawing gives.

    Attributes:
        label: The label of each sample.
        entropy: The entropy of each row in nats.
        p: The probabilities by row, or None where only `fixed` is there.
        fixed: The probabilities in fixed point, as whole numbers in single precision, or None; there may be columns of
            zeros after those of the labels.
    """

    label: Tensor
    entropy: Tensor
    p: Tensor | None
    fixed: Tensor | None


Draw = Callable[[Tensor, Tensor, Tensor, Tensor | None], Drawn]  # scores, row, u, known labels


def draw_in_tensors(scores: Tensor, row: Tensor, u: Tensor, known: Tensor | None) -> Drawn:
    """Draw in tensor operations. Sums of whole numbers below 2⁵³ are exact in double precision, in any order."""
    p = torch.softmax(scores, 1)
    n, labels = p.shape
    top = p.argmax(1, keepdim=True)
    log_z = (scores.gather(1, top) - p.gather(1, top).log()).squeeze(1)
    entropy = log_z.double() - torch.linalg.vecdot(p, scores).double()
    fixed = p.new_empty(n, labels + -labels % _BLOCK)
    fixed[:, labels:] = 0.0
    torch.mul(p, SCALE, out=fixed[:, :labels])
    fixed.round_()
    if known is not None:
        return Drawn(known, entropy, p, fixed)
    blocks = fixed.view(n, -1, _BLOCK)
    cumulative = blocks.sum(2, dtype=torch.float64).cumsum(1)
    own = cumulative[row]
    target = torch.minimum((u * own[:, -1]).floor_(), own[:, -1] - 1.0).unsqueeze(1)
    block = torch.searchsorted(own, target, right=True)
    before = own.gather(1, (block - 1).clamp_(min=0)) * (block > 0)
    inner = blocks[row, block.squeeze(1)].double().cumsum(1) + before
    label = block * _BLOCK + torch.searchsorted(inner, target, right=True)
    return Drawn(label.squeeze(1), entropy, p, fixed)


def draw_compiled(scores: Tensor, row: Tensor, u: Tensor, known: Tensor | None) -> Drawn:
    """Draw in compiled code on the CPU."""
    p = torch.softmax(scores, 1)
    label = np.empty(len(row), np.int64)
    entropy = _draw(p.numpy(), scores.numpy(), row.numpy(), u.numpy(), label)
    return Drawn(torch.from_numpy(label) if known is None else known, torch.from_numpy(entropy), p, None)


@kernel
def _draw(
    p: NDArray[np.floating[Any]], scores: NDArray[np.floating[Any]], row: LongArray, u: FloatArray, label: LongArray
) -> FloatArray:
    """Write the label of each sample; returns the entropy of each row, H = log Z − Σ p·score.

    log Z is the score of the most probable label minus the log of its probability.
    """
    fixed, entropy, scale = np.empty(p.shape[1], np.int64), np.empty(len(p)), p.dtype.type(SCALE)
    i = 0
    for r in range(len(p)):
        line, score = p[r], scores[r]
        total, most, mean, top = np.int64(0), np.int64(0), np.int64(0), 0
        for x in range(len(line)):
            fixed[x] = np.int64(np.rint(line[x] * scale))
            total += fixed[x]
            most = max(most, fixed[x])
            mean += np.int64(np.rint(line[x] * score[x] * scale))
        while fixed[top] != most:
            top += 1
        entropy[r] = score[top] - np.log(line[top]) - mean / SCALE
        while i < len(row) and row[i] == r:
            target = min(int(u[i] * total), total - 1)
            x, cumulative = 0, fixed[0]
            while cumulative <= target:
                x += 1
                cumulative += fixed[x]
            label[i] = x
            i += 1
    return entropy
