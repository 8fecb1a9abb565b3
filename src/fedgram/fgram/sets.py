"""Sorted sets of numbers with a code for each: the words that can follow a context, and their probabilities.

A *set* of n numbers below u is a bitmap of u bits if u < 4n. Otherwise it is in Elias-Fano coding with l = `low_width`
low bits: number i sets bit (number >> l) + i of n + ((u − 1) >> l) high bits, and the n × l low bits follow.

A *segment* is a set followed by its n codes. A segment of more than 128 numbers is cut into blocks of 128. A directory
in front of them holds the first number, the end and the greatest code of each block, so that a number is found by
binary search, and the greatest codes without a scan of all.
"""

from typing import NamedTuple

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.jit import kernel, merged_kernel
from fedgram.fgram.bits import ONES, ZEROS, Bits, bit_length, count_ones, read_bits, read_word, select, write_bits

BLOCK = 128


class Segment(NamedTuple):
    """A segment of `n` numbers below `u`, with `code_bits` bits per code, that starts at bit `at`."""

    at: int
    n: int
    u: int
    code_bits: int


class Block(NamedTuple):
    """A block of a segment: its first bit, its size, its first number, and its greatest code.

    Its other numbers are stored less `first` + 1, as a set of numbers below `below`.
    """

    at: int
    size: int
    first: int
    below: int
    best: int


@merged_kernel
def low_width(n: int, u: int) -> int:
    """About log2(u/n): the bit length of 11u/16 minus that of n, but at least 0. It needs no division."""
    return max(bit_length((11 * u) >> 4) - bit_length(n), 0)


@merged_kernel
def set_bits(n: int, u: int) -> int:
    """The number of bits of a set of n numbers below u."""
    if u < 4 * n:
        return u
    if n == 0:
        return 0
    low = low_width(n, u)
    return n * (low + 1) + ((u - 1) >> low)


@merged_kernel
def set_rank(bits: Bits, at: int, n: int, u: int, x: int) -> tuple[int, bool]:
    """(how many numbers are less than x, whether x is one of them)."""
    if u < 4 * n:
        return count_ones(bits, at, x), (read_word(bits, at + x) & np.uint64(1)) != 0
    if n == 0:
        return 0, False
    low = low_width(n, u)
    high = n + ((u - 1) >> low)
    h = x >> low
    place = select(bits, at, high, h - 1, ZEROS) + 1 if h > 0 else 0
    i = place - h
    x &= (1 << low) - 1
    while i < n and (read_word(bits, at + place) & np.uint64(1)) != 0:
        found = read_bits(bits, at + high + i * low, low)
        if found >= x:
            return i, found == x
        i += 1
        place += 1
    return min(i, n), False


@merged_kernel
def set_get(bits: Bits, at: int, n: int, u: int, i: int) -> int:
    """Number i of the set; less than u whatever the bits are."""
    if u < 4 * n:
        return min(select(bits, at, u, i, ONES), u - 1)
    low = low_width(n, u)
    high = n + ((u - 1) >> low)
    h = select(bits, at, high, i, ONES) - i
    return min((h << low) | read_bits(bits, at + high + i * low, low), u - 1)


@kernel
def write_set(bits: Bits, at: int, numbers: LongArray, first: int, n: int, base: int, u: int) -> int:
    """Write `numbers[first:first + n] − base`; returns the first bit after the set."""
    if u < 4 * n:
        for i in range(n):
            write_bits(bits, at + numbers[first + i] - base, 1, 1)
        return at + u
    if n == 0:
        return at
    low = low_width(n, u)
    high = n + ((u - 1) >> low)
    for i in range(n):
        x = numbers[first + i] - base
        write_bits(bits, at + (x >> low) + i, 1, 1)
        write_bits(bits, at + high + i * low, low, x & ((1 << low) - 1))
    return at + high + n * low


@merged_kernel
def directory_widths(s: Segment) -> tuple[int, int]:
    """(bits of a block's first number, bits of a block's end) in the directory of a segment."""
    first = bit_length(s.u - 1)
    return first, bit_length(s.n * (s.code_bits + first + 4))


@merged_kernel
def block_of(bits: Bits, s: Segment, j: int) -> Block:
    """Block j of a segment."""
    first_width, end_width = directory_widths(s)
    entry = first_width + end_width + s.code_bits
    blocks = (s.n + BLOCK - 1) >> 7
    place = s.at + j * entry
    first = read_bits(bits, place, first_width)
    begin = read_bits(bits, place - entry + first_width, end_width) if j > 0 else 0
    best = read_bits(bits, place + first_width + end_width, s.code_bits)
    next_first = read_bits(bits, place + entry, first_width) if j + 1 < blocks else s.u
    size, below = min(BLOCK, s.n - (j << 7)), max(next_first - first - 1, 0)
    return Block(s.at + blocks * entry + begin, size, first, below, best)


@merged_kernel
def codes_at(block: Block) -> int:
    """The first bit of a block's codes."""
    return block.at + set_bits(block.size - 1, block.below)


@merged_kernel
def segment_end(bits: Bits, s: Segment) -> int:
    """The first bit after a segment."""
    if s.n <= BLOCK:
        return s.at + set_bits(s.n, s.u) + s.n * s.code_bits
    first_width, end_width = directory_widths(s)
    entry = first_width + end_width + s.code_bits
    blocks = (s.n + BLOCK - 1) >> 7
    return s.at + blocks * entry + read_bits(bits, s.at + (blocks - 1) * entry + first_width, end_width)


@merged_kernel
def find_block(bits: Bits, s: Segment, x: int) -> int:
    """The last block whose first number is at most x; 0 if there is none."""
    first_width, end_width = directory_widths(s)
    entry = first_width + end_width + s.code_bits
    begin, end = 0, (s.n + BLOCK - 1) >> 7
    while end - begin > 1:
        middle = (begin + end) >> 1
        if read_bits(bits, s.at + middle * entry, first_width) <= x:
            begin = middle
        else:
            end = middle
    return begin


@merged_kernel
def segment_rank(bits: Bits, s: Segment, x: int) -> tuple[int, bool, int]:
    """(how many numbers are less than x, whether x is one of them, its code if it is)."""
    if s.n <= BLOCK:
        rank, found = set_rank(bits, s.at, s.n, s.u, x)
        code_at = s.at + set_bits(s.n, s.u) + rank * s.code_bits
        return rank, found, read_bits(bits, code_at, s.code_bits) if found else 0
    j = find_block(bits, s, x)
    block = block_of(bits, s, j)
    base, codes = j << 7, codes_at(block)
    if x <= block.first:
        return base, x == block.first, read_bits(bits, codes, s.code_bits) if x == block.first else 0
    if x - block.first - 1 >= block.below:
        return base + block.size, False, 0
    rank, found = set_rank(bits, block.at, block.size - 1, block.below, x - block.first - 1)
    return base + 1 + rank, found, read_bits(bits, codes + (rank + 1) * s.code_bits, s.code_bits) if found else 0


@merged_kernel
def segment_get(bits: Bits, s: Segment, i: int) -> int:
    """Number i of a segment."""
    if s.n <= BLOCK:
        return set_get(bits, s.at, s.n, s.u, i)
    block = block_of(bits, s, i >> 7)
    if i & 127 == 0 or block.below == 0:
        return min(block.first, s.u - 1)
    return min(block.first + 1 + set_get(bits, block.at, block.size - 1, block.below, (i & 127) - 1), s.u - 1)


@merged_kernel
def segment_code(bits: Bits, s: Segment, i: int) -> int:
    """The code of number i of a segment."""
    if s.n <= BLOCK:
        return read_bits(bits, s.at + set_bits(s.n, s.u) + i * s.code_bits, s.code_bits)
    block = block_of(bits, s, i >> 7)
    return read_bits(bits, codes_at(block) + (i & 127) * s.code_bits, s.code_bits)


@kernel
def write_segment(bits: Bits, s: Segment, numbers: LongArray, codes: LongArray, first: int, base: int) -> int:
    """Write the segment of `numbers[first:first + n] − base` and their codes; returns the first bit after it."""
    at = s.at
    if s.n <= BLOCK:
        at = write_set(bits, at, numbers, first, s.n, base, s.u)
        for i in range(first, first + s.n):
            at = write_bits(bits, at, s.code_bits, codes[i])
        return at
    first_width, end_width = directory_widths(s)
    blocks = (s.n + BLOCK - 1) >> 7
    data = at + blocks * (first_width + end_width + s.code_bits)
    end = data
    for j in range(blocks):
        begin = first + (j << 7)
        size = min(BLOCK, first + s.n - begin)
        next_first = numbers[begin + BLOCK] if j + 1 < blocks else base + s.u
        head, best = numbers[begin], codes[begin]
        end = write_set(bits, end, numbers, begin + 1, size - 1, head + 1, next_first - head - 1)
        for i in range(begin, begin + size):
            end = write_bits(bits, end, s.code_bits, codes[i])
            best = max(best, codes[i])
        at = write_bits(bits, at, first_width, head - base)
        at = write_bits(bits, at, end_width, end - data)
        at = write_bits(bits, at, s.code_bits, best)
    return end
