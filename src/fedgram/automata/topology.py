"""The unweighted backoff automaton.

A state is an n-gram history, and an arc is an n-gram. The arcs of state q are `first_arc[q]:first_arc[q+1]`. Arc e
reads `label[e]` and leads to `dest[e]`, which is −1 for the sentence end `</s>`. A label that state q has no arc for is
read by `backoff[q]`. The sentence start `<s>` is a state but never a label. Paper: §4.

Invariants (`properties` checks all of them):

- T1  `first_arc` starts at 0, never decreases, and ends at the number of arcs.
- T2  The labels of a state increase strictly.
- T3  State 0 is the empty history, with `backoff[0] = −1`. Elsewhere `backoff[q] < q`. States are sorted by the length
      of their history, so a plain loop over states visits every backoff state before those that back off to it.
- T4  The topology is backoff-complete: every label that q reads, `backoff[q]` reads too.
- T5  (words) State 0 reads every word of the vocabulary except `<s>`. It reads `<unk>` unless the vocabulary is closed.
- T6  (words) An arc leads to the longest suffix of its n-gram that is a state; `</s>` leads to −1.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedgram.core.arrays import IntArray, LongArray, frozen
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import BOS

END = -1  # the destination of `</s>`


class Arcs(NamedTuple):
    """The arrays of a topology as one argument for kernels; the module docstring describes them."""

    first_arc: LongArray
    label: IntArray
    dest: IntArray
    backoff: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """A backoff automaton without weights; the module docstring describes the representation."""

    first_arc: LongArray
    label: IntArray
    dest: IntArray
    backoff: IntArray
    start: int

    def __post_init__(self) -> None:
        shapes_fit = len(self.first_arc) == len(self.backoff) + 1 and len(self.label) == len(self.dest)
        if not shapes_fit or len(self.backoff) == 0 or self.first_arc[-1] != len(self.label):
            raise InvariantError("Topology: the lengths of the arrays do not match")
        if not 0 <= self.start < len(self.backoff) or self.backoff[0] != -1:
            raise InvariantError("Topology: the start state does not exist, or state 0 has a backoff")
        for array in (self.first_arc, self.label, self.dest, self.backoff):
            frozen(array)

    @property
    def arrays(self) -> Arcs:
        """The arrays as one argument for kernels."""
        return Arcs(self.first_arc, self.label, self.dest, self.backoff)

    @property
    def states(self) -> int:
        """|Q|."""
        return len(self.backoff)

    @property
    def arcs(self) -> int:
        """|E|, which is the number of n-grams; `<s>` alone is not counted."""
        return len(self.label)

    @property
    def order(self) -> int:
        """The length of the longest n-gram."""
        return len(self.arcs_by_order())

    def arcs_by_order(self) -> list[int]:
        """The number of n-grams of order 1, 2, …"""
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
    """The length of each state's history, which is the number of backoff steps to state 0."""
    return _state_lengths(topology.backoff)


@kernel
def _state_lengths(backoff: IntArray) -> IntArray:
    length = np.zeros(len(backoff), np.int32)
    for q in range(1, len(backoff)):
        length[q] = length[backoff[q]] + 1
    return length


def entering_arcs(topology: Topology) -> IntArray:
    """For each state, the arc whose n-gram is the state's history; −1 for state 0 and `<s>`."""
    lengths, sources = state_lengths(topology), arc_sources(topology)
    entering = np.full(topology.states, -1, np.int32)
    grows = np.flatnonzero(topology.dest >= 0)
    grows = grows[lengths[topology.dest[grows]] == lengths[sources[grows]] + 1]
    entering[topology.dest[grows]] = grows
    return entering


def backoff_arcs(topology: Topology) -> IntArray:
    """For each arc (q, x), the arc (backoff[q], x), which exists by T4; −1 at state 0."""
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
    """The arc in `begin:end` that reads x, or −1. Labels increase; where they are consecutive, the first guess hits."""
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


@kernel
def arc_of(arcs: Arcs, q: int, x: int) -> int:
    """The arc of q itself that reads x, or −1."""
    return find_arc(arcs.label, arcs.first_arc[q], arcs.first_arc[q + 1], x)


@kernel
def reading_arc(arcs: Arcs, q: int, x: int) -> int:
    """The arc that reads x after q: of the first state on q's backoff path that has one; −1 if none has."""
    while q >= 0:
        e = arc_of(arcs, q, x)
        if e >= 0:
            return e
        q = arcs.backoff[q]
    return -1


def ngram_matrix(topology: Topology) -> tuple[IntArray, IntArray]:
    """The n-gram of every arc, one row per arc, left-aligned and padded with −1; and the lengths of the n-grams."""
    words, lengths = state_histories(topology)
    sources = arc_sources(topology)
    matrix = np.concatenate([words[sources], np.full((topology.arcs, 1), -1, np.int32)], axis=1)
    ngram_lengths = lengths[sources] + 1
    matrix[np.arange(topology.arcs), ngram_lengths - 1] = topology.label
    return matrix, ngram_lengths


def state_histories(topology: Topology) -> tuple[IntArray, IntArray]:
    """The history of every state, one row per state, left-aligned and padded with −1; and the lengths."""
    lengths, entering, sources = state_lengths(topology), entering_arcs(topology), arc_sources(topology)
    words = np.full((topology.states, int(lengths.max())), -1, np.int32)
    if topology.start:
        words[topology.start, 0] = BOS
    for length in range(1, int(lengths.max()) + 1):
        q = np.flatnonzero((lengths == length) & (entering >= 0))
        words[q, : length - 1] = words[sources[entering[q]], : length - 1]
        words[q, length - 1] = topology.label[entering[q]]
    return words, lengths
