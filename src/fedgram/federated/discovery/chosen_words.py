"""Which of its words a device contributes: random ones, by how often it typed them, and the same at every level.

Every distinct word w of a device gets a waiting time −ln(u_w) / (times that w was typed), and the words with the least
waiting times are chosen. So the first one is w with a probability proportional to the number of times, and the others
follow as in sampling without replacement. The number u_w in (0, 1] is a hash of the device's key and the word. A device
therefore stores nothing: it makes the same choice at every level of a collection, and as a rule also after more text
was typed. The privacy guarantee does not rest on this: what a device may send is limited at every level.
"""

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import IntArray, LongArray
from fedgram.core.jit import inline_kernel, kernel
from fedgram.core.random import philox, stream_key

HashArray = NDArray[np.uint64]
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def device_key(seed: int, device: int) -> np.uint64:
    """The key of a device's choice in a collection."""
    return stream_key(seed, "discovery", device)


@kernel
def word_hashes(values: IntArray, offsets: LongArray) -> HashArray:
    """A 64-bit hash of each row of codes; 0 for an empty row only."""
    found = np.zeros(len(offsets) - 1, np.uint64)
    for row in range(len(found)):
        h = np.uint64(0)
        for i in range(offsets[row], offsets[row + 1]):
            h = (h ^ np.uint64(values[i] + 1)) * _MULTIPLIER
            h ^= h >> np.uint64(29)
        found[row] = max(h, np.uint64(1)) if offsets[row] < offsets[row + 1] else np.uint64(0)
    return found


@inline_kernel
def _waiting_time(word: np.uint64, times: int, key: np.uint64) -> float:
    u = 1.0 - np.float64(philox(key, word, np.uint64(0))[0] >> np.uint64(11)) * 2.0**-53
    return float(-np.log(u) / times)


@kernel
def choose(hashes: HashArray, key: np.uint64, most: int) -> LongArray:
    """Of the words with these hashes, in the order of a text, the places of at most `most` that a device contributes.

    A chosen word is given by the first place of its occurrences; words with the hash 0 are never chosen.
    """
    order = np.argsort(hashes, kind="mergesort")
    place, waiting = np.empty(most, np.int64), np.empty(most)
    chosen, i = 0, 0
    while i < len(order):
        word, j = hashes[order[i]], i
        while j < len(order) and hashes[order[j]] == word:
            j += 1
        if word:
            time = _waiting_time(word, j - i, key)
            if chosen < most or time < waiting[most - 1]:
                chosen = min(chosen + 1, most)
                k = chosen - 1
                while k > 0 and waiting[k - 1] > time:
                    waiting[k], place[k] = waiting[k - 1], place[k - 1]
                    k -= 1
                waiting[k], place[k] = time, order[i]
        i = j
    return place[:chosen].copy()
