"""A packed model spread out in memory, for those who score much text at once: an evaluation, not a phone.

Every n-gram beyond the first order goes into one open-addressing table under the key (context, word), with its code and
the context that it is. Contexts of all lengths are numbered together, those of one word first. Some 25 bytes an n-gram
and a fraction of a second buy several times the speed of `query.step`, with the same answers.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray, frozen, sum_by
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.fgram.bits import Words, read_bits
from fedgram.fgram.frame import F_BACKOFF_BITS, F_BITS, F_TIER_ENDS, F_TIERS, F_WORDS, LOG_ZERO, Header
from fedgram.fgram.lists import ROOM_LEFT, child, list_at, list_size, segment_of, unigram_code
from fedgram.fgram.sets import segment_code, segment_get
from fedgram.text.vocabulary import EOS


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The n-grams of one order: word, code, the n-gram without its first word, and the context that it is or −1.

    By list: where its n-grams begin, and the stored code of the backoff weight or −1.
    """

    word: LongArray
    code: LongArray
    suffix: LongArray
    first: LongArray
    backoff_code: LongArray
    context: LongArray


@dataclass(frozen=True, slots=True, eq=False)
class Unpacked:
    """Unigrams by word; longer n-grams in a table of (key, (context + 1) · 2¹⁶ + code) rows; backoffs by context."""

    log_unigram: FloatArray
    first_context: LongArray
    table: LongArray
    log_backoff: FloatArray


def unpack_levels(data: Words, frame: LongArray, header: Header) -> list[Level]:
    """All n-grams of a file, order by order; refused if the lists hold more or fewer than the header says."""
    none, words = np.zeros(0, np.int64), header.words
    code = unigram_codes(data, frame)
    context = _children(data, frame, 1, words) if header.order > 1 else np.full(words, -1, np.int64)
    levels = [Level(np.arange(words), code, np.zeros(words, np.int64), np.zeros(2, np.int64), none, context)]
    suffix_context = np.zeros(header.levels[1].contexts, np.int64) if header.order > 1 else none
    for n in range(2, header.order + 1):
        size, contexts, below = header.levels[n - 1].ngrams, header.levels[n - 1].contexts, levels[-1]
        number, code, first = np.zeros(size, np.int64), np.zeros(size, np.int64), np.full(contexts + 1, size, np.int64)
        backoff_code = np.full(contexts, -1, np.int64)
        universe = np.full(contexts, words) if n == 2 else np.diff(below.first)[suffix_context]
        if not _read_lists(data, frame, n - 1, universe, number, code, first, backoff_code):
            raise InvariantError("the packed model's lists do not hold the n-grams that its header announces")
        owner = np.repeat(np.arange(contexts), np.diff(first))
        suffix = number if n == 2 else np.clip(below.first[suffix_context[owner]] + number, 0, len(below.word) - 1)
        context = _children(data, frame, n, size) if n < header.order else np.full(size, -1, np.int64)
        levels.append(Level(below.word[suffix], code, suffix, first, backoff_code, context))
        if n < header.order:  # the context that an n-gram is, without its first word
            suffix_context = np.zeros(header.levels[n].contexts, np.int64)
            own = np.flatnonzero(context >= 0)
            suffix_context[context[own]] = np.maximum(below.context[suffix[own]], 0)
    return levels


def log_backoffs(levels: list[Level], header: Header, tables: FloatArray) -> list[FloatArray]:
    """The log backoff weights of the contexts of one word, of two, …"""
    codes, result = 1 << header.bits, []
    for n, (below, level) in enumerate(pairwise(levels), 2):
        owner = np.repeat(np.arange(len(level.backoff_code)), np.diff(level.first))
        lower = tables[n - 2, codes + 2 + below.code[level.suffix]]
        rest = 1.0 - sum_by(owner, tables[n - 1, codes + 2 + level.code], len(level.backoff_code))
        room = 1.0 - sum_by(owner, lower, len(level.backoff_code))
        fine = (rest >= ROOM_LEFT) & (room >= ROOM_LEFT)
        derived = np.where(fine, np.log(np.where(fine, rest, 1.0) / np.where(fine, room, 1.0)), LOG_ZERO)
        stored = tables[n - 1, codes] + level.backoff_code * tables[n - 1, codes + 1]
        result.append(np.where(level.backoff_code >= 0, stored, derived))
    return result


def state_sums(levels: list[Level], header: Header, tables: FloatArray) -> list[FloatArray]:
    """Σ_x p(x|context) of the empty context, of those of one word, …; a file's promise is that all are near 1."""
    codes = 1 << header.bits
    sums = [np.exp(tables[0, levels[0].code[levels[0].code > 0]]).sum(keepdims=True)]
    suffix_context = np.zeros(len(levels[1].backoff_code) if len(levels) > 1 else 0, np.int64)
    for n, weight in enumerate(log_backoffs(levels, header, tables), 2):
        below, level = levels[n - 2], levels[n - 1]
        owner = np.repeat(np.arange(len(weight)), np.diff(level.first))
        own = sum_by(owner, tables[n - 1, codes + 2 + level.code], len(weight))
        covered = sum_by(owner, tables[n - 2, codes + 2 + below.code[level.suffix]], len(weight))
        sums.append(own + np.exp(weight) * (sums[-1][suffix_context] - covered))
        inner = np.flatnonzero(level.context >= 0)
        suffix_context = np.zeros(len(inner), np.int64)
        suffix_context[level.context[inner]] = below.context[level.suffix[inner]]
    return sums


def unpack(data: Words, frame: LongArray, header: Header, tables: FloatArray) -> Unpacked:
    """Spread a file out."""
    levels = unpack_levels(data, frame, header)
    backoffs = log_backoffs(levels, header, tables)
    total = sum(len(level.word) for level in levels[1:])
    table = np.full((1 << max(int(1.4 * total).bit_length(), 4), 2), -1, np.int64)
    before = 0
    for level in levels[1:]:
        owner = np.repeat(np.arange(len(level.backoff_code)), np.diff(level.first)) + before
        before += len(level.backoff_code)
        value = np.where(level.context >= 0, level.context + before + 1, 0) << 16 | level.code
        _fill(table, owner * header.words + level.word, value)
    log_unigram = np.where(levels[0].code > 0, tables[0, levels[0].code], -np.inf)
    log_unigram[log_unigram <= LOG_ZERO] = -np.inf
    return Unpacked(
        frozen(log_unigram), frozen(levels[0].context), frozen(table), frozen(np.concatenate([np.zeros(0), *backoffs]))
    )


@kernel
def unigram_codes(data: Words, frame: LongArray) -> LongArray:
    """The codes of all words' own probabilities."""
    codes = np.empty(frame[F_WORDS], np.int64)
    for word in range(len(codes)):
        codes[word] = unigram_code(data, frame, word)
    return codes


@kernel
def _children(data: Words, frame: LongArray, order: int, ngrams: int) -> LongArray:
    result = np.empty(ngrams, np.int64)
    for e in range(ngrams):
        result[e] = child(data, frame, order, e)
    return result


@kernel
def _read_lists(
    data: Words, frame: LongArray, i: int, universe: LongArray, number: LongArray, code: LongArray, first: LongArray,
    backoff_code: LongArray,
) -> bool:  # fmt: skip
    """The lists of all contexts of i words; whether they fill `number` exactly."""
    bits, e = frame[F_BITS], 0
    for c in range(len(universe)):
        first[c] = e
        m, weight_at, at = list_size(data, frame, list_at(data, frame, i, c), universe[c])
        if weight_at >= 0:
            backoff_code[c] = read_bits(data, weight_at, frame[F_BACKOFF_BITS])
        base = 0
        for t in range(frame[F_TIERS] if i == 1 else 1):
            place, n, below, _ = segment_of(data, frame, i, at, m, universe[c], t)
            if e + n > len(number):
                return False
            for k in range(n):
                number[e] = base + segment_get(data, place, n, below, bits, k)
                code[e] = segment_code(data, place, n, below, bits, k)
                e += 1
            base = frame[F_TIER_ENDS + t]
    first[len(universe)] = e
    return e == len(number)


@kernel
def _slot(table: LongArray, key: int) -> int:
    """The slot where a key is, or would be."""
    mask = len(table) - 1
    slot: Any = np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)) & mask
    while table[slot, 0] >= 0 and table[slot, 0] != key:
        slot = (slot + 1) & mask
    place: int = slot
    return place


@kernel
def _fill(table: LongArray, keys: LongArray, values: LongArray) -> None:
    for e in range(len(keys)):
        slot = _slot(table, keys[e])
        table[slot, 0], table[slot, 1] = keys[e], values[e]


@kernel
def score_unpacked(
    log_unigram: FloatArray, first_context: LongArray, table: LongArray, log_backoff: FloatArray, tables: FloatArray,
    values: IntArray, offsets: LongArray, bos: int,
) -> FloatArray:  # fmt: skip
    """What `query.score_sentences` returns."""
    result = np.empty(len(values) + len(offsets) - 1)
    words, order = len(log_unigram), len(tables)
    state, after = np.zeros(order + 1, np.int64), np.zeros(order + 1, np.int64)
    k = 0
    for s in range(len(offsets) - 1):
        depth = 0
        if first_context[bos] >= 0:
            depth, state[0] = 1, first_context[bos]
        for j in range(offsets[s], offsets[s + 1] + 1):
            word = values[j] if j < offsets[s + 1] else EOS
            log_p, total, reached, is_there = log_unigram[word], 0.0, 0, True
            if first_context[word] >= 0:
                reached, after[0] = 1, first_context[word]
            for i in range(depth):
                if is_there:
                    key = state[i] * words + word
                    slot = _slot(table, key)
                    is_there = table[slot, 0] == key
                    if is_there:
                        value = table[slot, 1]
                        log_p = tables[i + 1, value & 0xFFFF]
                        if value >> 16 > 0 and reached == i + 1:
                            reached, after[i + 1] = i + 2, (value >> 16) - 1
                if not is_there:
                    total += log_backoff[state[i]]
            result[k] = total + log_p
            k += 1
            state, after, depth = after, state, reached
    return result
