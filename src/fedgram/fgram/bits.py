"""Bit arrays: numbers of any width in an array of 64-bit words, with rank and select.

Bit i is bit i mod 64 of word i div 64 (in a file: bit i mod 8 of byte i div 8). A number is stored with its lowest bit
first. Reading never leaves the array: bits outside it read as 0, so that a damaged file cannot make a kernel read other
memory. An array that is read must end with one word of padding.

Two structures are built on bit arrays:

- a *bitmap* with ranks: the bits and, for every 512 of them, the number of ones before them;
- a *rising sequence* in Elias-Fano coding: the low `width` bits of each number side by side, and the high bits in
  unary: number i sets bit (number >> width) + i. The position of every 64th number among the high bits is stored too.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import IntArray, LongArray
from fedgram.core.jit import kernel, leading_zeros, merged_kernel, popcount, trailing_zeros

Bits = NDArray[np.uint64]
RANK_BITS = 512
SAMPLE = 64
_EACH_BYTE, _TOP_OF_BYTES = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
ONES, ZEROS = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)  # what `select` counts: it flips the bits of ZEROS first


@merged_kernel
def bit_length(n: int) -> int:
    """The number of bits of n: 0 for 0, 3 for 4 to 7."""
    return 64 - leading_zeros(np.uint64(n))


@merged_kernel
def read_word(bits: Bits, at: int) -> np.uint64:
    """The 64 bits that start at bit `at`."""
    k = at >> 6
    if k < 0 or k + 1 >= len(bits):
        return np.uint64(0)
    shift = np.uint64(at & 63)
    found: np.uint64 = (bits[k] >> shift) | ((bits[k + 1] << np.uint64(1)) << (np.uint64(63) - shift))
    return found


@merged_kernel
def read_bits(bits: Bits, at: int, width: int) -> int:
    """The number of `width` bits (0 to 63) at bit `at`."""
    return np.int64(read_word(bits, at) & ((np.uint64(1) << np.uint64(width)) - np.uint64(1)))  # type: ignore[return-value]


@merged_kernel
def write_bits(bits: Bits, at: int, width: int, value: int) -> int:
    """Write a number of `width` bits (0 to 63) over zeros; returns the first bit after it."""
    k, shift = at >> 6, np.uint64(at & 63)
    bits[k] |= np.uint64(value) << shift
    if (at & 63) + width > 64:
        bits[k + 1] |= np.uint64(value) >> (np.uint64(64) - shift)
    return at + width


@merged_kernel
def write_gamma(bits: Bits, at: int, value: int) -> int:
    """Write Elias's γ code: length − 1 zeros, a one, and the number without its highest bit."""
    below = bit_length(value) - 1
    at = write_bits(bits, at + below, 1, 1)
    return write_bits(bits, at, below, value & ((1 << below) - 1))


@merged_kernel
def read_gamma(bits: Bits, at: int) -> tuple[int, int]:
    """(the number, the first bit after it); a number of more than 31 bits reads as 1."""
    below = trailing_zeros(read_word(bits, at))
    if below > 31:
        return 1, at + 1
    return (1 << below) + read_bits(bits, at + below + 1, below), at + 2 * below + 1


@merged_kernel
def select_in_word(word: np.uint64, k: int) -> int:
    """The position of the k-th one (counted from 0) of a word that has more than k ones."""
    sums = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    sums = (sums & np.uint64(0x3333333333333333)) + ((sums >> np.uint64(2)) & np.uint64(0x3333333333333333))
    sums = ((sums + (sums >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)) * _EACH_BYTE  # ones up to each byte's end
    passed = ((np.uint64(k) * _EACH_BYTE | _TOP_OF_BYTES) - sums) & _TOP_OF_BYTES  # the bytes that end before the k-th
    place = popcount(passed) << 3
    k -= np.int64(((sums << np.uint64(8)) >> np.uint64(place)) & np.uint64(255))  # type: ignore[assignment]
    word >>= np.uint64(place)
    for _ in range(k):
        word &= word - np.uint64(1)
    return place + trailing_zeros(word)


@merged_kernel
def count_ones(bits: Bits, at: int, length: int) -> int:
    """The number of ones among `length` bits from bit `at` on."""
    total = 0
    while length > 0:
        word = read_word(bits, at)
        if length < 64:
            word &= (np.uint64(1) << np.uint64(length)) - np.uint64(1)
        total += popcount(word)
        at += 64
        length -= 64
    return total


@merged_kernel
def select(bits: Bits, at: int, length: int, k: int, kind: np.uint64) -> int:
    """The position, counted from `at`, of the k-th one or zero among `length` bits; `length` if there are too few."""
    place = 0
    while place < length:
        word = read_word(bits, at + place) ^ kind
        ones = popcount(word)
        if k < ones:
            return min(place + select_in_word(word, k), length)
        k -= ones
        place += 64
    return length


@merged_kernel
def bitmap_rank(bits: Bits, at: int, length: int, i: int) -> int:
    """The number of ones before bit i of the bitmap at `at`, a whole word; its ranks start at the next whole word."""
    ranks = at + ((length + 63) >> 6 << 6)
    total = read_bits(bits, ranks + 32 * (i >> 9), 32)
    k, last = (at >> 6) + (i >> 9 << 3), (at + i) >> 6
    if k < 0 or last >= len(bits):
        return 0
    while k < last:
        total += popcount(bits[k])
        k += 1
    return total + popcount(bits[k] & ((np.uint64(1) << np.uint64(i & 63)) - np.uint64(1)))


@merged_kernel
def sequence_get(bits: Bits, at: int, count: int, width: int, high: int, i: int) -> int:
    """Number i of the sequence at `at`: `high` high bits, then low bits, then positions, each from a whole word on."""
    low_at = at + ((high + 63) >> 6 << 6)
    places = low_at + ((count * width + 63) >> 6 << 6)
    start = read_bits(bits, places + 32 * (i >> 6), 32)
    place = start + select(bits, at + start, high - start, i & 63, ONES)
    return ((place - i) << width) | read_bits(bits, low_at + i * width, width)


def pack_numbers(numbers: IntArray | LongArray, width: int) -> Bits:
    """The numbers side by side, `width` bits each."""
    bits = np.zeros((len(numbers) * width + 63) // 64 + 1, np.uint64)
    _pack(bits, np.ascontiguousarray(numbers, np.int64), width)
    return bits[: (len(numbers) * width + 63) // 64]


@kernel
def _pack(bits: Bits, numbers: LongArray, width: int) -> None:
    for i in range(len(numbers)):
        write_bits(bits, i * width, width, numbers[i])


def bits_of(ones: NDArray[np.bool_]) -> Bits:
    """The bit array with these ones, filled up with zeros to whole words."""
    packed = np.packbits(ones, bitorder="little").tobytes()
    return np.frombuffer(packed + bytes(-len(packed) % 8), np.uint64)


def pack_bitmap(ones: NDArray[np.bool_]) -> Bits:
    """A bitmap with its ranks."""
    before = np.concatenate([[0], np.cumsum(ones)])[:-1][::RANK_BITS]
    return join([bits_of(ones), pack_numbers(before, 32)])


def sequence_shape(count: int, last: int) -> tuple[int, int]:
    """(low bits per number, number of high bits) of a rising sequence of `count` numbers of at most `last`."""
    width = max((last // max(count, 1)).bit_length() - 1, 0)
    return width, count + (last >> width) + 1


def pack_sequence(numbers: LongArray, last: int) -> Bits:
    """A rising sequence of numbers of at most `last`."""
    width, high = sequence_shape(len(numbers), last)
    places = (numbers >> width) + np.arange(len(numbers))
    ones = np.zeros(high, np.bool_)
    ones[places] = True
    lows = pack_numbers(numbers & ((1 << width) - 1), width)
    return join([bits_of(ones), lows, pack_numbers(places[::SAMPLE], 32)])


def join(parts: Sequence[Bits]) -> Bits:
    """The parts one after another."""
    return np.concatenate([np.zeros(0, np.uint64), *parts])
