"""Gaussian noise for sums in fixed point, and the sources of randomness that it is drawn from.

A sum in fixed point is an array of integers. The noise is drawn as floating-point numbers, scaled to the grid of the
sum, and rounded to integers before it is added, so the released value is an integer on the same grid.

Why this matters: the floating-point numbers that a sum plus unrounded noise can reach depend on the sum, so the last
bits of a released number can give the sum away (Mironov 2012; Haney et al. 2022). Here the sum is an integer, so
sum + round(noise) = round(sum + noise): the release is the ideal Gaussian mechanism followed by rounding, which is
post-processing, and the grid is the same whatever the sum is.

What remains: the noise is the Gaussian distribution as far as 64 random bits and double precision can tell. Numbers
beyond 9.4 standard deviations are never drawn (their probability is 3·10⁻²⁰ per number, so 1.5·10⁻¹³ in 5 million
numbers, to be compared with δ), and a draw that lies within about 10⁻¹⁵ standard deviations of the border between two
integers may be rounded to the wrong one. The time that a draw takes is not constant.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.compute import available_cores
from fedgram.core.errors import FedgramError
from fedgram.core.random import stream

WordArray = NDArray[np.uint64]
_CHUNK = 1 << 18  # numbers that are drawn together, so that they stay in the processor's cache
_MOST_THREADS = 16
_MOST_DEVIATION = 2.0**49  # in units of the grid; ten times this is still exact in double precision


class Randomness(Protocol):
    """A source of random 64-bit words. Names say what the words are for, such as a round and a vector.

    A repeatable source gives the same words for the same names, so that an interrupted run can be resumed.
    """

    @property
    def name(self) -> str:
        """What reports call the source."""

    @property
    def is_cryptographic(self) -> bool:
        """Whether nobody can predict the words. Only then is there any privacy."""

    def words(self, count: int, *names: str | int) -> WordArray:
        """Independent random words, uniform over all 64-bit numbers."""


class SystemRandomness:
    """The operating system's cryptographic generator; every call gives new words."""

    name = "system generator (cryptographic)"
    is_cryptographic = True

    def words(self, count: int, *names: str | int) -> WordArray:  # noqa: ARG002
        """Words from `os.urandom`."""
        return np.frombuffer(os.urandom(8 * count), np.uint64)


class SeededRandomness:
    """A repeatable generator for tests and experiments.

    The same seed and names give the same words; calls without names give new words each, in the order of the calls.
    Whoever knows the seed can remove the noise, so what is released has no privacy.
    """

    is_cryptographic = False

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._calls = 0  # without names

    @property
    def name(self) -> str:
        """The name, with the seed."""
        return f"seed {self.seed} (repeatable, not private)"

    def words(self, count: int, *names: str | int) -> WordArray:
        """The first words of the stream of this seed and these names."""
        if not names:
            self._calls += 1
            names = ("call", self._calls)
        return stream(self.seed, "noise", *names).integers(0, 2**64, count, np.uint64)


def normals(randomness: Randomness, count: int, *names: str | int) -> FloatArray:
    """Independent standard normal numbers, by the Box–Muller transform of 64-bit words.

    >>> a, b = SeededRandomness(1), SeededRandomness(1)
    >>> normals(a, 3, "x").tolist() == normals(b, 3, "x").tolist() != normals(b, 3, "y").tolist()
    True
    """
    drawn = np.empty(count)

    def draw(first: int) -> None:
        part = drawn[first : first + _CHUNK]
        half = (len(part) + 1) // 2
        chunk = (*names, first) if names else ()
        part[:] = _box_muller(randomness.words(2 * half, *chunk))[: len(part)]

    in_any_order = bool(names) or randomness.is_cryptographic
    for _ in (_threads().map if in_any_order and count > _CHUNK else map)(draw, range(0, count, _CHUNK)):
        pass
    return drawn


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(available_cores(), _MOST_THREADS), thread_name_prefix="noise")


def _box_muller(words: WordArray) -> FloatArray:
    """√(−2·ln u)·cos v and √(−2·ln u)·sin v, with u uniform in (0, 1] and v uniform in [0, 2π)."""
    half = len(words) // 2
    u = (words[:half].astype(np.float64) + 0.5) * 2.0**-64
    v = words[half:].astype(np.float64) * (2.0 * np.pi * 2.0**-64)
    radius = np.sqrt(-2.0 * np.log(u))
    return np.concatenate([radius * np.cos(v), radius * np.sin(v)])


def gaussian_noise(count: int, deviation: float, randomness: Randomness, *names: str | int) -> LongArray:
    """Independent Gaussian noise, rounded to integers. The standard deviation is in units of the grid.

    For a sum with `bits` fraction bits the deviation is 2**bits times that of the numbers that the integers stand for.
    """
    return on_grid(normals(randomness, count, *names), deviation)


def on_grid(noise: FloatArray, deviation: float) -> LongArray:
    """Noise of standard deviation 1, scaled to a standard deviation in units of the grid and rounded to integers.

    The noise must be in double precision: with fewer bits it would miss some integers, and so show the last bits of the
    sum.
    """
    if not 0 < deviation <= _MOST_DEVIATION:
        remedy = "use fewer fraction bits, a smaller clip norm or less noise"
        raise FedgramError(f"noise with a standard deviation of {deviation:g} grid units does not fit; {remedy}")
    integers: LongArray = np.rint(noise * deviation).astype(np.int64)
    return integers
