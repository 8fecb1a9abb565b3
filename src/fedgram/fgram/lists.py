"""The lists of a packed model: what follows a context, and with which code.

What follows a context of i words is a *list*: at i = 1 of word ids, one segment a tier, and beyond of positions in the
list of the context without its first word, which holds all of them. In front of a list stands its size and, if it is
long, its backoff weight; a short list's is derived from the codes.
"""

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.jit import merged_kernel
from fedgram.fgram.bits import Words, bit_length, bitmap_rank, read_bits, read_gamma, read_word, sequence_get
from fedgram.fgram.frame import (
    F_BACKOFF_BITS,
    F_BITS,
    F_DERIVED,
    F_LEVELS,
    F_ORDER,
    F_TIER_ENDS,
    F_TIERS,
    L_CHILDREN,
    L_CONTEXTS,
    L_LISTS,
    L_NGRAMS,
    L_POINTER_HIGH,
    L_POINTER_WIDTH,
    L_POINTERS,
    L_START_HIGH,
    L_START_WIDTH,
    L_STARTS,
    LEVEL,
    LOG_ZERO,
)
from fedgram.fgram.sets import segment_code, segment_end, segment_get, segment_rank

ROOM_LEFT = 1e-9  # less probability than this counts as none


@merged_kernel
def child(words: Words, frame: LongArray, order: int, ngram: int) -> int:
    """The number of the context that an n-gram of this order is, or −1."""
    level = F_LEVELS + LEVEL * order
    if order >= frame[F_ORDER] or ngram < 0 or ngram >= frame[level + L_NGRAMS]:
        return -1
    at = frame[level + L_CHILDREN]
    if (read_word(words, at + ngram) & np.uint64(1)) == 0:
        return -1
    number = bitmap_rank(words, at, frame[level + L_NGRAMS], ngram)
    return number if number < frame[level + LEVEL + L_CONTEXTS] else -1


@merged_kernel
def list_at(words: Words, frame: LongArray, i: int, context: int) -> int:
    """The bit where the list of a context of i words begins."""
    level = F_LEVELS + LEVEL * (i + 1)
    pointer = sequence_get(
        words, frame[level + L_POINTERS], frame[level + L_CONTEXTS], frame[level + L_POINTER_WIDTH],
        frame[level + L_POINTER_HIGH], context,
    )  # fmt: skip
    at: int = frame[level + L_LISTS] + pointer
    return at


@merged_kernel
def list_start(words: Words, frame: LongArray, i: int, context: int) -> int:
    """The number of the first n-gram of the list of a context of i words."""
    level = F_LEVELS + LEVEL * (i + 1)
    return sequence_get(
        words, frame[level + L_STARTS], frame[level + L_CONTEXTS], frame[level + L_START_WIDTH],
        frame[level + L_START_HIGH], context,
    )  # fmt: skip


@merged_kernel
def list_size(words: Words, frame: LongArray, at: int, universe: int) -> tuple[int, int, int]:
    """(size, bit of the backoff weight or −1 if it is derived, bit behind both); at least 1, at most `universe`."""
    m, at = read_gamma(words, at)
    m = min(m, max(universe, 1))
    if m > frame[F_DERIVED]:
        return m, at, at + frame[F_BACKOFF_BITS]
    return m, -1, at


@merged_kernel
def segment_of(
    words: Words, frame: LongArray, i: int, at: int, m: int, universe: int, t: int
) -> tuple[int, int, int, int]:
    """Segment t of a list whose sizes begin at `at`: (its bit, its size, what it lies below, its first position).

    A list of a context of one word has a segment a tier, and in front of them the sizes of all but the last; others
    have one segment.
    """
    if i > 1 or frame[F_TIERS] == 1:
        return at, m, universe, 0
    bits, tiers = frame[F_BITS], frame[F_TIERS]
    n1, n2, n3 = m, 0, 0
    width = bit_length(m)
    n0 = min(read_bits(words, at, width), m)
    at += width
    n1 = m - n0
    if tiers > 2:
        width = bit_length(n1)
        n2 = n1
        n1 = min(read_bits(words, at, width), n1)
        n2 -= n1
        at += width
    if tiers > 3:
        width = bit_length(n2)
        n3 = n2
        n2 = min(read_bits(words, at, width), n2)
        n3 -= n2
        at += width
    end0, end1, end2 = frame[F_TIER_ENDS], frame[F_TIER_ENDS + 1], frame[F_TIER_ENDS + 2]
    if t == 0:
        return at, min(n0, end0), end0, 0
    at = segment_end(words, at, n0, end0, bits)
    if t == 1:
        return at, min(n1, end1 - end0), end1 - end0, n0
    at = segment_end(words, at, n1, end1 - end0, bits)
    if t == 2:
        return at, min(n2, end2 - end1), end2 - end1, n0 + n1
    at = segment_end(words, at, n2, end2 - end1, bits)
    return at, min(n3, universe - end2), universe - end2, n0 + n1 + n2


@merged_kernel
def tier_of(frame: LongArray, word: int) -> tuple[int, int]:
    """(a word's tier, the tier's first word)."""
    first = 0
    for t in range(frame[F_TIERS] - 1):
        if word < frame[F_TIER_ENDS + t]:
            return t, first
        first = frame[F_TIER_ENDS + t]
    return frame[F_TIERS] - 1, first


@merged_kernel
def list_rank(words: Words, frame: LongArray, i: int, at: int, m: int, universe: int, x: int) -> tuple[int, bool, int]:
    """(how many numbers of the list are less than x, whether x is one of them, its code if it is)."""
    if x >= universe:
        return m, False, 0
    t, first = tier_of(frame, x) if i == 1 else (0, 0)
    place, n, below, before = segment_of(words, frame, i, at, m, universe, t)
    rank, found, code = segment_rank(words, place, n, below, frame[F_BITS], x - first)
    return before + rank, found, code


@merged_kernel
def list_place(
    words: Words, frame: LongArray, i: int, at: int, m: int, universe: int, position: int
) -> tuple[int, int, int, int, int]:
    """Where a position of a list is: (its segment's bit, size and bound, the position in it, the first number)."""
    first = 0
    for t in range(frame[F_TIERS] if i == 1 else 1):
        place, n, below, before = segment_of(words, frame, i, at, m, universe, t)
        if position < before + n:
            return place, n, below, position - before, first
        first = frame[F_TIER_ENDS + t]
    return at, 0, 1, 0, 0


@merged_kernel
def list_number(words: Words, frame: LongArray, i: int, at: int, m: int, universe: int, position: int) -> int:
    """The number at a position of a list."""
    place, n, below, position, first = list_place(words, frame, i, at, m, universe, position)
    return first + segment_get(words, place, n, below, frame[F_BITS], position) if n else 0


@merged_kernel
def list_code(words: Words, frame: LongArray, i: int, at: int, m: int, universe: int, position: int) -> int:
    """The code at a position of a list."""
    place, n, below, position, _ = list_place(words, frame, i, at, m, universe, position)
    return segment_code(words, place, n, below, frame[F_BITS], position) if n else 0


@merged_kernel
def log_backoff(
    words: Words, frame: LongArray, tables: FloatArray, i: int, weight_at: int, at: int, m: int, universe: int,
    lower_at: int, lower_universe: int,
) -> float:  # fmt: skip
    """The log backoff weight of a context of i words, given its list and the next shorter one, of `universe` numbers.

    A short list does not store it: it is (1 − Σ p(x|context)) / (1 − Σ p(x|shorter context)) over the list.
    """
    codes = 1 << frame[F_BITS]
    if weight_at >= 0:
        stored: float = tables[i, codes] + read_bits(words, weight_at, frame[F_BACKOFF_BITS]) * tables[i, codes + 1]
        return stored
    rest, room = 1.0, 1.0
    for position in range(m):
        place, n, below, position, first = list_place(words, frame, i, at, m, universe, position)
        if n == 0:
            continue
        number = first + segment_get(words, place, n, below, frame[F_BITS], position)
        rest -= tables[i, codes + 2 + segment_code(words, place, n, below, frame[F_BITS], position)]
        if i == 1:
            lower = unigram_code(words, frame, number)
        else:
            lower = list_code(words, frame, i - 1, lower_at, universe, lower_universe, number)
        room -= tables[i - 1, codes + 2 + lower]
    if rest < ROOM_LEFT or room < ROOM_LEFT:
        return LOG_ZERO
    derived: float = np.log(rest / room)
    return derived


@merged_kernel
def unigram_code(words: Words, frame: LongArray, word: int) -> int:
    """The code of a word's own probability."""
    return read_bits(words, frame[F_LEVELS + LEVEL + L_LISTS] + word * frame[F_BITS], frame[F_BITS])
