"""What a packed model says: (state, word) → (log p, state), and the most probable next words.

A state is the contexts that the last words form, the shortest first: `state[0]` says how many, `state[2i − 1]` is the
number of the context of i words and `state[2i]` the bit where its list begins (see `lists`). A list's numbers are
positions in the list of the next shorter context, so a word is looked for from the shortest context on until one lacks
it, and what is found on the way is the next state.

The most probable words are taken from the longest context's list down to the unigrams; a word that a longer list
holds is passed over, and so is every block whose greatest code cannot enter. Among equally probable words those of
the longer list come first, then those of lower id.
"""

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.jit import kernel, merged_kernel
from fedgram.fgram.bits import Words, read_bits
from fedgram.fgram.frame import F_BITS, F_MAXIMA, F_ORDER, F_TIERS, F_WORDS, LOG_ZERO
from fedgram.fgram.lists import (
    child,
    list_at,
    list_number,
    list_rank,
    list_size,
    list_start,
    log_backoff,
    segment_of,
    unigram_code,
)
from fedgram.fgram.sets import BLOCK, block_of, set_bits
from fedgram.text.vocabulary import EOS


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


@kernel
def open_lists(words: Words, frame: LongArray, tables: FloatArray, state: LongArray) -> tuple[LongArray, FloatArray]:
    """What many questions to one state need: its lists, and the sum of the log backoff weights above each.

    A list is (bit behind its head, size, bound of its numbers); the first stands for all words.
    """
    depth = state[0]
    lists, above = np.zeros((depth + 1, 3), np.int64), np.zeros(depth + 1)
    lists[0, 1] = frame[F_WORDS]
    for i in range(1, depth + 1):
        lower_at, universe, lower_universe = lists[i - 1]
        m, weight_at, at = list_size(words, frame, state[2 * i], universe)
        lists[i, 0], lists[i, 1], lists[i, 2] = at, m, universe
        above[i - 1] = log_backoff(words, frame, tables, i, weight_at, at, m, universe, lower_at, lower_universe)
    for i in range(depth - 1, -1, -1):
        above[i] += above[i + 1]
    return lists, above


@kernel
def log_prob(
    words: Words, frame: LongArray, tables: FloatArray, lists: LongArray, above: FloatArray, word: int
) -> float:
    """Log p(word | state) of a state whose lists are open, for a word of the vocabulary."""
    log_p: float = tables[0, unigram_code(words, frame, word)]
    x, i = word, 1
    if log_p <= LOG_ZERO:
        log_p = -np.inf
    while i < len(lists):
        position, is_there, code = list_rank(words, frame, i, lists[i, 0], lists[i, 1], lists[i, 2], x)
        if not is_there:
            break
        log_p, x = tables[i, code], position
        i += 1
    result: float = above[i - 1] + log_p
    return result


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
    lists, above = open_lists(words, frame, tables, state)
    spans = np.zeros((depth + 1, count, 2), np.int64)  # the ranges as positions of each list
    spans[0] = ranges
    for i in range(1, depth + 1):
        at, m, universe = lists[i]
        for r in range(count):
            for side in range(2):
                spans[i, r, side] = list_rank(words, frame, i, at, m, universe, spans[i - 1, r, side])[0]
    for j in range(len(best)):
        best_log[j], best[j] = -np.inf, -1
    last = len(best) - 1
    for i in range(depth, 0, -1):
        at, m, universe = lists[i]
        total = above[i]
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
    total = above[0]
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
