"""The Z statistic: 0 for one distribution, clearly positive for two; why halves must be disjoint, and what it costs to
estimate the variance from rounds alone.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from fedgram.core.arrays import FloatArray
from fedgram.federated.convergence import MOVING_ROUNDS, RoundSums, compare_halves, measure_convergence, z_statistic
from fedgram.federated.unigram_collection import RoundCounts

WORDS, ROUNDS, RUNS, CHANGED_RUNS = 300, 12, 60, 15
CLIPS = (1.0, 50.0, np.inf)


@dataclass(frozen=True)
class SimulatedRound:
    """The sums of a round as the server has them, and what it would have if devices also sent squares.

    These are Σ a², Σ a·ℓ and Σ ℓ² over the devices, with a = w·C and ℓ = Σ a per device.
    """

    sums: RoundCounts
    weight: FloatArray
    square: FloatArray
    cross: FloatArray
    length_square: float


def random_round(rng: np.random.Generator, p: FloatArray, *, clip: float, devices: int = 40) -> SimulatedRound:
    """Devices of very different sizes, each with its own distribution around p."""
    weight, square, cross, length_square = np.zeros(len(p)), np.zeros(len(p)), np.zeros(len(p)), 0.0
    for _ in range(devices):
        C = rng.multinomial(int(rng.lognormal(4.0, 1.0)) + 1, rng.dirichlet(20.0 * p)).astype(float)
        a = C * (clip / max(clip, C.sum()) if np.isfinite(clip) else 1.0)
        weight, square, cross = weight + a, square + a * a, cross + a * a.sum()
        length_square += float(a.sum()) ** 2
    seen = np.flatnonzero(weight)
    return SimulatedRound(RoundCounts(seen, weight[seen], devices), weight, square, cross, length_square)


def zipf(words: int) -> FloatArray:
    p: FloatArray = 1.0 / np.arange(1, words + 1)
    return p / float(p.sum())


def by_rounds(rounds: list[SimulatedRound]) -> float:
    """Z of the two halves, as the package computes it."""
    return measure_convergence(tuple(part.sums for part in rounds)).z[-1]


def by_devices(rounds: list[SimulatedRound]) -> float:
    """Z of the two halves with the variance V_i = Σ_devices (a_i − p_i·ℓ)², which needs second moments per device."""
    halves = rounds[: len(rounds) // 2], rounds[len(rounds) // 2 :]
    X, Y = (np.sum([part.weight for part in half], axis=0) for half in halves)
    p = (X + Y) / (X + Y).sum()

    def variance(half: list[SimulatedRound]) -> FloatArray:
        square, cross = (np.sum([getattr(part, name) for part in half], axis=0) for name in ("square", "cross"))
        result: FloatArray = square - 2 * p * cross + p * p * sum(part.length_square for part in half)
        return result

    return z_statistic(X, Y, variance(halves[0]), variance(halves[1]))


@cache
def simulations(clip: float, runs: int = RUNS) -> dict[str, list[list[SimulatedRound]]]:
    """Runs of a constant population, of one that shifts by a fifth halfway, and of one that reverses."""
    p = zipf(WORDS)
    made: dict[str, list[list[SimulatedRound]]] = {"same": [], "moved": [], "turned": []}
    others = {"moved": 0.8 * p + 0.2 * p[::-1], "turned": p[::-1]}
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        first = [random_round(rng, p, clip=clip) for _ in range(ROUNDS)]
        made["same"].append(first)
        for name, other in others.items() if seed < CHANGED_RUNS else ():
            then = [random_round(rng, other, clip=clip) for _ in range(ROUNDS // 2)]
            made[name].append(first[: ROUNDS // 2] + then)
    return made


@pytest.mark.parametrize("clip", CLIPS)
def test_z_is_near_zero_for_one_population_and_positive_for_two(clip: float) -> None:
    same, turned = ([by_rounds(run) for run in simulations(clip)[name]] for name in ("same", "turned"))
    spread = np.std(same) / np.sqrt(len(same))
    assert abs(np.mean(same)) < 4 * spread
    assert np.min(turned) > 20 * np.std(same)


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize(("runs", "tolerance"), [(RUNS, 0.11), pytest.param(1000, 0.03, marks=pytest.mark.slow)])
def test_what_the_variance_between_rounds_costs(clip: float, runs: int, tolerance: float) -> None:
    """Compared with the variance between devices, on the same data.

    Without a change, the standard deviation of Z is √((R − 2)/(R − 1)) times as large. With a change, Z is
    (R − 2)/(R − 1) times as large, since the change is one of the differences between rounds. Their ratio is therefore
    √((R − 2)/(R − 1)) times as high.
    """
    z = {
        (name, measure): np.array([measure(run) for run in simulations(clip, runs)[name]])
        for name in ("same", "moved")
        for measure in (by_rounds, by_devices)
    }
    spread = z["same", by_rounds].std() / z["same", by_devices].std()
    height = z["moved", by_rounds].mean() / z["moved", by_devices].mean()
    kept = (ROUNDS - 2) / (ROUNDS - 1)
    assert spread == pytest.approx(np.sqrt(kept), abs=tolerance)
    assert height == pytest.approx(kept, abs=0.01)
    assert height / spread == pytest.approx(np.sqrt(kept), abs=tolerance)
    assert z["moved", by_rounds].mean() > 8 * z["same", by_rounds].std()


def test_devices_that_return_do_not_move_z() -> None:
    """Rounds that draw half of a small population differ less, and so do the halves."""
    values = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        a = np.array([rng.multinomial(20, rng.dirichlet(20.0 * zipf(50))) for _ in range(40)], float)
        rounds = []
        for _ in range(ROUNDS):
            weight = a[rng.permutation(len(a))[: len(a) // 2]].sum(axis=0)
            seen = np.flatnonzero(weight)
            rounds.append(RoundCounts(seen, weight[seen], len(a) // 2))
        values.append(measure_convergence(tuple(rounds)).z[-1])
    assert abs(np.mean(values)) < 4 * np.std(values) / np.sqrt(len(values))


def test_independent_words_need_no_more_than_their_counts() -> None:
    """For Poisson counts the variance equals the expected count: Z is unbiased with either."""
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


def halves_of(rounds: list[SimulatedRound]) -> tuple[RoundSums, RoundSums]:
    halves = RoundSums(WORDS), RoundSums(WORDS)
    for number, part in enumerate(rounds):
        halves[number >= len(rounds) // 2].add(part.sums)
    return halves


def test_variance_of_clipped_devices_is_not_their_count() -> None:
    """The fault that sums of rounds avoid: at λ = 1 the naive formula is far below 0."""
    first, second = halves_of(simulations(1.0)["same"][0])
    naive = z_statistic(first.weight, second.weight, first.weight, second.weight)
    assert naive < -1.0
    assert abs(compare_halves(first, second)) < 0.3


def test_running_sums_are_those_of_the_halves() -> None:
    rounds = simulations(50.0)["moved"][1]
    z = measure_convergence(tuple(part.sums for part in rounds)).z
    for k in range(3, ROUNDS + 1):
        halves = RoundSums(WORDS), RoundSums(WORDS)
        for number, part in enumerate(rounds[:k]):
            halves[number >= k // 2].add(part.sums)
        assert z[k - 1] == pytest.approx(compare_halves(*halves), rel=1e-9, abs=1e-9)


def test_of_two_rounds_nothing_can_be_told() -> None:
    two = simulations(50.0)["turned"][0][5:7]
    assert measure_convergence(tuple(part.sums for part in two)).z == [0.0, 0.0]
    assert z_statistic(np.zeros(3), np.ones(3), np.zeros(3), np.ones(3)) == 0.0


def test_words_seen_and_new_words() -> None:
    def part(*index: int) -> RoundCounts:
        return RoundCounts(np.array(index), np.ones(len(index)), 1)

    result = measure_convergence((part(1, 2), part(2, 3), part(1), part(9)))
    assert result.unique == [2, 3, 3, 4]
    assert result.new == [2, 1, 0, 1]
    assert result.moving_average == pytest.approx([1.0, 1.0, 2 / 3, 0.75])
    assert result.z[0] == 0.0
    long = measure_convergence(tuple(part(1) for _ in range(2 * MOVING_ROUNDS)))
    assert long.moving_average[-1] == 0.0
    assert measure_convergence(()).z == []
