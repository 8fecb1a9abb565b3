"""Text for benchmarks: any amount, the same every time, with the statistics of chat as far as n-gram programs can tell.

Words follow Zipf's law; each history of one or two words has its own favourites, chosen by hashing, so that bigrams and
trigrams repeat and new ones keep coming as text grows (12M words give about 6M distinct n-grams up to order 3).
"""

from pathlib import Path

import numpy as np

from fedgram.core.arrays import IntArray, LongArray
from fedgram.core.jit import kernel
from fedgram.core.random import stream_key, uniform_at

VOCABULARY = 60_000


@kernel
def _zipf(u: float, size: int) -> int:
    """A rank with probability about 1/(rank + 2.7), by inversion of the continuous law."""
    a = np.log(2.7)
    b = np.log(size + 2.7)
    return min(int(np.exp(a + u * (b - a)) - 2.7), size - 1)


@kernel
def _generate(words: int, vocabulary: int, key: np.uint64) -> tuple[IntArray, LongArray]:
    values, ends = np.empty(words, np.int32), np.empty(words, np.int64)
    sentences, before, last = 0, 0, 0
    for i in range(words):
        kind, u = uniform_at(key, i, 0), uniform_at(key, i, 1)
        rank = _zipf(u, 8 if kind < 0.5 else 30 if kind < 0.9 else vocabulary)
        if kind < 0.5:
            context = np.uint64(before) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(last) * np.uint64(
                0xC2B2AE3D27D4EB4F
            )
        elif kind < 0.9:
            context = np.uint64(last + 1) * np.uint64(0x9E3779B97F4A7C15)
        else:
            context = np.uint64(0)
        if context:
            h = (context ^ (np.uint64(rank) * np.uint64(0xD6E8FEB86659FD93))) * np.uint64(0xFF51AFD7ED558CCD)
            rank = _zipf(np.float64((h ^ (h >> np.uint64(32))) >> np.uint64(11)) * 2.0**-53, vocabulary)
        values[i] = rank
        before, last = last, rank + 1
        if uniform_at(key, i, 2) < 1.0 / 11.0 or i == words - 1:
            ends[sentences] = i + 1
            sentences += 1
            before, last = 0, 0
    return values, ends[:sentences].copy()


def write_text(path: Path, words: int, seed: int = 1) -> Path:
    """Write a text of this many words, one sentence a line."""
    values, ends = _generate(words, VOCABULARY, stream_key(seed, "benchmark text"))
    names = np.array([_spell(i) for i in range(VOCABULARY)], dtype=object)
    with path.open("w") as file:
        begin = 0
        for block in range(0, len(ends), 100_000):
            lines = []
            for end in ends[block : block + 100_000]:
                lines.append(" ".join(names[values[begin:end]]))
                begin = end
            file.write("\n".join(lines) + "\n")
    return path


def _spell(number: int) -> str:
    """Short words for low numbers: syllables in base 60."""
    syllables, word = [c + v for c in "bdfgklmnprst" for v in "aeiou"], ""
    number += 60
    while number:
        number, rest = divmod(number, 60)
        word += syllables[rest]
    return word
