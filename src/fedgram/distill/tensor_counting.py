"""SampleApprox's counting where the probabilities are, in tensor operations.

The topology's arrays lie on the device. Its states follow the samples row by row: the arc of state q that reads x is
found by one search for q·|Σ| + x among all arcs. At every tile of rows, the probabilities of the arcs on the rows'
backoff paths are gathered and added to S(x, q) as whole numbers, so that the counts are the bits that compiled counting
gives from the same probabilities; those of the unigrams are added up for all labels at once. On a GPU both are kernels
(`distill/gpu_counting.py`). Nothing waits for the device but the walk itself, once a position. Memory is the topology's
and a tile's. Paper: §4.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedgram.automata.counting import TopologyCounts
from fedgram.automata.topology import Topology, arc_sources
from fedgram.core.errors import InvariantError
from fedgram.distill.sample_approx import PlainCounting
from fedgram.distill.sample_counts import ENTROPY_BITS, SampleCounts
from fedgram.distill.source import SourceModel
from fedgram.neural.sampling import Decoder, Follower, Tile


class TensorSource(SourceModel, Protocol):
    """A source whose walk can be followed on its device."""

    @property
    def decoder(self) -> Decoder:
        """The network."""

    def tiles(self, samples: range, *, seed: int, follower: Follower) -> Iterator[Tile]:
        """The walk, with fixed-point probabilities."""


class DeviceTopology:
    """A topology on a device, which follows a walk."""

    def __init__(self, topology: Topology, labels: int, device: torch.device) -> None:
        if int(topology.label[: topology.first_arc[1]].max(initial=0)) >= labels:
            raise InvariantError("DeviceTopology: the topology reads labels that the source does not have")
        t, self.labels, self.start = topology, labels, topology.start
        self.first_arc, self.label, self.dest, self.backoff = (
            torch.from_numpy(a.astype(np.int64)).to(device) for a in (t.first_arc, t.label, t.dest, t.backoff)
        )
        self.key = torch.from_numpy(arc_sources(t).astype(np.int64) * labels + t.label).to(device)
        self.unigrams = int(t.first_arc[1])
        own = np.diff(t.first_arc)
        path, depth = np.zeros(t.states, np.int64), 0
        at = np.arange(t.states)
        while (at > 0).any():  # the empty history's arcs are added up apart
            path += np.where(at > 0, own[at], 0)
            at, depth = np.where(at > 0, t.backoff[at], 0), depth + 1
        self.path_arcs, self.depth = torch.from_numpy(path).to(device), depth

    def go(self, places: Tensor, labels: Tensor) -> Tensor:
        """The states behind the labels, which are read on the way back to the empty history at the latest."""
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
        """How many arcs their backoff paths have."""
        return self.path_arcs[places]

    def path_of(self, q: Tensor, arcs: int) -> tuple[Tensor, Tensor]:
        """All arcs on the backoff paths of states, `arcs` of them, and the place in `q` that each belongs to."""
        path = [q]
        for _ in range(self.depth - 1):
            path.append(self.backoff[path[-1]].clamp(min=0))
        states = torch.cat(path)
        begin = self.first_arc[states]
        size = (self.first_arc[states + 1] - begin) * (states > 0)
        shift = begin - (size.cumsum(0) - size)
        entry = torch.repeat_interleave(torch.arange(len(states), device=q.device), size, output_size=arcs)
        return torch.arange(arcs, device=q.device) + shift[entry], entry % len(q)


class DeviceCounting:
    """The counting step of SampleApprox for a network; the topology is over its labels."""

    def __init__(self, source: TensorSource, topology: Topology, seed: int) -> None:
        self.source, self.topology, self.seed = source, topology, seed

    @property
    def digest(self) -> str:
        """That of the same counts in compiled code."""
        return PlainCounting(self.source, self.topology, self.seed).digest

    @cached_property
    def _on_device(self) -> DeviceTopology:
        return DeviceTopology(self.topology, self.source.decoder.labels, self.source.decoder.device)

    def zero(self) -> SampleCounts:
        """On the topology."""
        return SampleCounts.zero(self.topology)

    @torch.inference_mode()
    def add(self, counts: SampleCounts, samples: range) -> None:
        """Walk and count on the device, then fetch the sums."""
        t = self._on_device
        summed, visits, nats = (
            torch.zeros(n, dtype=torch.int64, device=t.key.device) for n in (len(t.key), len(t.backoff), 1)
        )
        for tile in self.source.tiles(samples, seed=self.seed, follower=t):
            _add_tile(t, tile, summed, visits, nats)
        counts.summed += summed.cpu().numpy()
        counts.visits += visits.cpu().numpy()
        counts.entropy = None if counts.entropy is None else counts.entropy + int(nats.item())

    def finish(self, counts: SampleCounts) -> TopologyCounts:
        """From summed counts."""
        return counts.counts()


def _add_tile(t: DeviceTopology, tile: Tile, summed: Tensor, visits: Tensor, nats: Tensor) -> None:
    """Sums of whole numbers are taken in double precision where they stay below 2⁵³, else in 64 bits."""
    p, q = tile.fixed, tile.place
    if p is None:
        raise InvariantError("DeviceCounting: the walk has no probabilities in fixed point")
    times = torch.zeros_like(q).index_add_(0, tile.row, torch.ones_like(tile.row))
    visits.index_add_(0, q, times)
    nats += (tile.entropy * 2.0**ENTROPY_BITS).round().to(torch.int64).mul_(times).sum()
    if p.device.type == "cuda":
        from fedgram.distill import gpu_counting

        gpu_counting.add_rows(p, times, q, t, summed)
        return
    add_rows(p, times, q, tile.cost, t, summed)


def add_rows(p: Tensor, times: Tensor, q: Tensor, arcs: int, t: DeviceTopology, summed: Tensor) -> None:
    """Add rows of fixed-point probabilities, each so many times, to the `arcs` arcs on the backoff paths of `q`."""
    alone = bool((times == 1).all())  # no row is shared
    total = p.sum(0, dtype=torch.float64) if alone else times.double() @ p.double()
    summed[: t.unigrams] += total.to(torch.int64)[t.label[: t.unigrams]]
    if arcs:
        arc, row = t.path_of(q, arcs)
        summed.index_add_(0, arc, p[row, t.label[arc]].to(torch.int64).mul_(times[row]))
