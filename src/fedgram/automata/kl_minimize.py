"""The model on a topology that is closest to the source of given counts: the KL minimisation step of SampleApprox.

Written with y_x = w_q[x] for x ∈ L[q] and y_φ = 1 − Σ y_x, the divergence falls apart into one problem a state:

    maximise  F_q(y) = Σ_x C(x,q)·log y_x + C(φ,q)·log y_φ − Σ_j c_j·log d_j   over the simplex,

where j runs over the states that back off to q, c_j = C(φ,j), and d_j = 1 − Σ_{x∈L[j]} y_x. States to which nothing
backs off have the closed form y ∝ C. For the others, with log y as variables F is concave; a minorise-maximise step is

    y_x ∝ C(x,q) / (N(q) + Σ_{j: x∉L[j]} c_j/d_j),

which never lowers F and whose only fixed point is the maximum. Pairs of steps are extrapolated (SQUAREM, Varadhan and
Roland 2008), and the extrapolation is kept only where F gains by it. Paper: §4.
"""

import numpy as np

from fedgram.automata.counting import TopologyCounts, counts_from_arcs, counts_from_visits, summed_counts
from fedgram.automata.model import MIN_WEIGHT, NGramModel, model_from_weights
from fedgram.automata.topology import arc_sources, backoff_arcs
from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import Vocabulary

EFFECTIVE_ZERO = float(np.exp(-35.0))  # what a label that is never read at a state keeps there


def minimize_kl(
    counts: TopologyCounts,
    vocabulary: Vocabulary,
    *,
    prior_visits: float = 0.0,
    floor: float = EFFECTIVE_ZERO,
    tolerance: float = 1e-9,
    max_cycles: int = 2000,
) -> NGramModel:
    """The model on the counts' topology with the least KL divergence from the source.

    Guarantees: the divergence never rises from one cycle to the next; a state that was never visited follows its
    backoff state; every state sums to 1.

    Args:
        counts: C(x, q), C(φ, q) and N(q); exact, or from samples.
        vocabulary: the words of the topology.
        prior_visits: this many visits are added to every visited state, distributed as its summed counts S/T. With
            sampled counts, 1 keeps rarely visited states sane at labels that were not read there by chance.
        floor: the least weight of an arc, before the weights of a state are scaled to sum to 1.
        tolerance: a state is finished when no label's share of its counts is off by more than this, in sum.
        max_cycles: the most extrapolated cycles for one state.
    """
    t = counts.topology
    if prior_visits < 0:
        raise InvariantError(f"prior_visits must be at least 0, not {prior_visits}")
    counts = _with_prior(counts, vocabulary, prior_visits) if prior_visits else counts
    by_backoff = np.argsort(t.backoff, kind="stable").astype(np.int32)
    first_child = np.searchsorted(t.backoff[by_backoff], np.arange(t.states + 1)).astype(np.int64)
    weight = _minimize(
        t.first_arc, backoff_arcs(t), counts.arc, counts.backoff, counts.visits, by_backoff, first_child,
        floor, tolerance, max_cycles,
    )  # fmt: skip
    return model_from_weights(t, vocabulary, weight)


def summed_model(counts: TopologyCounts, vocabulary: Vocabulary) -> NGramModel:
    """w_q[x] = S(x,q)/T(q): the source's average probability over visits through q. Not the KL minimum."""
    t = counts.topology
    S, T = summed_counts(counts)
    visited = T[arc_sources(t)]
    weight = np.where(visited > 0, S / np.maximum(visited, 1e-300), -1.0)
    return model_from_weights(t, vocabulary, _fill_unvisited(t.first_arc, backoff_arcs(t), weight))


@kernel
def _fill_unvisited(first_arc: LongArray, lower: IntArray, weight: FloatArray) -> FloatArray:
    for q in range(len(first_arc) - 1):
        for e in range(first_arc[q], first_arc[q + 1]):
            if weight[e] < 0:
                weight[e] = weight[lower[e]] if q else MIN_WEIGHT
    return weight


def _with_prior(counts: TopologyCounts, vocabulary: Vocabulary, prior_visits: float) -> TopologyCounts:
    """The counts, and those of some more visits to every visited state by the summed model."""
    t = counts.topology
    _, T = summed_counts(counts)
    more = counts_from_visits(summed_model(counts, vocabulary), np.where(T > 0, prior_visits, 0.0), counts.sentences)
    return counts_from_arcs(t, counts.arc + more.arc, counts.visits + more.visits, counts.sentences)


@kernel
def _minimize(
    first_arc: LongArray, lower: IntArray, C: FloatArray, C_phi: FloatArray, visits: FloatArray,
    by_backoff: IntArray, first_child: LongArray, floor: float, tolerance: float, max_cycles: int,
) -> FloatArray:  # fmt: skip
    """w_q[x] of all arcs, state after state; each state's problem stays in the cache."""
    weight = np.zeros(len(C))
    for q in range(len(first_arc) - 1):
        begin, end = first_arc[q], first_arc[q + 1]
        inflow, c_most = visits[q], 0.0
        for k in range(first_child[q], first_child[q + 1]):
            inflow += C_phi[by_backoff[k]]
            c_most = max(c_most, C_phi[by_backoff[k]])
        y = np.zeros(0)
        if inflow > 0.0:
            y = _solve_state(
                first_arc, lower, C[begin:end], C_phi[q], visits[q], inflow, C_phi,
                by_backoff[first_child[q] : first_child[q + 1]], begin, tolerance, max_cycles if c_most > 0.0 else 0,
            )  # fmt: skip
        unvisited = y.sum() <= 0.0
        for e in range(begin, end):
            below = weight[lower[e]] if q else 1.0
            weight[e] = below if unvisited else max(y[e - begin], floor)
    return weight


@kernel
def _solve_state(
    first_arc: LongArray, lower: IntArray, C_q: FloatArray, C_phi_q: float, N: float, inflow: float, c: FloatArray,
    children: IntArray, begin: int, tolerance: float, max_cycles: int,
) -> FloatArray:  # fmt: skip
    """The maximum of F_q; the last entry is y_φ. Counts are taken relative to what comes to the state."""
    n = len(C_q)
    share = np.empty(n + 1)
    share[:n] = C_q / inflow
    share[n] = C_phi_q / inflow
    readable = np.full(n + 1, 1.0)  # the part of the inflow that may read a label here at all
    for j in children:
        for e in range(first_arc[j], first_arc[j + 1]):
            readable[lower[e] - begin] -= c[j] / inflow
    for i in range(n + 1):  # counts come from differences: what cannot be read is rounding
        share[i] = min(share[i], max(readable[i], 0.0))
        if share[i] < 1e-15:
            share[i] = 0.0
    if share.sum() <= 0.0:  # what arrives is rounding: as good as no visit
        return share
    share /= share.sum()
    y0 = share.copy()
    if max_cycles == 0:
        return y0
    y1, y2, trial, D = np.empty(n + 1), np.empty(n + 1), np.empty(n + 1), np.empty(len(children))
    F0 = _evaluate(y0, share, first_arc, lower, c, inflow, children, begin, D)
    for _ in range(max_cycles):
        _climb(y0, y1, share, N, first_arc, lower, c, inflow, children, begin, D)
        _evaluate(y1, share, first_arc, lower, c, inflow, children, begin, D)
        _climb(y1, y2, share, N, first_arc, lower, c, inflow, children, begin, D)
        off, rr, vv = 0.0, 0.0, 0.0
        for i in range(n + 1):
            if share[i] > 0.0:
                r, s = np.log(y1[i] / y0[i]), np.log(y2[i] / y1[i])
                off += share[i] * abs(s)
                rr += share[i] * r * r
                vv += share[i] * (s - r) * (s - r)
        F2 = _evaluate(y2, share, first_arc, lower, c, inflow, children, begin, D)
        stretch = np.sqrt(rr / vv) if vv > 0.0 else 1.0
        if off <= tolerance:
            return y2 if F2 >= F0 else y0
        if stretch > 1.0:
            total = 0.0
            for i in range(n + 1):
                trial[i] = 0.0
                if share[i] > 0.0:
                    r, s = np.log(y1[i] / y0[i]), np.log(y2[i] / y1[i])
                    change = 2.0 * stretch * r + stretch * stretch * (s - r)
                    trial[i] = y0[i] * np.exp(min(max(change, -50.0), 50.0))
                    total += trial[i]
            for i in range(n + 1):
                trial[i] /= total
            F_trial = _evaluate(trial, share, first_arc, lower, c, inflow, children, begin, D)
            if F_trial > F2:
                y0, trial = trial, y0
                F0 = F_trial
                continue
            _evaluate(y2, share, first_arc, lower, c, inflow, children, begin, D)
        y0, y2 = y2, y0
        F0 = F2
    return y0


@kernel
def _evaluate(
    y: FloatArray, share: FloatArray, first_arc: LongArray, lower: IntArray, c: FloatArray, inflow: float,
    children: IntArray, begin: int, D: FloatArray,
) -> float:  # fmt: skip
    """F_q(y) over the inflow, leaving every d_j in D."""
    F = 0.0
    for i in range(len(y)):
        if share[i] > 0.0:
            F += share[i] * np.log(y[i])
    for k in range(len(children)):
        j = children[k]
        if c[j] <= 0.0:
            continue
        covered = 0.0
        for e in range(first_arc[j], first_arc[j + 1]):
            covered += y[lower[e] - begin]
        D[k] = 1.0 - covered
        if D[k] < 1e-6:  # the difference has cancelled: add up what is not covered
            D[k] = _uncovered(y, lower[first_arc[j] : first_arc[j + 1]], begin)
        F -= c[j] / inflow * np.log(D[k])
    return F


@kernel
def _uncovered(y: FloatArray, covered: IntArray, begin: int) -> float:
    total, k = 0.0, 0
    for i in range(len(y)):
        if k < len(covered) and covered[k] - begin == i:
            k += 1
        else:
            total += y[i]
    return max(total, EFFECTIVE_ZERO)


@kernel
def _climb(
    y: FloatArray, better: FloatArray, share: FloatArray, N: float, first_arc: LongArray, lower: IntArray,
    c: FloatArray, inflow: float, children: IntArray, begin: int, D: FloatArray,
) -> None:  # fmt: skip
    """One minorise-maximise step from y, whose d_j are in D."""
    total = N / inflow
    better[:] = 0.0
    for k in range(len(children)):
        j = children[k]
        if c[j] <= 0.0:
            continue
        weight = c[j] / inflow / D[k]
        total += weight
        for e in range(first_arc[j], first_arc[j + 1]):
            better[lower[e] - begin] += weight
    sum_y = 0.0
    for i in range(len(y)):
        better[i] = share[i] / max(total - better[i], 1e-300) if share[i] > 0.0 else 0.0
        sum_y += better[i]
    for i in range(len(y)):
        better[i] /= sum_y
