"""Sentences drawn from a network, position by position, with the probabilities that they were drawn from.

The samples of a batch advance together, one label at a time. Samples with the same labels so far share a *row*: the
network's state after these labels, and the probabilities of the next. A sample leaves the batch when its sentence ends.
Labels are drawn from the whole vocabulary at temperature 1, with a uniform number that depends only on the seed, the
sample's number and the position (`neural/drawing.py`).

The samples do not depend on the batches. Rows are computed in tiles of a fixed number of rows, the last one filled up
where the decoder needs it, so that the numbers of a row do not depend on the other rows.

On a CPU, labels are drawn by compiled code. Elsewhere they are drawn where the probabilities are, on a GPU by kernels
if possible (`neural/gpu/sampling.py`); the host waits once per position, for the number of rows. Paper: §4.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedgram.core.arrays import FloatArray, LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.core.fixed_point import SCALE
from fedgram.core.jit import kernel
from fedgram.core.random import stream_key, uniform_at
from fedgram.neural.cell import State
from fedgram.neural.decoder import Decoder
from fedgram.neural.drawing import Draw, draw_compiled, draw_in_tensors

MAX_LENGTH = 1000
CPU_TILE, GPU_TILE = 64, 16384


class Follower(Protocol):
    """Something that follows the rows, such as an automaton that reads the same labels, where the decoder is."""

    @property
    def start(self) -> int:
        """Its place before anything is read."""

    def go(self, places: Tensor, labels: Tensor) -> Tensor:
        """Its places after the labels are read."""

    def cost(self, places: Tensor) -> Tensor:
        """The amount of memory that it will need for each row, as whole numbers; a tile says the sum of its rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """Some rows at one position, and the samples that they belong to, all on the decoder's torch device.

    Attributes:
        position: The number of labels that each sample has so far.
        sample: The place of each sample in the batch; sorted by row.
        row: The row of each sample.
        label: The next label of each sample; the end for a sample that is cut.
        p: The probabilities of all labels by row, or None; see `probabilities`.
        entropy: The entropy of each row in nats.
        fixed: The probabilities in fixed point, or None (`drawing.Drawn`).
        place: The follower's place for each row.
        cost: The sum of the follower's costs over the rows.
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
        """The probabilities of all labels by row."""
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
    draw: Draw | None = None,
    follower: Follower | None = None,
    at_once: int | None = None,
) -> Iterator[Tile]:
    """Draw the samples with these numbers, or walk through `sentences` that have been drawn already.

    Args:
        decoder: The network.
        samples: The numbers of the samples.
        seed: The seed of the uniform numbers.
        sentences: The samples, where they are known.
        max_length: The number of labels after which a sentence is cut.
        draw: The way to draw, by default the fastest on the torch device; the labels do not depend on it.
        follower: Something that follows the rows.
        at_once: Samples to admit together, by default all. The next are admitted when at most half as many are under
            way, so that a few long sentences do not delay the others.
    """
    given = _Given(sentences, decoder.end, decoder.torch_device) if sentences else None
    key = stream_key(seed, "sample")
    run = _Walk(decoder, samples, key, given, max_length, draw or _fastest(decoder), follower)
    return run.tiles(at_once or len(samples))


def sample_labels(
    decoder: Decoder, samples: range, *, seed: int, max_length: int = MAX_LENGTH, at_once: int | None = None
) -> Ragged:
    """The samples with these numbers, without their ends, cut at `max_length` labels."""
    tiles = walk(decoder, samples, seed=seed, max_length=max_length, at_once=at_once)
    sample, label = (torch.cat(parts) for parts in zip(*((tile.sample, tile.label) for tile in tiles), strict=True))
    goes_on = label != decoder.end
    sample, order = torch.sort(sample[goes_on], stable=True)
    offsets = torch.searchsorted(sample, torch.arange(len(samples) + 1, device=sample.device))
    return Ragged(label[goes_on][order].to(torch.int32).cpu().numpy(), offsets.cpu().numpy())


class _Rows(NamedTuple):
    """The samples under way, sorted by row, and the rows before they read their next label.

    Attributes:
        sample: The place of each sample in the range of all samples.
        said: The number of labels that each sample has so far.
        row: The row of each sample.
        parent: For each row, the index in `state` that it continues.
        read: For each row, the label that it reads next.
        place: For each row, the follower's place.
        state: The states of the network before `read`.
    """

    sample: Tensor
    said: Tensor
    row: Tensor
    parent: Tensor
    read: Tensor
    place: Tensor
    state: State

    def join(self, new: Tensor, initial: State, begin: int, start: int) -> "_Rows":
        """These samples and new ones, which share one row that reads `begin` from the initial state."""
        state = tuple(torch.cat(parts) for parts in zip(self.state, initial, strict=True))
        row = torch.cat([self.row, torch.full_like(new, len(self.read))])
        ends = (self.parent, len(self.state[0])), (self.read, begin), (self.place, start)
        parent, read, place = (torch.cat([x, x.new_tensor([n])]) for x, n in ends)
        sample, said = torch.cat([self.sample, new]), torch.cat([self.said, torch.zeros_like(new)])
        return _Rows(sample, said, row, parent, read, place, state)


@dataclass(frozen=True, slots=True, eq=False)
class _Walk:
    """What stays the same during a walk; see `walk`."""

    decoder: Decoder
    samples: range
    key: np.uint64
    given: "_Given | None"
    max_length: int
    draw: Draw
    follower: Follower | None

    def tiles(self, at_once: int) -> Iterator[Tile]:
        """All tiles, position by position."""
        decoder, total, admitted = self.decoder, len(self.samples), 0
        none = torch.zeros(0, dtype=torch.int64, device=decoder.torch_device)
        rows = _Rows(none, none, none, none, none, none, decoder.initial(0))
        for step in count():
            if admitted < total and len(rows.sample) <= at_once // 2:
                new = torch.arange(admitted, min(admitted + at_once, total), device=decoder.torch_device)
                start = self.follower.start if self.follower else 0
                rows = rows.join(new, decoder.initial(1), decoder.begin, start)
                admitted += len(new)
            if not len(rows.sample):
                return
            label, state = yield from self._tiles_at(rows, may_cut=step >= self.max_length)
            rows = self._advance(rows, label, state)

    def _tiles_at(self, rows: _Rows, *, may_cut: bool) -> Generator[Tile, None, tuple[Tensor, State]]:
        """The tiles of one step; returns the labels of all samples, and the states of all rows after `read`."""
        decoder, row, size = self.decoder, rows.row, len(rows.read)
        known = self.given.at(rows.sample, rows.said) if self.given else None
        u = _uniforms(self.key, self.samples, rows.sample, rows.said)
        tile = CPU_TILE if decoder.torch_device.type == "cpu" else GPU_TILE
        bounds, costs = self._cuts(rows, tile)
        label = torch.empty_like(rows.sample)
        state: State = ()  # of all rows at once: states of single tiles would lie between the scores in memory
        for t, first in enumerate(range(0, size, tile)):
            n, own = min(tile, size - first), slice(bounds[t], bounds[t + 1])
            until = first + (tile if decoder.fills_tiles else n)
            at = torch.arange(first, until, device=decoder.torch_device).clamp_(max=size - 1)
            with torch.inference_mode():
                parts, scores = decoder.step(tuple(s[rows.parent[at]] for s in rows.state), rows.read[at])
                state = state or tuple(s.new_empty(size, *s.shape[1:]) for s in parts)
                for whole, part in zip(state, parts, strict=True):
                    whole[first : first + n] = part[:n]
                del parts
                drawn = self.draw(scores[:n], row[own] - first, u[own], None if known is None else known[own])
                label[own] = drawn.label
                if may_cut:
                    label[own] = torch.where(rows.said[own] >= self.max_length, decoder.end, label[own])
            place, cost = rows.place[first : first + n], costs[t + 1] - costs[t]
            yield Tile(rows.said[own], rows.sample[own], row[own] - first, label[own], drawn.p, drawn.entropy,
                       drawn.fixed, place, cost)  # fmt: skip
        return label, state

    def _cuts(self, rows: _Rows, tile: int) -> tuple[list[int], list[int]]:
        """For each tile and the end: the first of its samples, and the sum of the costs of the rows before it."""
        cuts = torch.arange(0, len(rows.read) + tile, tile, device=rows.row.device)
        cost = self.follower.cost(rows.place) if self.follower else rows.place
        before = torch.nn.functional.pad(cost.cumsum(0), (1, 0))
        first = torch.searchsorted(rows.row, cuts)
        samples, costs = torch.stack([first, before[cuts.clamp(max=len(rows.read))]]).tolist()
        return samples, costs

    def _advance(self, rows: _Rows, label: Tensor, state: State) -> _Rows:
        """The samples that go on, in rows of equal labels."""
        goes_on = (label != self.decoder.end).nonzero().squeeze(1)
        pair = rows.row[goes_on] * self.decoder.labels + label[goes_on]
        pairs, row = torch.unique(pair, return_inverse=True)
        row, order = torch.sort(row, stable=True)
        sample, said = rows.sample[goes_on][order], (rows.said[goes_on] + 1)[order]
        parent, read = pairs // self.decoder.labels, pairs % self.decoder.labels
        place = self.follower.go(rows.place[parent], read) if self.follower else torch.zeros_like(parent)
        return _Rows(sample, said, row, parent, read, place, state)


class _Given:
    """Sentences that have been drawn already, on a torch device."""

    def __init__(self, sentences: Ragged, end: int, torch_device: torch.device) -> None:
        self.offsets = torch.from_numpy(sentences.offsets).to(torch_device)
        self.labels = torch.from_numpy(np.append(sentences.values, end).astype(np.int64)).to(torch_device)

    def at(self, sample: Tensor, position: Tensor) -> Tensor:
        """The label of each sample at its position, and the end after the last."""
        place = self.offsets[sample] + position
        return self.labels[torch.where(place < self.offsets[sample + 1], place, len(self.labels) - 1)]


def _uniforms(key: np.uint64, samples: range, sample: Tensor, position: Tensor) -> Tensor:
    """The uniform numbers of the samples at their positions."""
    if sample.device.type == "cuda":
        from fedgram.neural.gpu.sampling import uniforms

        return uniforms(key, samples.start, sample, position)
    return torch.from_numpy(_uniforms_at(key, sample.numpy() + samples.start, position.numpy()))


@kernel
def _uniforms_at(key: np.uint64, samples: LongArray, position: LongArray) -> FloatArray:
    result = np.empty(len(samples))
    for i in range(len(samples)):
        result[i] = uniform_at(key, samples[i], position[i])
    return result


def _fastest(decoder: Decoder) -> Draw:
    if decoder.torch_device.type == "cpu":
        return draw_compiled
    if decoder.torch_device.type != "cuda" or not decoder.can_draw:
        return draw_in_tensors
    from fedgram.neural.gpu.sampling import draw_in_kernels

    return draw_in_kernels
