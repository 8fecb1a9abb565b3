"""How often a source model passes through each part of a topology: the counting step of SampleApprox.

A *visit* is a moment at which the source is about to produce a label. With L[q] the labels that state q reads,

    C(x, q)  expected number of times that x is read at q, by visits to q or to states that back off to q,
    C(φ, q)  how much probability leaves q by its backoff arc,
    N(q)     the visits to q itself,

and what comes to a state leaves it: N(q) + Σ_{q' backs off to q} C(φ, q') = Σ_x C(x, q) + C(φ, q). Paper: §4.
"""

from dataclasses import dataclass

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.scoring import step
from fedgram.automata.topology import (
    END,
    Topology,
    arc_sources,
    backoff_arcs,
    entering_arcs,
    find_arc,
    state_lengths,
)
from fedgram.core.arrays import BoolArray, FloatArray, IntArray, LongArray, Ragged, frozen, sum_by
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import EOS

MAX_SENTENCE_STEPS = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class TopologyCounts:
    """C(x, q) by arc, C(φ, q) and N(q) by state, all over `sentences` sentences of the source.

    `asked` is by arc the number of visits at which the source was asked for the n-gram's last label, where that is not
    T(q): a source of word pieces is asked for the last piece of a word only in samples that hold the pieces before it.
    """

    topology: Topology
    arc: FloatArray
    backoff: FloatArray
    visits: FloatArray
    sentences: float = 1.0
    asked: FloatArray | None = None

    def __post_init__(self) -> None:
        t = self.topology
        if len(self.arc) != t.arcs or len(self.backoff) != t.states or len(self.visits) != t.states:
            raise InvariantError("TopologyCounts: counts and topology differ in size")
        for array in (self.arc, self.backoff, self.visits):
            frozen(array)
        if self.asked is not None:
            if len(self.asked) != t.arcs:
                raise InvariantError("TopologyCounts: counts and topology differ in size")
            frozen(self.asked)


def counts_from_arcs(
    topology: Topology, arc: FloatArray, visits: FloatArray, sentences: float, asked: FloatArray | None = None
) -> TopologyCounts:
    """C(φ, q) from what comes in and what is read, states with long histories first."""
    arc = np.maximum(arc, 0.0)
    read = sum_by(arc_sources(topology), arc, topology.states)
    return TopologyCounts(topology, arc, _backoff_flow(topology.backoff, visits, read), visits, sentences, asked)


@kernel
def _backoff_flow(backoff: IntArray, visits: FloatArray, read: FloatArray) -> FloatArray:
    result = visits - read
    for q in range(len(backoff) - 1, 0, -1):
        result[q] = max(result[q], 0.0)
        result[backoff[q]] += result[q]
    result[0] = 0.0
    return result


def summed_counts(counts: TopologyCounts) -> tuple[FloatArray, FloatArray]:
    """S(x, q) and T(q): the same counts over all visits whose backoff path contains q."""
    t = counts.topology
    return _sum_up(counts.arc.copy(), backoff_arcs(t)), _sum_up(counts.visits.copy(), t.backoff)


def unvisited_ngrams(counts: TopologyCounts) -> BoolArray:
    """By arc, whether the source was never asked for the n-gram's last label after its history."""
    asked = counts.asked
    if asked is None:
        asked = summed_counts(counts)[1][arc_sources(counts.topology)]
    return asked <= 0.0


@kernel
def _sum_up(values: FloatArray, parent: IntArray) -> FloatArray:
    for i in range(len(values) - 1, -1, -1):
        if parent[i] >= 0:
            values[parent[i]] += values[i]
    return values


def visited_states(topology: Topology, sentences: Ragged) -> IntArray:
    """The states in which sentences are before each of their labels and before their end, sentence after sentence.

    Sentence i of n labels has n + 1 visits, from number `offsets[i] + i` on. A label that nothing reads leads to the
    empty history.
    """
    t = topology
    return _visited_states(t.first_arc, t.label, t.dest, t.backoff, t.start, sentences.values, sentences.offsets)


@kernel
def _visited_states(
    first_arc: LongArray, label: IntArray, dest: IntArray, backoff: IntArray, start: int, values: IntArray,
    offsets: LongArray,
) -> IntArray:  # fmt: skip
    states = np.empty(len(values) + len(offsets) - 1, np.int32)
    visit = 0
    for s in range(len(offsets) - 1):
        q = start
        for i in range(offsets[s], offsets[s + 1]):
            states[visit] = q
            visit += 1
            q = next_state(first_arc, label, dest, backoff, q, values[i])
        states[visit] = q
        visit += 1
    return states


def read_arcs(topology: Topology, sentences: Ragged) -> IntArray:
    """The arcs that read each label of each sentence and its end, visit by visit; −1 for a label that nothing reads."""
    t = topology
    return _read_arcs(t.first_arc, t.label, t.dest, t.backoff, t.start, sentences.values, sentences.offsets)


@kernel
def _read_arcs(
    first_arc: LongArray, label: IntArray, dest: IntArray, backoff: IntArray, start: int, values: IntArray,
    offsets: LongArray,
) -> IntArray:  # fmt: skip
    arcs = np.empty(len(values) + len(offsets) - 1, np.int32)
    visit = 0
    for s in range(len(offsets) - 1):
        q = start
        for i in range(offsets[s], offsets[s + 1] + 1):
            x = values[i] if i < offsets[s + 1] else EOS
            e = -1
            while e < 0 and q >= 0:
                e = find_arc(label, first_arc[q], first_arc[q + 1], x)
                q = backoff[q]
            arcs[visit] = e
            visit += 1
            q = max(dest[e], 0) if e >= 0 else 0
    return arcs


def next_states(topology: Topology, states: IntArray, labels: IntArray) -> IntArray:
    """Where each state leads by reading its label; `</s>` leads to the empty history here."""
    t = topology
    return _next_states(t.first_arc, t.label, t.dest, t.backoff, states, labels)


@kernel
def _next_states(
    first_arc: LongArray, label: IntArray, dest: IntArray, backoff: IntArray, states: IntArray, labels: IntArray
) -> IntArray:
    result = np.empty(len(states), np.int32)
    for i in range(len(states)):
        result[i] = next_state(first_arc, label, dest, backoff, states[i], labels[i])
    return result


@kernel
def next_state(first_arc: LongArray, label: IntArray, dest: IntArray, backoff: IntArray, q: int, x: int) -> int:
    """Where reading x leads from q."""
    while q >= 0:
        e = find_arc(label, first_arc[q], first_arc[q + 1], x)
        if e >= 0:
            after: int = max(dest[e], 0)
            return after
        q = backoff[q]
    return 0


def counts_from_visits(model: NGramModel, visits: FloatArray, sentences: float) -> TopologyCounts:
    """The counts on the model's own topology if its states are visited this often."""
    t = model.topology
    flow = np.empty(t.arcs)
    _flow(t.first_arc, t.backoff, backoff_arcs(t), np.exp(model.log_weight), np.exp(model.log_backoff), visits, flow)
    return counts_from_arcs(t, flow, visits, sentences)


def expected_visits(model: NGramModel, *, tolerance: float = 1e-13) -> FloatArray:
    """How often each state is visited in a sentence, on average: the solution of v = e_start + Pᵀv.

    The visits of step t+1 follow from those of step t; once they only shrink by a constant factor, the rest of the
    sum is geometric.
    """
    t = model.topology
    lower, weight, backoff_weight = backoff_arcs(t), np.exp(model.log_weight), np.exp(model.log_backoff)
    now: FloatArray = np.zeros(t.states)
    flow = np.empty(t.arcs)
    now[t.start] = 1.0
    total = now.copy()
    goes_on = np.flatnonzero(t.dest != END)
    dest = t.dest[goes_on]
    for _ in range(MAX_SENTENCE_STEPS):
        _flow(t.first_arc, t.backoff, lower, weight, backoff_weight, now, flow)
        following = sum_by(dest, flow[goes_on], t.states)
        ratio = float(following.sum() / now.sum())
        remaining = float(following.sum()) / max(1.0 - ratio, 1e-300)
        drift = float(np.abs(following - ratio * now).sum()) / max(1.0 - ratio, 1e-300)
        total += following
        if ratio > 1.0 - 1e-12 and np.abs(following - now).sum() <= 1e-12 * now.sum():
            break  # nothing ends, and nothing changes any more
        if drift <= tolerance * total.sum() or remaining <= tolerance * total.sum():
            return total + following * (ratio / (1.0 - ratio))
        now = following
    raise FedgramError("the source model's sentences do not end: </s> has next to no probability in it")


@kernel
def _flow(
    first_arc: LongArray, backoff: IntArray, lower: IntArray, weight: FloatArray, backoff_weight: FloatArray,
    visits: FloatArray, flow: FloatArray,
) -> None:  # fmt: skip
    """C(x, q) from visits.

    `arriving[q]` is Σ over visited states on whose backoff path q lies, each times the backoff weights in between;
    `blocked[e]` is the part of it that came from states which read e's label themselves. Their difference loses digits
    where a backoff weight is huge, that is, where next to nothing is left to back off to.
    """
    arriving = visits.copy()
    blocked = np.zeros(len(weight))
    for q in range(len(backoff) - 1, -1, -1):
        passed = arriving[q] * backoff_weight[q]
        if q:
            arriving[backoff[q]] += passed
        for e in range(first_arc[q], first_arc[q + 1]):
            flow[e] = weight[e] * max(arriving[q] - blocked[e], 0.0)
            if q:
                blocked[lower[e]] += passed


def express_on(model: NGramModel, topology: Topology) -> NGramModel:
    """The same distribution on a topology that has all of the model's n-grams, and maybe more.

    The model must be normalised (N3), and its vocabulary that of the topology.
    """
    same_words = np.arange(len(model.vocabulary), dtype=np.int32)
    image = image_states(topology, model, same_words)
    log_weight = np.minimum(conditional_log_weights(topology, model, image, same_words), 0.0)
    same = state_lengths(topology) == state_lengths(model.topology)[image]
    return NGramModel(topology, model.vocabulary, log_weight, np.where(same, model.log_backoff[image], 0.0))


def image_states(topology: Topology, model: NGramModel, word_id: IntArray) -> IntArray:
    """For each state of the topology, the state that the model is in after the same history.

    `word_id` gives the model's id for each of the topology's words, −1 for none.
    """
    m = model.topology
    return _image_states(
        entering_arcs(topology), arc_sources(topology), topology.label, topology.start, word_id,
        m.first_arc, m.label, m.dest, m.backoff, model.log_weight, model.log_backoff, m.start,
    )  # fmt: skip


def conditional_log_weights(topology: Topology, model: NGramModel, image: IntArray, word_id: IntArray) -> FloatArray:
    """Log p(x | image of q) in the model for each arc (q, x) of the topology; −inf for words it does not know."""
    m = model.topology
    return _conditional(
        topology.first_arc, topology.label, image, word_id,
        m.first_arc, m.label, m.dest, m.backoff, model.log_weight, model.log_backoff,
    )  # fmt: skip


@kernel
def _image_states(
    entering: IntArray, source: IntArray, label: IntArray, start: int, word_id: IntArray, first_arc: LongArray,
    m_label: IntArray, m_dest: IntArray, m_backoff: IntArray, log_weight: FloatArray, log_backoff: FloatArray,
    m_start: int,
) -> IntArray:  # fmt: skip
    image = np.zeros(len(entering), np.int32)
    for q in range(1, len(entering)):
        if q == start:
            image[q] = m_start
        elif entering[q] >= 0 and word_id[label[entering[q]]] >= 0:
            before, x = image[source[entering[q]]], word_id[label[entering[q]]]
            _, image[q] = step(first_arc, m_label, m_dest, m_backoff, log_weight, log_backoff, before, x)
    return image


@kernel
def _conditional(
    first_arc: LongArray, label: IntArray, image: IntArray, word_id: IntArray, m_first_arc: LongArray,
    m_label: IntArray, m_dest: IntArray, m_backoff: IntArray, log_weight: FloatArray, log_backoff: FloatArray,
) -> FloatArray:  # fmt: skip
    result = np.full(len(label), -np.inf)
    for q in range(len(first_arc) - 1):
        for e in range(first_arc[q], first_arc[q + 1]):
            x = word_id[label[e]]
            if x >= 0:
                result[e], _ = step(m_first_arc, m_label, m_dest, m_backoff, log_weight, log_backoff, image[q], x)
    return result


def fold_counts(counts: TopologyCounts, topology: Topology, arc: IntArray) -> TopologyCounts:
    """Counts on a topology within another one: what it cannot read where it was read, it reads further down.

    `arc[e]` is the larger topology's arc for arc e of the smaller. S(x, q) does not depend on the topology, so one
    count on a large topology serves all within it.
    """
    large = counts.topology
    own_arc = np.full(large.arcs, -1, np.int32)
    own_arc[arc] = np.arange(topology.arcs, dtype=np.int32)
    own_state = np.full(large.states, -1, np.int32)
    entering = entering_arcs(topology)
    inner = np.flatnonzero(entering >= 0)
    own_state[large.dest[arc[entering[inner]]]] = inner
    own_state[large.start] = topology.start
    own_state[0] = 0
    arcs = _inherit(own_arc, backoff_arcs(large))
    if bool(np.any(arcs < 0)):
        raise InvariantError("fold_counts: the smaller topology does not read every label")
    states = _inherit(own_state, large.backoff)
    folded = sum_by(arcs, counts.arc, topology.arcs)
    visits = sum_by(states, counts.visits, topology.states)
    asked = None if counts.asked is None else counts.asked[arc]
    return counts_from_arcs(topology, folded, visits, counts.sentences, asked)


@kernel
def _inherit(own: IntArray, parent: IntArray) -> IntArray:
    result = own.copy()
    for i in range(len(own)):
        if result[i] < 0 and parent[i] >= 0:
            result[i] = result[parent[i]]
    return result


def cross_entropy(counts: TopologyCounts, model: NGramModel) -> float:
    """−Σ_q [Σ_x C(x,q)·log w_q[x] + C(φ,q)·log w_q[φ]] in nats a sentence; the model is on the counts' topology."""
    nats = -float(counts.arc @ model.log_weight) - float(counts.backoff[1:] @ model.log_backoff[1:])
    return nats / counts.sentences
