"""A packed model in a hash table in memory, for scoring much text at once, as in an evaluation.

Every n-gram beyond the first order goes into one open-addressing table under the key (context, word), with its code and
the number of the context that it is. Contexts of all lengths are numbered together, those of one word first. The table
takes about 25 bytes per n-gram and a fraction of a second to build. Scoring is then several times faster than
`query.step`, with the same results.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray, frozen, sum_by
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.fgram.bits import read_bits
from fedgram.fgram.frame import (
    F_BACKOFF_BITS,
    F_TIER_ENDS,
    F_TIERS,
    F_WORDS,
    LOG_ZERO,
    FgramFile,
    FileArrays,
    Header,
)
from fedgram.fgram.lists import ROOM_LEFT, child, list_at, open_list, segment_of, unigram_code
from fedgram.fgram.sets import segment_code, segment_get
from fedgram.text.vocabulary import EOS


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The n-grams of one order.

    Attributes:
        word: The last word of each n-gram.
        code: The code of its probability.
        suffix: The n-gram without its first word, as an index into the next lower order.
        first: Per context, the index of its first n-gram; and the number of n-grams.
        backoff_code: Per context, the code of its backoff weight, or −1 if none is stored.
        context: The number of the context that each n-gram is, or −1.
    """

    word: LongArray
    code: LongArray
    suffix: LongArray
    first: LongArray
    backoff_code: LongArray
    context: LongArray


class Unpacked(NamedTuple):
    """A model as a hash table.

    Attributes:
        log_unigram: The log-probability of each word.
        first_context: The number of the context that each word is, or −1.
        table: Rows (key, (context + 1) · 2¹⁶ + code) of the longer n-grams; a free row has the key −1.
        log_backoff: The log backoff weight of each context.
        tables: The tables of the file.
    """

    log_unigram: FloatArray
    first_context: LongArray
    table: LongArray
    log_backoff: FloatArray
    tables: FloatArray


class _Lists(NamedTuple):
    """The lists of one order as arrays to fill: numbers and codes, then by context as in `Level`."""

    number: LongArray
    code: LongArray
    first: LongArray
    backoff_code: LongArray


def unpack_levels(file: FgramFile, header: Header) -> list[Level]:
    """All n-grams of a file, order by order; refused if the lists do not hold as many as the header says."""
    arrays, words, no_numbers = file.arrays, header.words, np.zeros(0, np.int64)
    context = _children(arrays, 1, words) if header.order > 1 else np.full(words, -1, np.int64)
    no_suffix = np.zeros(words, np.int64)
    levels = [Level(np.arange(words), unigram_codes(arrays), no_suffix, np.zeros(2, np.int64), no_numbers, context)]
    suffix_context = np.zeros(header.levels[1].contexts, np.int64) if header.order > 1 else no_numbers
    for n in range(2, header.order + 1):
        size, contexts, below = header.levels[n - 1].ngrams, header.levels[n - 1].contexts, levels[-1]
        universe = np.full(contexts, words) if n == 2 else np.diff(below.first)[suffix_context]
        lists = _Lists(
            np.zeros(size, np.int64), np.zeros(size, np.int64), np.full(contexts + 1, size, np.int64),
            np.full(contexts, -1, np.int64),
        )  # fmt: skip
        if not _read_lists(arrays, n - 1, universe, lists):
            raise InvariantError(f"the packed model's lists of order {n} do not hold the {size} n-grams of its header")
        owner = np.repeat(np.arange(contexts), np.diff(lists.first))
        suffix = lists.number
        if n > 2:
            suffix = np.clip(below.first[suffix_context[owner]] + lists.number, 0, len(below.word) - 1)
        context = _children(arrays, n, size) if n < header.order else np.full(size, -1, np.int64)
        levels.append(Level(below.word[suffix], lists.code, suffix, lists.first, lists.backoff_code, context))
        if n < header.order:  # of each context, the context without its first word
            suffix_context = np.zeros(header.levels[n].contexts, np.int64)
            own = np.flatnonzero(context >= 0)
            suffix_context[context[own]] = np.maximum(below.context[suffix[own]], 0)
    return levels


def log_backoffs(levels: list[Level], header: Header, tables: FloatArray) -> list[FloatArray]:
    """The log backoff weights of the contexts of one word, of two, …"""
    codes, result = 1 << header.code_bits, []
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
    """Σ_x p(x|context) of the empty context, of the contexts of one word, …; all are near 1 in a valid file."""
    codes = 1 << header.code_bits
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


def unpack(file: FgramFile, header: Header) -> Unpacked:
    """Put all n-grams of a file into a hash table."""
    levels = unpack_levels(file, header)
    backoffs = log_backoffs(levels, header, file.tables)
    total = sum(len(level.word) for level in levels[1:])
    table = np.full((1 << max(int(1.4 * total).bit_length(), 4), 2), -1, np.int64)
    before = 0
    for level in levels[1:]:
        owner = np.repeat(np.arange(len(level.backoff_code)), np.diff(level.first)) + before
        before += len(level.backoff_code)
        value = np.where(level.context >= 0, level.context + before + 1, 0) << 16 | level.code
        _fill(table, owner * header.words + level.word, value)
    log_unigram = np.where(levels[0].code > 0, file.tables[0, levels[0].code], -np.inf)
    log_unigram[log_unigram <= LOG_ZERO] = -np.inf
    log_backoff = np.concatenate([np.zeros(0), *backoffs])
    return Unpacked(
        frozen(log_unigram), frozen(levels[0].context), frozen(table), frozen(log_backoff), file.tables
    )  # fmt: skip


@kernel
def unigram_codes(arrays: FileArrays) -> LongArray:
    """The codes of the unigram probabilities of all words."""
    file = FgramFile(*arrays)
    codes = np.empty(file.frame[F_WORDS], np.int64)
    for word in range(len(codes)):
        codes[word] = unigram_code(file, word)
    return codes


@kernel
def _children(arrays: FileArrays, order: int, ngrams: int) -> LongArray:
    file, result = FgramFile(*arrays), np.empty(ngrams, np.int64)
    for e in range(ngrams):
        result[e] = child(file, order, e)
    return result


@kernel
def _read_lists(arrays: FileArrays, i: int, universe: LongArray, lists: _Lists) -> bool:
    """Read the lists of all contexts of i words; returns whether they fill `lists` exactly."""
    file, e = FgramFile(*arrays), 0
    for c in range(len(universe)):
        lists.first[c] = e
        successors, weight_at = open_list(file, i, list_at(file, i, c), universe[c])
        if weight_at >= 0:
            lists.backoff_code[c] = read_bits(file.bits, weight_at, file.frame[F_BACKOFF_BITS])
        base = 0
        for t in range(file.frame[F_TIERS] if i == 1 else 1):
            segment, _ = segment_of(file, successors, t)
            if e + segment.n > len(lists.number):
                return False
            for k in range(segment.n):
                lists.number[e] = base + segment_get(file.bits, segment, k)
                lists.code[e] = segment_code(file.bits, segment, k)
                e += 1
            base = file.frame[F_TIER_ENDS + t]
    lists.first[len(universe)] = e
    return e == len(lists.number)


@kernel
def _slot(table: LongArray, key: int) -> int:
    """The row where a key is, or would be."""
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
def score_unpacked(model: Unpacked, values: IntArray, offsets: LongArray, bos: int) -> FloatArray:
    """The result of `query.score_sentences`."""
    log_unigram, first_context, table, log_backoff, tables = model
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
            log_p, total, reached, found = log_unigram[word], 0.0, 0, True
            if first_context[word] >= 0:
                reached, after[0] = 1, first_context[word]
            for i in range(depth):
                if found:
                    key = state[i] * words + word
                    slot = _slot(table, key)
                    found = table[slot, 0] == key
                    if found:
                        value = table[slot, 1]
                        log_p = tables[i + 1, value & 0xFFFF]
                        if value >> 16 > 0 and reached == i + 1:
                            reached, after[i + 1] = i + 2, (value >> 16) - 1
                if not found:
                    total += log_backoff[state[i]]
            result[k] = total + log_p
            k += 1
            state, after, depth = after, state, reached
    return result
