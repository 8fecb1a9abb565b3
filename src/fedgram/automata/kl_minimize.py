"""The model on a topology that is closest to the source of given counts: the KL minimisation step of SampleApprox.

With y_x = w_q[x] for x ∈ L[q] and y_φ = 1 − Σ_x y_x, the divergence splits into one problem per state:

    maximise  F_q(y) = Σ_x C(x,q)·log y_x + C(φ,q)·log y_φ − Σ_j c_j·log d_j   over the simplex,

where j runs over the states that back off to q, c_j = C(φ,j), and d_j = 1 − Σ_{x∈L[j]} y_x. A state to which no flow
backs off has the closed form y ∝ C. For the others, F_q is concave in log y, and a minorise-maximise (MM) step is

    y_x ∝ C(x,q) / (N(q) + Σ_{j: x∉L[j]} c_j/d_j).

A step never lowers F_q, and its only fixed point is the maximum. Steps are accelerated by SQUAREM (Varadhan and Roland,
2008, "Simple and globally convergent methods for accelerating the convergence of any EM algorithm"). With θ = log y and
M the MM step, one cycle is

    θ₁ = M(θ₀),  θ₂ = M(θ₁),  r = θ₁ − θ₀,  v = (θ₂ − θ₁) − r,  α = −‖r‖/‖v‖,  θ' = θ₀ − 2α·r + α²·v.

Norms are weighted by the counts. α = −1 gives θ' = θ₂, so only α < −1 is tried. θ' is kept if F_q(θ') > F_q(θ₂), and
θ₂ otherwise, so that F_q never falls. Paper: §4.
"""

from typing import NamedTuple

import numpy as np

from fedgram.automata.counting import TopologyCounts, counts_from_arcs, counts_from_visits, summed_counts
from fedgram.automata.model import MIN_WEIGHT, NGramModel, model_from_weights
from fedgram.automata.topology import Topology, arc_sources, backoff_arcs
from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import Vocabulary

EFFECTIVE_ZERO = float(np.exp(-35.0))  # the weight of a label that is never read at a state
_MAX_LOG_CHANGE = 50.0  # of one weight by one extrapolation


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

    Guarantees: the divergence never rises from one cycle to the next; a state without visits follows its backoff
    state; every state sums to 1.

    Args:
        counts: C(x, q), C(φ, q) and N(q), exact or from samples.
        vocabulary: The words of the topology.
        prior_visits: Number of visits to add to every visited state, distributed as its summed counts S/T. Use 1 with
            sampled counts: it gives every label that was not read by chance a small probability.
        floor: Minimum weight of an arc, before the weights of a state are scaled to sum to 1.
        tolerance: A state has converged when a step changes log y by at most this, averaged over its counts.
        max_cycles: Maximum number of SQUAREM cycles per state.
    """
    if prior_visits < 0:
        raise InvariantError(f"prior_visits must be at least 0, not {prior_visits}")
    counts = _with_prior(counts, vocabulary, prior_visits) if prior_visits else counts
    flow = Flow(counts.arc, counts.backoff, counts.visits)
    weight = _minimize(_backoff_tree(counts.topology), flow, floor, tolerance, max_cycles)
    return model_from_weights(counts.topology, vocabulary, weight)


def summed_model(counts: TopologyCounts, vocabulary: Vocabulary) -> NGramModel:
    """w_q[x] = S(x,q)/T(q): the source's average probability over visits through q. Not the KL minimum."""
    t = counts.topology
    S, T = summed_counts(counts)
    visited = T[arc_sources(t)]
    weight = np.where(visited > 0, S / np.maximum(visited, 1e-300), -1.0)
    return model_from_weights(t, vocabulary, _fill_unvisited(t.first_arc, backoff_arcs(t), weight))


@kernel
def _fill_unvisited(first_arc: LongArray, lower: IntArray, weight: FloatArray) -> FloatArray:
    """The weights, with each negative one replaced by the weight of the same label at the backoff state."""
    for q in range(len(first_arc) - 1):
        for e in range(first_arc[q], first_arc[q + 1]):
            if weight[e] < 0:
                weight[e] = weight[lower[e]] if q else MIN_WEIGHT
    return weight


def _with_prior(counts: TopologyCounts, vocabulary: Vocabulary, prior_visits: float) -> TopologyCounts:
    """The counts, plus those of `prior_visits` visits by the summed model to every visited state."""
    t = counts.topology
    _, T = summed_counts(counts)
    more = counts_from_visits(summed_model(counts, vocabulary), np.where(T > 0, prior_visits, 0.0), counts.sentences)
    return counts_from_arcs(t, counts.arc + more.arc, counts.visits + more.visits, counts.sentences)


class BackoffTree(NamedTuple):
    """A topology as the tree of its backoffs.

    Attributes:
        first_arc: The arcs of q are `first_arc[q]:first_arc[q+1]`.
        lower: For each arc (q, x), the arc (backoff q, x).
        first_child: The states that back off to q are `child[first_child[q]:first_child[q+1]]`.
        child: States, sorted by their backoff state.
    """

    first_arc: LongArray
    lower: IntArray
    first_child: LongArray
    child: IntArray


class Flow(NamedTuple):
    """The counts: C(x, q) per arc, C(φ, q) and N(q) per state."""

    arc: FloatArray
    backoff: FloatArray
    visits: FloatArray


class StateProblem(NamedTuple):
    """The problem of one state q: everything that F_q depends on. Counts are divided by the inflow of q.

    Labels are numbered 0 … |L[q]| − 1 in the order of the arcs; φ is number |L[q]|.

    Attributes:
        share: C(x,q) per label and C(φ,q) last. They sum to 1, unless q was never visited: then all are 0.
        direct: N(q).
        passed: c_j > 0 for each state j that backs off to q with a positive count.
        first: The labels L[j] of the k-th such state are `covered[first[k]:first[k+1]]`.
        covered: Numbers of labels, increasing within each state j.
    """

    share: FloatArray
    direct: float
    passed: FloatArray
    first: LongArray
    covered: IntArray


def _backoff_tree(topology: Topology) -> BackoffTree:
    child = np.argsort(topology.backoff, kind="stable").astype(np.int32)
    first_child = np.searchsorted(topology.backoff[child], np.arange(topology.states + 1)).astype(np.int64)
    return BackoffTree(topology.first_arc, backoff_arcs(topology), first_child, child)


@kernel
def _minimize(tree: BackoffTree, flow: Flow, floor: float, tolerance: float, max_cycles: int) -> FloatArray:
    """w_q[x] of all arcs, one state after the other; backoff states come first."""
    weight = np.zeros(len(flow.arc))
    for q in range(len(tree.first_arc) - 1):
        begin, end = tree.first_arc[q], tree.first_arc[q + 1]
        y = _solve(_state_problem(tree, flow, q), tolerance, max_cycles)
        visited = y.sum() > 0.0
        for e in range(begin, end):
            if visited:
                weight[e] = max(y[e - begin], floor)
            else:
                weight[e] = weight[tree.lower[e]] if q else 1.0
    return weight


@kernel
def _state_problem(tree: BackoffTree, flow: Flow, q: int) -> StateProblem:
    begin, end = tree.first_arc[q], tree.first_arc[q + 1]
    inflow, children, arcs = flow.visits[q], 0, 0
    for k in range(tree.first_child[q], tree.first_child[q + 1]):
        j = tree.child[k]
        if flow.backoff[j] > 0.0:
            inflow += flow.backoff[j]
            children += 1
            arcs += tree.first_arc[j + 1] - tree.first_arc[j]
    share = np.zeros(end - begin + 1)
    passed, first, covered = np.empty(children), np.zeros(children + 1, np.int64), np.empty(arcs, np.int32)
    if inflow <= 0.0:
        return StateProblem(share, 0.0, passed, first, covered)
    for e in range(begin, end):
        share[e - begin] = flow.arc[e] / inflow
    share[-1] = flow.backoff[q] / inflow
    children, arcs = 0, 0
    for k in range(tree.first_child[q], tree.first_child[q + 1]):
        j = tree.child[k]
        if flow.backoff[j] > 0.0:
            passed[children] = flow.backoff[j] / inflow
            for e in range(tree.first_arc[j], tree.first_arc[j + 1]):
                covered[arcs] = tree.lower[e] - begin
                arcs += 1
            children += 1
            first[children] = arcs
    problem = StateProblem(share, flow.visits[q] / inflow, passed, first, covered)
    _remove_rounding(problem)
    return problem


@kernel
def _remove_rounding(problem: StateProblem) -> None:
    """Limit each share to the part of the inflow that can read its label, and scale the shares to sum to 1.

    Counts come from differences: a share above this limit, or below 1e-15, is a rounding error.
    """
    share = problem.share
    readable = np.full(len(share), 1.0)
    for k in range(len(problem.passed)):
        for m in range(problem.first[k], problem.first[k + 1]):
            readable[problem.covered[m]] -= problem.passed[k]
    for i in range(len(share)):
        share[i] = min(share[i], max(readable[i], 0.0))
        if share[i] < 1e-15:
            share[i] = 0.0
    total = share.sum()
    if total > 0.0:
        share /= total


@kernel
def _solve(problem: StateProblem, tolerance: float, max_cycles: int) -> FloatArray:
    """The maximum of F_q by SQUAREM: y per label and y_φ last; all 0 if the state was never visited."""
    share = problem.share
    y0 = share.copy()
    if len(problem.passed) == 0 or share.sum() <= 0.0:
        return y0
    y1, y2, trial = np.empty(len(share)), np.empty(len(share)), np.empty(len(share))
    d, d_trial = np.empty(len(problem.passed)), np.empty(len(problem.passed))
    F0 = _evaluate(problem, y0, d)
    for _ in range(max_cycles):
        _mm_step(problem, y0, d, y1)
        _leftovers(problem, y1, d)
        _mm_step(problem, y1, d, y2)
        F2 = _evaluate(problem, y2, d)
        alpha, last_change = _step_length(share, y0, y1, y2)
        if last_change <= tolerance:
            return y2 if F2 >= F0 else y0
        if alpha < -1.0:
            _extrapolate(share, y0, y1, y2, alpha, trial)
            F_trial = _evaluate(problem, trial, d_trial)
            if F_trial > F2:
                y0, trial, d, d_trial, F0 = trial, y0, d_trial, d, F_trial
                continue
        y0, y2, F0 = y2, y0, F2
    return y0


@kernel
def _step_length(share: FloatArray, y0: FloatArray, y1: FloatArray, y2: FloatArray) -> tuple[float, float]:
    """SQUAREM's α = −‖r‖/‖v‖, and the size of the second step, Σ share·|θ₂ − θ₁|."""
    rr, vv, last_change = 0.0, 0.0, 0.0
    for i in range(len(share)):
        if share[i] > 0.0:
            r, s = np.log(y1[i] / y0[i]), np.log(y2[i] / y1[i])
            v = s - r
            rr += share[i] * r * r
            vv += share[i] * v * v
            last_change += share[i] * abs(s)
    return (-np.sqrt(rr / vv) if vv > 0.0 else -1.0), last_change


@kernel
def _extrapolate(
    share: FloatArray, y0: FloatArray, y1: FloatArray, y2: FloatArray, alpha: float, result: FloatArray
) -> None:
    """Set `result` to exp(θ₀ − 2α·r + α²·v), scaled to sum to 1."""
    total = 0.0
    for i in range(len(share)):
        result[i] = 0.0
        if share[i] > 0.0:
            r, s = np.log(y1[i] / y0[i]), np.log(y2[i] / y1[i])
            v = s - r
            change = -2.0 * alpha * r + alpha * alpha * v
            result[i] = y0[i] * np.exp(min(max(change, -_MAX_LOG_CHANGE), _MAX_LOG_CHANGE))
            total += result[i]
    for i in range(len(result)):
        result[i] /= total


@kernel
def _mm_step(problem: StateProblem, y: FloatArray, d: FloatArray, result: FloatArray) -> None:
    """One MM step from y, whose d_j are `d`: result_x ∝ C(x,q) / (N(q) + Σ_{j: x∉L[j]} c_j/d_j)."""
    total = problem.direct  # N(q) + Σ_j c_j/d_j
    result[:] = 0.0  # first Σ_{j: x∈L[j]} c_j/d_j, then y_x
    for k in range(len(d)):
        ratio = problem.passed[k] / d[k]
        total += ratio
        for m in range(problem.first[k], problem.first[k + 1]):
            result[problem.covered[m]] += ratio
    sum_y = 0.0
    for i in range(len(y)):
        share = problem.share[i]
        result[i] = share / max(total - result[i], 1e-300) if share > 0.0 else 0.0
        sum_y += result[i]
    for i in range(len(y)):
        result[i] /= sum_y


@kernel
def _evaluate(problem: StateProblem, y: FloatArray, d: FloatArray) -> float:
    """F_q(y), with the counts divided by the inflow; sets every d_j in `d`."""
    _leftovers(problem, y, d)
    F = 0.0
    for i in range(len(y)):
        if problem.share[i] > 0.0:
            F += problem.share[i] * np.log(y[i])
    for k in range(len(d)):
        F -= problem.passed[k] * np.log(d[k])
    return F


@kernel
def _leftovers(problem: StateProblem, y: FloatArray, d: FloatArray) -> None:
    """Set every d_j = 1 − Σ_{x∈L[j]} y_x in `d`."""
    for k in range(len(d)):
        covered = 0.0
        for m in range(problem.first[k], problem.first[k + 1]):
            covered += y[problem.covered[m]]
        d[k] = 1.0 - covered
        if d[k] < 1e-6:  # the difference has cancelled: add up the labels that are not in L[j]
            d[k] = _uncovered(y, problem.covered[problem.first[k] : problem.first[k + 1]])


@kernel
def _uncovered(y: FloatArray, covered: IntArray) -> float:
    """The sum of y over the labels that are not in `covered`."""
    total, k = 0.0, 0
    for i in range(len(y)):
        if k < len(covered) and covered[k] == i:
            k += 1
        else:
            total += y[i]
    return max(total, EFFECTIVE_ZERO)
