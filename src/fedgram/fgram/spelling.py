"""The words of a packed model: spelled with a Huffman code and sorted by what one types for them.

A word's *key* is its letters in lower case, without accents, apostrophes and hyphens: `don't`, `Dont` and `dont` have
the same key. Within a tier (a range of ids) words are sorted by key, and by the word itself among equal keys. So the
words that start with a typed prefix are one range of ids per tier. The file's alphabet holds the key of each
character, so that readers need no Unicode tables. Sixteen words form a *bucket*. Its first word is spelled in full, the
others from where they differ from the word before.

This module reads the words, `pack_words` writes them. Names: `words` are strings, `word_id` is the number of a word,
`bits` is the bit array of a file, and `symbols` are indices into the alphabet.
"""

import unicodedata
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from fedgram.core.arrays import IntArray, LongArray, frozen
from fedgram.core.errors import InputError
from fedgram.core.jit import kernel, lean_kernel, merged_kernel
from fedgram.fgram.bits import Bits, read_bits, sequence_get
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
    FgramFile,
    FileArrays,
)

FIRST_WORD: Final = 3  # the first id after <unk>, <s> and </s>
SHARED_BITS: Final = 4  # of the number of symbols that a word shares with the one before
MAX_KEY: Final = 3  # characters in the key of one character
END: Final = "\0"  # symbol 0, the end of a word
_SILENT = "'’-"


class Alphabet(NamedTuple):
    """The characters of all words by rising code point, with their keys and Huffman codes; symbol 0 ends a word.

    Attributes:
        point: The code point of each symbol.
        key: Per symbol, the number of characters in its key, followed by their code points.
        code_length: The bits of each symbol's code; 0 for a character that no word has.
        codes: Per length of code, the first code, the number of codes, and the index of the first one in `by_code`.
        by_code: The symbols in the order of their codes.
    """

    point: IntArray
    key: IntArray
    code_length: IntArray
    codes: LongArray
    by_code: IntArray

    @classmethod
    def of(cls, point: IntArray, key: IntArray, code_length: IntArray) -> "Alphabet":
        """The alphabet with the canonical Huffman codes of these lengths."""
        codes = np.zeros((MAX_CODE_LENGTH + 1, 3), np.int64)
        codes[1:, 1] = np.bincount(code_length, minlength=MAX_CODE_LENGTH + 1)[1:]
        for n in range(1, MAX_CODE_LENGTH + 1):
            codes[n, 0] = (codes[n - 1, 0] + codes[n - 1, 1]) << 1
            codes[n, 2] = codes[n - 1, 2] + codes[n - 1, 1]
        sortable = np.where(code_length > 0, code_length, MAX_CODE_LENGTH + 1)
        by_code = np.argsort(sortable, kind="stable").astype(np.int32)
        return cls(frozen(point), frozen(key), frozen(code_length), frozen(codes), frozen(by_code))

    def letter_keys(self) -> dict[int, str]:
        """The key of every character, for `str.translate`; other characters are their own keys."""
        keys = ("".join(map(chr, row[1 : 1 + row[0]])) for row in self.key.tolist())
        return dict(zip(self.point.tolist(), keys, strict=True))


class Speller(NamedTuple):
    """What kernels need to spell words; `buffer` holds the symbols of the last word."""

    file: FgramFile
    alphabet: Alphabet
    buffer: IntArray


class Cursor(NamedTuple):
    """A position in the text section: the first bit of the next word, and the length of the word in the buffer."""

    at: int
    length: int


class Typed(NamedTuple):
    """A typed key as code points. Words match if their key equals it, or only starts with it if `is_prefix`."""

    key: IntArray
    is_prefix: bool


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


def read_alphabet(bits: Bits, at: int, symbols: int, path: str | Path) -> Alphabet:
    """The alphabet at bit `at`; refused if its characters or codes are invalid."""
    first = at // 64
    numbers = bits[first : first + (symbols * 5 + 1) // 2].view(np.uint32)[: 5 * symbols].reshape(symbols, 5)
    point, length, sizes = numbers[:, 0].astype(np.int64), (numbers[:, 1] & 255).astype(np.int32), numbers[:, 1] >> 8
    key = np.column_stack([sizes, numbers[:, 2:]]).astype(np.int64)
    points = np.concatenate([point, key[:, 1:].ravel()])
    characters = (points < 0x110000) & ~((points >= 0xD800) & (points < 0xE000))
    fits = bool(characters.all()) and point[0] == 0 and bool((np.diff(point) > 0).all()) and length[0] > 0
    fits = fits and int(length.max()) <= MAX_CODE_LENGTH and bool((sizes <= MAX_KEY).all())
    if not fits or float(np.sum(0.5 ** length[length > 0])) > 1.0:
        raise InputError(path, "has an invalid alphabet")
    return Alphabet.of(point.astype(np.int32), key.astype(np.int32), length)


@kernel
def _speller(arrays: FileArrays, alphabet: Alphabet) -> Speller:
    return Speller(FgramFile(*arrays), alphabet, np.empty(MAX_WORD_SYMBOLS, np.int32))


@merged_kernel
def _read_symbol(s: Speller, at: int) -> tuple[int, int]:
    """(the symbol whose code is at this bit, the first bit after it); the end of a word if there is no code."""
    window = read_bits(s.file.bits, at, MAX_CODE_LENGTH)
    codes, code = s.alphabet.codes, 0
    for n in range(1, MAX_CODE_LENGTH + 1):
        code = code << 1 | (window & 1)
        window >>= 1
        if code - codes[n, 0] < codes[n, 1]:
            return s.alphabet.by_code[codes[n, 2] + code - codes[n, 0]], at + n
    return 0, at + 1


@merged_kernel
def _spell_next(s: Speller, is_first: bool, cursor: Cursor) -> Cursor:
    """Replace the word in the buffer by the next one, which may be the first of its bucket."""
    at, n = cursor.at, 0
    if not is_first:
        n = min(read_bits(s.file.bits, at, SHARED_BITS), cursor.length)
        at += SHARED_BITS
    while True:
        symbol, at = _read_symbol(s, at)
        if symbol == 0 or n >= MAX_WORD_SYMBOLS:
            return Cursor(at, n)
        s.buffer[n] = symbol
        n += 1


@merged_kernel
def _open_bucket(file: FgramFile, bucket: int) -> Cursor:
    """The cursor before the first word of a bucket."""
    frame, count = file.frame, (file.frame[F_WORDS] + BUCKET - 1) // BUCKET
    at = sequence_get(file.bits, frame[F_BUCKETS], count, frame[F_BUCKET_WIDTH], frame[F_BUCKET_HIGH], bucket)
    return Cursor(frame[F_TEXT] + at, 0)


@merged_kernel
def _spell(s: Speller, word_id: int) -> int:
    """Write the symbols of a word into the buffer, and return their number."""
    cursor = _open_bucket(s.file, word_id // BUCKET)
    for i in range(word_id % BUCKET + 1):
        cursor = _spell_next(s, i == 0, cursor)
    return cursor.length


@lean_kernel
def spell(arrays: FileArrays, alphabet: Alphabet, word_id: int, buffer: IntArray) -> int:
    """Write the symbols of a word into a buffer of `MAX_WORD_SYMBOLS` or more, and return their number."""
    return _spell(Speller(FgramFile(*arrays), alphabet, buffer), word_id)


@kernel
def spell_all(arrays: FileArrays, alphabet: Alphabet) -> tuple[IntArray, LongArray]:
    """(the symbols of all words, one word after another; the offset of each, and the end)."""
    s = _speller(arrays, alphabet)
    words = s.file.frame[F_WORDS]
    symbols, offsets = np.empty(16 * words + 1024, np.int32), np.zeros(words + 1, np.int64)
    cursor = Cursor(0, 0)
    for word_id in range(words):
        is_first, begin = word_id % BUCKET == 0, offsets[word_id]
        cursor = _spell_next(s, is_first, _open_bucket(s.file, word_id // BUCKET) if is_first else cursor)
        n = cursor.length
        if begin + n > len(symbols):
            symbols = np.concatenate((symbols, np.empty(len(symbols) + n, np.int32)))
        symbols[begin : begin + n] = s.buffer[:n]
        offsets[word_id + 1] = begin + n
    return symbols[: offsets[-1]], offsets


@merged_kernel
def _compare(s: Speller, n: int, typed: Typed) -> int:
    """−1, 0 or 1: whether the word of n symbols in the buffer comes before the words that match, is one, or after."""
    key, k = s.alphabet.key, 0
    for i in range(n):
        for c in range(key[s.buffer[i], 0]):
            if k >= len(typed.key):
                return 0 if typed.is_prefix else 1
            difference = key[s.buffer[i], 1 + c] - typed.key[k]
            if difference != 0:
                return 1 if difference > 0 else -1
            k += 1
    return 0 if k == len(typed.key) else -1


@merged_kernel
def _bound(s: Speller, typed: Typed, begin: int, end: int, least: int) -> int:
    """The first word of `begin:end` whose comparison with `typed` is at least `least`; `end` if there is none."""
    low, high = begin // BUCKET, (end + BUCKET - 1) // BUCKET
    while high - low > 1:  # the bound is in bucket `low`, or it is the first word of a later one
        middle = (low + high) >> 1
        if _compare(s, _spell(s, middle * BUCKET), typed) < least:
            low = middle
        else:
            high = middle
    cursor = _open_bucket(s.file, low)
    for word_id in range(low * BUCKET, min((low + 1) * BUCKET, end)):
        cursor = _spell_next(s, word_id == low * BUCKET, cursor)
        if word_id >= begin and _compare(s, cursor.length, typed) >= least:
            return word_id
    return min((low + 1) * BUCKET, end)


@kernel
def key_ranges(arrays: FileArrays, alphabet: Alphabet, key: IntArray, is_prefix: bool) -> LongArray:
    """Per tier, the range of ids of the words whose key is `key`, or starts with it."""
    s, typed = _speller(arrays, alphabet), Typed(key, is_prefix)
    frame = s.file.frame
    ranges = np.zeros((frame[F_TIERS], 2), np.int64)
    begin = FIRST_WORD
    for t in range(len(ranges)):
        end = frame[F_TIER_ENDS + t]
        ranges[t, 0] = _bound(s, typed, begin, end, 0)
        ranges[t, 1] = _bound(s, typed, ranges[t, 0], end, 1)
        begin = end
    return ranges


@kernel
def find_word(arrays: FileArrays, alphabet: Alphabet, key: IntArray, symbols: IntArray) -> int:
    """The id of the word with this key and these symbols, or −1."""
    ranges = key_ranges(arrays, alphabet, key, False)
    s = _speller(arrays, alphabet)
    for t in range(len(ranges)):
        for word_id in range(ranges[t, 0], ranges[t, 1]):
            same = _spell(s, word_id) == len(symbols)
            for i in range(len(symbols)):
                same = same and s.buffer[i] == symbols[i]
            if same:
                return word_id
    return -1
