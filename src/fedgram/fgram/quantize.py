"""Probabilities in a few bits that still sum to one.

Every order has a codebook of 2^bits log-probabilities, and an n-gram gets the nearest code. If the codes of a state sum
to so much that too little is left for the backoff, some of them are moved. The backoff weight is then computed from the
probabilities of the codes, so that rounding changes the likelihood but not the sum of the probabilities. A short list
does not store its backoff weight, since readers can compute it. That of a longer list is rounded to a step that keeps
the sum of every state within the tolerance.
"""

from dataclasses import dataclass

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.topology import arc_sources, backoff_arcs, state_lengths
from fedgram.core.arrays import FloatArray, IntArray, LongArray, sum_by
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.fgram.frame import LOG_ZERO, MAX_BACKOFF_BITS

TOLERANCE = 1e-3  # of the sum of every state
DERIVED = 4  # the longest list whose backoff weight is derived
_AIM = 3e-4  # deviation from which on the backoff weights get no more bits
_LEAST_LOG = -90.0  # of a word that has a probability
_LEAST_BACKOFF = -12.0
_BINS, _ROUNDS = 1 << 14, 20


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """One code per arc, one backoff code per state (−1 where none is stored), and the tables that decode them.

    `books[n − 1]` holds the log-probabilities of order n. The log backoff weight of a context of n words is
    `backoff_low[n]` + code · `backoff_step[n]`. `deviation` is the largest deviation of a state's sum from 1.
    """

    code: LongArray
    backoff_code: LongArray
    books: FloatArray
    backoff_low: FloatArray
    backoff_step: FloatArray
    backoff_bits: int
    deviation: float

    @property
    def code_bits(self) -> int:
        """Bits per probability."""
        return len(self.books[0]).bit_length() - 1


def quantize(model: NGramModel, *, bits: int) -> Quantized:
    """Quantise a normalised model; refused if a state would not sum to 1 within `TOLERANCE`."""
    t = model.topology
    sources, lengths = arc_sources(t), state_lengths(t)
    level = lengths[sources]
    log_weight = np.maximum(model.log_weight, _LEAST_LOG)
    books = np.empty((t.order, 1 << bits))
    code = np.empty(t.arcs, np.int64)
    for n in range(t.order):
        arcs = np.flatnonzero(level == n)
        book = make_codebook(log_weight[arcs], (1 << bits) - (n == 0))
        code[arcs] = nearest(book, log_weight[arcs]) + (n == 0)
        if n == 0:  # code 0 stands for no probability; the other words sum to 1
            book -= np.log(np.exp(book[code[arcs] - 1]).sum())
            book = np.concatenate([[LOG_ZERO], np.minimum(book, 0.0)])
        books[n] = np.concatenate([book, np.full((1 << bits) - len(book), book[-1])]).astype(np.float32)
    lower = backoff_arcs(t)
    room = 1.0 - sum_by(sources[lower >= 0], np.exp(model.log_weight[lower[lower >= 0]]), t.states)
    _fit_sums(t.first_arc, level, np.exp(model.log_weight), room, np.exp(books), code)
    return _with_backoffs(model, code, books, level, lower)


def _with_backoffs(
    model: NGramModel, code: LongArray, books: FloatArray, level: IntArray, lower: IntArray
) -> Quantized:
    """Add the backoff weights, with as few bits as bring all sums near 1."""
    t = model.topology
    sources, lengths, sizes = arc_sources(t), state_lengths(t), np.diff(t.first_arc)
    weight = np.exp(books[level, code])
    inner = np.flatnonzero(lower >= 0)
    rest = 1.0 - sum_by(sources, weight, t.states)
    room = 1.0 - sum_by(sources[inner], weight[lower[inner]], t.states)
    exact = np.where((rest > 1e-9) & (room > 1e-9), np.log(np.maximum(rest, 1e-9) / np.maximum(room, 1e-9)), LOG_ZERO)
    stored = (sizes > DERIVED) & (lengths > 0)
    low, step = np.zeros(t.order), np.zeros(t.order)
    for backoff_bits in range(8, MAX_BACKOFF_BITS + 1):
        log_backoff, codes = np.where(sizes > 0, exact, 0.0), np.full(t.states, -1)
        for n in range(1, t.order):
            q = np.flatnonzero(stored & (lengths == n))
            if len(q):
                wanted = np.maximum(exact[q], _LEAST_BACKOFF)
                low[n] = np.float32(wanted.min())
                step[n] = np.float32((wanted.max() - low[n]) / ((1 << backoff_bits) - 1))
                codes[q] = np.rint((wanted - low[n]) / step[n] if step[n] > 0 else 0.0 * wanted).astype(np.int64)
                codes[q] = np.clip(codes[q], 0, (1 << backoff_bits) - 1)
                log_backoff[q] = low[n] + codes[q] * step[n]
        deviation = float(np.abs(_sums(t.backoff, 1.0 - rest, 1.0 - room, np.exp(log_backoff)) - 1.0).max())
        if deviation <= _AIM:
            break
    if deviation > TOLERANCE:
        raise FedgramError(
            f"the probabilities of a state would sum to 1 ± {deviation:.2g}; pack the model with more bits"
        )
    return Quantized(code, codes, books, low, step, backoff_bits, deviation)


@kernel
def _sums(backoff: IntArray, own: FloatArray, covered: FloatArray, backoff_weight: FloatArray) -> FloatArray:
    """Σ_x p(x|q) for all q: Σ_L w + w_φ · (Σ_x p(x|backoff) − Σ_L p(x|backoff))."""
    total = own.copy()
    for q in range(1, len(backoff)):
        total[q] += backoff_weight[q] * (total[backoff[q]] - covered[q])
    return total


def make_codebook(values: FloatArray, size: int) -> FloatArray:
    """At most `size` rising values that represent these with little squared error; exact if there are no more.

    The density of the points is the cube root of that of the values (Panter and Dite), followed by Lloyd's algorithm.

    >>> make_codebook(np.array([-1.0, -3.0, -1.0]), 4).tolist()
    [-3.0, -1.0]
    """
    distinct = np.unique(values.astype(np.float32).astype(np.float64))
    if len(distinct) <= size:
        return distinct
    low, high = float(values.min()), float(values.max())
    bins = np.minimum(((values - low) / (high - low) * _BINS).astype(np.int64), _BINS - 1)
    count = np.bincount(bins, minlength=_BINS).astype(np.float64)
    total = np.bincount(bins, values, minlength=_BINS)
    smooth = np.convolve(count, np.ones(65) / 65, "same")
    share = np.cumsum(np.cbrt(smooth))
    book = low + (high - low) * np.interp((np.arange(size) + 0.5) / size * share[-1], share, np.arange(_BINS)) / _BINS
    centre = np.where(count > 0, total / np.maximum(count, 1.0), 0.0)
    used = np.flatnonzero(count)
    for _ in range(_ROUNDS):
        owner = nearest(book, centre[used])
        mass = np.bincount(owner, count[used], minlength=len(book))
        book = np.bincount(owner, total[used], minlength=len(book))[mass > 0] / mass[mass > 0]
    return np.unique(np.minimum(book, 0.0))


def nearest(book: FloatArray, values: FloatArray) -> LongArray:
    """The index of the nearest value in a rising book, for each value."""
    middles = (book[1:] + book[:-1]) / 2
    return np.searchsorted(middles, values).astype(np.int64)


@kernel
def _fit_sums(
    first_arc: LongArray, level: IntArray, weight: FloatArray, room: FloatArray, books: FloatArray, code: LongArray
) -> None:
    """Move codes of states that would sum to too much, or to too little where no word is left to back off to."""
    for q in range(1, len(first_arc) - 1):
        begin, end = first_arc[q], first_arc[q + 1]
        if begin == end:
            continue
        book = books[level[begin]]
        true, total = 0.0, 0.0
        for e in range(begin, end):
            true += weight[e]
            total += book[code[e]]
        most = 1.0 - max((1.0 - true) / 2, 1e-6)
        if total > most:
            _move(code, book, begin, end, total - most, -1)
        elif room[q] < 1e-6 and total < 1.0 - 1e-4:
            _move(code, book, begin, end, total - (1.0 - 1e-4), 1)


@kernel
def _move(code: LongArray, book: FloatArray, begin: int, end: int, excess: float, way: int) -> None:
    """Move codes up (`way` 1) or down (−1) by one until `excess` is gone, in the order of the greatest fitting change.

    Downwards, the last move overshoots, so that no excess is left. Upwards, no move does.
    """
    for _ in range(4 * (end - begin) + 1000):
        if (way < 0 and excess <= 0.0) or (way > 0 and excess >= 0.0):
            return
        choice, change, least, least_change = -1, 0.0, -1, np.inf
        for e in range(begin, end):
            moved = code[e] + way
            if moved < 0 or moved >= len(book):
                continue
            size = abs(book[moved] - book[code[e]])
            if size <= abs(excess) and size > change:
                choice, change = e, size
            if 0.0 < size < least_change:
                least, least_change = e, size
        if choice < 0:
            if way > 0 or least < 0:
                return
            choice, change = least, least_change
        code[choice] += way
        excess += way * change
