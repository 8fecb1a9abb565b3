"""Random numbers by name: one seed, any number of independent streams, no global generator.

`stream(seed, "cohort", round)` is a numpy generator that depends only on the seed and the names. Kernels that draw many
samples use `uniform_at(key, sample, draw)`, a counter-based random number (Philox 4x64-10, Salmon et al. 2011). Such
numbers can be computed in any order, so results do not depend on batches, hardware or the number of workers.
"""

import hashlib

import numpy as np

from fedgram.core.jit import inline_kernel, kernel


def _digest(seed: int, names: tuple[str | int, ...]) -> bytes:
    text = "\x1f".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return hashlib.sha256(text.encode()).digest()


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The random generator of this seed and these names.

    >>> stream(7, "a", 1).random() == stream(7, "a", 1).random() != stream(7, "a", 2).random()
    True
    """
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(seed, names)[:16], "little")))


class Stream:
    """The seed and names of a random generator, which is created only when it is needed."""

    __slots__ = ("names", "seed")

    def __init__(self, seed: int, *names: str | int) -> None:
        self.seed, self.names = seed, names

    def generator(self) -> np.random.Generator:
        """A new generator, at the start of its stream."""
        return stream(self.seed, *self.names)


def stream_key(seed: int, *names: str | int) -> np.uint64:
    """The key of this seed and these names for `uniform_at`."""
    return np.uint64(int.from_bytes(_digest(seed, names)[:8], "little"))


@inline_kernel
def _multiply_high(a: np.uint64, b: np.uint64) -> np.uint64:
    """The upper 64 bits of the 128-bit product."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    mid = a1 * b0 + ((a0 * b0) >> half)
    mid_low = (mid & low) + a0 * b1
    return a1 * b1 + (mid >> half) + (mid_low >> half)


@kernel
def philox(key: np.uint64, sample: np.uint64, block: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Four random words for the counter (block, sample, 0, 0) and the key (key, 0)."""
    c0, c1, c2, c3 = np.uint64(block), np.uint64(sample), np.uint64(0), np.uint64(0)
    k0, k1 = np.uint64(key), np.uint64(0)
    for _ in range(10):
        h0, l0 = _multiply_high(np.uint64(0xD2E7470EE14C6C93), c0), np.uint64(0xD2E7470EE14C6C93) * c0
        h1, l1 = _multiply_high(np.uint64(0xCA5A826395121157), c2), np.uint64(0xCA5A826395121157) * c2
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0 += np.uint64(0x9E3779B97F4A7C15)
        k1 += np.uint64(0xBB67AE8584CAA73B)
    return c0, c1, c2, c3


@kernel
def uniform_at(key: np.uint64, sample: int, draw: int) -> float:
    """The random number in [0, 1) for draw number `draw` of sample number `sample`."""
    words = philox(key, np.uint64(sample), np.uint64(draw >> 2))
    lane = draw & 3
    word = words[0] if lane == 0 else words[1] if lane == 1 else words[2] if lane == 2 else words[3]
    return np.float64(word >> np.uint64(11)) * 2.0**-53
