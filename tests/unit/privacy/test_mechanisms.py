"""Noise for the sums of rounds: its size, its independence, and rounds that come in order and once."""

from collections.abc import Callable
from math import inf, nan

import numpy as np
import pytest

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.storage import Record
from fedgram.privacy.blt import Blt
from fedgram.privacy.mechanisms import BltSums, GaussianSums
from fedgram.privacy.noise import SeededRandomness

SIZE, DEVIATION = {"a": 4000, "b": 4000}, {"a": 3.0, "b": 0.5}


def sums(label: str = "run", seed: int = 1) -> GaussianSums:
    return GaussianSums(SIZE, DEVIATION, SeededRandomness(seed), label=label)


def correlated() -> BltSums:
    return BltSums(Blt((0.9,), (0.4,)), SIZE, DEVIATION, SeededRandomness(1))


def test_noise_has_the_deviation_of_its_vector_on_the_grid_of_the_sum() -> None:
    for bits in (4, 10):
        drawn = sums().draw(1, bits)
        for name, deviation in DEVIATION.items():
            assert np.std(drawn[name]) == pytest.approx(deviation * 2**bits, rel=0.1)
            assert drawn[name].dtype == np.int64


def test_every_round_every_vector_and_every_run_has_noise_of_its_own() -> None:
    noise = sums()
    drawn = [vector / DEVIATION[name] for number in (1, 2) for name, vector in noise.draw(number, 10).items()]
    drawn += [sums("other").draw(1, 10)["a"] / 3.0, sums(seed=2).draw(1, 10)["a"] / 3.0]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.1


@pytest.mark.parametrize("make", [sums, correlated])
def test_rounds_are_drawn_in_order_and_once(make: Callable[[], GaussianSums | BltSums]) -> None:
    noise = make()
    for number in (0, 2):
        with pytest.raises(InvariantError, match=f"the noise of round {number} is asked for after that of round 0"):
            noise.draw(number, 10)
    noise.draw(1, 10)
    for number in (0, 1, 3):
        with pytest.raises(InvariantError, match="after that of round 1"):
            noise.draw(number, 10)


@pytest.mark.parametrize("make", [sums, correlated])
def test_noise_continues_after_what_was_saved(make: Callable[[], GaussianSums | BltSums]) -> None:
    whole, resumed = make(), make()
    for number in (1, 2):
        whole.draw(number, 10)
    saved = whole.save()
    resumed.load(Record(dict(saved.fields), dict(saved.arrays)))
    assert resumed.round == 2
    third, again = whole.draw(3, 10), resumed.draw(3, 10)
    for name in SIZE:
        assert np.array_equal(third[name], again[name])


@pytest.mark.parametrize("deviation", [{"a": 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0}])
def test_every_vector_has_a_length_and_a_deviation(deviation: dict[str, float]) -> None:
    with pytest.raises(InvariantError, match="needs a length and a standard deviation"):
        GaussianSums(SIZE, deviation, SeededRandomness(1))


@pytest.mark.parametrize("wrong", [0.0, -1.0, inf, nan])
def test_a_deviation_that_is_no_noise_is_refused(wrong: float) -> None:
    with pytest.raises(FedgramError, match="greater than 0 and finite"):
        GaussianSums(SIZE, {"a": 1.0, "b": wrong}, SeededRandomness(1))
