"""The words of a packed model: spelled with a Huffman code, in the order of what one types to get them.

A word's *key* is its letters in lower case, without accents, apostrophes and hyphens: `don't`, `Dont` and `dont` have
one key. Within a tier (a range of ids) words stand in the order of their keys, and among equal keys in their own, so
that the words behind a typed beginning are one range of ids a tier. The file's alphabet says each character's key, so
that no reader needs Unicode's tables. Sixteen words form a bucket; all but its first are spelled from where they
differ from the one before.
"""

import heapq
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from fedgram.core.arrays import IntArray, LongArray, frozen
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.jit import kernel
from fedgram.fgram.bits import Words, read_bits, sequence_get
from fedgram.fgram.frame import (
    BUCKET,
    F_BUCKET_HIGH,
    F_BUCKET_WIDTH,
    F_BUCKETS,
    F_TEXT,
    F_TIER_ENDS,
    F_TIERS,
    F_WORDS,
    MAX_CODE_LENGTH,
    MAX_WORD_SYMBOLS,
)

LCP_BITS, MAX_LCP, MAX_KEY = 4, 15, 3
FIRST_WORD: Final = 3  # behind <unk>, <s> and </s>
_SILENT = "'’-"


def letter_key(character: str) -> str:
    """What one types for a character.

    >>> letter_key("É"), letter_key("'"), letter_key("ß")
    ('e', '', 'ss')
    """
    plain = unicodedata.normalize("NFD", character.casefold())
    return "".join(c for c in plain if not unicodedata.combining(c) and c not in _SILENT)[:MAX_KEY]


def word_key(word: str) -> str:
    """What one types for a word.

    >>> word_key("Don't"), word_key("coração")
    ('dont', 'coracao')
    """
    return "".join(map(letter_key, word))


@dataclass(frozen=True, slots=True, eq=False)
class Alphabet:
    """Characters by rising code point, the end of a word first, with their keys and Huffman codes.

    `key[s]` is the number of code points of symbol s's key and these. `codes` has a row for every length of code:
    the first code, their number, and where their symbols begin in `by_code`.
    """

    point: IntArray
    key: IntArray
    codes: LongArray
    by_code: IntArray

    @classmethod
    def of(cls, point: IntArray, length: IntArray, key: IntArray) -> "Alphabet":
        """The alphabet whose codes have these lengths; 0 for a character that no word has."""
        codes = np.zeros((MAX_CODE_LENGTH + 1, 3), np.int64)
        codes[1:, 1] = np.bincount(length, minlength=MAX_CODE_LENGTH + 1)[1:]
        for n in range(1, MAX_CODE_LENGTH + 1):
            codes[n, 0] = (codes[n - 1, 0] + codes[n - 1, 1]) << 1
            codes[n, 2] = codes[n - 1, 2] + codes[n - 1, 1]
        by_code = np.argsort(np.where(length > 0, length, MAX_CODE_LENGTH + 1), kind="stable").astype(np.int32)
        return cls(frozen(point), frozen(key), frozen(codes), frozen(by_code))

    def letter_keys(self) -> dict[int, str]:
        """The key of every character, for `str.translate`; what the alphabet lacks stays as it is."""
        keys = ("".join(map(chr, row[1 : 1 + row[0]])) for row in self.key.tolist())
        return dict(zip(self.point.tolist(), keys, strict=True))


def make_alphabet(words: Sequence[str]) -> tuple[Alphabet, IntArray]:
    """The alphabet of these words in both cases, and the lengths of its codes."""
    spelled = Counter("".join(_suffixes(words)))
    both = {other for c in spelled for other in (c, c.upper(), c.lower()) if len(other) == 1}
    characters = ["\0", *sorted(both - {"\0"})]
    point = np.array([ord(c) for c in characters], np.int32)
    keys = [[ord(k) for k in letter_key(c)] if c != "\0" else [] for c in characters]
    key = np.array([[len(k), *k, *[0] * (MAX_KEY - len(k))] for k in keys], np.int32)
    counts = [len(words), *(spelled[c] for c in characters[1:])]
    length = np.array(_code_lengths(counts), np.int32)
    return Alphabet.of(point, length, key), length


def _suffixes(words: Sequence[str]) -> list[str]:
    return [word if i % BUCKET == 0 else word[_common(words[i - 1], word) :] for i, word in enumerate(words)]


def _common(a: str, b: str) -> int:
    n = 0
    while n < min(len(a), len(b), MAX_LCP) and a[n] == b[n]:
        n += 1
    return n


def _code_lengths(counts: list[int]) -> list[int]:
    """Huffman's lengths; counts are evened out until no code is too long."""
    lengths = [0] * len(counts)
    used = [(count, i, [i]) for i, count in enumerate(counts) if count]
    if len(used) == 1:
        lengths[used[0][1]] = 1
        return lengths
    heapq.heapify(used)
    while len(used) > 1:
        a, b = heapq.heappop(used), heapq.heappop(used)
        for i in a[2] + b[2]:
            lengths[i] += 1
        heapq.heappush(used, (a[0] + b[0], min(a[1], b[1]), a[2] + b[2]))
    if max(lengths) > MAX_CODE_LENGTH:
        return _code_lengths([(count + 1) // 2 for count in counts])
    return lengths


def spell_words(words: Sequence[str], alphabet: Alphabet, length: IntArray) -> tuple[Words, int, LongArray]:
    """(the words' spelling, its bits, the bit where each bucket begins)."""
    if any(len(word) > MAX_WORD_SYMBOLS for word in words):
        raise FedgramError(f"a word has more than {MAX_WORD_SYMBOLS} characters and cannot be packed")
    code = np.zeros(len(length), np.int64)
    next_code = alphabet.codes[:, 0].copy()
    for s in np.flatnonzero(length).tolist():
        code[s] = next_code[length[s]]
        next_code[length[s]] += 1
    text = {chr(p): format(c, f"0{n}b") for p, c, n in zip(alphabet.point, code, length, strict=True) if n}
    end = format(code[0], f"0{length[0]}b")
    parts: list[str] = []
    starts, at = [], 0
    for i, (word, suffix) in enumerate(zip(words, _suffixes(words), strict=True)):
        if i % BUCKET == 0:
            starts.append(at)
        shared = "" if i % BUCKET == 0 else format(len(word) - len(suffix), f"0{LCP_BITS}b")[::-1]
        parts.append(shared + "".join([text[c] for c in suffix]) + end)
        at += len(parts[-1])
    ones = np.frombuffer("".join(parts).encode(), np.uint8) == ord("1")
    packed = np.packbits(ones, bitorder="little").tobytes()
    return np.frombuffer(packed + bytes(-len(packed) % 8), np.uint64), at, np.array(starts, np.int64)


def pack_alphabet(alphabet: Alphabet, length: IntArray) -> Words:
    """The alphabet's section: (code point, length of its code, length of its key, key) a symbol."""
    shape = length | alphabet.key[:, 0] << 8
    numbers = np.column_stack([alphabet.point, shape, alphabet.key[:, 1:]]).astype(np.uint32).tobytes()
    return np.frombuffer(numbers + bytes(-len(numbers) % 8), np.uint64)


def read_alphabet(words: Words, at: int, symbols: int, path: str | Path) -> Alphabet:
    """The alphabet at this bit, refused if its characters or codes make no sense."""
    place = at // 64
    numbers = words[place : place + (symbols * 5 + 1) // 2].view(np.uint32)[: 5 * symbols].reshape(symbols, 5)
    point, length, keys = numbers[:, 0].astype(np.int64), (numbers[:, 1] & 255).astype(np.int32), numbers[:, 1] >> 8
    key = np.column_stack([keys, numbers[:, 2:]]).astype(np.int64)
    lettered = np.concatenate([point, key[:, 1:].ravel()])
    letters = (lettered < 0x110000) & ~((lettered >= 0xD800) & (lettered < 0xE000))
    fits = bool(letters.all()) and point[0] == 0 and bool((np.diff(point) > 0).all()) and length[0] > 0
    fits = fits and int(length.max()) <= MAX_CODE_LENGTH and bool((keys <= MAX_KEY).all())
    if not fits or float(np.sum(0.5 ** length[length > 0])) > 1.0:
        raise InputError(path, "has an alphabet that makes no sense")
    return Alphabet.of(point.astype(np.int32), length, key.astype(np.int32))


@kernel
def read_symbol(words: Words, at: int, codes: LongArray, by_code: IntArray) -> tuple[int, int]:
    """(the symbol whose code stands at this bit, the bit behind it); the end of a word where there is no code."""
    window = read_bits(words, at, MAX_CODE_LENGTH)
    code = 0
    for n in range(1, MAX_CODE_LENGTH + 1):
        code = code << 1 | (window & 1)
        window >>= 1
        if code - codes[n, 0] < codes[n, 1]:
            return by_code[codes[n, 2] + code - codes[n, 0]], at + n
    return 0, at + 1


@kernel
def spell_next(
    words: Words, at: int, first: bool, codes: LongArray, by_code: IntArray, buffer: IntArray, length: int
) -> tuple[int, int]:
    """Replace the word in `buffer` by the one behind it; returns (its length, the bit behind it)."""
    n = 0
    if not first:
        n = min(read_bits(words, at, LCP_BITS), length)
        at += LCP_BITS
    while True:
        s, at = read_symbol(words, at, codes, by_code)
        if s == 0 or n >= MAX_WORD_SYMBOLS:
            return n, at
        buffer[n] = s
        n += 1


@kernel
def bucket_at(words: Words, frame: LongArray, bucket: int) -> int:
    """The bit where a bucket's words begin."""
    count = (frame[F_WORDS] + BUCKET - 1) // BUCKET
    place = sequence_get(words, frame[F_BUCKETS], count, frame[F_BUCKET_WIDTH], frame[F_BUCKET_HIGH], bucket)
    at: int = frame[F_TEXT] + place
    return at


@kernel
def spell(words: Words, frame: LongArray, codes: LongArray, by_code: IntArray, word: int, buffer: IntArray) -> int:
    """Put the symbols of a word into `buffer` and return their number."""
    at, n = bucket_at(words, frame, word // BUCKET), 0
    for i in range(word % BUCKET + 1):
        n, at = spell_next(words, at, i == 0, codes, by_code, buffer, n)
    return n


@kernel
def spell_all(words: Words, frame: LongArray, codes: LongArray, by_code: IntArray) -> tuple[IntArray, LongArray]:
    """(the symbols of all words, one word behind another; where each begins, and the end)."""
    buffer, offsets = np.zeros(MAX_WORD_SYMBOLS + 1, np.int32), np.zeros(frame[F_WORDS] + 1, np.int64)
    symbols = np.empty(16 * frame[F_WORDS] + 1024, np.int32)
    at, n = 0, 0
    for word in range(frame[F_WORDS]):
        if word % BUCKET == 0:
            at = bucket_at(words, frame, word // BUCKET)
        n, at = spell_next(words, at, word % BUCKET == 0, codes, by_code, buffer, n)
        begin = offsets[word]
        if begin + n > len(symbols):
            symbols = np.concatenate((symbols, np.empty(len(symbols) + n, np.int32)))
        symbols[begin : begin + n] = buffer[:n]
        offsets[word + 1] = begin + n
    return symbols[: offsets[-1]], offsets


@kernel
def compare_key(buffer: IntArray, n: int, letter_keys: IntArray, key: IntArray, only_prefix: bool) -> int:
    """−1, 0 or 1 as the key of the n symbols, or its beginning as long as `key`, stands before, at or behind `key`."""
    k = 0
    for i in range(n):
        for c in range(letter_keys[buffer[i], 0]):
            if k >= len(key):
                return 0 if only_prefix else 1
            difference = letter_keys[buffer[i], 1 + c] - key[k]
            if difference != 0:
                return 1 if difference > 0 else -1
            k += 1
    return 0 if k == len(key) else -1


@kernel
def _bound(
    words: Words, frame: LongArray, codes: LongArray, by_code: IntArray, letter_keys: IntArray, begin: int, end: int,
    key: IntArray, only_prefix: bool, least: int, buffer: IntArray,
) -> int:  # fmt: skip
    """The first word of `begin:end` whose comparison with `key` is not less than `least`; `end` if there is none."""
    low, high = (
        begin // BUCKET,
        (end + BUCKET - 1) // BUCKET,
    )  # the bound lies in bucket `low`, or is a later one's first
    while high - low > 1:
        middle = (low + high) >> 1
        n = spell(words, frame, codes, by_code, middle * BUCKET, buffer)
        if compare_key(buffer, n, letter_keys, key, only_prefix) < least:
            low = middle
        else:
            high = middle
    at, n = bucket_at(words, frame, low), 0
    for word in range(low * BUCKET, min((low + 1) * BUCKET, end)):
        n, at = spell_next(words, at, word == low * BUCKET, codes, by_code, buffer, n)
        if word >= begin and compare_key(buffer, n, letter_keys, key, only_prefix) >= least:
            return word
    return min((low + 1) * BUCKET, end)


@kernel
def key_ranges(
    words: Words, frame: LongArray, codes: LongArray, by_code: IntArray, letter_keys: IntArray, key: IntArray,
    only_prefix: bool,
) -> LongArray:  # fmt: skip
    """For each tier the range of words whose key is `key`, or begins with it."""
    ranges = np.zeros((frame[F_TIERS], 2), np.int64)
    buffer = np.empty(MAX_WORD_SYMBOLS + 1, np.int32)
    begin = FIRST_WORD
    for t in range(frame[F_TIERS]):
        end = frame[F_TIER_ENDS + t]
        ranges[t, 0] = _bound(words, frame, codes, by_code, letter_keys, begin, end, key, only_prefix, 0, buffer)
        ranges[t, 1] = _bound(words, frame, codes, by_code, letter_keys, ranges[t, 0], end, key, only_prefix, 1, buffer)
        begin = end
    return ranges


@kernel
def find_spelling(
    words: Words, frame: LongArray, codes: LongArray, by_code: IntArray, ranges: LongArray, symbols: IntArray
) -> int:
    """The word of these ranges that is spelled so, or −1."""
    buffer = np.empty(MAX_WORD_SYMBOLS + 1, np.int32)
    for t in range(len(ranges)):
        for word in range(ranges[t, 0], ranges[t, 1]):
            n = spell(words, frame, codes, by_code, word, buffer)
            if n == len(symbols):
                same = True
                for i in range(n):
                    same = same and buffer[i] == symbols[i]
                if same:
                    return word
    return -1
