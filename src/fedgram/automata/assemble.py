"""A model from a list of weighted n-grams as read from a file: in any order, and possibly with gaps."""

from dataclasses import dataclass

import numpy as np

from fedgram.automata.build import topology_from_ngrams
from fedgram.automata.model import NGramModel
from fedgram.automata.topology import arc_sources, backoff_arcs, entering_arcs
from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary


class DuplicateNGramError(InvariantError):
    """An n-gram occurs twice in a list; `row` is the second occurrence."""

    def __init__(self, row: int) -> None:
        self.row = row
        super().__init__(f"n-gram {row} occurs twice")


@dataclass(frozen=True, slots=True, eq=False)
class WeightedNGrams:
    """N-grams with natural log-probabilities and log backoff weights; 0 if an n-gram has no backoff weight."""

    vocabulary: Vocabulary
    ngrams: Ragged
    log_weight: FloatArray
    log_backoff: FloatArray


def assemble(given: WeightedNGrams) -> NGramModel:
    """The backoff model of these n-grams.

    Every word of the vocabulary except `<s>` and `<unk>` must be given as a unigram; for `<s>`, only the backoff weight
    is used. N-grams that are missing but needed for closure are added with the probability they have by backing off,
    so that the distribution stays the same. An n-gram with a backoff weight is a state even if no n-gram continues it.
    """
    ngrams, words = given.ngrams, len(given.vocabulary)
    lengths, last = np.diff(ngrams.offsets), ngrams.values[ngrams.offsets[1:] - 1]
    has_unknown = bool(np.any((lengths == 1) & (last == UNK)))
    if not has_unknown and bool(np.any(ngrams.values == UNK)):
        raise InvariantError("an n-gram contains <unk>, but <unk> is not a unigram")
    contexts = (given.log_backoff != 0.0) & (last != EOS) & (lengths < max(int(lengths.max(initial=1)), 2))
    built = topology_from_ngrams(ngrams, words, open_vocabulary=has_unknown, contexts=contexts)
    t = built.topology
    row = _row_of_arc(built.arc, t.arcs)
    missing = np.flatnonzero(row[: t.first_arc[1]] < 0)
    if len(missing):
        raise InvariantError(f"{len(missing)} words of the vocabulary are missing from the unigrams")
    log_weight = np.where(row >= 0, given.log_weight[row], np.nan)
    log_backoff = np.zeros(t.states)
    entering = entering_arcs(t)
    inner = np.flatnonzero(entering >= 0)
    rows = row[entering[inner]]
    log_backoff[inner] = np.where(rows >= 0, given.log_backoff[rows], 0.0)
    start_rows = np.flatnonzero((lengths == 1) & (last == BOS))
    log_backoff[t.start] = given.log_backoff[start_rows[0]] if len(start_rows) else 0.0
    _fill_gaps(log_weight, log_backoff, backoff_arcs(t), arc_sources(t))
    return NGramModel(t, given.vocabulary, np.minimum(log_weight, 0.0), log_backoff)


def _row_of_arc(arc: IntArray, arcs: int) -> LongArray:
    """For each arc, the row of its n-gram in the list, or −1; `arc` is the arc of each row."""
    placed = np.flatnonzero(arc >= 0)
    row = np.full(arcs, -1, np.int64)
    row[arc[placed][::-1]] = placed[::-1]  # the last assignment wins: the first row of each arc
    repeated = placed[row[arc[placed]] != placed]
    if len(repeated):
        raise DuplicateNGramError(int(repeated[0]))
    return row


@kernel
def _fill_gaps(log_weight: FloatArray, log_backoff: FloatArray, lower: IntArray, source: IntArray) -> None:
    """Replace each NaN by the probability of the n-gram by backing off."""
    for e in range(len(log_weight)):
        if np.isnan(log_weight[e]):
            log_weight[e] = log_backoff[source[e]] + log_weight[lower[e]]
