"""The lists of a packed model: the words that can follow each context, with the codes of their probabilities.

The list of a context of one word holds word ids, in one segment per tier. The list of a longer context holds positions
in the list of the next shorter context (the one without the first word), which contains all of its words. A list
starts with its size. If the list is long, its backoff weight follows; that of a short list is derived from the codes.
"""

from typing import NamedTuple

import numpy as np

from fedgram.core.jit import merged_kernel
from fedgram.fgram.bits import bit_length, bitmap_rank, read_bits, read_gamma, read_word, sequence_get
from fedgram.fgram.frame import (
    F_BACKOFF_BITS,
    F_CODE_BITS,
    F_DERIVED,
    F_LEVELS,
    F_ORDER,
    F_TIER_ENDS,
    F_TIERS,
    F_UNIGRAMS,
    F_WORDS,
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
    FgramFile,
)
from fedgram.fgram.sets import Segment, segment_code, segment_end, segment_get, segment_rank

ROOM_LEFT = 1e-9  # a smaller probability counts as none


class Successors(NamedTuple):
    """The open list of a context of `i` words: `size` numbers below `universe`, whose segments start at bit `at`.

    A list of i = 0 stands for all words.
    """

    i: int
    at: int
    size: int
    universe: int


@merged_kernel
def all_words(file: FgramFile) -> Successors:
    """The list of the empty context."""
    return Successors(0, 0, file.frame[F_WORDS], 0)


@merged_kernel
def child(file: FgramFile, order: int, ngram: int) -> int:
    """The number of the context that an n-gram of this order is, or −1."""
    level = F_LEVELS + LEVEL * order
    if order >= file.frame[F_ORDER] or ngram < 0 or ngram >= file.frame[level + L_NGRAMS]:
        return -1
    at = file.frame[level + L_CHILDREN]
    if (read_word(file.bits, at + ngram) & np.uint64(1)) == 0:
        return -1
    number = bitmap_rank(file.bits, at, file.frame[level + L_NGRAMS], ngram)
    return number if number < file.frame[level + LEVEL + L_CONTEXTS] else -1


@merged_kernel
def list_at(file: FgramFile, i: int, context: int) -> int:
    """The first bit of the list of a context of i words."""
    frame, level = file.frame, F_LEVELS + LEVEL * (i + 1)
    pointer = sequence_get(
        file.bits, frame[level + L_POINTERS], frame[level + L_CONTEXTS], frame[level + L_POINTER_WIDTH],
        frame[level + L_POINTER_HIGH], context,
    )  # fmt: skip
    at: int = frame[level + L_LISTS] + pointer
    return at


@merged_kernel
def list_start(file: FgramFile, i: int, context: int) -> int:
    """The number of the first n-gram in the list of a context of i words."""
    frame, level = file.frame, F_LEVELS + LEVEL * (i + 1)
    return sequence_get(
        file.bits, frame[level + L_STARTS], frame[level + L_CONTEXTS], frame[level + L_START_WIDTH],
        frame[level + L_START_HIGH], context,
    )  # fmt: skip


@merged_kernel
def open_list(file: FgramFile, i: int, at: int, universe: int) -> tuple[Successors, int]:
    """The list at bit `at` of a context of i words, and the bit of its backoff code (−1 if the weight is derived).

    Its size is at least 1 and at most `universe`, whatever the bits are.
    """
    size, at = read_gamma(file.bits, at)
    size = min(size, max(universe, 1))
    if size > file.frame[F_DERIVED]:
        return Successors(i, at + file.frame[F_BACKOFF_BITS], size, universe), at
    return Successors(i, at, size, universe), -1


@merged_kernel
def segment_of(file: FgramFile, s: Successors, t: int) -> tuple[Segment, int]:
    """(segment t of a list, the position of its first number in the list).

    The list of a context of one word has one segment per tier. The sizes of all of them but the last are stored in
    front of the segments. Other lists have one segment.
    """
    bits, frame, at = file.bits, file.frame, s.at
    code_bits, tiers = frame[F_CODE_BITS], frame[F_TIERS]
    if s.i > 1 or tiers == 1:
        return Segment(at, s.size, s.universe, code_bits), 0
    n2, n3 = 0, 0
    width = bit_length(s.size)
    n0 = min(read_bits(bits, at, width), s.size)
    at += width
    n1 = s.size - n0
    if tiers > 2:
        width = bit_length(n1)
        n2 = n1
        n1 = min(read_bits(bits, at, width), n1)
        n2 -= n1
        at += width
    if tiers > 3:
        width = bit_length(n2)
        n3 = n2
        n2 = min(read_bits(bits, at, width), n2)
        n3 -= n2
        at += width
    u0 = frame[F_TIER_ENDS]
    u1, u2 = frame[F_TIER_ENDS + 1] - u0, frame[F_TIER_ENDS + 2] - frame[F_TIER_ENDS + 1]
    if t == 0:
        return Segment(at, min(n0, u0), u0, code_bits), 0
    at = segment_end(bits, Segment(at, n0, u0, code_bits))
    if t == 1:
        return Segment(at, min(n1, u1), u1, code_bits), n0
    at = segment_end(bits, Segment(at, n1, u1, code_bits))
    if t == 2:
        return Segment(at, min(n2, u2), u2, code_bits), n0 + n1
    at = segment_end(bits, Segment(at, n2, u2, code_bits))
    u3 = s.universe - frame[F_TIER_ENDS + 2]
    return Segment(at, min(n3, u3), u3, code_bits), n0 + n1 + n2


@merged_kernel
def tier_of(file: FgramFile, word: int) -> tuple[int, int]:
    """(a word's tier, the tier's first word)."""
    first = 0
    for t in range(file.frame[F_TIERS] - 1):
        if word < file.frame[F_TIER_ENDS + t]:
            return t, first
        first = file.frame[F_TIER_ENDS + t]
    return file.frame[F_TIERS] - 1, first


@merged_kernel
def list_rank(file: FgramFile, s: Successors, x: int) -> tuple[int, bool, int]:
    """(how many numbers of the list are less than x, whether x is one of them, its code if it is)."""
    if x >= s.universe:
        return s.size, False, 0
    t, first = tier_of(file, x) if s.i == 1 else (0, 0)
    segment, before = segment_of(file, s, t)
    rank, found, code = segment_rank(file.bits, segment, x - first)
    return before + rank, found, code


@merged_kernel
def list_place(file: FgramFile, s: Successors, position: int) -> tuple[Segment, int, int]:
    """A position of a list: (its segment, the position in the segment, the segment's first number).

    A position that the list does not have gives a segment of size 0.
    """
    first = 0
    for t in range(file.frame[F_TIERS] if s.i == 1 else 1):
        segment, before = segment_of(file, s, t)
        if position < before + segment.n:
            return segment, position - before, first
        first = file.frame[F_TIER_ENDS + t]
    return Segment(s.at, 0, 1, file.frame[F_CODE_BITS]), 0, 0


@merged_kernel
def list_number(file: FgramFile, s: Successors, position: int) -> int:
    """The number at a position of a list."""
    segment, position, first = list_place(file, s, position)
    return first + segment_get(file.bits, segment, position) if segment.n else 0


@merged_kernel
def list_code(file: FgramFile, s: Successors, position: int) -> int:
    """The code at a position of a list."""
    segment, position, _ = list_place(file, s, position)
    return segment_code(file.bits, segment, position) if segment.n else 0


@merged_kernel
def log_backoff(file: FgramFile, s: Successors, weight_at: int, lower: Successors) -> float:
    """The log backoff weight of a context, given its list and that of the next shorter context.

    A short list does not store it. It is then (1 − Σ p(x|context)) / (1 − Σ p(x|shorter context)) over the list.
    """
    tables, codes = file.tables, 1 << file.frame[F_CODE_BITS]
    if weight_at >= 0:
        backoff_code = read_bits(file.bits, weight_at, file.frame[F_BACKOFF_BITS])
        stored: float = tables[s.i, codes] + backoff_code * tables[s.i, codes + 1]
        return stored
    rest, room = 1.0, 1.0
    for position in range(s.size):
        segment, inside, first = list_place(file, s, position)
        if segment.n == 0:
            continue
        number = first + segment_get(file.bits, segment, inside)
        rest -= tables[s.i, codes + 2 + segment_code(file.bits, segment, inside)]
        lower_code = unigram_code(file, number) if s.i == 1 else list_code(file, lower, number)
        room -= tables[s.i - 1, codes + 2 + lower_code]
    if rest < ROOM_LEFT or room < ROOM_LEFT:
        return LOG_ZERO
    derived: float = np.log(rest / room)
    return derived


@merged_kernel
def unigram_code(file: FgramFile, word: int) -> int:
    """The code of a word's unigram probability."""
    code_bits = file.frame[F_CODE_BITS]
    return read_bits(file.bits, file.frame[F_UNIGRAMS] + word * code_bits, code_bits)
