"""Checks of the invariants T1–T6 of topologies and N1–N3 of models.

Tests check them on everything they build, and the reader of `.ngram` files on everything it reads. `fedgram ngram info`
reports whether a model sums to one.
"""

import numpy as np

from fedgram.automata.model import NGramModel, uncovered
from fedgram.automata.topology import END, Arcs, Topology, arc_sources, backoff_arcs, entering_arcs, state_lengths
from fedgram.core.arrays import FloatArray, IntArray
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import BOS, EOS, UNK


def topology_faults(topology: Topology, *, words: int | None = None) -> list[str]:
    """The names of the invariants T1–T4 that do not hold, and of T5–T6 if the size of the vocabulary is given."""
    t = topology
    if t.first_arc[0] != 0 or bool(np.any(np.diff(t.first_arc) < 0)):
        return ["T1"]
    faults = []
    inside = np.ones(max(t.arcs - 1, 0), bool)
    starts = t.first_arc[1:-1]
    inside[starts[(starts > 0) & (starts < t.arcs)] - 1] = False
    if bool(np.any((np.diff(t.label) <= 0) & inside)):
        return ["T2"]
    if bool(np.any(t.backoff[1:] < 0)) or bool(np.any(t.backoff[1:] >= np.arange(1, t.states))):
        return ["T3"]
    if bool(np.any(np.diff(state_lengths(t)) < 0)):
        return ["T3"]
    if bool(np.any(backoff_arcs(t)[t.first_arc[1] :] < 0)):
        faults.append("T4")
    if words is not None and not faults:
        faults += ["T5"] if not _reads_everything(t, words) else []
        faults += ["T6"] if not _leads_to_longest_suffix(t) else []
    return faults


def _reads_everything(t: Topology, words: int) -> bool:
    everything = np.delete(np.arange(words), BOS)
    read = t.label[: t.first_arc[1]]
    return np.array_equal(read, everything) or np.array_equal(read, everything[everything != UNK])


def _leads_to_longest_suffix(t: Topology) -> bool:
    """T6 by induction on length: (q, x) leads to its own n-gram if that is a state, else where (backoff q, x) leads."""
    if bool(np.any((t.dest == END) != (t.label == EOS))) or t.dest.max(initial=0) >= t.states:
        return False
    lengths, sources, entering = state_lengths(t), arc_sources(t), entering_arcs(t)
    if t.start and lengths[t.start] != 1:
        return False
    histories = np.flatnonzero(lengths > 0)
    if bool(np.any((entering[histories] < 0) != (histories == t.start))) or bool(np.any(t.label == BOS)):
        return False
    lower = backoff_arcs(t)
    own = np.zeros(t.arcs, bool)
    own[entering[entering >= 0]] = True
    longer = (t.dest != END) & (lengths[np.maximum(t.dest, 0)] == lengths[sources] + 1)
    if bool(np.any(own != longer)):
        return False
    inherited = np.flatnonzero(~own & (lower >= 0) & (t.dest != END))
    at_root = np.flatnonzero(~own & (lower < 0) & (t.dest != END))
    heirs = np.flatnonzero(own & (lower >= 0))  # if (q, x) is a state, it backs off to where (backoff q, x) leads
    return (
        bool(np.all(t.dest[inherited] == t.dest[lower[inherited]]))
        and bool(np.all(t.dest[at_root] == 0))
        and bool(np.all(t.backoff[t.dest[heirs]] == t.dest[lower[heirs]]))
    )


def state_sums(model: NGramModel) -> FloatArray:
    """Σ_x p(x | q) over all labels, for every state q."""
    t = model.topology
    return _state_sums(t.arrays, backoff_arcs(t), np.exp(model.log_weight), np.exp(model.log_backoff))


@kernel
def _state_sums(arcs: Arcs, lower: IntArray, weight: FloatArray, backoff_weight: FloatArray) -> FloatArray:
    first_arc, label, backoff = arcs.first_arc, arcs.label, arcs.backoff
    sums = np.zeros(len(backoff))
    passed_on = np.zeros(len(backoff))  # the part of each sum that comes from backing off
    for q in range(len(backoff)):
        explicit, covered = 0.0, 0.0
        for e in range(first_arc[q], first_arc[q + 1]):
            explicit += weight[e]
            if q:
                covered += weight[lower[e]]
        if q:
            room = sums[backoff[q]] - covered
            if room < 1e-3:  # the difference has cancelled: add up the labels that q does not read
                room = passed_on[backoff[q]] + uncovered(first_arc, label, q, backoff[q], weight)
            passed_on[q] = backoff_weight[q] * room
        sums[q] = explicit + passed_on[q]
    return sums


def normalization_error(model: NGramModel) -> float:
    """max_q |Σ_x p(x|q) − 1|; at most 1e-9 for N2."""
    return float(np.abs(state_sums(model) - 1.0).max())


def model_faults(model: NGramModel) -> list[str]:
    """The names of the invariants T1–T6 and N1–N3 that do not hold.

    N2 and N3 are reported together. For a state that leaves labels to its backoff, N2 holds only with the backoff
    weight of N3. The backoff weight of any other state is never used.
    """
    faults = topology_faults(model.topology, words=len(model.vocabulary))
    if faults:
        return faults
    finite = np.isfinite(model.log_weight).all() and np.isfinite(model.log_backoff).all()
    if not finite or bool(np.any(model.log_weight > 0)):
        return ["N1"]
    return ["N2", "N3"] if normalization_error(model) > 1e-9 else []
