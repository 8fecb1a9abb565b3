"""Numbers of any width in an array of 64-bit words, and how to find the k-th one in it.

Bit i is bit i mod 64 of word i div 64 (so, in a file, bit i mod 8 of byte i div 8); a number is stored lowest bit
first. Reading never leaves the array: what lies outside reads as 0, so that no file, however damaged, can make a
kernel read elsewhere. An array that is read must end with a word of padding.

Two structures stand on this:

- a *bitmap* with ranks: `bits` and, for every 512 bits, how many ones stand before them;
- a *rising sequence* in Elias-Fano coding: the low `width` bits of each number side by side, and the high bits in
  unary: number i sets bit (number >> width) + i. Every 64th number's place among the high bits is noted.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import IntArray, LongArray
from fedgram.core.jit import kernel, leading_zeros, merged_kernel, popcount, trailing_zeros

Words = NDArray[np.uint64]
RANK_BITS = 512
SAMPLE = 64
_EACH_BYTE, _TOP_OF_BYTES = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
ONES, ZEROS = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)  # what `select` looks for


@merged_kernel
def bit_length(n: int) -> int:
    """How many bits the number has: 0 for 0, 3 for 4 to 7."""
    return 64 - leading_zeros(np.uint64(n))


@merged_kernel
def read_word(words: Words, at: int) -> np.uint64:
    """The 64 bits from bit `at` on."""
    k = at >> 6
    if k < 0 or k + 1 >= len(words):
        return np.uint64(0)
    shift = np.uint64(at & 63)
    found: np.uint64 = (words[k] >> shift) | ((words[k + 1] << np.uint64(1)) << (np.uint64(63) - shift))
    return found


@merged_kernel
def read_bits(words: Words, at: int, width: int) -> int:
    """The number of `width` bits (0 to 63) at bit `at`."""
    return np.int64(read_word(words, at) & ((np.uint64(1) << np.uint64(width)) - np.uint64(1)))  # type: ignore[return-value]


@merged_kernel
def write_bits(words: Words, at: int, width: int, value: int) -> int:
    """Put a number of `width` bits (0 to 63) where zeros stand; returns the bit behind it."""
    k, shift = at >> 6, np.uint64(at & 63)
    words[k] |= np.uint64(value) << shift
    if (at & 63) + width > 64:
        words[k + 1] |= np.uint64(value) >> (np.uint64(64) - shift)
    return at + width


@merged_kernel
def write_gamma(words: Words, at: int, value: int) -> int:
    """Elias's γ: the number's length − 1 in unary zeros, a one, and the number without its highest bit."""
    below = bit_length(value) - 1
    at = write_bits(words, at + below, 1, 1)
    return write_bits(words, at, below, value & ((1 << below) - 1))


@merged_kernel
def read_gamma(words: Words, at: int) -> tuple[int, int]:
    """(the number, the bit behind it); numbers of more than 31 bits read as 1."""
    below = trailing_zeros(read_word(words, at))
    if below > 31:
        return 1, at + 1
    return (1 << below) + read_bits(words, at + below + 1, below), at + 2 * below + 1


@merged_kernel
def select_in_word(word: np.uint64, k: int) -> int:
    """The place of the k-th one (from 0) of a word that has more than k."""
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
def count_ones(words: Words, at: int, length: int) -> int:
    """How many of the `length` bits from `at` on are ones."""
    total = 0
    while length > 0:
        word = read_word(words, at)
        if length < 64:
            word &= (np.uint64(1) << np.uint64(length)) - np.uint64(1)
        total += popcount(word)
        at += 64
        length -= 64
    return total


@merged_kernel
def select(words: Words, at: int, length: int, k: int, kind: np.uint64) -> int:
    """The place from `at` of the k-th one or zero among `length` bits; `length` if there are not so many."""
    place = 0
    while place < length:
        word = read_word(words, at + place) ^ kind
        ones = popcount(word)
        if k < ones:
            return min(place + select_in_word(word, k), length)
        k -= ones
        place += 64
    return length


@merged_kernel
def bitmap_rank(words: Words, at: int, length: int, i: int) -> int:
    """How many ones stand before bit i of the bitmap at `at`, a whole word; its ranks follow it on the next one."""
    ranks = at + ((length + 63) >> 6 << 6)
    total = read_bits(words, ranks + 32 * (i >> 9), 32)
    k, last = (at >> 6) + (i >> 9 << 3), (at + i) >> 6
    if k < 0 or last >= len(words):
        return 0
    while k < last:
        total += popcount(words[k])
        k += 1
    return total + popcount(words[k] & ((np.uint64(1) << np.uint64(i & 63)) - np.uint64(1)))


@merged_kernel
def sequence_get(words: Words, at: int, count: int, width: int, high: int, i: int) -> int:
    """Number i of the sequence at `at` with `high` high bits: high bits, low bits, places, each on a whole word."""
    low_at = at + ((high + 63) >> 6 << 6)
    places = low_at + ((count * width + 63) >> 6 << 6)
    start = read_bits(words, places + 32 * (i >> 6), 32)
    place = start + select(words, at + start, high - start, i & 63, ONES)
    return ((place - i) << width) | read_bits(words, low_at + i * width, width)


def pack_numbers(numbers: IntArray | LongArray, width: int) -> Words:
    """The numbers side by side, each of `width` bits."""
    words = np.zeros((len(numbers) * width + 63) // 64 + 1, np.uint64)
    _pack(words, np.ascontiguousarray(numbers, np.int64), width)
    return words[: (len(numbers) * width + 63) // 64]


@kernel
def _pack(words: Words, numbers: LongArray, width: int) -> None:
    for i in range(len(numbers)):
        write_bits(words, i * width, width, numbers[i])


def pack_bitmap(ones: NDArray[np.bool_]) -> Words:
    """A bitmap with its ranks."""
    bits = np.packbits(ones, bitorder="little")
    words = np.frombuffer(bits.tobytes() + bytes(-len(bits) % 8), np.uint64)
    before = np.concatenate([[0], np.cumsum(ones)])[:-1][::RANK_BITS]
    return join([words, pack_numbers(before, 32)])


def sequence_shape(count: int, last: int) -> tuple[int, int]:
    """(low bits a number, number of high bits) of a rising sequence of `count` numbers that are at most `last`."""
    width = max((last // max(count, 1)).bit_length() - 1, 0)
    return width, count + (last >> width) + 1


def pack_sequence(numbers: LongArray, last: int) -> Words:
    """A rising sequence of numbers that are at most `last`."""
    width, high = sequence_shape(len(numbers), last)
    places = (numbers >> width) + np.arange(len(numbers))
    ones = np.zeros((high + 63) // 64 * 64, np.bool_)
    ones[places] = True
    high_words = np.frombuffer(np.packbits(ones, bitorder="little").tobytes(), np.uint64)
    lows = pack_numbers(numbers & ((1 << width) - 1), width)
    return join([high_words, lows, pack_numbers(places[::SAMPLE], 32)])


def join(parts: Sequence[Words]) -> Words:
    """The parts one behind another."""
    return np.concatenate([np.zeros(0, np.uint64), *parts])
