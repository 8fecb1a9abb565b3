"""The unweighted backoff automaton.

A state is an n-gram history, an arc is an n-gram. The arcs of state q are `first_arc[q]:first_arc[q+1]`; arc e reads
`label[e]` and leads to `dest[e]` (−1 for the sentence end `</s>`, which is a label like any other). What a state does
not read is read by its backoff state. The sentence start `<s>` is a state but never a label. Paper: §4.

Invariants (checked in full by `properties`):

- T1  `first_arc` starts at 0, never falls, and ends at the number of arcs.
- T2  labels rise strictly within a state.
- T3  state 0 is the empty history, `backoff[0] = −1`, and `backoff[q] < q` elsewhere: states come in the order of
      their history's length, so a plain loop over states visits every backoff before those that back off to it.
- T4  backoff-complete: what q reads, `backoff[q]` reads too.
- T5  (words) state 0 reads the whole vocabulary but `<s>`, and `<unk>` unless the vocabulary is closed.
- T6  (words) an arc leads to the longest suffix of its n-gram that is a state; `</s>` leads to −1.
"""

from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import IntArray, LongArray, frozen
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import BOS

END = -1  # the destination of `</s>`


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """A backoff automaton without weights; see the module for the representation."""

    first_arc: LongArray
    label: IntArray
    dest: IntArray
    backoff: IntArray
    start: int

    def __post_init__(self) -> None:
        shapes_fit = len(self.first_arc) == len(self.backoff) + 1 and len(self.label) == len(self.dest)
        if not shapes_fit or len(self.backoff) == 0 or self.first_arc[-1] != len(self.label):
            raise InvariantError("Topology: the arrays' lengths do not fit together")
        if not 0 <= self.start < len(self.backoff) or self.backoff[0] != -1:
            raise InvariantError("Topology: no start state, or state 0 has a backoff")
        for array in (self.first_arc, self.label, self.dest, self.backoff):
            frozen(array)

    @property
    def states(self) -> int:
        """|Q|."""
        return len(self.backoff)

    @property
    def arcs(self) -> int:
        """|E|, which is also the number of n-grams (`<s>` alone is not counted)."""
        return len(self.label)

    @property
    def order(self) -> int:
        """The length of the longest n-gram."""
        return len(self.arcs_by_order())

    def arcs_by_order(self) -> list[int]:
        """Number of n-grams of order 1, 2, …"""
        lengths = state_lengths(self)
        counts = np.bincount(lengths, weights=np.diff(self.first_arc)).astype(np.int64).tolist()
        while len(counts) > 1 and counts[-1] == 0:
            counts.pop()
        return [int(c) for c in counts]

    def __repr__(self) -> str:
        return f"Topology({self.states} states, {self.arcs} arcs)"


def arc_sources(topology: Topology) -> IntArray:
    """The state that each arc leaves."""
    return np.repeat(np.arange(topology.states, dtype=np.int32), np.diff(topology.first_arc))


def state_lengths(topology: Topology) -> IntArray:
    """The length of each state's history, which is the length of its backoff path."""
    return _state_lengths(topology.backoff)


@kernel
def _state_lengths(backoff: IntArray) -> IntArray:
    length = np.zeros(len(backoff), np.int32)
    for q in range(1, len(backoff)):
        length[q] = length[backoff[q]] + 1
    return length


def entering_arcs(topology: Topology) -> IntArray:
    """For each state the arc whose n-gram is the state's own history; −1 for state 0 and for `<s>`."""
    lengths, sources = state_lengths(topology), arc_sources(topology)
    entering = np.full(topology.states, -1, np.int32)
    grows = np.flatnonzero(topology.dest >= 0)
    grows = grows[lengths[topology.dest[grows]] == lengths[sources[grows]] + 1]
    entering[topology.dest[grows]] = grows
    return entering


def backoff_arcs(topology: Topology) -> IntArray:
    """For each arc (q, x) the arc (backoff[q], x), which T4 guarantees; −1 at state 0."""
    return _backoff_arcs(topology.first_arc, topology.label, topology.backoff)


@kernel
def _backoff_arcs(first_arc: LongArray, label: IntArray, backoff: IntArray) -> IntArray:
    result = np.full(len(label), -1, np.int32)
    for q in range(1, len(backoff)):
        begin, end = first_arc[backoff[q]], first_arc[backoff[q] + 1]
        for e in range(first_arc[q], first_arc[q + 1]):
            found = find_arc(label, begin, end, label[e])
            result[e] = found
            begin = max(begin, found + 1)
    return result


@kernel
def find_arc(label: IntArray, begin: int, end: int, x: int) -> int:
    """The arc in `begin:end` that reads x, or −1. Labels rise; where they are dense the first guess hits."""
    if begin >= end:
        return -1
    guess: int = end - 1 - (label[end - 1] - x)
    if guess >= end:
        return -1
    if guess >= begin and label[guess] == x:
        return guess
    while begin < end:
        middle = (begin + end) >> 1
        if label[middle] < x:
            begin = middle + 1
        else:
            end = middle
    return begin if label[begin] == x else -1


def ngram_matrix(topology: Topology) -> tuple[IntArray, IntArray]:
    """Every arc's n-gram: words left-aligned in one row an arc, padded with −1; and the n-grams' lengths."""
    words, lengths = state_histories(topology)
    sources = arc_sources(topology)
    matrix = np.concatenate([words[sources], np.full((topology.arcs, 1), -1, np.int32)], axis=1)
    ngram_lengths = lengths[sources] + 1
    matrix[np.arange(topology.arcs), ngram_lengths - 1] = topology.label
    return matrix, ngram_lengths


def state_histories(topology: Topology) -> tuple[IntArray, IntArray]:
    """Every state's history, one row a state, left-aligned and padded with −1; and the histories' lengths."""
    lengths, entering, sources = state_lengths(topology), entering_arcs(topology), arc_sources(topology)
    words = np.full((topology.states, int(lengths.max())), -1, np.int32)
    if topology.start:
        words[topology.start, 0] = BOS
    for length in range(1, int(lengths.max()) + 1):
        q = np.flatnonzero((lengths == length) & (entering >= 0))
        words[q, : length - 1] = words[sources[entering[q]], : length - 1]
        words[q, length - 1] = topology.label[entering[q]]
    return words, lengths
