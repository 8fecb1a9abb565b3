"""Drawing sentences from a model, exactly: each label with probability p(x|q), no truncation."""

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.topology import END, find_arc
from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.jit import kernel
from fedgram.core.random import stream_key, uniform_at
from fedgram.text.vocabulary import EOS

MAX_LENGTH = 1000
_PATIENCE = 64  # rejections before the labels are added up one by one


def sample_sentences(
    model: NGramModel, count: int, *, seed: int, first: int = 0, max_length: int = MAX_LENGTH
) -> Ragged:
    """Sentences number `first` … `first + count − 1` of this seed, without marks, cut at `max_length` words.

    Sentence i depends on the model, the seed and i alone, so that sentences may be drawn in any batches.
    """
    return _sample(model, count, seed, first, max_length)[0]


def sampled_visits(
    model: NGramModel, count: int, *, seed: int, first: int = 0, max_length: int = MAX_LENGTH
) -> FloatArray:
    """How often those same sentences visit each state."""
    return _sample(model, count, seed, first, max_length)[1]


def _sample(model: NGramModel, count: int, seed: int, first: int, max_length: int) -> tuple[Ragged, FloatArray]:
    t = model.topology
    weight = np.exp(model.log_weight)
    cumulative = _cumulative(t.first_arc, weight)
    values, offsets, visits = _draw(
        t.first_arc,
        t.label,
        t.dest,
        t.backoff,
        t.start,
        weight,
        cumulative,
        stream_key(seed, "sample"),
        first,
        count,
        max_length,
    )
    return Ragged(values, offsets), visits


@kernel
def _cumulative(first_arc: LongArray, weight: FloatArray) -> FloatArray:
    """Running sums of the arcs' probabilities within each state."""
    result = np.empty(len(weight))
    for q in range(len(first_arc) - 1):
        total = 0.0
        for e in range(first_arc[q], first_arc[q + 1]):
            total += weight[e]
            result[e] = total
    return result


@kernel
def _draw(
    first_arc: LongArray, label: IntArray, dest: IntArray, backoff: IntArray, start: int, weight: FloatArray,
    cumulative: FloatArray,
    key: np.uint64, first: int, count: int, max_length: int,
) -> tuple[IntArray, LongArray, FloatArray]:  # fmt: skip
    values, offsets = np.empty(16 * count + 16, np.int32), np.zeros(count + 1, np.int64)
    visits = np.zeros(len(backoff))
    size = 0
    for s in range(count):
        q, draws, length = start, 0, 0
        while True:
            visits[q] += 1.0
            if length == max_length:
                break
            e, draws = _draw_arc(first_arc, label, backoff, weight, cumulative, q, key, first + s, draws)
            if label[e] == EOS or dest[e] == END:
                break
            if size == len(values):
                values = np.concatenate((values, np.empty_like(values)))
            values[size] = label[e]
            size += 1
            length += 1
            q = dest[e]
        offsets[s + 1] = size
    return values[:size].copy(), offsets, visits


@kernel
def _draw_arc(
    first_arc: LongArray, label: IntArray, backoff: IntArray, weight: FloatArray, cumulative: FloatArray, q: int,
    key: np.uint64, sample: int, draws: int,
) -> tuple[int, int]:  # fmt: skip
    """An arc on q's backoff path, drawn with its probability.

    At each state either one of its labels is drawn, or the backoff arc is taken; a label that the state before reads
    itself does not count there and is drawn again. As L[q] ⊆ L[backoff q], looking one state back is enough.
    """
    before, rejected = -1, 0
    while True:
        begin, end = first_arc[q], first_arc[q + 1]
        u = uniform_at(key, sample, draws)
        draws += 1
        explicit = cumulative[end - 1] if end > begin else 0.0
        if backoff[q] < 0:
            u *= explicit
        elif u >= explicit:
            before, q, rejected = q, backoff[q], 0
            continue
        e = begin + np.searchsorted(cumulative[begin:end], u, side="right")
        e = min(e, end - 1)
        if before < 0 or find_arc(label, first_arc[before], first_arc[before + 1], label[e]) < 0:
            return e, draws
        rejected += 1
        if rejected > _PATIENCE:
            allowed = 0.0
            for f in range(begin, end):
                if find_arc(label, first_arc[before], first_arc[before + 1], label[f]) < 0:
                    allowed += weight[f]
            target = uniform_at(key, sample, draws) * (allowed + (1.0 - explicit if backoff[q] >= 0 else 0.0))
            draws += 1
            if target >= allowed and backoff[q] >= 0:
                before, q, rejected = q, backoff[q], 0
                continue
            last = begin
            for f in range(begin, end):
                if find_arc(label, first_arc[before], first_arc[before + 1], label[f]) < 0:
                    last = f
                    target -= weight[f]
                    if target < 0.0:
                        break
            return last, draws
