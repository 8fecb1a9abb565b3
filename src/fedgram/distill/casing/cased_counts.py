"""Kernels of CapSampleApprox: they add the probabilities p̃(y | ȳ) of visits to the counts of a cased topology.

A visit is a position of a sample. It has a distribution over the source's labels, a state a of A_W and a state q of the
topology. Visits are sorted, so that everything that several of them share is computed once.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgram.automata.topology import Arcs
from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.fixed_point import SCALE
from fedgram.core.jit import kernel, lean_kernel
from fedgram.distill.casing.cased_words import CasingArrays
from fedgram.distill.sample_counts import add_path


class CountArrays(NamedTuple):
    """The arcs of a topology and the counts on it: S(y, q) per arc in fixed point, and visits per state."""

    arcs: Arcs
    summed: LongArray
    visits: LongArray


class Visits(NamedTuple):
    """Visits, sorted by source, then by a, then by q.

    `source` is a row of the probabilities, or the state of an n-gram model. `a` is the state of A_W, `q` that of the
    topology.
    """

    source: IntArray | LongArray
    a: IntArray
    q: IntArray


class SourceArrays(NamedTuple):
    """An n-gram model as the source; `weight` and `unigram` are probabilities, per arc and per label.

    `visits` counts the visits to its states.
    """

    arcs: Arcs
    weight: FloatArray
    log_backoff: FloatArray
    unigram: FloatArray
    visits: LongArray


@lean_kernel
def run_end(values: IntArray | LongArray, begin: int, end: int) -> int:
    """The end of the run of equal values that starts at `begin`."""
    j = begin
    while j < end and values[j] == values[begin]:
        j += 1
    return j


@kernel
def add_rows(counts: CountArrays, casing: CasingArrays, p: NDArray[np.floating[Any]], visits: Visits) -> None:
    """Add visits whose distributions are the rows of `p`.

    `usual` has the probabilities with the ratios of the unigrams and `fixed` those with the ratios of a, both in fixed
    point. They differ for the words `changed[:changes]`. `total` is the sum for the arcs of the empty history.
    """
    (first_arc, label, _, backoff), row, a, q = counts.arcs, visits.source, visits.a, visits.q
    (base, first, word, ratio), uncased_id, words = casing.ratios, casing.uncased_id, len(casing.uncased_id)
    usual, fixed, total = np.empty(words, np.int64), np.empty(words, np.int64), np.zeros(words, np.int64)
    seen, changed = np.full(words, -1, np.int64), np.empty(words, np.int32)
    i = 0
    while i < len(row):
        end, line = run_end(row, i, len(row)), p[row[i]]
        for y in range(words):
            usual[y] = np.int64(np.rint(line[uncased_id[y]] * base[y] * SCALE))
            fixed[y] = usual[y]
            total[y] += (end - i) * usual[y]
        while i < end:
            group, changes, at = i, 0, a[i]
            while at > 0:  # the longest history that reads a class decides
                for k in range(first[at], first[at + 1]):
                    y = word[k]
                    if seen[y] != group:
                        seen[y], changed[changes] = group, y
                        changes += 1
                        fixed[y] = np.int64(np.rint(line[uncased_id[y]] * ratio[k] * SCALE))
                at = casing.backoff[at]
            group_end = run_end(a, i, end)
            while i < group_end:
                j = run_end(q, i, group_end)
                counts.visits[q[i]] += j - i
                add_path(first_arc, label, backoff, counts.summed, fixed, q[i], j - i)
                i = j
            for k in range(changes):
                y = changed[k]
                total[y] += (i - group) * (fixed[y] - usual[y])
                fixed[y] = usual[y]
    for e in range(first_arc[1]):
        counts.summed[e] += total[label[e]]


class _Sparse(NamedTuple):
    """The probabilities and ratios at one state of the source and one of A_W, where they differ from the unigrams'.

    An entry counts if its mark is the current one of `_Marks`.

    Attributes:
        p: The probability of each label that is read on the backoff path of the source's state.
        p_mark: The mark of each entry of `p`.
        ratio: The ratio of each word whose class is read on a's backoff path.
        ratio_mark: The mark of each entry of `ratio`.
        total: The sums for the arcs of the empty history, in fixed point.
    """

    p: FloatArray
    p_mark: LongArray
    ratio: FloatArray
    ratio_mark: LongArray
    total: LongArray


class _Marks(NamedTuple):
    """The first visits of the current state of the source and of the current state of A_W.

    `scale` is the source's backoff weight from its state to the unigrams.
    """

    state: int
    group: int
    scale: float


@kernel
def add_states(counts: CountArrays, casing: CasingArrays, source: SourceArrays, visits: Visits) -> None:
    """Add visits of an n-gram model.

    The counts of the unigrams follow from the visits to the source's states. So for words whose ratio is not that of
    the unigrams, only the difference is added to the arcs of the empty history.
    """
    (s, a, q), arcs = visits, counts.arcs
    labels, words = len(source.unigram), len(casing.uncased_id)
    p_mark, ratio_mark = np.full(labels, -1, np.int64), np.full(words, -1, np.int64)
    sparse = _Sparse(np.empty(labels), p_mark, np.empty(words), ratio_mark, np.zeros(words, np.int64))
    i = 0
    while i < len(s):
        state, end = i, run_end(s, i, len(s))
        scale = _read_source(source, s[state], sparse, state)
        while i < end:
            marks, group_end = _Marks(state, i, scale), run_end(a, i, end)
            _read_ratios(casing, source.unigram, sparse, marks, a[i], group_end - i)
            while i < group_end:
                j = run_end(q, i, group_end)
                counts.visits[q[i]] += j - i
                _add_arcs(counts, casing, source.unigram, sparse, marks, q[i], j - i)
                i = j
        source.visits[s[state]] += i - state
    for e in range(arcs.first_arc[1]):
        counts.summed[e] += sparse.total[arcs.label[e]]


@lean_kernel
def _read_source(source: SourceArrays, q: int, sparse: _Sparse, mark: int) -> float:
    """Set the probabilities of the labels on q's backoff path; returns the backoff weight to the unigrams."""
    arcs, scale = source.arcs, 1.0
    while q > 0:  # the longest history that reads a label decides
        for e in range(arcs.first_arc[q], arcs.first_arc[q + 1]):
            x = arcs.label[e]
            if sparse.p_mark[x] != mark:
                sparse.p_mark[x], sparse.p[x] = mark, scale * source.weight[e]
        scale *= np.exp(source.log_backoff[q])
        q = arcs.backoff[q]
    return scale


@lean_kernel
def _read_ratios(casing: CasingArrays, unigram: FloatArray, sparse: _Sparse, marks: _Marks, a: int, times: int) -> None:
    """Set the ratios on a's backoff path, and add what they change to the totals of `times` visits."""
    uncased_id, ratios = casing.uncased_id, casing.ratios
    while a > 0:  # the longest history that reads a class decides
        for k in range(ratios.first[a], ratios.first[a + 1]):
            y = ratios.word[k]
            if sparse.ratio_mark[y] != marks.group:
                sparse.ratio_mark[y], sparse.ratio[y] = marks.group, ratios.ratio[k]
                x = uncased_id[y]
                p = sparse.p[x] if sparse.p_mark[x] == marks.state else marks.scale * unigram[x]
                more = np.int64(np.rint(p * (ratios.ratio[k] - ratios.base[y]) * SCALE))
                sparse.total[y] += times * more
        a = casing.backoff[a]


@lean_kernel
def _add_arcs(
    counts: CountArrays, casing: CasingArrays, unigram: FloatArray, sparse: _Sparse, marks: _Marks, q: int, times: int
) -> None:
    """Add `times` visits to the arcs on q's backoff path, without those of the empty history."""
    (first_arc, label, _, backoff), summed = counts.arcs, counts.summed
    uncased_id, base = casing.uncased_id, casing.ratios.base
    while q > 0:
        for e in range(first_arc[q], first_arc[q + 1]):
            y, x = label[e], uncased_id[label[e]]
            p = sparse.p[x] if sparse.p_mark[x] == marks.state else marks.scale * unigram[x]
            r = sparse.ratio[y] if sparse.ratio_mark[y] == marks.group else base[y]
            summed[e] += times * np.int64(np.rint(p * r * SCALE))
        q = backoff[q]
