"""BLT noise: stream, sensitivity, error and the search for parameters, each against another computation."""

import sys
from itertools import combinations, pairwise
from math import inf, sqrt

import numpy as np
import pytest
from scipy.linalg import solve_triangular, toeplitz

from fedgram.core.arrays import FloatArray
from fedgram.core.errors import FedgramError, InvariantError, MissingDependencyError
from fedgram.core.storage import Record
from fedgram.privacy.blt import Blt, BltNoise, Participation, prefix_errors, sensitivity
from fedgram.privacy.blt_design import design_blt, max_loss, search_blt
from fedgram.privacy.noise import SeededRandomness, normals

BLT = Blt((0.996117, 0.908006, 0.512608), (0.110335, 0.183382, 0.206558))
IDENTITY = Blt((), ())


def matrix(blt: Blt, rounds: int) -> FloatArray:
    """C, written out."""
    full: FloatArray = np.tril(toeplitz(blt.coefficients(rounds)))
    return full


def fresh(rounds: int, size: int, name: str = "w", seed: int = 5) -> FloatArray:
    """The fresh noise z that a stream of this seed draws."""
    return np.array([normals(SeededRandomness(seed), size, "blt", t + 1, name) for t in range(rounds)])


def streamed(noise: BltNoise, rounds: int, name: str = "w") -> FloatArray:
    return np.array([noise.next()[name] for _ in range(rounds)])


@pytest.mark.parametrize("blt", [BLT, Blt((0.3,), (0.9,)), Blt((0.0, 1.0), (0.2, 0.05)), IDENTITY])
def test_the_stream_is_the_inverse_matrix_times_fresh_noise(blt: Blt) -> None:
    noise = BltNoise(blt, {"w": 7, "bias": 2}, SeededRandomness(5))
    rows = [noise.next() for _ in range(400)]
    for name, size in (("w", 7), ("bias", 2)):
        expected = solve_triangular(matrix(blt, 400), fresh(400, size, name), lower=True)
        assert np.abs(np.array([row[name] for row in rows]) - expected).max() < 1e-12
    assert noise.round == 400


def test_coefficients_by_hand() -> None:
    blt = Blt((0.5, 0.25), (0.4, 0.2))
    assert blt.coefficients(4).tolist() == pytest.approx([1, 0.6, 0.25, 0.1125])
    first = np.zeros(200)
    first[0] = 1.0
    inverse = solve_triangular(matrix(blt, 200), first, lower=True)
    assert np.abs(blt.inverse_coefficients(200) - inverse).max() < 1e-14
    assert IDENTITY.coefficients(3).tolist() == IDENTITY.inverse_coefficients(3).tolist() == [1, 0, 0]


@pytest.mark.parametrize("blt", [BLT, Blt((0.9,), (0.7,)), Blt((0.2, 0.95), (0.5, 0.1)), IDENTITY])
@pytest.mark.parametrize(("rounds", "apart", "most"), [(14, 3, 4), (14, 3, 2), (14, 5, 3), (13, 1, 3), (6, 9, 2)])
def test_the_sensitivity_is_the_largest_over_all_patterns(blt: Blt, rounds: int, apart: int, most: int) -> None:
    c = matrix(blt, rounds)
    largest = max(
        float(np.linalg.norm(c[:, list(pattern)].sum(axis=1)))
        for count in range(1, most + 1)
        for pattern in combinations(range(rounds), count)
        if all(later - earlier >= apart for earlier, later in pairwise(pattern))
    )
    assert sensitivity(blt, Participation(rounds, apart, most)) == pytest.approx(largest, rel=1e-12)


def test_as_many_participations_as_fit() -> None:
    assert Participation(2000, 400).most == 5
    assert Participation(2000, 342).most == 6
    assert Participation(2000, 342, 2).most == 2
    assert Participation(2000, 400, 99).most == 5
    assert Participation(7).most == 7
    assert sensitivity(IDENTITY, Participation(2000, 400)) == pytest.approx(sqrt(5))


@pytest.mark.parametrize(
    "blt", [
        Blt((0.5,), (-0.1,)), Blt((0.5,), (1.5,)), Blt((0.9, 0.1), (-0.2, 0.5)),
        Blt((1.0,), (-0.1,)), Blt((1.0, 0.0), (-0.1, 0.5)),  # negative, and yet they do not increase
        Blt((0.5, 0.0), (0.5, -0.3)),  # 1, 0.2, 0.25, 0.125, …: they increase, and yet are not negative
    ],
)  # fmt: skip
def test_a_matrix_whose_worst_case_is_not_known_is_refused(blt: Blt) -> None:
    """Negative or increasing coefficients; brute force shows that the formula would be too small for some."""
    with pytest.raises(FedgramError, match="non-negative, non-increasing"):
        sensitivity(blt, Participation(14, 3))


@pytest.mark.parametrize(
    ("decay", "scale", "problem"),
    [((0.5,), (), "1 decays but 0 scales"), ((0.5, 0.5), (0.1, 0.2), "different numbers"),
     ((1.01,), (0.1,), "different numbers"), ((-0.1,), (0.1,), "different numbers"), ((0.5,), (inf,), "finite")],
)  # fmt: skip
def test_wrong_parameters_are_refused(decay: tuple[float, ...], scale: tuple[float, ...], problem: str) -> None:
    with pytest.raises(FedgramError, match=problem):
        Blt(decay, scale)


@pytest.mark.parametrize("numbers", [(0, 1, None), (5, 0, None), (5, 1, 0)])
def test_wrong_participations_are_refused(numbers: tuple[int, int, int | None]) -> None:
    with pytest.raises(FedgramError, match="at least"):
        Participation(*numbers)


def test_errors_are_those_of_the_prefix_sums() -> None:
    decoder = np.tril(np.ones((300, 300))) @ np.linalg.inv(matrix(BLT, 300))
    assert np.abs(prefix_errors(BLT, 300) - np.linalg.norm(decoder, axis=1)).max() < 1e-12
    assert prefix_errors(IDENTITY, 9).tolist() == pytest.approx([sqrt(t) for t in range(1, 10)])


def test_the_noise_of_a_long_sum_is_the_error_that_is_promised() -> None:
    sums = np.cumsum(streamed(BltNoise(BLT, {"w": 20_000}, SeededRandomness(1)), 60), axis=0)
    assert sums.std(axis=1) == pytest.approx(prefix_errors(BLT, 60), rel=0.02)


TABLE = [
    (400, 5, 4.599, 9.48, 100, (0.996117, 0.908006, 0.512608), (0.110335, 0.183382, 0.206558)),
    (1000, 2, 2.714, 5.23, 63, (0.998592, 0.972380, 0.714185), (0.054577, 0.127664, 0.300329)),
    (2000, 1, 1.863, 3.50, 45, (0.999419, 0.985984, 0.787598), (0.033926, 0.105412, 0.324542)),
]


@pytest.mark.parametrize(("apart", "most", "sens", "loss", "independent", "decay", "scale"), TABLE)
def test_the_parameters_for_2000_rounds(
    apart: int,
    most: int,
    sens: float,
    loss: float,
    independent: int,
    decay: tuple[float, ...],
    scale: tuple[float, ...],
) -> None:
    plan = Participation(2000, apart)
    found = design_blt(plan)
    assert plan.most == most
    known = Blt(decay, scale)
    assert sensitivity(known, plan) == pytest.approx(sens, abs=0.001)
    assert max_loss(known, plan) == pytest.approx(loss, abs=0.006)
    assert max_loss(found, plan) <= max_loss(known, plan) * (1 + 1e-6)
    assert max_loss(IDENTITY, plan) == pytest.approx(independent, abs=0.5)


def test_every_row_of_the_table_is_better_than_independent_noise() -> None:
    from fedgram.privacy.blt_design import _table

    assert len(_table()) >= 100
    for (numbers, buffers), blt in _table().items():
        plan = Participation(*numbers)
        assert plan.most == numbers[2]
        assert len(blt.decay) <= buffers == 3
        assert max_loss(blt, plan) < 0.85 * max_loss(IDENTITY, plan)


def test_the_search_finds_a_row_of_the_table_again() -> None:
    plan = Participation(100, 50)
    assert search_blt(plan) is not design_blt(plan)
    assert max_loss(search_blt(plan), plan) == pytest.approx(max_loss(design_blt(plan), plan), rel=1e-6)


@pytest.mark.parametrize(("rounds", "apart"), [(30, 30), (30, 7), (12, 3), (5, 1), (2, 2)])
def test_the_search_beats_its_neighbours(rounds: int, apart: int) -> None:
    plan = Participation(rounds, apart)
    best = design_blt(plan, buffers=2)
    loss = max_loss(best, plan)
    assert loss <= max_loss(IDENTITY, plan) * (1 + 1e-9)
    assert loss <= max_loss(design_blt(plan, buffers=1), plan) * (1 + 1e-6)
    rng = np.random.default_rng(0)
    for _ in range(200):
        decay = np.clip(np.array(best.decay) + rng.normal(0, 0.02, len(best.decay)), 0, 1)
        scale = np.array(best.scale) * np.exp(rng.normal(0, 0.05, len(best.scale)))
        near = Blt(tuple(decay.tolist()), tuple(scale.tolist()))
        if scale.sum() <= 1:
            slack = 2e-3 if rounds < 20 else 1e-6  # the search does not look at negative decays of C⁻¹
            assert max_loss(near, plan) >= loss * (1 - slack)


def test_one_round_or_no_buffers_is_independent_noise() -> None:
    assert design_blt(Participation(1)) == design_blt(Participation(9, 3), buffers=0) == IDENTITY
    with pytest.raises(FedgramError, match="must not be negative"):
        design_blt(Participation(9, 3), buffers=-1)


def test_without_scipy_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingDependencyError, match=r"fedgram\[privacy\]"):
        search_blt(Participation(17, 4))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_resumed_stream_is_the_same_stream(dtype: type) -> None:
    def noise() -> BltNoise:
        return BltNoise(BLT, {"w": 50, "b": 3}, SeededRandomness(5), dtype=dtype)

    straight = streamed(noise(), 40)
    first, second = noise(), noise()
    begun = streamed(first, 17)
    saved = first.save()
    first.next()  # what was saved does not change with the stream
    second.load(Record(dict(saved.fields), dict(saved.arrays)))
    assert np.array_equal(np.concatenate([begun, streamed(second, 23)]), straight)
    assert saved.arrays["buffers.w"].shape == (3, 50)
    assert saved.arrays["buffers.w"].dtype == dtype


def test_single_precision_is_close_and_still_on_a_fine_grid() -> None:
    size = 20_000
    small = streamed(BltNoise(BLT, {"w": size}, SeededRandomness(5), dtype=np.float32), 100)
    exact = streamed(BltNoise(BLT, {"w": size}, SeededRandomness(5)), 100)
    assert np.abs(small - exact).max() < 1e-5
    integers = np.rint(small[-1] * 2.0**30).astype(np.int64)
    assert (integers[np.abs(small[-1]) > 1] & 1).mean() == pytest.approx(0.5, abs=0.03)


def test_noise_of_another_run_is_refused() -> None:
    saved = BltNoise(BLT, {"w": 5}, SeededRandomness(5)).save()
    decays, scales = (0.9, *BLT.decay[1:]), (*BLT.scale[:2], 0.2)
    for other in (Blt((0.9,), (0.1,)), Blt(decays, BLT.scale), Blt(BLT.decay, scales)):
        with pytest.raises(InvariantError, match="other BLT parameters"):
            BltNoise(other, {"w": 5}, SeededRandomness(5)).load(saved)
    with pytest.raises(InvariantError, match="other vectors"):
        BltNoise(BLT, {"w": 6}, SeededRandomness(5)).load(saved)
    with pytest.raises(InvariantError, match="other vectors"):
        BltNoise(BLT, {"w": 5}, SeededRandomness(5), dtype=np.float32).load(saved)
