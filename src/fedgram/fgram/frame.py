"""The frame of `lm.fgram`: header, sections, checksum; `docs/formats/fgram.md` is the specification.

A file is a header of 32-bit numbers, little-endian, and sections that begin on whole 64-bit words. Kernels see the file
as an array of 64-bit words and the header as the array `frame`, whose entries are named here. What the header says is
checked when a file is opened, and section by section what kernels rely on; the kernels bound all the rest themselves.
"""

import struct
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray, frozen
from fedgram.core.errors import InputError
from fedgram.core.jit import kernel
from fedgram.fgram.bits import RANK_BITS, SAMPLE, Words, sequence_shape
from fedgram.fgram.sets import BLOCK

MAGIC: Final = b"\x89FGRAM\r\n"
VERSION: Final = 1
MAX_BYTES: Final = 1 << 28  # so that the number of any bit fits in 31 bits
MAX_ORDER: Final = 7
MAX_TIERS: Final = 4
MAX_CODE_BITS: Final = 12
MAX_BACKOFF_BITS: Final = 20
MAX_WORD_SYMBOLS: Final = 255
MAX_SYMBOLS: Final = 1 << 16
MAX_CODE_LENGTH: Final = 24
BUCKET: Final = 16  # words that are spelled one after the other
SYMBOL_BITS: Final = 160
LOG_ZERO: Final = -99.0
_NONSENSE: Final = "has a header that makes no sense"

# magic, version, bytes, checksum, header's checksum, (order, code bits, backoff bits, derived), words, ends of the
# tiers, (symbols, text bits, alphabet, buckets, text), deviation, two zeros; then an entry an order.
_HEADER = struct.Struct("<8s4I4BI4I5If8x")
_LEVEL = struct.Struct("<2I2f6I8x")
_HEADER_SUM = slice(20, 24)
HEADER_BYTES: Final = _HEADER.size + MAX_ORDER * _LEVEL.size

# The entries of `frame`.
F_WORDS, F_ORDER, F_BITS, F_BACKOFF_BITS, F_DERIVED, F_TIERS, F_TIER_ENDS = 0, 1, 2, 3, 4, 5, 6
F_SYMBOLS, F_ALPHABET, F_BUCKETS, F_BUCKET_WIDTH, F_BUCKET_HIGH, F_TEXT, F_TEXT_BITS = 10, 11, 12, 13, 14, 15, 16
F_MAXIMA, F_LEVELS, LEVEL = 17, 20, 16
# … and of one order's part of it, from `F_LEVELS + LEVEL * order` on; bits of the file where a place is meant.
L_NGRAMS, L_CONTEXTS, L_LISTS, L_LIST_BITS, L_POINTERS, L_POINTER_WIDTH, L_POINTER_HIGH = 0, 1, 2, 3, 4, 5, 6
L_STARTS, L_START_WIDTH, L_START_HIGH, L_CHILDREN = 7, 8, 9, 10
FRAME_SIZE: Final = F_LEVELS + LEVEL * (MAX_ORDER + 2)


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """What the header says of the n-grams of one order; byte offsets of its sections, 0 for those it lacks.

    `contexts` is the number of n-grams one word shorter that these continue (1 at order 1).
    """

    ngrams: int
    contexts: int
    backoff_low: float
    backoff_step: float
    codebook: int
    lists: int
    list_bits: int
    pointers: int
    starts: int
    children: int


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """The header's values; see the specification for each."""

    bits: int
    backoff_bits: int
    derived: int
    words: int
    tier_ends: tuple[int, ...]
    symbols: int
    text_bits: int
    alphabet: int
    buckets: int
    text: int
    deviation: float
    levels: tuple[Level, ...]

    @property
    def order(self) -> int:
        """The length of the longest n-gram."""
        return len(self.levels)

    @property
    def ngrams(self) -> int:
        """The number of n-grams, `<s>` alone not counted."""
        return sum(level.ngrams for level in self.levels) - 1


@kernel
def checksum(words: Words) -> int:
    """Sixteen lanes, h ← ((h ⊕ w) · 0x9E3779B1) mod 2³², h ← h ⊕ (h >> 15); then the lanes in turn, alike."""
    lanes = np.zeros(16, np.uint32)
    prime, shift = np.uint32(0x9E3779B1), np.uint32(15)
    halves = words.view(np.uint32)
    whole = len(halves) >> 4 << 4
    for i in range(0, whole, 16):
        for k in range(16):
            h = np.uint32((lanes[k] ^ halves[i + k]) * prime)
            lanes[k] = h ^ (h >> shift)
    for i in range(whole, len(halves)):
        h = np.uint32((lanes[i - whole] ^ halves[i]) * prime)
        lanes[i - whole] = h ^ (h >> shift)
    total = np.uint32(len(halves))
    for k in range(16):
        total = np.uint32((total ^ lanes[k]) * prime)
        total = total ^ (total >> shift)
    return np.int64(total)  # type: ignore[return-value]


def write_file(header: Header, body: Words) -> bytes:
    """The bytes of a file: the header and, behind it, the sections, which end with a word of padding."""
    ends = (*header.tier_ends, 0, 0, 0)[:MAX_TIERS]
    raw = bytearray(HEADER_BYTES)
    _HEADER.pack_into(
        raw, 0, MAGIC, VERSION, HEADER_BYTES + 8 * len(body), checksum(body), 0,
        header.order, header.bits, header.backoff_bits, header.derived, header.words, *ends,
        header.symbols, header.text_bits, header.alphabet, header.buckets, header.text, header.deviation,
    )  # fmt: skip
    for n, level in enumerate(header.levels):
        _LEVEL.pack_into(raw, _HEADER.size + n * _LEVEL.size, *astuple(level))
    raw[_HEADER_SUM] = _header_sum(raw)
    return bytes(raw) + body.tobytes()


def _header_sum(raw: bytes | bytearray) -> bytes:
    blank = bytearray(raw)
    blank[_HEADER_SUM] = bytes(4)
    return int(checksum(np.frombuffer(bytes(blank), np.uint64))).to_bytes(4, "little")


def read_header(words: Words, path: str | Path, *, verify: bool) -> Header:
    """Check the frame of a file given as 64-bit words; refuse what a reader must refuse."""
    raw = words[: HEADER_BYTES // 8].tobytes()
    if raw[:8] != MAGIC:
        raise InputError(path, "is not an lm.fgram file")
    if len(raw) < HEADER_BYTES:
        raise InputError(path, "is cut short", remedy="copy it again")
    (_, version, size, total, _, order, bits, backoff_bits, derived, count, *ends_and_places, deviation) = (
        _HEADER.unpack_from(raw)
    )
    if version != VERSION:
        raise InputError(path, f"has format version {version}, not {VERSION}", remedy="pack it again, or upgrade")
    if _header_sum(raw) != raw[_HEADER_SUM]:
        raise InputError(path, "is damaged: its header does not match its checksum", remedy="copy it again")
    if size != 8 * len(words):
        raise InputError(path, f"has {8 * len(words)} bytes, not the {size} its header says", remedy="copy it again")
    if verify and checksum(words[HEADER_BYTES // 8 :]) != total:
        raise InputError(path, "is damaged: its content does not match its checksum", remedy="copy it again")
    ends = tuple(end for end in ends_and_places[:MAX_TIERS] if end)
    entries = range(_HEADER.size, _HEADER.size + min(order, MAX_ORDER) * _LEVEL.size, _LEVEL.size)
    levels = tuple(Level(*_LEVEL.unpack_from(raw, entry)) for entry in entries)
    places = ends_and_places[MAX_TIERS:]
    header = Header(bits, backoff_bits, derived, count, ends, *places, deviation, levels)  # type: ignore[call-arg]
    if order != len(levels) or not _is_sound(header):
        raise InputError(path, _NONSENSE)
    return header


def _is_sound(h: Header) -> bool:
    if not (1 <= h.order <= MAX_ORDER and 2 <= h.bits <= MAX_CODE_BITS and 1 <= h.backoff_bits <= MAX_BACKOFF_BITS):
        return False
    ends = h.tier_ends
    if not ends or ends[-1] != h.words or ends[0] < 3 or any(a >= b for a, b in pairwise(ends)):
        return False
    first = h.levels[0]
    if first.ngrams != h.words or first.contexts != 1 or not 1 <= h.symbols <= MAX_SYMBOLS or h.derived > 64:
        return False
    fits = all(1 <= level.contexts <= min(lower.ngrams, level.ngrams) for lower, level in pairwise(h.levels))
    fits = fits and all(level.ngrams * h.bits <= level.list_bits < 8 * MAX_BYTES for level in h.levels)
    floats = [value for level in h.levels for value in (level.backoff_low, level.backoff_step)]
    return fits and bool(np.isfinite(floats).all()) and all(abs(value) < 1e4 for value in floats)


def sequence_size(count: int, last: int) -> tuple[int, int, int]:
    """(low bits a number, high bits, bits in all) of a rising sequence whose numbers are at most `last`."""
    width, high = sequence_shape(count, last)
    return width, high, whole_words(high) + whole_words(count * width) + whole_words(32 * -(-count // SAMPLE))


def bitmap_size(count: int) -> int:
    """The bits of a bitmap with its ranks."""
    return whole_words(count) + whole_words(32 * -(-count // RANK_BITS))


def make_frame(header: Header, words: Words, path: str | Path) -> tuple[LongArray, FloatArray]:
    """(what kernels know of the file, its tables by order); all sections must lie inside the file.

    A table holds the log-probability of every code, the least log backoff weight, the step between two, and the
    probability of every code.
    """
    frame = np.zeros(FRAME_SIZE, np.int64)

    def section(offset: int, bits: int) -> int:
        """The bit where a section begins, which must lie inside."""
        if offset % 8 or offset < HEADER_BYTES or 8 * offset + bits > 64 * len(words) - 64:
            raise InputError(path, "has a section that lies outside the file")
        return 8 * offset

    codes = 1 << header.bits
    frame[:F_TIER_ENDS] = (
        header.words, header.order, header.bits, header.backoff_bits, header.derived, len(header.tier_ends),
    )  # fmt: skip
    frame[F_TIER_ENDS : F_TIER_ENDS + MAX_TIERS] = header.words
    frame[F_TIER_ENDS : F_TIER_ENDS + len(header.tier_ends)] = header.tier_ends
    width, high, size = sequence_size(-(-header.words // BUCKET), header.text_bits)
    frame[F_SYMBOLS:F_MAXIMA] = (
        header.symbols, section(header.alphabet, SYMBOL_BITS * header.symbols), section(header.buckets, size), width,
        high, section(header.text, header.text_bits), header.text_bits,
    )  # fmt: skip
    frame[F_MAXIMA] = 8 * header.levels[0].lists + whole_words(header.words * header.bits)
    tables = np.empty((header.order, 2 * codes + 2))
    for n, level in enumerate(header.levels, 1):
        entry = frame[F_LEVELS + LEVEL * n : F_LEVELS + LEVEL * (n + 1)]
        entry[: L_LIST_BITS + 1] = level.ngrams, level.contexts, section(level.lists, level.list_bits), level.list_bits
        if n > 1:
            width, high, size = sequence_size(level.contexts, level.list_bits)
            entry[L_POINTERS : L_POINTERS + 3] = section(level.pointers, size), width, high
        if 1 < n < header.order:
            width, high, size = sequence_size(level.contexts, level.ngrams)
            entry[L_STARTS : L_STARTS + 3] = section(level.starts, size), width, high
        if n < header.order:
            entry[L_CHILDREN] = section(level.children, bitmap_size(level.ngrams))
        place = section(level.codebook, 32 * codes) // 64
        stored = words[place : place + codes // 2].view(np.float32)
        book = np.where(np.isfinite(stored), stored, np.float32(1)).astype(np.float64)
        if not LOG_ZERO <= book.min() <= book.max() <= 0.0 or bool((np.diff(book) < 0).any()):
            raise InputError(path, "has a codebook that is not one of rising log-probabilities")
        tables[n - 1, :codes] = book
        tables[n - 1, codes : codes + 2] = level.backoff_low, level.backoff_step
        tables[n - 1, codes + 2 :] = np.exp(book)
    if header.levels[0].list_bits != unigram_bits(header.words, header.bits):
        raise InputError(path, _NONSENSE)
    return frozen(frame), frozen(tables)


def whole_words(bits: int) -> int:
    """The bits of the 64-bit words that this many bits need."""
    return (bits + 63) // 64 * 64


def unigram_bits(words: int, bits: int) -> int:
    """The codes of all words, and the greatest code of every 128."""
    return whole_words(words * bits) + whole_words(-(-words // BLOCK) * bits)
