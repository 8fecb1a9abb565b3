"""Sampling sentences from a model: each label is drawn with its exact probability p(x|q), without truncation."""

from typing import NamedTuple

import numpy as np

from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.topology import END, find_arc
from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.jit import kernel
from fedgram.core.random import stream_key, uniform_at
from fedgram.text.vocabulary import EOS

MAX_LENGTH = 1000
_MAX_REJECTIONS = 64  # after this many, the allowed labels are added up instead


class SampledArcs(NamedTuple):
    """A model as one argument for kernels.

    The first four arrays are those of the topology. `weight` is p(x|q) per arc, `cumulative` its running sums within
    each state.
    """

    first_arc: LongArray
    label: IntArray
    dest: IntArray
    backoff: IntArray
    weight: FloatArray
    cumulative: FloatArray


def sample_sentences(
    model: NGramModel, count: int, *, seed: int, first: int = 0, max_length: int = MAX_LENGTH
) -> Ragged:
    """Sentences `first` … `first + count − 1` of this seed, without `<s>` and `</s>`, cut at `max_length` words.

    Sentence i depends only on the model, the seed and i, so sentences may be drawn in batches of any size.
    """
    return _sample(model, count, seed, first, max_length)[0]


def sample_texts(model: NGramModel, count: int, *, seed: int) -> list[str]:
    """Sentences as text."""
    words = model.vocabulary.words
    drawn = sample_sentences(renormalize(model), count, seed=seed)
    return [" ".join(words[i] for i in sentence) for sentence in drawn]


def sampled_visits(
    model: NGramModel, count: int, *, seed: int, first: int = 0, max_length: int = MAX_LENGTH
) -> FloatArray:
    """The number of visits of the same sentences to each state."""
    return _sample(model, count, seed, first, max_length)[1]


def _sample(model: NGramModel, count: int, seed: int, first: int, max_length: int) -> tuple[Ragged, FloatArray]:
    t, weight = model.topology, np.exp(model.log_weight)
    sampled = SampledArcs(*t.arrays, weight, _cumulative(t.first_arc, weight))
    key = stream_key(seed, "sample")
    values, offsets, visits = _draw(sampled, t.start, key, first, count, max_length)
    return Ragged(values, offsets), visits


@kernel
def _cumulative(first_arc: LongArray, weight: FloatArray) -> FloatArray:
    """The running sums of the weights within each state."""
    result = np.empty(len(weight))
    for q in range(len(first_arc) - 1):
        total = 0.0
        for e in range(first_arc[q], first_arc[q + 1]):
            total += weight[e]
            result[e] = total
    return result


@kernel
def _draw(
    model: SampledArcs, start: int, key: np.uint64, first: int, count: int, max_length: int
) -> tuple[IntArray, LongArray, FloatArray]:
    """The words of the sentences, the offsets of the sentences, and the visits to each state."""
    values, offsets = np.empty(16 * count + 16, np.int32), np.zeros(count + 1, np.int64)
    visits = np.zeros(len(model.backoff))
    size = 0
    for s in range(count):
        q, draws, length = start, 0, 0
        while True:
            visits[q] += 1.0
            if length == max_length:
                break
            e, draws = _draw_arc(model, q, key, first + s, draws)
            if model.label[e] == EOS or model.dest[e] == END:
                break
            if size == len(values):
                values = np.concatenate((values, np.empty_like(values)))
            values[size] = model.label[e]
            size += 1
            length += 1
            q = model.dest[e]
        offsets[s + 1] = size
    return values[:size].copy(), offsets, visits


@kernel
def _draw_arc(model: SampledArcs, q: int, key: np.uint64, sample: int, draws: int) -> tuple[int, int]:
    """An arc on q's backoff path, drawn with its probability; and the number of random numbers used so far.

    At each state, either one of its arcs or the backoff arc is drawn. After a backoff, a label that the state before
    has an arc for is rejected, and the draw is repeated. It is enough to look one state back, as L[q] ⊆ L[backoff q].
    """
    before, rejections = -1, 0
    while True:
        begin, end = model.first_arc[q], model.first_arc[q + 1]
        u = uniform_at(key, sample, draws)
        draws += 1
        explicit = model.cumulative[end - 1] if end > begin else 0.0
        if model.backoff[q] < 0:
            u *= explicit
        elif u >= explicit:
            before, q, rejections = q, model.backoff[q], 0
            continue
        e = min(_first_above(model.cumulative, begin, end, u), end - 1)
        if before < 0 or not _reads(model, before, model.label[e]):
            return e, draws
        rejections += 1
        if rejections > _MAX_REJECTIONS:
            e = _draw_allowed(model, q, before, uniform_at(key, sample, draws))
            draws += 1
            if e >= 0:
                return e, draws
            before, q, rejections = q, model.backoff[q], 0


@kernel
def _first_above(cumulative: FloatArray, begin: int, end: int, u: float) -> int:
    """The first index in `begin:end` whose value is greater than u, or `end`; the values increase."""
    while begin < end:
        middle = (begin + end) >> 1
        if cumulative[middle] <= u:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel
def _reads(model: SampledArcs, q: int, x: int) -> bool:
    return find_arc(model.label, model.first_arc[q], model.first_arc[q + 1], x) >= 0


@kernel
def _draw_allowed(model: SampledArcs, q: int, before: int, u: float) -> int:
    """An arc of q that `before` has no arc for, drawn by adding up all of them; −1 for the backoff arc."""
    begin, end = model.first_arc[q], model.first_arc[q + 1]
    allowed = 0.0
    for e in range(begin, end):
        if not _reads(model, before, model.label[e]):
            allowed += model.weight[e]
    target = u * (allowed + (1.0 - model.cumulative[end - 1] if model.backoff[q] >= 0 else 0.0))
    if target >= allowed and model.backoff[q] >= 0:
        return -1
    last = begin
    for e in range(begin, end):
        if not _reads(model, before, model.label[e]):
            last = e
            target -= model.weight[e]
            if target < 0.0:
                break
    drawn: int = last
    return drawn
