"""SampleApprox's counting in tensor operations, on the torch device where the probabilities are.

The topology's arrays lie on the same torch device, and its states follow the samples row by row. The arc of state q
that reads label x is found by one search for q·|Σ| + x among all arcs.

For every tile of rows, the probabilities of the arcs on the rows' backoff paths are gathered and added to S(x, q). The
unigrams' probabilities are added for all labels at once. Probabilities are whole numbers in fixed point, so the counts
are exactly those that compiled counting gives from the same probabilities. On a GPU both sums are kernels
(`distill/gpu_counting.py`). The host waits for a GPU only during the walk, once per position. Memory is that of the
topology and of one tile. Paper: §4.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedgram.automata.counting import TopologyCounts
from fedgram.automata.topology import Topology, arc_sources
from fedgram.core.arrays import IntArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.distill.sample_approx import PlainCounting
from fedgram.distill.sample_counts import ENTROPY_BITS, SampleCounts
from fedgram.distill.source import SourceModel
from fedgram.neural.decoder import Decoder
from fedgram.neural.sampling import Follower, Tile


class TensorSource(SourceModel, Protocol):
    """A source whose walk can be followed where it computes."""

    @property
    def decoder(self) -> Decoder:
        """The network."""

    def tiles(
        self, samples: range, *, seed: int, follower: Follower | None = None, sentences: Ragged | None = None
    ) -> Iterator[Tile]:
        """The tiles of the samples with these numbers, or of the same samples as `sentences`, in fixed point."""


class TensorTopology:
    """A topology as tensors on a torch device; it follows a walk (`sampling.Follower`).

    Attributes:
        labels: The number of labels, |Σ|.
        start: The start state.
        first_arc, label, dest, backoff: As in `Topology`.
        key: q·|Σ| + x for the arc of state q that reads x, in increasing order.
        unigrams: The number of arcs of the empty history, which is state 0.
        path_arcs: For each state, the number of arcs on its backoff path without those of the empty history.
        depth: The largest number of states on a backoff path, without the empty history.
    """

    def __init__(self, topology: Topology, labels: int, torch_device: torch.device) -> None:
        if int(topology.label[: topology.first_arc[1]].max(initial=0)) >= labels:
            raise InvariantError("TensorTopology: the topology reads labels that the source does not have")
        t, self.labels, self.start = topology, labels, topology.start
        self.first_arc, self.label, self.dest, self.backoff = (
            torch.from_numpy(a.astype(np.int64)).to(torch_device) for a in (t.first_arc, t.label, t.dest, t.backoff)
        )
        self.key = torch.from_numpy(arc_sources(t).astype(np.int64) * labels + t.label).to(torch_device)
        self.unigrams = int(t.first_arc[1])
        own, path, at = np.diff(t.first_arc), np.zeros(t.states, np.int64), np.arange(t.states)
        self.depth = longest_path(t.backoff)
        for _ in range(self.depth):  # the arcs of the empty history are summed separately
            path += np.where(at > 0, own[at], 0)
            at = np.where(at > 0, t.backoff[at], 0)
        self.path_arcs = torch.from_numpy(path).to(torch_device)

    def go(self, places: Tensor, labels: Tensor) -> Tensor:
        """The states after the labels are read, each by the first state of the backoff path that has an arc for it."""
        q = places
        arc = self._find(q, labels)
        for _ in range(self.depth):
            found = self.key[arc] == q * self.labels + labels
            q = torch.where(found, q, self.backoff[q].clamp_(min=0))
            arc = self._find(q, labels)
        return self.dest[arc]

    def _find(self, q: Tensor, labels: Tensor) -> Tensor:
        return torch.searchsorted(self.key, q * self.labels + labels).clamp_(max=len(self.key) - 1)

    def cost(self, places: Tensor) -> Tensor:
        """The number of arcs on the backoff path of each state."""
        return self.path_arcs[places]


def longest_path(backoff: IntArray) -> int:
    """The largest number of states on a backoff path, without the empty history, which is state 0."""
    at, depth = np.arange(len(backoff)), 0
    while (at > 0).any():
        at, depth = np.where(at > 0, backoff[at], 0), depth + 1
    return depth


def entries_on_paths(
    first: Tensor, backoff: Tensor, states: Tensor, depth: int, entries: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """All entries of the states on backoff paths, without those of the empty history.

    State q has the entries `first[q]:first[q + 1]`. Returns for each entry its number, the index of its path in
    `states`, and how many states are before its state on the path. If their number is given as `entries`, the host
    need not wait for it.
    """
    if not depth:
        none = states.new_zeros(0)
        return none, none, none
    path = [states]
    for _ in range(depth - 1):
        path.append(backoff[path[-1]].clamp(min=0))
    every = torch.cat(path)
    begin = first[every]
    size = (first[every + 1] - begin) * (every > 0)
    entries = int(size.sum()) if entries is None else entries
    shift = begin - (size.cumsum(0) - size)
    place = torch.repeat_interleave(torch.arange(len(every), device=states.device), size, output_size=entries)
    number = torch.arange(entries, device=states.device) + shift[place]
    return number, place % len(states), place // len(states)


class TensorCounting:
    """The counting step of SampleApprox for a network, on a topology over the network's labels."""

    def __init__(self, source: TensorSource, topology: Topology, seed: int) -> None:
        self.source, self.topology, self.seed = source, topology, seed

    @property
    def digest(self) -> str:
        """That of `PlainCounting`, since the counts are the same."""
        return PlainCounting(self.source, self.topology, self.seed).digest

    @cached_property
    def _tensors(self) -> TensorTopology:
        return TensorTopology(self.topology, self.source.decoder.labels, self.source.decoder.torch_device)

    def zero(self) -> SampleCounts:
        """No counts, on the topology."""
        return SampleCounts.zero(self.topology)

    @torch.inference_mode()
    def add(self, counts: SampleCounts, samples: range) -> None:
        """Walk and count where the network is, then copy the sums to the host."""
        t = self._tensors
        summed, visits, nats = (
            torch.zeros(n, dtype=torch.int64, device=t.key.device) for n in (len(t.key), len(t.backoff), 1)
        )
        for tile in self.source.tiles(samples, seed=self.seed, follower=t):
            _add_tile(t, tile, summed, visits, nats)
        counts.summed += summed.cpu().numpy()
        counts.visits += visits.cpu().numpy()
        counts.entropy = None if counts.entropy is None else counts.entropy + int(nats.item())

    def finish(self, counts: SampleCounts) -> TopologyCounts:
        """C(x, q), C(φ, q) and N(q)."""
        return counts.counts()


def _add_tile(t: TensorTopology, tile: Tile, summed: Tensor, visits: Tensor, nats: Tensor) -> None:
    """Add the rows of a tile to all three sums; whole numbers are summed without rounding."""
    p, q = tile.fixed, tile.place
    if p is None:
        raise InvariantError("TensorCounting: the walk has no probabilities in fixed point")
    times = torch.zeros_like(q).index_add_(0, tile.row, torch.ones_like(tile.row))
    visits.index_add_(0, q, times)
    nats += (tile.entropy * 2.0**ENTROPY_BITS).round().to(torch.int64).mul_(times).sum()
    if p.device.type == "cuda":
        from fedgram.distill import gpu_counting

        gpu_counting.add_rows(p, times, q, t, summed)
        return
    add_rows(p, times, q, tile.cost, t, summed)


def add_rows(p: Tensor, times: Tensor, q: Tensor, arcs: int, t: TensorTopology, summed: Tensor) -> None:
    """Add rows of fixed-point probabilities, multiplied by `times`, to the `arcs` arcs on the backoff paths of `q`."""
    summed[: t.unigrams] += column_sums(p, times)[t.label[: t.unigrams]]
    if arcs:
        arc, row, _ = entries_on_paths(t.first_arc, t.backoff, q, t.depth, arcs)
        summed.index_add_(0, arc, p[row, t.label[arc]].to(torch.int64).mul_(times[row]))


def column_sums(p: Tensor, times: Tensor) -> Tensor:
    """The sums of the columns of fixed-point probabilities, each row multiplied by its `times`.

    The sums of a tile stay below 2⁵³ and are exact in double precision.
    """
    if p.device.type == "cuda":
        from fedgram.distill import gpu_counting

        return gpu_counting.column_sums(p, times)
    alone = bool((times == 1).all())  # no samples share a row
    return (p.sum(0, dtype=torch.float64) if alone else times.double() @ p.double()).to(torch.int64)
