"""Queries of a packed model: (state, word) → (log p, next state), and the most probable next words.

A state is the contexts that the last words form, the shortest first. `state[0]` is their number, `state[2i − 1]` is
the number of the context of i words, and `state[2i]` is the first bit of its list (see `lists`). A list holds
positions in the list of the next shorter context. So a word is looked up from the shortest context on until a list
does not contain it, and the n-grams found on the way are the next state.

The most probable words are searched from the longest context's list down to the unigrams. A word that a longer list
contains is skipped, and so is every block whose greatest code is too small. Among equally probable words, those of the
longer list come first, then those of lower id.
"""

from typing import NamedTuple

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.jit import kernel, lean_kernel, merged_kernel
from fedgram.fgram.bits import read_bits
from fedgram.fgram.frame import (
    F_CODE_BITS,
    F_MAXIMA,
    F_ORDER,
    F_TIERS,
    F_UNIGRAMS,
    F_WORDS,
    LOG_ZERO,
    FgramFile,
    FileArrays,
)
from fedgram.fgram.lists import (
    Successors,
    all_words,
    child,
    list_at,
    list_number,
    list_rank,
    list_start,
    log_backoff,
    open_list,
    segment_of,
    unigram_code,
)
from fedgram.fgram.sets import BLOCK, block_of, codes_at, set_bits
from fedgram.text.vocabulary import EOS


class OpenState(NamedTuple):
    """A state whose lists are open, for many queries of it.

    Row i of `lists` is (at, size, universe) of the `Successors` of i words. `above[i]` is the sum of the log backoff
    weights of the contexts of more than i words.
    """

    lists: LongArray
    above: FloatArray


class Best(NamedTuple):
    """The most probable words found so far, the best first; −inf and −1 where there is none."""

    log_p: FloatArray
    word: LongArray


@lean_kernel
def step(arrays: FileArrays, state: LongArray, word: int, after: LongArray) -> float:
    """Log p(word | state), −inf for a word without probability; writes the next state into `after`, another array."""
    file = FgramFile(*arrays)
    after[0] = 0
    if word < 0 or word >= file.frame[F_WORDS]:
        return -np.inf
    log_p: float = file.tables[0, unigram_code(file, word)]
    total = 0.0
    if log_p <= LOG_ZERO:
        log_p = -np.inf
    enter(file, 1, word, after)
    x, found, lower = word, True, all_words(file)
    for i in range(1, state[0] + 1):
        successors, weight_at = open_list(file, i, state[2 * i], lower.size)
        if found:
            position, found, code = list_rank(file, successors, x)
            if found:
                log_p, x = file.tables[i, code], position
                if after[0] == i and i + 1 < file.frame[F_ORDER]:
                    enter(file, i + 1, list_start(file, i, state[2 * i - 1]) + position, after)
        if not found:
            total += log_backoff(file, successors, weight_at, lower)
        lower = successors
    return total + log_p


@merged_kernel
def enter(file: FgramFile, order: int, ngram: int, state: LongArray) -> None:
    """Lengthen a state by an n-gram, if that is a context."""
    context = child(file, order, ngram)
    if context >= 0:
        state[0], state[2 * order - 1], state[2 * order] = order, context, list_at(file, order, context)


@kernel
def score_sentences(arrays: FileArrays, values: IntArray, offsets: LongArray, bos: int) -> FloatArray:
    """Log p of every word of every sentence, each sentence followed by that of its end."""
    file = FgramFile(*arrays)
    result = np.empty(len(values) + len(offsets) - 1)
    state, after = np.zeros(2 * file.frame[F_ORDER], np.int64), np.zeros(2 * file.frame[F_ORDER], np.int64)
    k = 0
    for s in range(len(offsets) - 1):
        state[0] = 0
        enter(file, 1, bos, state)
        for i in range(offsets[s], offsets[s + 1]):
            result[k] = step(arrays, state, values[i], after)
            state, after = after, state
            k += 1
        result[k] = step(arrays, state, EOS, after)
        k += 1
    return result


@kernel
def walk(arrays: FileArrays, values: IntArray, bos: int) -> LongArray:
    """The state after these words at the beginning of a sentence."""
    file = FgramFile(*arrays)
    state, after = np.zeros(2 * file.frame[F_ORDER], np.int64), np.zeros(2 * file.frame[F_ORDER], np.int64)
    enter(file, 1, bos, state)
    for i in range(len(values)):
        step(arrays, state, values[i], after)
        state, after = after, state
    return state


@kernel
def open_lists(arrays: FileArrays, state: LongArray) -> OpenState:
    """Open the lists of a state."""
    file, depth = FgramFile(*arrays), state[0]
    lists, above = np.zeros((depth + 1, 3), np.int64), np.zeros(depth + 1)
    lower = all_words(file)
    lists[0, 1] = lower.size
    for i in range(1, depth + 1):
        successors, weight_at = open_list(file, i, state[2 * i], lower.size)
        lists[i, 0], lists[i, 1], lists[i, 2] = successors.at, successors.size, successors.universe
        above[i - 1] = log_backoff(file, successors, weight_at, lower)
        lower = successors
    for i in range(depth - 1, -1, -1):
        above[i] += above[i + 1]
    return OpenState(lists, above)


@merged_kernel
def successors_of(state: OpenState, i: int) -> Successors:
    """The list of the context of i words."""
    return Successors(i, state.lists[i, 0], state.lists[i, 1], state.lists[i, 2])


@lean_kernel
def log_prob(arrays: FileArrays, state: OpenState, word: int) -> float:
    """Log p(word | state) of a word of the vocabulary."""
    file = FgramFile(*arrays)
    log_p: float = file.tables[0, unigram_code(file, word)]
    x, i = word, 1
    if log_p <= LOG_ZERO:
        log_p = -np.inf
    while i < len(state.lists):
        position, found, code = list_rank(file, successors_of(state, i), x)
        if not found:
            break
        log_p, x = file.tables[i, code], position
        i += 1
    result: float = state.above[i - 1] + log_p
    return result


@kernel
def top_words(
    arrays: FileArrays, state: LongArray, ranges: LongArray, best_log: FloatArray, best_word: LongArray
) -> int:
    """Fill `best_log` and `best_word` with the most probable words of the id ranges; returns how many there are."""
    file, best = FgramFile(*arrays), Best(best_log, best_word)
    for j in range(len(best.word)):
        best.log_p[j], best.word[j] = -np.inf, -1
    opened = open_lists(arrays, state)
    spans = _spans(file, opened, ranges)
    for i in range(len(spans) - 1, 0, -1):
        for r in range(len(ranges)):
            if spans[i, r, 0] < spans[i, r, 1]:
                _offer_successors(file, opened, i, (spans[i, r, 0], spans[i, r, 1]), best)
    for r in range(len(ranges)):
        _offer_unigrams(file, opened, (ranges[r, 0], ranges[r, 1]), best)
    found = 0
    while found < len(best.word) and best.word[found] >= 0:
        found += 1
    return found


@kernel
def _spans(file: FgramFile, state: OpenState, ranges: LongArray) -> LongArray:
    """The id ranges as ranges of positions in each list."""
    spans = np.empty((len(state.lists), len(ranges), 2), np.int64)
    for r in range(len(ranges)):
        for side in range(2):
            x = ranges[r, side]
            spans[0, r, side] = x
            for i in range(1, len(spans)):
                x = list_rank(file, successors_of(state, i), x)[0]
                spans[i, r, side] = x
    return spans


@merged_kernel
def _offer_successors(file: FgramFile, state: OpenState, i: int, span: tuple[int, int], best: Best) -> None:
    """Offer the words at a range of positions in the list of i words."""
    bits, tables, code_bits = file.bits, file.tables, file.frame[F_CODE_BITS]
    total, best_log, last = state.above[i], best.log_p, len(best.word) - 1
    for t in range(file.frame[F_TIERS] if i == 1 else 1):
        segment, before = segment_of(file, successors_of(state, i), t)
        begin, end = max(span[0] - before, 0), min(span[1] - before, segment.n)
        while begin < end:
            codes, stop = segment.at + set_bits(segment.n, segment.u), end
            if segment.n > BLOCK:
                block = block_of(bits, segment, begin >> 7)
                stop = min(end, ((begin >> 7) + 1) << 7)
                if total + tables[i, block.best] <= best_log[last]:
                    begin = stop
                    continue
                codes = codes_at(block) - (begin >> 7 << 7) * code_bits
            for j in range(begin, stop):
                log_p = total + tables[i, read_bits(bits, codes + j * code_bits, code_bits)]
                if log_p > best_log[last] and not _longer_holds(file, state, i, before + j):
                    _offer(log_p, _word_at(file, state, i, before + j), best)
            begin = stop


@merged_kernel
def _offer_unigrams(file: FgramFile, state: OpenState, span: tuple[int, int], best: Best) -> None:
    """Offer the words of an id range that no list contains."""
    bits, tables, code_bits = file.bits, file.tables, file.frame[F_CODE_BITS]
    codes, maxima = file.frame[F_UNIGRAMS], file.frame[F_MAXIMA]
    total, best_log, last = state.above[0], best.log_p, len(best.word) - 1
    begin, end = span
    while begin < end:
        stop = min(end, ((begin >> 7) + 1) << 7)
        if total + tables[0, read_bits(bits, maxima + (begin >> 7) * code_bits, code_bits)] > best_log[last]:
            for word in range(begin, stop):
                own = tables[0, read_bits(bits, codes + word * code_bits, code_bits)]
                enters = own > LOG_ZERO and total + own > best_log[last]
                if enters and not _longer_holds(file, state, 0, word):
                    _offer(total + own, word, best)
        begin = stop


@merged_kernel
def _offer(log_p: float, word: int, best: Best) -> None:
    """Insert a word among the best, after those of equal probability; the last one drops out."""
    j = len(best.word) - 1
    while j > 0 and best.log_p[j - 1] < log_p:
        best.log_p[j], best.word[j] = best.log_p[j - 1], best.word[j - 1]
        j -= 1
    best.log_p[j], best.word[j] = log_p, word


@merged_kernel
def _longer_holds(file: FgramFile, state: OpenState, i: int, position: int) -> bool:
    """Whether the list of the next longer context contains the word at a position of list i."""
    if i == len(state.lists) - 1:
        return False
    return list_rank(file, successors_of(state, i + 1), position)[1]


@merged_kernel
def _word_at(file: FgramFile, state: OpenState, i: int, position: int) -> int:
    """The word at a position of list i."""
    while i > 0:
        position = list_number(file, successors_of(state, i), position)
        i -= 1
    return position
