"""The most probable casing of sentences: a Viterbi search over the states of a cased n-gram model A_W.

The result is the best path of  acceptor(x̄) ∘ V ∘ A_W,  where V rewrites u(y) to y. Hypotheses in the same state have
the same future, so only the best of them is kept, and no beam is needed. Paper: §5.
"""

from typing import NamedTuple

import numpy as np

from fedgram.automata.scoring import WeightedArcs, step_on
from fedgram.core.arrays import ByteArray, FloatArray, IntArray, LongArray
from fedgram.core.jit import kernel, lean_kernel
from fedgram.distill.casing.case_classes import ClassArrays
from fedgram.text.vocabulary import EOS

_LATTICE_ROWS = 1024


class CasedModel(NamedTuple):
    """A_W for the search. `arcs` has the backoff weights for other words, then those for capitalised words."""

    arcs: tuple[WeightedArcs, WeightedArcs]
    is_capital: ByteArray
    classes: ClassArrays
    start: int


class Lattice(NamedTuple):
    """The hypotheses of a sentence, one per row: state, last word, row of the one it extends, log-probability."""

    state: IntArray
    word: IntArray
    previous: IntArray
    score: FloatArray


@kernel
def best_casings(model: CasedModel, values: IntArray, offsets: LongArray) -> tuple[IntArray, IntArray]:
    """(the most probable casing of every sentence of classes, the state of A_W before each word).

    A word that no state reads costs nothing and leads to the empty history.
    """
    classes, states = model.classes, len(model.arcs[0].backoff)
    cased, before = np.empty(len(values), np.int32), np.empty(len(values), np.int32)
    row_of_state, lattice = np.empty(states, np.int64), _empty_lattice(_LATTICE_ROWS)
    for s in range(len(offsets) - 1):
        lattice.state[0], lattice.score[0] = model.start, 0.0
        begin, end = 0, 1  # the rows of the newest hypotheses
        for i in range(offsets[s], offsets[s + 1]):
            variants = classes.variant[classes.first[values[i]] : classes.first[values[i] + 1]]
            room = end + (end - begin) * len(variants)
            if room > len(lattice.score):
                lattice = _grown(lattice, end, 2 * room)
            begin, end = end, _extend(model, lattice, begin, end, variants, row_of_state)
        row = _best_end(model.arcs[0], lattice, begin, end)
        for i in range(offsets[s + 1] - 1, offsets[s] - 1, -1):
            cased[i] = lattice.word[row]
            row = lattice.previous[row]
            before[i] = lattice.state[row]
    return cased, before


@kernel
def _empty_lattice(rows: int) -> Lattice:
    return Lattice(np.empty(rows, np.int32), np.empty(rows, np.int32), np.empty(rows, np.int32), np.empty(rows))


@kernel
def _grown(lattice: Lattice, used: int, more: int) -> Lattice:
    """The used rows of a lattice, and more."""
    grown = _empty_lattice(used + more)
    grown.state[:used], grown.word[:used] = lattice.state[:used], lattice.word[:used]
    grown.previous[:used], grown.score[:used] = lattice.previous[:used], lattice.score[:used]
    return grown


@lean_kernel
def _extend(
    model: CasedModel, lattice: Lattice, begin: int, end: int, variants: IntArray, row_of_state: LongArray
) -> int:
    """Extend the hypotheses `begin:end` by each variant of a word, with one new row per state; returns their end.

    `row_of_state` is never cleared: an entry is valid if it is a new row that is in the state.
    """
    state, word, previous, score = lattice
    new = end
    for h in range(begin, end):
        for y in variants:
            log_p, q = step_on(model.arcs[model.is_capital[y]], state[h], y)
            total = score[h] + (log_p if log_p > -np.inf else 0.0)
            row = row_of_state[q]
            if not (end <= row < new and state[row] == q):
                row = new
                row_of_state[q] = new
                new += 1
            elif total <= score[row]:
                continue
            state[row], word[row], previous[row], score[row] = q, y, h, total
    return new


@lean_kernel
def _best_end(arcs: WeightedArcs, lattice: Lattice, begin: int, end: int) -> int:
    """The hypothesis that is best after the sentence end."""
    best, best_total = begin, -np.inf
    for h in range(begin, end):
        log_p, _ = step_on(arcs, lattice.state[h], EOS)
        if lattice.score[h] + log_p > best_total:
            best, best_total = h, lattice.score[h] + log_p
    return best
