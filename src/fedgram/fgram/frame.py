"""The frame of `lm.fgram`: header, sections and checksums; `docs/formats/fgram.md` is the specification.

A file is a header of little-endian 32-bit numbers, followed by sections that start on whole 64-bit words. Kernels see
an open file as an `FgramFile`. Opening a file checks its header, and for each section what kernels rely on; kernels
check the bounds of everything else themselves.
"""

import struct
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray, frozen
from fedgram.core.errors import InputError
from fedgram.core.jit import kernel
from fedgram.fgram.bits import RANK_BITS, SAMPLE, Bits, sequence_shape
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
BUCKET: Final = 16  # words per bucket of the text section
SYMBOL_BITS: Final = 160
LOG_ZERO: Final = -99.0
_INVALID_HEADER: Final = "has an invalid header"
_COPY_AGAIN: Final = "copy it again"

# magic, version, bytes, checksum, header's checksum, (order, code bits, backoff bits, derived), words, ends of the
# tiers, (symbols, text bits, alphabet, buckets, text), deviation, two zeros; then one entry per order.
_HEADER = struct.Struct("<8s4I4BI4I5If8x")
_LEVEL = struct.Struct("<2I2f6I8x")
_HEADER_SUM = slice(20, 24)
HEADER_BYTES: Final = _HEADER.size + MAX_ORDER * _LEVEL.size

# The entries of `FgramFile.frame`.
F_WORDS, F_ORDER, F_CODE_BITS, F_BACKOFF_BITS, F_DERIVED, F_TIERS, F_TIER_ENDS = 0, 1, 2, 3, 4, 5, 6
F_SYMBOLS, F_ALPHABET, F_BUCKETS, F_BUCKET_WIDTH, F_BUCKET_HIGH, F_TEXT, F_TEXT_BITS = 10, 11, 12, 13, 14, 15, 16
F_MAXIMA, F_LEVELS, LEVEL = 17, 20, 16
# The entries of the part for one order, which starts at `F_LEVELS + LEVEL * order`. Sections are given by first bit.
L_NGRAMS, L_CONTEXTS, L_LISTS, L_LIST_BITS, L_POINTERS, L_POINTER_WIDTH, L_POINTER_HIGH = 0, 1, 2, 3, 4, 5, 6
L_STARTS, L_START_WIDTH, L_START_HIGH, L_CHILDREN = 7, 8, 9, 10
F_UNIGRAMS: Final = F_LEVELS + LEVEL + L_LISTS
FRAME_SIZE: Final = F_LEVELS + LEVEL * (MAX_ORDER + 2)


class FgramFile(NamedTuple):
    """An open file as kernels see it.

    `bits` is the whole file as a bit array. `frame` holds the numbers of the header and the first bits of the sections,
    in the entries F_… and L_…. Row n − 1 of `tables` belongs to order n: the log-probability of every code, the least
    log backoff weight, the step between two backoff codes, and the probability of every code.

    Python passes a file to kernels as the plain tuple `arrays`, and kernels restore it with `FgramFile(*arrays)`. That
    costs nothing, whereas numba takes 0.6 µs per call to recognise a named tuple, and a query takes only a few µs.
    """

    bits: Bits
    frame: LongArray
    tables: FloatArray

    @property
    def arrays(self) -> "FileArrays":
        """The file as a plain tuple."""
        return self.bits, self.frame, self.tables


FileArrays = tuple[Bits, LongArray, FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The header's entry for the n-grams of one order. Sections are byte offsets, 0 for those it does not have.

    `contexts` is the number of contexts, n-grams of the next lower order that these continue (1 at order 1).
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
    """The values of the header; the specification describes each."""

    code_bits: int
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
        """The number of n-grams, without `<s>` alone."""
        return sum(level.ngrams for level in self.levels) - 1


@kernel
def checksum(bits: Bits) -> int:
    """Sixteen lanes, h ← ((h ⊕ w) · 0x9E3779B1) mod 2³², h ← h ⊕ (h >> 15); then the lanes in turn, in the same way."""
    lanes = np.zeros(16, np.uint32)
    prime, shift = np.uint32(0x9E3779B1), np.uint32(15)
    halves = bits.view(np.uint32)
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


def write_file(header: Header, body: Bits) -> bytes:
    """The bytes of a file: the header followed by the sections, which end with one word of padding."""
    ends = (*header.tier_ends, 0, 0, 0)[:MAX_TIERS]
    raw = bytearray(HEADER_BYTES)
    _HEADER.pack_into(
        raw, 0, MAGIC, VERSION, HEADER_BYTES + 8 * len(body), checksum(body), 0,
        header.order, header.code_bits, header.backoff_bits, header.derived, header.words, *ends,
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


def read_header(bits: Bits, path: str | Path, *, verify: bool) -> Header:
    """Read and check the header of a file, and refuse what a reader must refuse; `verify` checks the content too."""
    raw = bits[: HEADER_BYTES // 8].tobytes()
    if raw[:8] != MAGIC:
        raise InputError(path, "is not an lm.fgram file")
    if len(raw) < HEADER_BYTES:
        raise InputError(path, "is truncated", remedy=_COPY_AGAIN)
    (_, version, size, total, _, order, code_bits, backoff_bits, derived, words, *ends_and_sections, deviation) = (
        _HEADER.unpack_from(raw)
    )
    if version != VERSION:
        raise InputError(path, f"has format version {version}, not {VERSION}", remedy="pack it again, or upgrade")
    if _header_sum(raw) != raw[_HEADER_SUM]:
        raise InputError(path, "is damaged: its header does not match its checksum", remedy=_COPY_AGAIN)
    if size != 8 * len(bits):
        raise InputError(path, f"has {8 * len(bits)} bytes, but its header says {size}", remedy=_COPY_AGAIN)
    if verify and checksum(bits[HEADER_BYTES // 8 :]) != total:
        raise InputError(path, "is damaged: its content does not match its checksum", remedy=_COPY_AGAIN)
    ends = tuple(end for end in ends_and_sections[:MAX_TIERS] if end)
    entries = range(_HEADER.size, _HEADER.size + min(order, MAX_ORDER) * _LEVEL.size, _LEVEL.size)
    levels = tuple(Level(*_LEVEL.unpack_from(raw, entry)) for entry in entries)
    sections = ends_and_sections[MAX_TIERS:]
    header = Header(code_bits, backoff_bits, derived, words, ends, *sections, deviation, levels)  # type: ignore[call-arg]
    if order != len(levels) or not _is_valid(header):
        raise InputError(path, _INVALID_HEADER)
    return header


def _is_valid(h: Header) -> bool:
    orders, codes = 1 <= h.order <= MAX_ORDER, 2 <= h.code_bits <= MAX_CODE_BITS
    if not (orders and codes and 1 <= h.backoff_bits <= MAX_BACKOFF_BITS):
        return False
    ends = h.tier_ends
    if not ends or ends[-1] != h.words or ends[0] < 3 or any(a >= b for a, b in pairwise(ends)):
        return False
    first = h.levels[0]
    if first.ngrams != h.words or first.contexts != 1 or not 1 <= h.symbols <= MAX_SYMBOLS or h.derived > 64:
        return False
    fits = all(1 <= level.contexts <= min(lower.ngrams, level.ngrams) for lower, level in pairwise(h.levels))
    fits = fits and all(level.ngrams * h.code_bits <= level.list_bits < 8 * MAX_BYTES for level in h.levels)
    floats = [value for level in h.levels for value in (level.backoff_low, level.backoff_step)]
    return fits and bool(np.isfinite(floats).all()) and all(abs(value) < 1e4 for value in floats)


def make_file(header: Header, bits: Bits, path: str | Path) -> FgramFile:
    """The file as kernels see it; refused if a section is not inside the file or a codebook is invalid."""
    frame = np.zeros(FRAME_SIZE, np.int64)
    frame[:F_TIER_ENDS] = (
        header.words, header.order, header.code_bits, header.backoff_bits, header.derived, len(header.tier_ends),
    )  # fmt: skip
    frame[F_TIER_ENDS : F_TIER_ENDS + MAX_TIERS] = header.words
    frame[F_TIER_ENDS : F_TIER_ENDS + len(header.tier_ends)] = header.tier_ends
    width, high, size = sequence_size(-(-header.words // BUCKET), header.text_bits)
    frame[F_SYMBOLS:F_MAXIMA] = (
        header.symbols, _first_bit(bits, header.alphabet, SYMBOL_BITS * header.symbols, path),
        _first_bit(bits, header.buckets, size, path), width, high,
        _first_bit(bits, header.text, header.text_bits, path), header.text_bits,
    )  # fmt: skip
    frame[F_MAXIMA] = 8 * header.levels[0].lists + whole_words(header.words * header.code_bits)
    codes = 1 << header.code_bits
    tables = np.empty((header.order, 2 * codes + 2))
    for n, level in enumerate(header.levels, 1):
        frame[F_LEVELS + LEVEL * n :][: L_CHILDREN + 1] = _level_entry(header, n, bits, path)
        book = _codebook(bits, level, codes, path)
        tables[n - 1] = np.concatenate([book, [level.backoff_low, level.backoff_step], np.exp(book)])
    if header.levels[0].list_bits != unigram_bits(header.words, header.code_bits):
        raise InputError(path, _INVALID_HEADER)
    return FgramFile(bits, frozen(frame), frozen(tables))


def _first_bit(bits: Bits, offset: int, size: int, path: str | Path) -> int:
    """The first bit of the section at a byte offset, whose `size` bits must be inside the file."""
    if offset % 8 or offset < HEADER_BYTES or 8 * offset + size > 64 * len(bits) - 64:
        raise InputError(path, "has a section outside the file")
    return 8 * offset


def _level_entry(header: Header, n: int, bits: Bits, path: str | Path) -> list[int]:
    """The part of the frame for order n: the entries L_…, 0 for sections that the order does not have."""
    level = header.levels[n - 1]
    entry = [level.ngrams, level.contexts, _first_bit(bits, level.lists, level.list_bits, path), level.list_bits]
    pointers, starts, children = [0, 0, 0], [0, 0, 0], 0
    if n > 1:
        width, high, size = sequence_size(level.contexts, level.list_bits)
        pointers = [_first_bit(bits, level.pointers, size, path), width, high]
    if 1 < n < header.order:
        width, high, size = sequence_size(level.contexts, level.ngrams)
        starts = [_first_bit(bits, level.starts, size, path), width, high]
    if n < header.order:
        children = _first_bit(bits, level.children, bitmap_size(level.ngrams), path)
    return [*entry, *pointers, *starts, children]


def _codebook(bits: Bits, level: Level, codes: int, path: str | Path) -> FloatArray:
    """The log-probabilities of the codes of one order."""
    place = _first_bit(bits, level.codebook, 32 * codes, path) // 64
    stored = bits[place : place + codes // 2].view(np.float32)
    book = np.where(np.isfinite(stored), stored, np.float32(1)).astype(np.float64)
    if not LOG_ZERO <= book.min() <= book.max() <= 0.0 or bool((np.diff(book) < 0).any()):
        raise InputError(path, "has an invalid codebook: log-probabilities must not fall, and lie between -99 and 0")
    return book


def sequence_size(count: int, last: int) -> tuple[int, int, int]:
    """(low bits per number, high bits, bits in total) of a rising sequence of numbers of at most `last`."""
    width, high = sequence_shape(count, last)
    return width, high, whole_words(high) + whole_words(count * width) + whole_words(32 * -(-count // SAMPLE))


def bitmap_size(count: int) -> int:
    """The number of bits of a bitmap with its ranks."""
    return whole_words(count) + whole_words(32 * -(-count // RANK_BITS))


def whole_words(size: int) -> int:
    """A number of bits, rounded up to whole 64-bit words."""
    return (size + 63) // 64 * 64


def unigram_bits(count: int, code_bits: int) -> int:
    """The number of bits of the codes of all words, and of the greatest code of every 128 words."""
    return whole_words(count * code_bits) + whole_words(-(-count // BLOCK) * code_bits)
