"""Expected counts of a source model on a topology: the counting step of SampleApprox.

A *visit* is a position at which the source is about to produce a label; its state is the one that the topology is in.
The counts are

    C(x, q)  the expected number of times that x is read at q, by visits to q or to states that back off to q,
    C(φ, q)  the probability that leaves q through its backoff arc, summed over visits,
    N(q)     the number of visits to q itself.

Flow is conserved: N(q) + Σ_{q' backs off to q} C(φ, q') = Σ_x C(x, q) + C(φ, q). Paper: §4.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.scoring import WeightedArcs, step_on, weighted_arcs
from fedgram.automata.topology import (
    END,
    Arcs,
    Topology,
    arc_sources,
    backoff_arcs,
    entering_arcs,
    reading_arc,
    state_lengths,
)
from fedgram.core.arrays import BoolArray, FloatArray, IntArray, LongArray, Ragged, frozen, sum_by
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import EOS

MAX_SENTENCE_STEPS = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class TopologyCounts:
    """C(x, q) per arc, C(φ, q) and N(q) per state, over `sentences` sentences of the source.

    `asked` is the number of visits, per arc, at which the source gave a probability to the n-gram's last label. None
    means T(q) visits for every arc of q. A source of word pieces is asked for the last piece of a word only in samples
    that have the pieces before it.
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
            raise InvariantError("TopologyCounts: the counts and the topology differ in size")
        for array in (self.arc, self.backoff, self.visits):
            frozen(array)
        if self.asked is not None:
            if len(self.asked) != t.arcs:
                raise InvariantError("TopologyCounts: the counts and the topology differ in size")
            frozen(self.asked)


def counts_from_arcs(
    topology: Topology, arc: FloatArray, visits: FloatArray, sentences: float, asked: FloatArray | None = None
) -> TopologyCounts:
    """The counts with C(φ, q) computed from the visits and the arcs by conservation of flow."""
    arc = np.maximum(arc, 0.0)
    read = sum_by(arc_sources(topology), arc, topology.states)
    return TopologyCounts(topology, arc, _backoff_flow(topology.backoff, visits, read), visits, sentences, asked)


@kernel
def _backoff_flow(backoff: IntArray, visits: FloatArray, read: FloatArray) -> FloatArray:
    """C(φ, q) = N(q) + the flow from states that back off to q − `read[q]`, longest histories first."""
    result = visits - read
    for q in range(len(backoff) - 1, 0, -1):
        result[q] = max(result[q], 0.0)
        result[backoff[q]] += result[q]
    result[0] = 0.0
    return result


def summed_counts(counts: TopologyCounts) -> tuple[FloatArray, FloatArray]:
    """S(x, q) and T(q): C(x, q) and N(q) summed over all visits whose backoff path contains q."""
    t = counts.topology
    return _sum_up(counts.arc.copy(), backoff_arcs(t)), _sum_up(counts.visits.copy(), t.backoff)


def unvisited_ngrams(counts: TopologyCounts) -> BoolArray:
    """Per arc, whether the source was never asked for the n-gram's last label after its history."""
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
    """The state before each label and before the end of each sentence, sentence after sentence.

    Sentence i of n labels has n + 1 visits, which begin at index `offsets[i] + i`. A label that no state reads leads
    to the empty history.
    """
    return _visited_states(topology.arrays, topology.start, sentences.values, sentences.offsets)


@kernel
def _visited_states(arcs: Arcs, start: int, values: IntArray, offsets: LongArray) -> IntArray:
    states = np.empty(len(values) + len(offsets) - 1, np.int32)
    visit = 0
    for s in range(len(offsets) - 1):
        q = start
        for i in range(offsets[s], offsets[s + 1]):
            states[visit] = q
            visit += 1
            q = next_state(arcs, q, values[i])
        states[visit] = q
        visit += 1
    return states


def read_arcs(topology: Topology, sentences: Ragged) -> IntArray:
    """The arc that reads each label and the end of each sentence, visit by visit; −1 if no state reads the label."""
    return _read_arcs(topology.arrays, topology.start, sentences.values, sentences.offsets)


@kernel
def _read_arcs(arcs: Arcs, start: int, values: IntArray, offsets: LongArray) -> IntArray:
    read = np.empty(len(values) + len(offsets) - 1, np.int32)
    visit = 0
    for s in range(len(offsets) - 1):
        q = start
        for i in range(offsets[s], offsets[s + 1] + 1):
            x = values[i] if i < offsets[s + 1] else EOS
            e = reading_arc(arcs, q, x)
            read[visit] = e
            visit += 1
            q = max(arcs.dest[e], 0) if e >= 0 else 0
    return read


def next_states(topology: Topology, states: IntArray, labels: IntArray) -> IntArray:
    """The state after reading each label at each state; `</s>` leads to the empty history here."""
    return _next_states(topology.arrays, states, labels)


@kernel
def _next_states(arcs: Arcs, states: IntArray, labels: IntArray) -> IntArray:
    result = np.empty(len(states), np.int32)
    for i in range(len(states)):
        result[i] = next_state(arcs, states[i], labels[i])
    return result


@kernel
def next_state(arcs: Arcs, q: int, x: int) -> int:
    """The state after reading x at q; the empty history after `</s>` and after a label that no state reads."""
    e = reading_arc(arcs, q, x)
    after: int = max(arcs.dest[e], 0) if e >= 0 else 0
    return after


class FlowArcs(NamedTuple):
    """A model for `_flow`: `lower` is the arc with the same label at the backoff state; weights are not logarithms."""

    first_arc: LongArray
    backoff: IntArray
    lower: IntArray
    weight: FloatArray
    backoff_weight: FloatArray


def _flow_arcs(model: NGramModel) -> FlowArcs:
    t = model.topology
    return FlowArcs(t.first_arc, t.backoff, backoff_arcs(t), np.exp(model.log_weight), np.exp(model.log_backoff))


def counts_from_visits(model: NGramModel, visits: FloatArray, sentences: float) -> TopologyCounts:
    """The counts on the model's own topology, given the number of visits to each state."""
    return counts_from_arcs(model.topology, _flow(_flow_arcs(model), visits), visits, sentences)


def expected_visits(model: NGramModel, *, tolerance: float = 1e-13) -> FloatArray:
    """The expected number of visits to each state per sentence: the solution of v = e_start + Pᵀv.

    The visits at word t+1 follow from those at word t. Once they only shrink by a constant factor, the rest of the sum
    is a geometric series.
    """
    t, arcs = model.topology, _flow_arcs(model)
    now: FloatArray = np.zeros(t.states)
    now[t.start] = 1.0
    total = now.copy()
    goes_on = np.flatnonzero(t.dest != END)
    dest = t.dest[goes_on]
    for _ in range(MAX_SENTENCE_STEPS):
        following = sum_by(dest, _flow(arcs, now)[goes_on], t.states)
        ratio = float(following.sum() / now.sum())
        remaining = float(following.sum()) / max(1.0 - ratio, 1e-300)
        drift = float(np.abs(following - ratio * now).sum()) / max(1.0 - ratio, 1e-300)
        total += following
        if ratio > 1.0 - 1e-12 and np.abs(following - now).sum() <= 1e-12 * now.sum():
            break  # no sentence ends, and the distribution over states is stationary
        if drift <= tolerance * total.sum() or remaining <= tolerance * total.sum():
            return total + following * (ratio / (1.0 - ratio))
        now = following
    raise FedgramError("the sentences of the source model do not end: the probability of </s> is almost 0")


@kernel
def _flow(arcs: FlowArcs, visits: FloatArray) -> FloatArray:
    """C(x, q) from visits.

    `arriving[q]` is the sum over visited states whose backoff path contains q, each times the backoff weights in
    between. `blocked[e]` is the part of it that comes from states which read the label of e themselves. The difference
    loses digits where a backoff weight is huge, that is, where almost no probability is left for backing off.
    """
    arriving = visits.copy()
    flow, blocked = np.empty(len(arcs.weight)), np.zeros(len(arcs.weight))
    for q in range(len(arcs.backoff) - 1, -1, -1):
        passed = arriving[q] * arcs.backoff_weight[q]
        if q:
            arriving[arcs.backoff[q]] += passed
        for e in range(arcs.first_arc[q], arcs.first_arc[q + 1]):
            flow[e] = arcs.weight[e] * max(arriving[q] - blocked[e], 0.0)
            if q:
                blocked[arcs.lower[e]] += passed
    return flow


def express_on(model: NGramModel, topology: Topology) -> NGramModel:
    """The same distribution on a topology that has all of the model's n-grams and possibly more.

    The model must be normalised (N3), and the topology must be over the model's vocabulary.
    """
    same_words = np.arange(len(model.vocabulary), dtype=np.int32)
    image = image_states(topology, model, same_words)
    log_weight = np.minimum(conditional_log_weights(topology, model, image, same_words), 0.0)
    same = state_lengths(topology) == state_lengths(model.topology)[image]
    return NGramModel(topology, model.vocabulary, log_weight, np.where(same, model.log_backoff[image], 0.0))


def image_states(topology: Topology, model: NGramModel, word_id: IntArray) -> IntArray:
    """For each state of the topology, the state that the model is in after the same history.

    `word_id` is the model's id of each of the topology's words, or −1 for a word that the model does not know.
    """
    entering = entering_arcs(topology)
    inner = np.flatnonzero(entering >= 0)
    before, word = np.zeros(topology.states, np.int32), np.full(topology.states, -1, np.int32)
    before[inner] = arc_sources(topology)[entering[inner]]
    word[inner] = word_id[topology.label[entering[inner]]]
    image = np.zeros(topology.states, np.int32)
    if topology.start:
        word[topology.start], image[topology.start] = -1, model.topology.start
    _follow(weighted_arcs(model), before, word, image)
    return image


@kernel
def _follow(model: WeightedArcs, before: IntArray, word: IntArray, image: IntArray) -> None:
    """Set the image of every state with a known last word: the model's state after that word, from `before`'s image."""
    for q in range(len(image)):
        if word[q] >= 0:
            _, image[q] = step_on(model, image[before[q]], word[q])


def conditional_log_weights(topology: Topology, model: NGramModel, image: IntArray, word_id: IntArray) -> FloatArray:
    """Log p(x | image of q) in the model for each arc (q, x) of the topology; −inf for words it does not know."""
    return _log_probs(weighted_arcs(model), image[arc_sources(topology)], word_id[topology.label])


@kernel
def _log_probs(model: WeightedArcs, state: IntArray, word: IntArray) -> FloatArray:
    result = np.full(len(word), -np.inf)
    for i in range(len(word)):
        if word[i] >= 0:
            result[i], _ = step_on(model, state[i], word[i])
    return result


def fold_counts(counts: TopologyCounts, topology: Topology, arc: IntArray) -> TopologyCounts:
    """The counts on a smaller topology, whose arc e is arc `arc[e]` of the counts' topology.

    A label is then read at the longest suffix of the history at which the smaller topology has an arc for it. S(x, q)
    does not depend on the topology, so the counts on a large topology give the counts on all smaller ones.
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
    """`own`, with each −1 replaced by the value of the parent."""
    result = own.copy()
    for i in range(len(own)):
        if result[i] < 0 and parent[i] >= 0:
            result[i] = result[parent[i]]
    return result


def cross_entropy(counts: TopologyCounts, model: NGramModel) -> float:
    """−Σ_q [Σ_x C(x,q)·log w_q[x] + C(φ,q)·log w_q[φ]] in nats per sentence, for a model on the counts' topology."""
    nats = -float(counts.arc @ model.log_weight) - float(counts.backoff[1:] @ model.log_backoff[1:])
    return nats / counts.sentences
