"""Sentences drawn from a network, position by position, with the probabilities that they were drawn from.

A batch of samples walks in lock-step. Samples with the same words so far share a *row*: the network's state after these
words, and the probabilities of what comes next. A sentence that ends leaves the batch. Labels are drawn at temperature
1 from all of the vocabulary, by inverting the cumulative distribution at a number that depends on the seed, the sample
and the position alone.

The same samples come out of any batches. Rows are computed in tiles of a fixed number of rows, the last one filled up,
so that the numbers of a row do not depend on the others, unless the decoder sees to that. What is inverted are sums of
whole numbers, the probabilities in fixed point (`core.fixed_point`), which are those that are counted. On the CPU
drawing is compiled; elsewhere it is done where the probabilities are, with one synchronisation a position, for the
number of rows; on a GPU in kernels where they can be used (`neural/gpu/sampling.py`). Paper: §4.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgram.core.arrays import FloatArray, LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.core.fixed_point import SCALE
from fedgram.core.jit import kernel
from fedgram.core.random import stream_key, uniform_at
from fedgram.neural.cell import cell_inputs, cell_step
from fedgram.neural.model import layer_weights
from fedgram.neural.network import Network
from fedgram.text.vocabulary import BOS, EOS

MAX_LENGTH = 1000
CPU_TILE, DEVICE_TILE = 64, 16384
NEVER = -1e30  # the score of a label that is never said
_BLOCK = 256

State = tuple[Tensor, ...]  # each with a row for every row


class Decoder(Protocol):
    """A network that reads a label a row and scores the next; scores of `NEVER` make labels impossible."""

    @property
    def fills_tiles(self) -> bool:
        """Whether its numbers for a row depend on the number of rows, so that tiles must be filled up."""

    @property
    def can_draw(self) -> bool:
        """Whether its scores can be drawn from by GPU kernels."""

    @property
    def labels(self) -> int:
        """How many there are."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    @property
    def begin(self) -> int:
        """What is read first."""

    @property
    def end(self) -> int:
        """The label that ends a sentence."""

    def initial(self, rows: int) -> State:
        """The state before anything is read."""

    def step(self, state: State, labels: Tensor) -> tuple[State, Tensor]:
        """The state behind the labels, and the scores of what comes next."""


class RecurrentDecoder:
    """A recurrent network; `<s>` is never said."""

    begin, end = BOS, EOS
    fills_tiles, can_draw = True, False

    def __init__(self, network: Network, device: torch.device) -> None:
        self.shape, self.device = network.shape, device
        weights = {name: torch.from_numpy(w.copy()).to(device) for name, w in network.weights.items()}
        self.embedding, self.bias = weights["embedding"], weights["output_bias"]
        self.bias[BOS] = NEVER
        self.output = self.embedding.t().contiguous()
        self.layers = [layer_weights(weights, k) for k in range(self.shape.layers)]

    @cached_property
    def _output_and_bias(self) -> Tensor:
        """One product gives the scores then, which need not be filled with biases first."""
        return torch.cat([self.output, self.bias.unsqueeze(0)])

    @property
    def labels(self) -> int:
        """The size of the vocabulary."""
        return self.shape.words

    def initial(self, rows: int) -> State:
        """Zeros: (r, c) of each layer."""
        sizes = (self.shape.embedding, self.shape.hidden) * self.shape.layers
        return tuple(torch.zeros(rows, size, device=self.device) for size in sizes)

    def step(self, state: State, labels: Tensor) -> tuple[State, Tensor]:
        """One step of every layer."""
        cell, x, after = self.shape.cell_shape(), self.embedding[labels], []
        for k, layer in enumerate(self.layers):
            r, c = cell_step(cell, layer, cell_inputs(cell, layer, x), state[2 * k], state[2 * k + 1])
            x = x + r
            after += [r, c]
        return tuple(after), torch.nn.functional.pad(x, (0, 1), value=1.0) @ self._output_and_bias


class Follower(Protocol):
    """Whoever follows the walk by row, such as an automaton that reads the same labels, all on the decoder's device."""

    @property
    def start(self) -> int:
        """Where it is before anything is read."""

    def go(self, places: Tensor, labels: Tensor) -> Tensor:
        """Where it is behind the labels."""

    def cost(self, places: Tensor) -> Tensor:
        """How much room it will want for each row: whole numbers, known to the host without waiting again."""


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """Some rows at one position, and the samples that they belong to, all on the decoder's device.

    Attributes:
        position: How many labels each sample has said.
        sample: Places in the batch, by row.
        row: The row of `p` that belongs to each.
        label: What each says next; the end for one that is cut.
        p: Probabilities of all labels, where drawing left them; else see `probabilities`.
        entropy: The entropy of each row in nats.
        fixed: `p` in fixed point, in single precision and maybe with columns of zeros more, where drawing made it.
        place: Where the follower is, by row.
        cost: The sum of its costs over the rows.
    """

    position: Tensor
    sample: Tensor
    row: Tensor
    label: Tensor
    p: Tensor | None
    entropy: Tensor
    fixed: Tensor | None
    place: Tensor
    cost: int

    def probabilities(self, labels: int) -> Tensor:
        """Those of all labels, by row."""
        if self.p is not None:
            return self.p
        if self.fixed is None:
            raise InvariantError("Tile: drawing left no probabilities")
        return self.fixed[:, :labels] / SCALE


def walk(
    decoder: Decoder,
    samples: range,
    *,
    seed: int,
    sentences: Ragged | None = None,
    max_length: int = MAX_LENGTH,
    draw: "Draw | None" = None,
    follower: Follower | None = None,
    at_once: int | None = None,
) -> Iterator[Tile]:
    """Go through the samples of these numbers, or through `sentences` that have been drawn already.

    `draw` says how to draw; by default as is fastest on the device. The labels are the same. At most half as many
    again as `at_once` walk at a time: when half of those are done the next set out, so that long sentences do not keep
    the others waiting; by default all walk together.
    """
    device, draw = decoder.device, draw or _fastest(decoder)
    tile, key = CPU_TILE if device.type == "cpu" else DEVICE_TILE, stream_key(seed, "sample")
    given = _Given(sentences, decoder.end, device) if sentences else None
    at_once = at_once or len(samples)
    admitted = 0
    none = torch.zeros(0, dtype=torch.int64, device=device)
    alive, said, row, parent, read, place, state = none, none, none, none, none, none, decoder.initial(1)
    for step in count():
        if admitted < len(samples) and len(alive) <= at_once // 2:
            new = torch.arange(admitted, min(admitted + at_once, len(samples)), device=device)
            if admitted:
                state = tuple(torch.cat(parts) for parts in zip(state, decoder.initial(1), strict=True))
            alive, said = torch.cat([alive, new]), torch.cat([said, torch.zeros_like(new)])
            row = torch.cat([row, torch.full_like(new, len(read))])
            last, begin, start = len(state[0]) - 1, decoder.begin, follower.start if follower else 0
            parent, read, place = (
                torch.cat([x, x.new_tensor([n])]) for x, n in ((parent, last), (read, begin), (place, start))
            )
            admitted += len(new)
        if not len(alive):
            return
        rows = len(read)
        known = given.at(alive, said) if given else None
        u = _uniforms(key, samples, alive, said)
        cuts = torch.arange(0, rows + tile, tile, device=device)
        costs = torch.nn.functional.pad((follower.cost(place) if follower else place).cumsum(0), (1, 0))
        bounds, costs_until = torch.stack([torch.searchsorted(row, cuts), costs[cuts.clamp(max=rows)]]).tolist()
        after: State | None = None  # made once a step: tiles' own would lie between the scores, and break up the memory
        label = torch.empty_like(alive)
        for t, first in enumerate(range(0, rows, tile)):
            n, own = min(tile, rows - first), slice(bounds[t], bounds[t + 1])
            until = first + (tile if decoder.fills_tiles else n)
            at = torch.arange(first, until, device=device).clamp_(max=rows - 1)
            with torch.inference_mode():
                parts, scores = decoder.step(tuple(s[parent[at]] for s in state), read[at])
                after = after or tuple(s.new_empty(rows, *s.shape[1:]) for s in parts)
                for whole, part in zip(after, parts, strict=True):
                    whole[first : first + n] = part[:n]
                del parts
                label[own], entropy, p, fixed = draw(
                    scores[:n], row[own] - first, u[own], None if known is None else known[own]
                )
                if step >= max_length:
                    label[own] = torch.where(said[own] >= max_length, decoder.end, label[own])
            here, cost = place[first : first + n], costs_until[t + 1] - costs_until[t]
            yield Tile(said[own], alive[own], row[own] - first, label[own], p, entropy, fixed, here, cost)
        state = after or state
        goes_on = (label != decoder.end).nonzero().squeeze(1)
        alive, said, pair = alive[goes_on], said[goes_on] + 1, row[goes_on] * decoder.labels + label[goes_on]
        pairs, row = torch.unique(pair, return_inverse=True)
        row, order = torch.sort(row, stable=True)
        alive, said, parent, read = alive[order], said[order], pairs // decoder.labels, pairs % decoder.labels
        place = follower.go(place[parent], read) if follower else torch.zeros_like(parent)


def sample_labels(
    decoder: Decoder, samples: range, *, seed: int, max_length: int = MAX_LENGTH, at_once: int | None = None
) -> Ragged:
    """The samples of these numbers, without the end, cut at `max_length` labels."""
    tiles = walk(decoder, samples, seed=seed, max_length=max_length, at_once=at_once)
    samples_of, said = (torch.cat(parts) for parts in zip(*((tile.sample, tile.label) for tile in tiles), strict=True))
    goes_on = said != decoder.end
    place, order = torch.sort(samples_of[goes_on], stable=True)
    offsets = torch.searchsorted(place, torch.arange(len(samples) + 1, device=place.device))
    return Ragged(said[goes_on][order].to(torch.int32).cpu().numpy(), offsets.cpu().numpy())


class _Given:
    """Sentences that have been drawn already, on a device."""

    def __init__(self, sentences: Ragged, end: int, device: torch.device) -> None:
        self.offsets = torch.from_numpy(sentences.offsets).to(device)
        self.labels = torch.from_numpy(np.append(sentences.values, end).astype(np.int64)).to(device)

    def at(self, sample: Tensor, position: Tensor) -> Tensor:
        """What each says at its position, the end where there is no more."""
        place = self.offsets[sample] + position
        return self.labels[torch.where(place < self.offsets[sample + 1], place, len(self.labels) - 1)]


def _uniforms(key: np.uint64, samples: range, alive: Tensor, position: Tensor) -> Tensor:
    """The numbers of the samples at their positions."""
    if alive.device.type == "cuda":
        from fedgram.neural.gpu.sampling import uniforms

        return uniforms(key, samples.start, alive, position)
    return torch.from_numpy(_uniforms_at(key, alive.numpy() + samples.start, position.numpy()))


@kernel
def _uniforms_at(key: np.uint64, samples: LongArray, position: LongArray) -> FloatArray:
    result = np.empty(len(samples))
    for i in range(len(samples)):
        result[i] = uniform_at(key, samples[i], position[i])
    return result


Drawn = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # labels, entropies, probabilities, these in fixed point
Draw = Callable[[Tensor, Tensor, Tensor, Tensor | None], Drawn]  # from scores, rows, numbers, known labels


def _fastest(decoder: Decoder) -> Draw:
    if decoder.device.type == "cpu":
        return draw_compiled
    if decoder.device.type != "cuda" or not decoder.can_draw:
        return draw_in_tensors
    from fedgram.neural.gpu.sampling import draw_in_kernels

    return draw_in_kernels


def draw_in_tensors(scores: Tensor, row: Tensor, u: Tensor, given: Tensor | None) -> Drawn:
    """In tensor operations. Sums of whole numbers below 2⁵³ are exact in double precision, in any order."""
    p = torch.softmax(scores, 1)
    n, labels = p.shape
    top = p.argmax(1, keepdim=True)
    log_z = (scores.gather(1, top) - p.gather(1, top).log()).squeeze(1)
    entropy = log_z.double() - torch.linalg.vecdot(p, scores).double()
    fixed = p.new_empty(n, labels + -labels % _BLOCK)
    fixed[:, labels:] = 0.0
    torch.mul(p, SCALE, out=fixed[:, :labels])
    fixed.round_()
    if given is not None:
        return given, entropy, p, fixed
    blocks = fixed.view(n, -1, _BLOCK)
    cumulative = blocks.sum(2, dtype=torch.float64).cumsum(1)
    own = cumulative[row]
    target = torch.minimum((u * own[:, -1]).floor_(), own[:, -1] - 1.0).unsqueeze(1)
    block = torch.searchsorted(own, target, right=True)
    before = own.gather(1, (block - 1).clamp_(min=0)) * (block > 0)
    inner = blocks[row, block.squeeze(1)].double().cumsum(1) + before
    label = block * _BLOCK + torch.searchsorted(inner, target, right=True)
    return label.squeeze(1), entropy, p, fixed


def draw_compiled(scores: Tensor, row: Tensor, u: Tensor, given: Tensor | None) -> Drawn:
    """The same in a compiled kernel."""
    p = torch.softmax(scores, 1)
    label = np.empty(len(row), np.int64)
    entropy = _draw(p.numpy(), scores.numpy(), row.numpy(), u.numpy(), label)
    return torch.from_numpy(label) if given is None else given, torch.from_numpy(entropy), p, None


@kernel
def _draw(
    p: NDArray[np.floating[Any]], scores: NDArray[np.floating[Any]], row: LongArray, u: FloatArray, label: LongArray
) -> FloatArray:
    """Entropies by row; labels by sample, sorted by row. H = log Z − Σ p·score, with log Z from the top label."""
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
