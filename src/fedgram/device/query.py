"""What a packed model says: (state, word) → (log p, state), and the most probable next words.

A state is the contexts that the last words form, the shortest first: `state[0]` says how many, `state[2i − 1]` is the
number of the context of i words and `state[2i]` the bit where its list begins. What follows a context of i words is a
*list*: at i = 1 of word ids, one segment a tier, and beyond of positions in the list of the context without its first
word, which holds all of them. So a word is looked for from the shortest context on until one lacks it, and what is
found on the way is the next state.

The most probable words are taken from the longest context's list down to the unigrams; a word that a longer list
holds is passed over, and so is every block whose greatest code cannot enter. Among equally probable words those of
the longer list come first, then those of lower id.
"""

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.jit import kernel, merged_kernel
from fedgram.device.bits import Words, bit_length, bitmap_rank, read_bits, read_gamma, read_word, sequence_get
from fedgram.device.layout import (
    F_BACKOFF_BITS,
    F_BITS,
    F_DERIVED,
    F_LEVELS,
    F_MAXIMA,
    F_ORDER,
    F_TIER_ENDS,
    F_TIERS,
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
)
from fedgram.device.sets import (
    BLOCK,
    block_of,
    segment_code,
    segment_end,
    segment_get,
    segment_rank,
    set_bits,
)
from fedgram.text.vocabulary import EOS

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


@kernel
def step(words: Words, frame: LongArray, tables: FloatArray, state: LongArray, word: int, after: LongArray) -> float:
    """Log p(word | state), −inf for a word that nothing reads; `after`, another array, becomes the next state."""
    after[0] = 0
    if word < 0 or word >= frame[F_WORDS]:
        return -np.inf
    log_p: float = tables[0, unigram_code(words, frame, word)]
    total = 0.0
    if log_p <= LOG_ZERO:
        log_p = -np.inf
    enter(words, frame, 1, word, after)
    universe, x, is_there = frame[F_WORDS], word, True
    lower_at, lower_universe = 0, 0
    for i in range(1, state[0] + 1):
        m, weight_at, at = list_size(words, frame, state[2 * i], universe)
        if is_there:
            position, is_there, code = list_rank(words, frame, i, at, m, universe, x)
            if is_there:
                log_p, x = tables[i, code], position
                if after[0] == i and i + 1 < frame[F_ORDER]:
                    enter(words, frame, i + 1, list_start(words, frame, i, state[2 * i - 1]) + position, after)
        if not is_there:
            total += log_backoff(words, frame, tables, i, weight_at, at, m, universe, lower_at, lower_universe)
        lower_at, lower_universe, universe = at, universe, m
    return total + log_p


@merged_kernel
def enter(words: Words, frame: LongArray, order: int, ngram: int, state: LongArray) -> None:
    """Lengthen a state by an n-gram, if that is a context."""
    context = child(words, frame, order, ngram)
    if context >= 0:
        state[0], state[2 * order - 1], state[2 * order] = order, context, list_at(words, frame, order, context)


@kernel
def score_sentences(
    words: Words, frame: LongArray, tables: FloatArray, values: IntArray, offsets: LongArray, bos: int
) -> FloatArray:
    """Log p of every word of every sentence, and of every sentence's end behind its words."""
    result = np.empty(len(values) + len(offsets) - 1)
    state, after = np.zeros(2 * frame[F_ORDER], np.int64), np.zeros(2 * frame[F_ORDER], np.int64)
    k = 0
    for s in range(len(offsets) - 1):
        state[0] = 0
        enter(words, frame, 1, bos, state)
        for i in range(offsets[s], offsets[s + 1]):
            result[k] = step(words, frame, tables, state, values[i], after)
            state, after = after, state
            k += 1
        result[k] = step(words, frame, tables, state, EOS, after)
        k += 1
    return result


@kernel
def walk(words: Words, frame: LongArray, tables: FloatArray, values: IntArray, bos: int) -> LongArray:
    """The state behind these words at the beginning of a sentence."""
    state, after = np.zeros(2 * frame[F_ORDER], np.int64), np.zeros(2 * frame[F_ORDER], np.int64)
    enter(words, frame, 1, bos, state)
    for i in range(len(values)):
        step(words, frame, tables, state, values[i], after)
        state, after = after, state
    return state


@merged_kernel
def _offer(log_p: float, word: int, best_log: FloatArray, best: LongArray) -> None:
    """Put a word in its place among the best; it goes behind equals."""
    j = len(best) - 1
    while j > 0 and best_log[j - 1] < log_p:
        best_log[j], best[j] = best_log[j - 1], best[j - 1]
        j -= 1
    best_log[j], best[j] = log_p, word


@kernel
def top_words(
    words: Words, frame: LongArray, tables: FloatArray, state: LongArray, ranges: LongArray, best_log: FloatArray,
    best: LongArray,
) -> int:  # fmt: skip
    """Fill `best` with the most probable words of the ranges of ids; returns how many there are."""
    depth, bits, tiers = state[0], frame[F_BITS], frame[F_TIERS]
    count = len(ranges)
    lists = np.zeros((depth + 1, 4), np.int64)  # of each context: bit behind the head, size, bound, bit of the weight
    spans = np.zeros((depth + 1, count, 2), np.int64)  # the ranges as positions of each list
    spans[0] = ranges
    lists[0, 1] = frame[F_WORDS]
    for i in range(1, depth + 1):
        universe = lists[i - 1, 1]
        m, weight_at, at = list_size(words, frame, state[2 * i], universe)
        lists[i, 0], lists[i, 1], lists[i, 2], lists[i, 3] = at, m, universe, weight_at
        for r in range(count):
            for side in range(2):
                spans[i, r, side] = list_rank(words, frame, i, at, m, universe, spans[i - 1, r, side])[0]
    for j in range(len(best)):
        best_log[j], best[j] = -np.inf, -1
    total = 0.0
    last = len(best) - 1
    for i in range(depth, 0, -1):
        at, m, universe = lists[i, 0], lists[i, 1], lists[i, 2]
        for r in range(count):
            if spans[i, r, 0] >= spans[i, r, 1]:
                continue
            for t in range(tiers if i == 1 else 1):
                place, n, below, before = segment_of(words, frame, i, at, m, universe, t)
                begin, end = max(spans[i, r, 0] - before, 0), min(spans[i, r, 1] - before, n)
                while begin < end:
                    codes_at, stop = place + set_bits(n, below), end
                    if n > BLOCK:
                        block_at, size, _, inside, greatest = block_of(words, place, n, below, bits, begin >> 7)
                        stop = min(end, ((begin >> 7) + 1) << 7)
                        if total + tables[i, greatest] <= best_log[last]:
                            begin = stop
                            continue
                        codes_at = block_at + set_bits(size - 1, inside) - (begin >> 7 << 7) * bits
                    for j in range(begin, stop):
                        log_p = total + tables[i, read_bits(words, codes_at + j * bits, bits)]
                        if log_p > best_log[last] and not _longer_holds(words, frame, lists, i, depth, before + j):
                            _offer(log_p, _word_at(words, frame, lists, i, before + j), best_log, best)
                    begin = stop
        lower = lists[i - 1]
        total += log_backoff(words, frame, tables, i, lists[i, 3], at, m, universe, lower[0], lower[2])
    for r in range(count):
        begin, end = ranges[r, 0], ranges[r, 1]
        while begin < end:
            stop = min(end, ((begin >> 7) + 1) << 7)
            if total + tables[0, read_bits(words, frame[F_MAXIMA] + (begin >> 7) * bits, bits)] > best_log[last]:
                for word in range(begin, stop):
                    own = tables[0, unigram_code(words, frame, word)]
                    enters = own > LOG_ZERO and total + own > best_log[last]
                    if enters and not _longer_holds(words, frame, lists, 0, depth, word):
                        _offer(total + own, word, best_log, best)
            begin = stop
    found = 0
    while found < len(best) and best[found] >= 0:
        found += 1
    return found


@merged_kernel
def _longer_holds(words: Words, frame: LongArray, lists: LongArray, i: int, depth: int, position: int) -> bool:
    """Whether the list of the next longer context holds the word at a position of list i."""
    if i == depth:
        return False
    return list_rank(words, frame, i + 1, lists[i + 1, 0], lists[i + 1, 1], lists[i + 1, 2], position)[1]


@merged_kernel
def _word_at(words: Words, frame: LongArray, lists: LongArray, i: int, position: int) -> int:
    """The word at a position of list i."""
    while i > 0:
        position = list_number(words, frame, i, lists[i, 0], lists[i, 1], lists[i, 2], position)
        i -= 1
    return position
