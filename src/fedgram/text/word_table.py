"""A hash table from the bytes of words to dense ids, in flat arrays that kernels can read.

Word i is `blob[starts[i]:starts[i+1]]`, in UTF-8. `hashes[i]` is its 64-bit FNV-1a hash. `slots` is an open-addressing
table of ids (−1: empty); its size is a power of two and at least twice the number of words.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import ByteArray, IntArray, LongArray
from fedgram.core.jit import kernel

HashArray = NDArray[np.uint64]


@kernel
def hash_bytes(text: ByteArray, begin: int, end: int) -> np.uint64:
    """FNV-1a, with a final mix so that the low bits can index a table."""
    h = np.uint64(0xCBF29CE484222325)
    for i in range(begin, end):
        h = (h ^ np.uint64(text[i])) * np.uint64(0x100000001B3)
    return h ^ (h >> np.uint64(32))


@kernel
def find_word(
    text: ByteArray, begin: int, end: int, blob: ByteArray, starts: LongArray, hashes: HashArray, slots: IntArray
) -> tuple[int, np.int64, np.uint64]:
    """Returns (the id of the word `text[begin:end]` or −1, its slot or the free slot for it, its hash)."""
    h = hash_bytes(text, begin, end)
    mask = np.uint64(len(slots) - 1)
    slot = np.int64(h & mask)
    while True:
        word = slots[slot]
        if word < 0:
            return -1, slot, h
        if hashes[word] == h and starts[word + 1] - starts[word] == end - begin:
            same = True
            offset = starts[word]
            for i in range(end - begin):
                if blob[offset + i] != text[begin + i]:
                    same = False
                    break
            if same:
                return word, slot, h
        slot = np.int64(np.uint64(slot + 1) & mask)


@kernel
def insert_word(
    text: ByteArray, begin: int, end: int, slot: np.int64, h: np.uint64,
    blob: ByteArray, starts: LongArray, hashes: HashArray, slots: IntArray, count: int,
) -> bool:  # fmt: skip
    """Give the id `count` to the word `text[begin:end]`, which `find_word` did not find; False if there is no room."""
    offset = starts[count]
    if count >= len(hashes) or offset + (end - begin) > len(blob):
        return False
    for i in range(end - begin):
        blob[offset + i] = text[begin + i]
    starts[count + 1] = offset + (end - begin)
    hashes[count] = h
    slots[slot] = count
    return True


@kernel
def _fill_slots(hashes: HashArray, count: int, slots: IntArray) -> None:
    mask = np.uint64(len(slots) - 1)
    for word in range(count):
        slot = np.int64(hashes[word] & mask)
        while slots[slot] >= 0:
            slot = np.int64(np.uint64(slot + 1) & mask)
        slots[slot] = word


class WordTable:
    """Words in the order of their first occurrence; kernels append to the arrays while there is room."""

    def __init__(self) -> None:
        self.count = 0
        self.blob: ByteArray = np.zeros(1 << 16, np.uint8)
        self.starts: LongArray = np.zeros((1 << 12) + 1, np.int64)
        self.hashes: HashArray = np.zeros(1 << 12, np.uint64)
        self.slots: IntArray = np.full(1 << 13, -1, np.int32)

    @classmethod
    def of(cls, words: Iterable[str]) -> "WordTable":
        """A table of these distinct words, with ids in this order."""
        table = cls()
        encoded = [word.encode() for word in words]
        table.count = len(encoded)
        table.blob = np.frombuffer(b"".join(encoded) or b"\0", np.uint8).copy()
        table.starts = np.zeros(table.count + 1, np.int64)
        np.cumsum([len(e) for e in encoded], out=table.starts[1:])
        table.hashes = np.array(
            [hash_bytes(table.blob, a, b) for a, b in zip(table.starts[:-1], table.starts[1:], strict=True)], np.uint64
        )
        table._rehash(table.count)
        return table

    def words(self) -> list[str]:
        """All words as strings, in the order of their ids."""
        blob, starts = self.blob.tobytes(), self.starts.tolist()
        return [blob[starts[i] : starts[i + 1]].decode() for i in range(self.count)]

    def make_room(self, extra_bytes: int) -> None:
        """Double the capacity for words, and make room for this many more bytes in the blob."""
        used = int(self.starts[self.count])
        if used + extra_bytes > len(self.blob):
            self.blob = np.concatenate([self.blob[:used], np.zeros(used + 2 * extra_bytes, np.uint8)])
        capacity = max(2 * len(self.hashes), 1 << 12)
        self.hashes = np.concatenate([self.hashes, np.zeros(capacity - len(self.hashes), np.uint64)])
        self.starts = np.concatenate([self.starts, np.zeros(capacity + 1 - len(self.starts), np.int64)])
        self._rehash(capacity)

    def _rehash(self, capacity: int) -> None:
        size = 16
        while size < 2 * capacity:
            size *= 2
        self.slots = np.full(size, -1, np.int32)
        _fill_slots(self.hashes, self.count, self.slots)
