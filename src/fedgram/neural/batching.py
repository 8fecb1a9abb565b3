"""Clients' sentences as rectangles: [clients, steps, batch, length] with a mask, little of it padding.

A sentence w₁ … w_m is read as `<s> w₁ … w_m` and asked for `w₁ … w_m </s>`. Sentences longer than the length are cut,
without their end. A client's sentences fill its batches in order; clients with fewer batches than others have empty
ones at the end, in which nothing is masked in, so that plain gradient steps leave their weights alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import BOS, EOS


@dataclass(frozen=True, slots=True, eq=False)
class ClientBatches:
    """Inputs, targets and mask, each [clients, steps, batch, length]."""

    words: NDArray[np.int64]
    targets: NDArray[np.int64]
    mask: NDArray[np.float32]

    @property
    def tokens(self) -> int:
        """How many targets are asked for."""
        return int(self.mask.sum())

    @property
    def padding(self) -> float:
        """The share of positions that hold nothing."""
        return 1.0 - self.tokens / max(self.mask.size, 1)


def pack_clients(
    clients: Sequence[Ragged], *, batch: int, length: int, orders: Sequence[LongArray] | None = None
) -> ClientBatches:
    """Pack the sentences of several clients; `orders[c]` lists the sentences of client c that are used, in order."""
    chosen = orders if orders is not None else [np.arange(len(sentences)) for sentences in clients]
    steps = max((-(-len(order) // batch) for order in chosen), default=0)
    longest = max((int(np.diff(s.offsets)[o].max(initial=0)) for s, o in zip(clients, chosen, strict=True)), default=0)
    shape = (len(clients), steps, batch, min(longest + 1, length))
    words, targets = np.full(shape, EOS, np.int64), np.full(shape, EOS, np.int64)
    mask = np.zeros(shape, np.float32)
    for c, (sentences, order) in enumerate(zip(clients, chosen, strict=True)):
        rows = (a[c].reshape(-1, shape[3]) for a in (words, targets, mask))
        _pack(sentences.values, sentences.offsets, order.astype(np.int64), *rows)
    return ClientBatches(words, targets, mask)


@kernel
def _pack(
    values: IntArray, offsets: LongArray, order: LongArray, words: LongArray, targets: LongArray, mask: FloatArray
) -> None:
    for row in range(len(order)):
        begin, end = offsets[order[row]], offsets[order[row] + 1]
        for t in range(min(end - begin + 1, words.shape[1])):
            words[row, t] = BOS if t == 0 else values[begin + t - 1]
            targets[row, t] = EOS if begin + t == end else values[begin + t]
            mask[row, t] = 1.0
