"""CapSampleApprox: a cased model on a cased topology, from an uncased source.

The source's samples x̄ are capitalised; the cased sentences ȳ walk the topology, and leave p̃(y | ȳ^i) on its arcs:
the source's probability of u(y) times the share r(y | a) of y in its case class, where a is the state of A_W after ȳ^i.
Everything else is as in SampleApprox. Paper: §5.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.automata.approximate import adopt_topology
from fedgram.automata.counting import TopologyCounts, counts_from_visits, summed_counts, visited_states
from fedgram.automata.model import NGramModel
from fedgram.automata.topology import Topology
from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.fixed_point import SCALE
from fedgram.core.jit import kernel
from fedgram.core.storage import content_digest
from fedgram.distill.casing.cased_words import Casing
from fedgram.distill.sample_approx import (
    ONE_WORKER,
    Counting,
    CountingOptions,
    Fit,
    count_samples,
    fit,
    topology_arrays,
)
from fedgram.distill.sample_counts import SampleCounts, add_path
from fedgram.distill.source import NGramSource, SourceModel


def cased_topology(model: NGramModel, source: SourceModel, casing: Casing) -> Topology:
    """The topology of a cased model over the casing's vocabulary Δ."""
    return adopt_topology(model.topology, model.vocabulary, casing.vocabulary, open_vocabulary=source.has_unknown)


@dataclass(frozen=True, slots=True, eq=False)
class CasedCounting:
    """The counting step of CapSampleApprox; the topology is over Δ."""

    source: SourceModel
    casing: Casing
    topology: Topology
    seed: int

    @property
    def digest(self) -> str:
        """Of the source, the casing, the topology and the seed."""
        ratios = self.casing.ratios
        arrays = topology_arrays(self.topology) | {"base": ratios.base, "ratio": ratios.ratio, "word": ratios.word}
        words = self.casing.vocabulary.digest
        return content_digest({"source": self.source.digest, "seed": self.seed, "words": words}, arrays)

    def zero(self) -> SampleCounts:
        """On the topology."""
        return SampleCounts.zero(self.topology)

    def add(self, counts: SampleCounts, samples: range) -> None:
        """Capitalise the samples, then go through them."""
        casing, t = self.casing, self.topology
        sentences = self.source.sample(samples, seed=self.seed)
        cased = casing.capitalize(sentences)
        q, a = visited_states(t, cased), casing.states(cased)
        first_visit = sentences.offsets[:-1] + np.arange(len(sentences))
        for step in self.source.walk(samples, seed=self.seed, sentences=sentences):
            at = first_visit[step.sample] + step.position
            order = np.lexsort((q[at], a[at], step.row))
            _add_cased(
                t.first_arc, t.label, t.backoff, counts.summed, counts.visits, step.p, step.row[order],
                a[at[order]], q[at[order]], casing.uncased_id, casing.topology.backoff, _table(casing),
            )  # fmt: skip
        counts.add_entropy(None)

    def finish(self, counts: SampleCounts) -> TopologyCounts:
        """From summed counts."""
        return counts.counts()


Table = tuple[FloatArray, LongArray, IntArray, FloatArray]


def _table(casing: Casing) -> Table:
    ratios = casing.ratios
    return ratios.base, ratios.first, ratios.word, ratios.ratio


@kernel
def _add_cased(
    first_arc: LongArray, label: IntArray, backoff: IntArray, summed: LongArray, visits: LongArray,
    p: NDArray[np.floating[Any]], row: LongArray, a: IntArray, q: IntArray, uncased_id: IntArray, a_backoff: IntArray,
    table: Table,
) -> None:  # fmt: skip
    """Visits come by row, then by state of A_W, then by state; what they share is done once."""
    base, first_ratio, ratio_word, ratio = table
    words = len(uncased_id)
    usual, fixed, total = np.empty(words, np.int64), np.empty(words, np.int64), np.zeros(words, np.int64)
    seen, changed = np.full(words, -1, np.int64), np.empty(words, np.int32)
    i = 0
    while i < len(row):
        end, line = i, p[row[i]]
        while end < len(row) and row[end] == row[i]:
            end += 1
        for y in range(words):
            usual[y] = np.int64(np.rint(line[uncased_id[y]] * base[y] * SCALE))
            fixed[y] = usual[y]
            total[y] += (end - i) * usual[y]
        while i < end:
            group, changes, at = i, 0, a[i]
            while at > 0:  # the longest history that reads a class decides
                for k in range(first_ratio[at], first_ratio[at + 1]):
                    y = ratio_word[k]
                    if seen[y] != group:
                        seen[y], changed[changes] = group, y
                        changes += 1
                        fixed[y] = np.int64(np.rint(line[uncased_id[y]] * ratio[k] * SCALE))
                at = a_backoff[at]
            while i < end and a[i] == a[group]:
                j = i
                while j < end and a[j] == a[group] and q[j] == q[i]:
                    j += 1
                visits[q[i]] += j - i
                add_path(first_arc, label, backoff, summed, fixed, q[i], j - i)
                i = j
            for k in range(changes):
                y = changed[k]
                total[y] += (i - group) * (fixed[y] - usual[y])
                fixed[y] = usual[y]
    for e in range(first_arc[1]):
        summed[e] += total[label[e]]


@dataclass(frozen=True, slots=True, eq=False)
class CasedNGramCounting:
    """The same for an n-gram model, whose rows are sparse: what a state does not read is a multiple of the unigrams.

    The unigrams' own counts follow from the visits to the source's states, but for the words whose ratio is not that
    of the unigrams.
    """

    source: NGramSource
    casing: Casing
    topology: Topology
    seed: int

    @property
    def digest(self) -> str:
        """Of the source, the casing, the topology and the seed."""
        return CasedCounting(self.source, self.casing, self.topology, self.seed).digest

    def zero(self) -> SampleCounts:
        """On the topology and the source's states."""
        return SampleCounts.zero(self.topology, self.source.model.topology.states)

    def add(self, counts: SampleCounts, samples: range) -> None:
        """Capitalise the samples, then count the triples of states that they visit."""
        casing, t, model = self.casing, self.topology, self.source.model
        sentences = self.source.sample(samples, seed=self.seed)
        cased = casing.capitalize(sentences)
        s, a, q = visited_states(model.topology, sentences), casing.states(cased), visited_states(t, cased)
        s, a, q = _sorted_triples(s, a, q)
        m, unigram = model.topology, np.zeros(len(self.source.vocabulary))
        unigram[m.label[: m.first_arc[1]]] = self.source.weight[: m.first_arc[1]]
        _add_cased_states(
            (t.first_arc, t.label, t.backoff), counts.summed, counts.visits, counts.source_visits,
            s, a, q, (m.first_arc, m.label, m.backoff), self.source.weight, model.log_backoff,
            unigram, casing.uncased_id, casing.topology.backoff, _table(casing),
        )  # fmt: skip
        counts.add_entropy(None)

    def finish(self, counts: SampleCounts) -> TopologyCounts:
        """Add what the source's visits say of unigrams."""
        t, model, casing = self.topology, self.source.model, self.casing
        own = counts_from_visits(model, counts.source_visits.astype(np.float64), 1.0)
        said, first = np.zeros(len(self.source.vocabulary)), slice(0, int(model.topology.first_arc[1]))
        said[model.topology.label[first]] = summed_counts(own)[0][first]
        labels = t.label[: t.first_arc[1]]
        unigrams = np.rint(said[casing.uncased_id[labels]] * casing.ratios.base[labels] * SCALE)
        whole = counts + self.zero()
        whole.summed[: len(labels)] += unigrams.astype(np.int64)
        return whole.counts()


def _sorted_triples(s: IntArray, a: IntArray, q: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """By s, then a, then q: as one number where it has room for three, which is sorted ten times faster."""
    bits_a, bits_q = int(a.max(initial=0)).bit_length(), int(q.max(initial=0)).bit_length()
    if int(s.max(initial=0)).bit_length() + bits_a + bits_q > 63:
        order = np.lexsort((q, a, s))
        return s[order], a[order], q[order]
    key = np.sort((s.astype(np.int64) << bits_a | a) << bits_q | q)
    parts = key >> bits_a + bits_q, key >> bits_q & (1 << bits_a) - 1, key & (1 << bits_q) - 1
    s, a, q = (part.astype(np.int32) for part in parts)
    return s, a, q


Arcs = tuple[LongArray, IntArray, IntArray]


@kernel
def _add_cased_states(
    target: Arcs, summed: LongArray, visits: LongArray, source_visits: LongArray, s: IntArray, a: IntArray,
    q: IntArray, source: Arcs, weight: FloatArray, log_backoff: FloatArray, unigram: FloatArray, uncased_id: IntArray,
    a_backoff: IntArray, table: Table,
) -> None:  # fmt: skip
    """Visits come by state of the source, then by state of A_W, then by state; what they share is done once."""
    first_arc, label, backoff = target
    base, first_ratio, ratio_word, ratio = table
    own = np.empty_like(unigram)
    own_in, ratio_in = np.full(len(own), -1, np.int64), np.full(len(uncased_id), -1, np.int64)
    share, total = np.empty(len(uncased_id)), np.zeros(len(uncased_id), np.int64)
    i = 0
    while i < len(s):
        state, at, scale = i, s[i], 1.0
        while at > 0:  # the longest history that reads a label decides
            for e in range(source[0][at], source[0][at + 1]):
                if own_in[source[1][e]] != state:
                    own_in[source[1][e]], own[source[1][e]] = state, scale * weight[e]
            scale *= np.exp(log_backoff[at])
            at = source[2][at]
        while i < len(s) and s[i] == s[state]:
            group, end, at = i, i, a[i]
            while end < len(s) and s[end] == s[state] and a[end] == a[group]:
                end += 1
            while at > 0:
                for k in range(first_ratio[at], first_ratio[at + 1]):
                    y = ratio_word[k]
                    if ratio_in[y] != group:
                        ratio_in[y], share[y] = group, ratio[k]
                        p = own[uncased_id[y]] if own_in[uncased_id[y]] == state else scale * unigram[uncased_id[y]]
                        more = np.int64(np.rint(p * (ratio[k] - base[y]) * SCALE))
                        total[y] += (end - group) * more
                at = a_backoff[at]
            while i < end:
                j, at = i, q[i]
                while j < end and q[j] == q[i]:
                    j += 1
                visits[q[i]] += j - i
                while at > 0:
                    for e in range(first_arc[at], first_arc[at + 1]):
                        y, x = label[e], uncased_id[label[e]]
                        p = own[x] if own_in[x] == state else scale * unigram[x]
                        r = share[y] if ratio_in[y] == group else base[y]
                        summed[e] += (j - i) * np.int64(np.rint(p * r * SCALE))
                    at = backoff[at]
                i = j
        source_visits[s[state]] += i - state
    for e in range(first_arc[1]):
        summed[e] += total[label[e]]


def cased_counting_step(source: SourceModel, casing: Casing, topology: Topology, seed: int) -> Counting:
    """The fastest way to count an uncased source on a cased topology."""
    if isinstance(source, NGramSource):
        return CasedNGramCounting(source, casing, topology, seed)
    return CasedCounting(source, casing, topology, seed)


def cap_sample_approx(
    source: SourceModel,
    topology: Topology,
    casing: Casing,
    *,
    samples: int,
    seed: int,
    options: CountingOptions = ONE_WORKER,
) -> Fit:
    """CapSampleApprox(source, topology, p_cap): the topology is over the casing's vocabulary (see `cased_topology`)."""
    counting = cased_counting_step(source, casing, topology, seed)
    return fit(counting.finish(count_samples(counting, samples, options)), casing.vocabulary)
