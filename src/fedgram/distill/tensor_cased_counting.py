"""CapSampleApprox's counting in tensor operations, on the torch device where the probabilities are.

The samples are drawn there, capitalised on the host, and walked through again there. A *visit* is a row of
probabilities, a state a of A_W, a state q of the topology, and how many samples share the three. For every tile of rows
the arcs on the visits' backoff paths get p(u(y))·r(y | a), rounded to fixed point.

The unigrams need all words of all rows. With the ratios of the empty history, their sums follow from the sums of the
columns of p; only the words whose ratio at a is another one are added visit by visit. So the counts differ from those
of compiled code (`casing/cased_counts.py`) by rounding alone. On a GPU both sums are kernels
(`distill/gpu_cased_counting.py`). Paper: §5.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedgram.automata.counting import TopologyCounts, visited_states
from fedgram.automata.topology import Topology
from fedgram.core.arrays import IntArray
from fedgram.core.compute import available_cores
from fedgram.core.errors import InvariantError
from fedgram.distill.casing.cap_sample_approx import CasedCounting
from fedgram.distill.casing.cased_words import Casing
from fedgram.distill.sample_counts import SampleCounts
from fedgram.distill.tensor_counting import TensorSource, TensorTopology, column_sums, entries_on_paths, longest_path
from fedgram.neural.sampling import Tile


class Visits(NamedTuple):
    """Different visits to the rows of a tile, and how many samples make each."""

    row: Tensor
    a: Tensor
    q: Tensor
    times: Tensor


class TensorCasing:
    """A casing as tensors: for every state of A_W the words whose ratios it changes, sorted, and their ratios.

    Attributes:
        words: The number of cased words, |Δ|.
        uncased: The source's label for each word of Δ.
        base: r(y | empty history) of each word.
        first, word, ratio: State a has the entries `first[a]:first[a + 1]`.
        key: a·|Δ| + y of every entry, in increasing order.
        backoff: The backoff states of A_W; that of the empty history is itself.
        depth: The largest number of states on a backoff path that may have entries.
    """

    def __init__(self, casing: Casing, torch_device: torch.device) -> None:
        base, first, word, ratio = casing.ratios
        self.words = len(casing.vocabulary)
        key = np.repeat(np.arange(len(first) - 1), np.diff(first)) * self.words + word
        order = np.argsort(key)
        backoff = np.maximum(casing.topology.backoff, 0)

        def here(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(torch_device)

        self.uncased, self.backoff = here(casing.uncased_id.astype(np.int64)), here(backoff.astype(np.int64))
        self.base, self.first, self.key = here(np.array(base)), here(np.array(first)), here(key[order])
        self.word, self.ratio = here(word[order].astype(np.int64)), here(ratio[order])
        self.depth = longest_path(backoff) if len(key) else 0  # without entries there is nothing to look for

    def ratios(self, a: Tensor, y: Tensor) -> Tensor:
        """r(y | a): that of the longest history on a's backoff path that has an entry for y."""
        ratio, known = self.base[y], torch.zeros_like(y, dtype=torch.bool)
        for _ in range(self.depth):
            at, found = self._find(a, y)
            ratio = torch.where(found & ~known, self.ratio[at], ratio)
            known, a = known | found, self.backoff[a]
        return ratio

    def first_levels(self, a: Tensor, y: Tensor) -> Tensor:
        """How many states are before the first one on a's backoff path that has an entry for y."""
        level = torch.full_like(y, self.depth)
        for number in range(self.depth):
            found = self._find(a, y)[1]
            level = torch.where(found & (level == self.depth), number, level)
            a = self.backoff[a]
        return level

    def _find(self, a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        key = a * self.words + y
        at = torch.searchsorted(self.key, key).clamp_(max=len(self.key) - 1)
        return at, (self.key[at] == key) & (a > 0)


class TensorCasedCounting:
    """The counting step of CapSampleApprox for a network, on a topology over Δ."""

    def __init__(self, source: TensorSource, casing: Casing, topology: Topology, seed: int) -> None:
        self.source, self.casing, self.topology, self.seed = source, casing, topology, seed

    @property
    def digest(self) -> str:
        """That of `CasedCounting`: the counts are the same but for rounding."""
        return CasedCounting(self.source, self.casing, self.topology, self.seed).digest

    @cached_property
    def _tensors(self) -> tuple[TensorTopology, TensorCasing]:
        where = self.source.decoder.torch_device
        return TensorTopology(self.topology, len(self.casing.vocabulary), where), TensorCasing(self.casing, where)

    def zero(self) -> SampleCounts:
        """No counts, on the topology."""
        return SampleCounts.zero(self.topology)

    @torch.inference_mode()
    def add(self, counts: SampleCounts, samples: range) -> None:
        """Draw and capitalise the samples, and count them where the network is."""
        t, c = self._tensors
        sentences = self.source.sample(samples, seed=self.seed)
        cased = self.casing.capitalize(sentences, workers=available_cores())
        states = [_on(t, array) for array in (self.casing.states(cased), visited_states(self.topology, cased))]
        first_visit = _on(t, sentences.offsets[:-1] + np.arange(len(sentences)))
        sums = Sums(t, c, self.source.decoder.labels)
        for tile in self.source.tiles(samples, seed=self.seed, sentences=sentences):
            at = first_visit[tile.sample] + tile.position
            sums.add(tile, distinct_visits(tile.row, *(state[at] for state in states), states=len(t.backoff)))
        counts.summed += sums.finish().cpu().numpy()
        counts.visits += sums.visits.cpu().numpy()
        counts.add_entropy(None)

    def finish(self, counts: SampleCounts) -> TopologyCounts:
        """C(y, q), C(φ, q) and N(q)."""
        return counts.counts()


def _on(t: TensorTopology, array: IntArray) -> Tensor:
    return torch.from_numpy(array.astype(np.int64)).to(t.key.device)


def distinct_visits(row: Tensor, a: Tensor, q: Tensor, *, states: int) -> Visits:
    """The different visits of samples; `states` is the number of states of the topology."""
    most = int(a.max()) + 1
    key, times = torch.unique((row * most + a) * states + q, return_counts=True)
    pair = key // states
    return Visits(pair // most, pair % most, key % states, times)


class Sums:
    """The sums of visits: S(y, q) by arc, and visits by state.

    `plain` has Σ p(x) over all visits by label, and `changed` what the ratios of A_W's states add to the unigrams.
    """

    def __init__(self, t: TensorTopology, c: TensorCasing, labels: int) -> None:
        def zeros(n: int) -> Tensor:
            return torch.zeros(n, dtype=torch.int64, device=t.key.device)

        self.t, self.c = t, c
        self.summed, self.visits, self.plain, self.changed = map(zeros, (len(t.key), len(t.backoff), labels, c.words))

    def add(self, tile: Tile, visits: Visits) -> None:
        """Add the visits to the rows of a tile."""
        p = tile.fixed
        if p is None:
            raise InvariantError("TensorCasedCounting: the walk has no probabilities in fixed point")
        self.visits.index_add_(0, visits.q, visits.times)
        times = torch.zeros(len(p), dtype=torch.int64, device=p.device).index_add_(0, visits.row, visits.times)
        self.plain += column_sums(p, times)[: len(self.plain)]
        if p.device.type == "cuda":
            from fedgram.distill import gpu_cased_counting

            gpu_cased_counting.add_visits(p, visits, self.t, self.c, self.summed, self.changed)
            return
        add_visits(p, visits, self.t, self.c, self.summed, self.changed)

    def finish(self) -> Tensor:
        """S(y, q) with the unigrams' sums."""
        y = self.t.label[: self.t.unigrams]
        usual = (self.plain[self.c.uncased[y]].double() * self.c.base[y]).round().to(torch.int64)
        whole = self.summed.clone()
        whole[: self.t.unigrams] += usual + self.changed[y]
        return whole


def add_visits(p: Tensor, v: Visits, t: TensorTopology, c: TensorCasing, summed: Tensor, changed: Tensor) -> None:
    """Add visits to the arcs on their backoff paths, and to the words whose ratios A_W's states change."""
    arc, visit, _ = entries_on_paths(t.first_arc, t.backoff, v.q, t.depth)
    y = t.label[arc]
    product = _product(p, v, visit, c.uncased[y], c.ratios(v.a[visit], y))
    summed.index_add_(0, arc, product.mul_(v.times[visit]))
    entry, visit, level = entries_on_paths(c.first, c.backoff, v.a, c.depth)
    y = c.word[entry]
    own = _product(p, v, visit, c.uncased[y], c.ratio[entry]) - _product(p, v, visit, c.uncased[y], c.base[y])
    changed.index_add_(0, y, own.mul_(v.times[visit]) * (c.first_levels(v.a[visit], y) == level))


def _product(p: Tensor, v: Visits, visit: Tensor, label: Tensor, ratio: Tensor) -> Tensor:
    return (p[v.row[visit], label].double() * ratio).round().to(torch.int64)
