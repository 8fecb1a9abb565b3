"""Gaussian noise in integers: its distribution, its sources, and its speed."""

import time
from math import erfc, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedgram.core.errors import FedgramError
from fedgram.privacy.noise import (
    Randomness,
    SeededRandomness,
    SystemRandomness,
    WordArray,
    gaussian_noise,
    normals,
    on_grid,
)

SOURCES: list[Randomness] = [SystemRandomness(), SeededRandomness(7)]


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: type(s).__name__)
def test_normal_numbers_are_normal(source: Randomness) -> None:
    drawn = normals(source, 1_000_001)
    assert len(drawn) == 1_000_001
    assert abs(drawn.mean()) < 5e-3  # five standard errors
    assert drawn.std() == pytest.approx(1.0, abs=3.6e-3)
    assert stats.kstest(drawn[::10], "norm").pvalue > 1e-6
    for limit in (3.0, 4.0):
        expected = len(drawn) * erfc(limit / sqrt(2))
        assert abs((np.abs(drawn) > limit).sum() - expected) < 5 * sqrt(expected)
    halves = drawn[:1_000_000].reshape(2, -1)
    assert abs(float(np.mean(halves[0] * halves[1]))) < 8e-3
    assert abs(float(np.mean(drawn[:-1] * drawn[1:]))) < 6e-3


class _Words:
    """A source whose words are given."""

    name, is_cryptographic = "given", False

    def __init__(self, words: list[int]) -> None:
        self._words = np.array(words, np.uint64)

    def words(self, count: int, *_: Any) -> WordArray:
        return self._words[:count]


def test_the_extreme_words_give_finite_numbers() -> None:
    top = 2**64 - 1
    assert normals(_Words([0, 0]), 2)[0] == pytest.approx(sqrt(2 * 65 * np.log(2)))  # the largest number: 9.49
    assert normals(_Words([top, 0]), 2).tolist() == [0.0, 0.0]
    assert np.isfinite(normals(_Words([top, top]), 2)).all()
    assert normals(_Words([2**63, 2**62]), 2)[1] == pytest.approx(sqrt(2 * np.log(2)))  # u = 1/2, v = π/2


def test_noise_is_on_the_grid_of_the_sum() -> None:
    """Every integer of the grid is reached, however large the noise is: no last bit of the sum shows."""
    for deviation in (0.7, 3.5, 2.0**24, 2.0**40):
        noise = gaussian_noise(200_000, deviation, SeededRandomness(1), "x")
        assert noise.dtype == np.int64
        assert noise.std() == pytest.approx(sqrt(deviation**2 + 1 / 12), rel=0.01)
        odd = (noise & 1).mean() if deviation > 1 else 0.5
        assert odd == pytest.approx(0.5, abs=0.006)
        far = noise[np.abs(noise) > 2 * deviation]
        assert deviation < 100 or (far & 1).mean() == pytest.approx(0.5, abs=0.03)
    exact = normals(SeededRandomness(1), 1000, "x")
    assert (gaussian_noise(1000, 5.0, SeededRandomness(1), "x") == np.rint(5.0 * exact)).all()


def test_small_noise_has_the_probabilities_of_a_rounded_gaussian() -> None:
    noise = gaussian_noise(400_000, 0.8, SeededRandomness(2))
    for k in range(-3, 4):
        expected = stats.norm.cdf((k + 0.5) / 0.8) - stats.norm.cdf((k - 0.5) / 0.8)
        assert (noise == k).mean() == pytest.approx(expected, abs=5 * sqrt(expected / 400_000))


@pytest.mark.parametrize("deviation", [0.0, -1.0, 2.0**50, float("nan"), float("inf")])
def test_noise_that_does_not_fit_is_refused(deviation: float) -> None:
    with pytest.raises(FedgramError, match="does not fit"):
        on_grid(np.ones(1), deviation)


def test_a_seed_repeats_and_names_differ() -> None:
    source = SeededRandomness(3)
    once = gaussian_noise(600_000, 9.0, source, "round", 1)
    assert (once == gaussian_noise(600_000, 9.0, SeededRandomness(3), "round", 1)).all()
    assert (once != gaussian_noise(600_000, 9.0, source, "round", 2)).mean() > 0.9
    assert (once != gaussian_noise(600_000, 9.0, SeededRandomness(4), "round", 1)).mean() > 0.9
    assert (once[: 1 << 18] != once[1 << 18 : 1 << 19]).mean() > 0.9  # chunks are not repeated


def test_calls_without_names_are_never_the_same() -> None:
    source, again = SeededRandomness(3), SeededRandomness(3)
    calls = [gaussian_noise(1000, 9.0, source) for _ in range(2)]
    assert (calls[0] != calls[1]).mean() > 0.9
    assert all((noise == gaussian_noise(1000, 9.0, again)).all() for noise in calls)
    system = SystemRandomness()
    assert (gaussian_noise(1000, 9.0, system, "x") != gaussian_noise(1000, 9.0, system, "x")).mean() > 0.9


def test_sources_say_whether_they_are_cryptographic() -> None:
    system, seeded = SOURCES
    assert system.is_cryptographic
    assert "cryptographic" in system.name
    assert not seeded.is_cryptographic
    assert "7" in seeded.name
    assert "not private" in seeded.name


def test_five_million_numbers_take_seconds() -> None:
    gaussian_noise(1000, 9.0, SystemRandomness())
    best = min(_seconds() for _ in range(3))
    assert best < 6.0  # 0.5 s on a quiet core


def _seconds() -> float:
    began = time.process_time()
    gaussian_noise(5_000_000, 1e6, SystemRandomness())
    return time.process_time() - began
