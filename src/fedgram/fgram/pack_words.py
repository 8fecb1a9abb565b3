"""Writing the words of a packed model: their alphabet with its Huffman code, and the words in buckets.

`spelling` describes the sections and reads them.
"""

import heapq
from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.fgram.bits import Bits, bits_of
from fedgram.fgram.frame import BUCKET, MAX_CODE_LENGTH, MAX_WORD_SYMBOLS
from fedgram.fgram.spelling import END, MAX_KEY, SHARED_BITS, Alphabet, letter_key

_MAX_SHARED = (1 << SHARED_BITS) - 1  # symbols that a word shares with the one before


def make_alphabet(words: Sequence[str]) -> Alphabet:
    """The alphabet of the characters of these words in both cases."""
    spelled = Counter("".join(_suffixes(words)))
    both = {other for c in spelled for other in (c, c.upper(), c.lower()) if len(other) == 1}
    characters = [END, *sorted(both - {END})]
    point = np.array([ord(c) for c in characters], np.int32)
    keys = [[ord(k) for k in letter_key(c)] if c != END else [] for c in characters]
    key = np.array([[len(k), *k, *[0] * (MAX_KEY - len(k))] for k in keys], np.int32)
    counts = [len(words), *(spelled[c] for c in characters[1:])]
    return Alphabet.of(point, key, np.array(_code_lengths(counts), np.int32))


def _suffixes(words: Sequence[str]) -> list[str]:
    """The part of each word that is spelled out."""
    return [word if i % BUCKET == 0 else word[_shared(words[i - 1], word) :] for i, word in enumerate(words)]


def _shared(a: str, b: str) -> int:
    n = 0
    while n < min(len(a), len(b), _MAX_SHARED) and a[n] == b[n]:
        n += 1
    return n


def _code_lengths(counts: list[int]) -> list[int]:
    """The lengths of Huffman codes for these counts, which are halved until no code is too long."""
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


def spell_words(words: Sequence[str], alphabet: Alphabet) -> tuple[Bits, int, LongArray]:
    """(the text section, its number of bits, the first bit of each bucket)."""
    if any(len(word) > MAX_WORD_SYMBOLS for word in words):
        raise FedgramError(f"a word has more than {MAX_WORD_SYMBOLS} characters and cannot be packed")
    codes = _symbol_codes(alphabet)
    parts: list[str] = []
    starts, size = [], 0
    for i, (word, suffix) in enumerate(zip(words, _suffixes(words), strict=True)):
        if i % BUCKET == 0:
            starts.append(size)
        shared = "" if i % BUCKET == 0 else format(len(word) - len(suffix), f"0{SHARED_BITS}b")[::-1]
        parts.append(shared + "".join([codes[c] for c in suffix]) + codes[END])
        size += len(parts[-1])
    ones = np.frombuffer("".join(parts).encode(), np.uint8) == ord("1")
    return bits_of(ones), size, np.array(starts, np.int64)


def _symbol_codes(alphabet: Alphabet) -> dict[str, str]:
    """The code of every character as a string of 0 and 1, highest bit first."""
    next_code, result = alphabet.codes[:, 0].tolist(), {}
    for s in np.flatnonzero(alphabet.code_length).tolist():
        n = int(alphabet.code_length[s])
        result[chr(alphabet.point[s])] = format(next_code[n], f"0{n}b")
        next_code[n] += 1
    return result


def pack_alphabet(alphabet: Alphabet) -> Bits:
    """The alphabet section. Per symbol: code point, length of its code, length of its key, and key."""
    lengths = alphabet.code_length | alphabet.key[:, 0] << 8
    numbers = np.column_stack([alphabet.point, lengths, alphabet.key[:, 1:]]).astype(np.uint32).tobytes()
    return np.frombuffer(numbers + bytes(-len(numbers) % 8), np.uint64)
