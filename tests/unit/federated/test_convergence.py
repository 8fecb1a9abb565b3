"""The Z statistic: 0 for one distribution, clearly positive for two, and why halves must be disjoint."""

import numpy as np
import pytest

from fedgram.core.arrays import FloatArray
from fedgram.federated.convergence import MOVING_ROUNDS, DeviceSums, compare_halves, measure_convergence, z_statistic
from fedgram.federated.unigram_collection import RoundCounts


def random_round(rng: np.random.Generator, p: FloatArray, *, clip: float, devices: int = 60) -> RoundCounts:
    """Devices of very different sizes, each with its own taste around p."""
    weight, square, cross, length_square = np.zeros(len(p)), np.zeros(len(p)), np.zeros(len(p)), 0.0
    for _ in range(devices):
        C = rng.multinomial(int(rng.lognormal(4.0, 1.0)) + 1, rng.dirichlet(20.0 * p)).astype(float)
        a = C * (clip / max(clip, C.sum()) if np.isfinite(clip) else 1.0)
        weight, square, cross = weight + a, square + a * a, cross + a * a.sum()
        length_square += float(a.sum()) ** 2
    seen = np.flatnonzero(weight)
    return RoundCounts(seen, weight[seen], square[seen], cross[seen], length_square, devices)


def zipf(words: int) -> FloatArray:
    p: FloatArray = 1.0 / np.arange(1, words + 1)
    return p / float(p.sum())


@pytest.mark.parametrize("clip", [1.0, 50.0, np.inf])
def test_z_is_near_zero_for_one_population_and_positive_for_two(clip: float) -> None:
    words, rounds = 300, 12
    same, moved = [], []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        first = [random_round(rng, zipf(words), clip=clip) for _ in range(rounds)]
        other = [random_round(rng, zipf(words)[::-1], clip=clip) for _ in range(rounds // 2)]
        same.append(measure_convergence(tuple(first)).z[-1])
        moved.append(measure_convergence((*first[: rounds // 2], *other)).z[-1])
    spread = np.std(same) / np.sqrt(len(same))
    assert abs(np.mean(same)) < 4 * spread
    assert np.min(moved) > 20 * np.std(same)


def test_independent_words_need_no_more_than_their_counts() -> None:
    """For plain Poisson counts the device variance and the counts themselves agree: Z is unbiased with either."""
    p, values = zipf(50), []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        X, Y = rng.poisson(400 * p).astype(float), rng.poisson(300 * p).astype(float)
        values.append(z_statistic(X, Y, X, Y))
    assert abs(np.mean(values)) < 4 * np.std(values) / np.sqrt(len(values))


def test_nested_counts_would_be_biased() -> None:
    """The fault that disjoint halves avoid."""
    p, values = zipf(50), []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        X = rng.poisson(400 * p).astype(float)
        Y = X + rng.poisson(400 * p).astype(float)
        values.append(z_statistic(X, Y, X, Y))
    assert np.mean(values) < -10 * np.std(values) / np.sqrt(len(values))


def test_variance_of_clipped_devices_is_not_their_count() -> None:
    """The fault that device sums avoid: at λ = 1 the naive formula is far below 0."""
    rng = np.random.default_rng(0)
    halves = [DeviceSums(300), DeviceSums(300)]
    for half in halves:
        for _ in range(5):
            half.add(random_round(rng, zipf(300), clip=1.0))
    naive = z_statistic(halves[0].weight, halves[1].weight, halves[0].weight, halves[1].weight)
    assert naive < -1.0
    assert abs(compare_halves(halves[0], halves[1])) < 0.3


def test_words_seen_and_new_words() -> None:
    def part(*index: int) -> RoundCounts:
        ones = np.ones(len(index))
        return RoundCounts(np.array(index), ones, ones, ones, 1.0, 1)

    result = measure_convergence((part(1, 2), part(2, 3), part(1), part(9)))
    assert result.unique == [2, 3, 3, 4]
    assert result.new == [2, 1, 0, 1]
    assert result.moving_average == pytest.approx([1.0, 1.0, 2 / 3, 0.75])
    assert result.z[0] == 0.0
    long = measure_convergence(tuple(part(1) for _ in range(2 * MOVING_ROUNDS)))
    assert long.moving_average[-1] == 0.0
    assert measure_convergence(()).z == []
