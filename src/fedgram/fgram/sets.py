"""Sorted sets of numbers with a code on each: what a context can be followed by, and how likely.

A *set* of n numbers below u is a bitmap of u bits where u < 4n. Elsewhere it is in Elias-Fano coding with `low_width`
low bits l: number i sets bit (number >> l) + i of n + ((u − 1) >> l) high bits; then come the n × l low bits. A
*segment* is a set with its n codes behind it. One of more than 128 numbers is cut into blocks of 128, each with its
first number, its end and its greatest code in a directory in front, so that a number is found by halving, and the
best codes without a scan.
"""

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.jit import kernel, merged_kernel
from fedgram.fgram.bits import ONES, ZEROS, Words, bit_length, count_ones, read_bits, read_word, select, write_bits

BLOCK = 128


@merged_kernel
def low_width(n: int, u: int) -> int:
    """About log2(u/n): the bit length of 11u/16 less that of n, but not less than 0. It costs no division."""
    return max(bit_length((11 * u) >> 4) - bit_length(n), 0)


@merged_kernel
def set_bits(n: int, u: int) -> int:
    """The bits of a set of n numbers below u."""
    if u < 4 * n:
        return u
    if n == 0:
        return 0
    low = low_width(n, u)
    return n * (low + 1) + ((u - 1) >> low)


@merged_kernel
def set_rank(words: Words, at: int, n: int, u: int, x: int) -> tuple[int, bool]:
    """(how many numbers are less than x, whether x is one of them)."""
    if u < 4 * n:
        return count_ones(words, at, x), (read_word(words, at + x) & np.uint64(1)) != 0
    if n == 0:
        return 0, False
    low = low_width(n, u)
    high = n + ((u - 1) >> low)
    h = x >> low
    place = select(words, at, high, h - 1, ZEROS) + 1 if h > 0 else 0
    i = place - h
    x &= (1 << low) - 1
    while i < n and (read_word(words, at + place) & np.uint64(1)) != 0:
        found = read_bits(words, at + high + i * low, low)
        if found >= x:
            return i, found == x
        i += 1
        place += 1
    return min(i, n), False


@merged_kernel
def set_get(words: Words, at: int, n: int, u: int, i: int) -> int:
    """Number i of the set; less than u whatever the bits are."""
    if u < 4 * n:
        return min(select(words, at, u, i, ONES), u - 1)
    low = low_width(n, u)
    high = n + ((u - 1) >> low)
    h = select(words, at, high, i, ONES) - i
    return min((h << low) | read_bits(words, at + high + i * low, low), u - 1)


@kernel
def write_set(words: Words, at: int, numbers: LongArray, first: int, n: int, base: int, u: int) -> int:
    """Write `numbers[first:first + n] − base`; returns the bit behind the set."""
    if u < 4 * n:
        for i in range(n):
            write_bits(words, at + numbers[first + i] - base, 1, 1)
        return at + u
    if n == 0:
        return at
    low = low_width(n, u)
    high = n + ((u - 1) >> low)
    for i in range(n):
        x = numbers[first + i] - base
        write_bits(words, at + (x >> low) + i, 1, 1)
        write_bits(words, at + high + i * low, low, x & ((1 << low) - 1))
    return at + high + n * low


@merged_kernel
def directory_widths(n: int, u: int, bits: int) -> tuple[int, int]:
    """(bits of a block's first number, bits of a block's end) in the directory of a segment."""
    first = bit_length(u - 1)
    return first, bit_length(n * (bits + first + 4))


@merged_kernel
def block_of(words: Words, at: int, n: int, u: int, bits: int, j: int) -> tuple[int, int, int, int, int]:
    """Block j: (its bit, its size, its first number, the numbers that the others lie below, its greatest code)."""
    first_width, end_width = directory_widths(n, u, bits)
    entry = first_width + end_width + bits
    blocks = (n + BLOCK - 1) >> 7
    place = at + j * entry
    first = read_bits(words, place, first_width)
    begin = read_bits(words, place - entry + first_width, end_width) if j > 0 else 0
    best = read_bits(words, place + first_width + end_width, bits)
    behind = read_bits(words, place + entry, first_width) if j + 1 < blocks else u
    return at + blocks * entry + begin, min(BLOCK, n - (j << 7)), first, max(behind - first - 1, 0), best


@merged_kernel
def segment_end(words: Words, at: int, n: int, u: int, bits: int) -> int:
    """The bit behind a segment."""
    if n <= BLOCK:
        return at + set_bits(n, u) + n * bits
    first_width, end_width = directory_widths(n, u, bits)
    entry = first_width + end_width + bits
    blocks = (n + BLOCK - 1) >> 7
    return at + blocks * entry + read_bits(words, at + (blocks - 1) * entry + first_width, end_width)


@merged_kernel
def find_block(words: Words, at: int, n: int, u: int, bits: int, x: int) -> int:
    """The last block whose first number is not greater than x; 0 if there is none."""
    first_width, end_width = directory_widths(n, u, bits)
    entry = first_width + end_width + bits
    begin, end = 0, (n + BLOCK - 1) >> 7
    while end - begin > 1:
        middle = (begin + end) >> 1
        if read_bits(words, at + middle * entry, first_width) <= x:
            begin = middle
        else:
            end = middle
    return begin


@merged_kernel
def segment_rank(words: Words, at: int, n: int, u: int, bits: int, x: int) -> tuple[int, bool, int]:
    """(how many numbers are less than x, whether x is one of them, its code if it is)."""
    if n <= BLOCK:
        rank, found = set_rank(words, at, n, u, x)
        return rank, found, read_bits(words, at + set_bits(n, u) + rank * bits, bits) if found else 0
    j = find_block(words, at, n, u, bits, x)
    place, size, first, below, _ = block_of(words, at, n, u, bits, j)
    base = j << 7
    codes = place + set_bits(size - 1, below)
    if x <= first:
        return base, x == first, read_bits(words, codes, bits) if x == first else 0
    if x - first - 1 >= below:
        return base + size, False, 0
    rank, found = set_rank(words, place, size - 1, below, x - first - 1)
    return base + 1 + rank, found, read_bits(words, codes + (rank + 1) * bits, bits) if found else 0


@merged_kernel
def segment_get(words: Words, at: int, n: int, u: int, bits: int, i: int) -> int:
    """Number i of a segment."""
    if n <= BLOCK:
        return set_get(words, at, n, u, i)
    place, size, first, below, _ = block_of(words, at, n, u, bits, i >> 7)
    if i & 127 == 0 or below == 0:
        return min(first, u - 1)
    return min(first + 1 + set_get(words, place, size - 1, below, (i & 127) - 1), u - 1)


@merged_kernel
def segment_code(words: Words, at: int, n: int, u: int, bits: int, i: int) -> int:
    """The code of number i of a segment."""
    if n <= BLOCK:
        return read_bits(words, at + set_bits(n, u) + i * bits, bits)
    place, size, _, below, _ = block_of(words, at, n, u, bits, i >> 7)
    return read_bits(words, place + set_bits(size - 1, below) + (i & 127) * bits, bits)


@kernel
def write_segment(
    words: Words, at: int, numbers: LongArray, codes: LongArray, first: int, n: int, base: int, u: int, bits: int
) -> int:
    """Write `numbers[first:first + n] − base`, which lie below u, with their codes; returns the bit behind them."""
    if n <= BLOCK:
        at = write_set(words, at, numbers, first, n, base, u)
        for i in range(first, first + n):
            at = write_bits(words, at, bits, codes[i])
        return at
    first_width, end_width = directory_widths(n, u, bits)
    blocks = (n + BLOCK - 1) >> 7
    data = at + blocks * (first_width + end_width + bits)
    end = data
    for j in range(blocks):
        begin = first + (j << 7)
        size = min(BLOCK, first + n - begin)
        behind = numbers[begin + BLOCK] if j + 1 < blocks else base + u
        head, best = numbers[begin], codes[begin]
        end = write_set(words, end, numbers, begin + 1, size - 1, head + 1, behind - head - 1)
        for i in range(begin, begin + size):
            end = write_bits(words, end, bits, codes[i])
            best = max(best, codes[i])
        at = write_bits(words, at, first_width, head - base)
        at = write_bits(words, at, end_width, end - data)
        at = write_bits(words, at, bits, best)
    return end
