"""Clients' sentences packed into arrays [clients, steps, rows, length] with little padding.

The inputs of a sentence w₁ … w_m are `<s> w₁ … w_m`, and its targets are `w₁ … w_m </s>`. A sentence longer than a row
is cut and loses its end. A batch has a fixed number of rows. A client's sentences are packed in order: each goes to the
first row of the current batch that has room, and if there is none, to the next batch. So several short sentences share
a row; the network resets its state whenever it reads `<s>` (`neural/model.py`). Clients with fewer batches than others
have empty ones at the end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import BoolArray, IntArray, LongArray, Ragged
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import BOS, EOS

NOTHING = -1  # the target of a padding position


@dataclass(frozen=True, slots=True, eq=False)
class ClientBatches:
    """The batches of several clients.

    Attributes:
        words: The inputs, [clients, steps, rows, length].
        targets: The targets, of the same shape; `NOTHING` where there is no target.
        steps: The number of batches of each client that are not empty.
        asked: The number of targets of each client.
        seeds: A random number of each client, for its dropout.
    """

    words: NDArray[np.int32]
    targets: NDArray[np.int32]
    steps: LongArray
    asked: LongArray
    seeds: IntArray

    @property
    def tokens(self) -> int:
        """The number of targets."""
        return int(self.asked.sum())

    @property
    def padding(self) -> float:
        """The share of positions without a target, among the batches that are not empty."""
        positions = int(self.steps.sum()) * int(np.prod(self.targets.shape[2:]))
        return 1.0 - self.tokens / max(positions, 1)


def pack_clients(
    clients: Sequence[Ragged], *, rows: int, length: int, orders: Sequence[LongArray] | None = None,
    full_rows: bool = False, seeds: Sequence[int] | None = None,
) -> ClientBatches:  # fmt: skip
    """Pack the sentences of several clients; `orders[c]` lists the sentences of client c to use, in order.

    Rows are as long as the fullest of them. With `full_rows` they have the full length: the shape of a client's
    batches, and with it the rounding of its training, then does not depend on the clients that it is packed with.
    """
    chosen = orders if orders is not None else [np.arange(len(sentences)) for sentences in clients]
    places = [_place(s.offsets, o.astype(np.int64), rows, length) for s, o in zip(clients, chosen, strict=True)]
    steps = np.array([int(place[-1, 0]) + 1 if len(place) else 0 for place in places], np.int64)
    used = length if full_rows else max((int(place[:, 3].max(initial=0)) for place in places), default=0)
    shape = (len(clients), int(steps.max(initial=0)), rows, used)
    words, targets = np.full(shape, BOS, np.int32), np.full(shape, NOTHING, np.int32)
    for c, (sentences, order) in enumerate(zip(clients, chosen, strict=True)):
        _fill(sentences.values, sentences.offsets, order.astype(np.int64), places[c], words[c], targets[c])
    asked = np.count_nonzero(targets != NOTHING, axis=(1, 2, 3)).astype(np.int64)
    return ClientBatches(words, targets, steps, asked, np.array(seeds or [0] * len(clients), np.int32))


def reading_batches(
    sentences: Ragged, order: LongArray, positions: int
) -> Iterator[tuple[LongArray, LongArray, BoolArray]]:
    """Sentences in this order, one per row, in batches of at most `positions` positions, padding included.

    Yields for each batch the numbers of its sentences, the inputs (`<s>` comes first, and is the padding), and a mask
    of the positions whose target is a word. The position after a sentence's last word has the target `</s>`.
    """
    lengths, first = np.diff(sentences.offsets)[order], 0
    while first < len(order):
        longest = np.maximum.accumulate(lengths[first : first + positions]) + 1
        count = max(1, int(np.searchsorted(longest * np.arange(1, len(longest) + 1), positions, side="right")))
        chosen, columns = order[first : first + count], np.arange(longest[count - 1])
        inside = columns < lengths[first : first + count, None]
        words = np.full(inside.shape, BOS, np.int64)
        words[:, 1:][inside[:, :-1]] = sentences.take(chosen).values
        yield chosen, words, inside
        first += count


@kernel
def _place(offsets: LongArray, order: LongArray, rows: int, length: int) -> LongArray:
    """For each sentence its batch, its row, and its beginning and end in the row."""
    place = np.empty((len(order), 4), np.int64)
    filled = np.zeros(rows, np.int64)
    batch = 0
    for k in range(len(order)):
        need = min(offsets[order[k] + 1] - offsets[order[k]] + 1, length)
        row = 0
        while row < rows and filled[row] + need > length:
            row += 1
        if row == rows:
            batch, row = batch + 1, 0
            filled[:] = 0
        place[k, 0], place[k, 1], place[k, 2], place[k, 3] = batch, row, filled[row], filled[row] + need
        filled[row] += need
    return place


@kernel
def _fill(
    values: IntArray, offsets: LongArray, order: LongArray, place: LongArray, words: IntArray, targets: IntArray
) -> None:
    for k in range(len(order)):
        first, end = offsets[order[k]], offsets[order[k] + 1]
        batch, row, begin = place[k, 0], place[k, 1], place[k, 2]
        for t in range(place[k, 3] - begin):
            words[batch, row, begin + t] = BOS if t == 0 else values[first + t - 1]
            targets[batch, row, begin + t] = EOS if first + t == end else values[first + t]
