"""Events and their composition."""

from math import inf, sqrt

import pytest

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.privacy.accounting import (
    Approximate,
    BltGaussian,
    Event,
    Gaussian,
    PoissonGaussian,
    compose,
    event_from_json,
    event_to_json,
)
from fedgram.privacy.gaussian import gaussian_epsilon

dp = pytest.importorskip("dp_accounting")
DELTA = 1e-8


def by_library(*events: tuple[object, int], delta: float = DELTA) -> float:
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for event, count in events:
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def test_gaussian_events_are_one_gaussian_event() -> None:
    spent = compose([Gaussian(3.0), Gaussian(2.0, rounds=4), BltGaussian(6.0, 4.0)], DELTA)
    together = 1 / sqrt(1 / 9 + 4 / 4 + 16 / 36)
    assert spent.epsilon == pytest.approx(gaussian_epsilon(together, DELTA), rel=1e-9)
    assert spent.zcdp == pytest.approx(0.5 / together**2)
    assert spent.epsilon == pytest.approx(by_library((dp.GaussianDpEvent(together), 1)), rel=1e-3)
    assert spent.delta == DELTA


@pytest.mark.parametrize(("multiplier", "probability", "rounds"), [(0.5, 0.005, 240), (2.0, 0.002, 480), (1.0, 0.3, 5)])
def test_poisson_sampling_is_that_of_the_library(multiplier: float, probability: float, rounds: int) -> None:
    event = dp.PoissonSampledDpEvent(probability, dp.GaussianDpEvent(multiplier))
    spent = compose([PoissonGaussian(multiplier, probability, rounds)], DELTA)
    assert spent.epsilon == pytest.approx(by_library((event, rounds)), rel=1e-9)
    assert spent.zcdp is None
    assert spent.epsilon < gaussian_epsilon(multiplier / sqrt(rounds), DELTA)


def test_rounds_of_one_event_may_come_in_parts() -> None:
    parts: list[Event] = [
        PoissonGaussian(1.0, 0.01, 30),
        Gaussian(4.0),
        PoissonGaussian(1.0, 0.01, 70),
        PoissonGaussian(3.0, 0.1, 10),
    ]
    whole: list[Event] = [PoissonGaussian(1.0, 0.01, 100), PoissonGaussian(3.0, 0.1, 10), Gaussian(4.0)]
    assert compose(parts, DELTA).epsilon == pytest.approx(compose(whole, DELTA).epsilon, rel=1e-9)
    sampled = [
        (dp.PoissonSampledDpEvent(p, dp.GaussianDpEvent(m)), n) for m, p, n in ((1.0, 0.01, 100), (3.0, 0.1, 10))
    ]
    assert compose(whole, DELTA).epsilon == pytest.approx(by_library(*sampled, (dp.GaussianDpEvent(4.0), 1)), rel=1e-9)


def test_sampling_everybody_is_no_sampling() -> None:
    assert compose([PoissonGaussian(2.0, 1.0, 9)], DELTA).epsilon == pytest.approx(
        gaussian_epsilon(2.0 / 3, DELTA), rel=1e-6
    )


def test_hardly_any_noise_has_a_large_epsilon_in_no_time() -> None:
    """The distribution of its loss would have billions of entries; taking part always is an upper bound."""
    spent = compose([PoissonGaussian(0.002, 0.1, 240)], DELTA)
    assert spent.epsilon == pytest.approx(gaussian_epsilon(0.002 / sqrt(240), DELTA))
    beside = compose([PoissonGaussian(1.0, 0.1, 9), Gaussian(0.002)], DELTA)
    assert beside.epsilon == pytest.approx(compose([Gaussian(1.0, 9), Gaussian(0.002)], DELTA).epsilon)
    assert (
        compose([PoissonGaussian(0.2, 0.01, 3)], DELTA).epsilon
        < compose([PoissonGaussian(0.19, 0.01, 3)], DELTA).epsilon
    )


def test_nothing_costs_nothing() -> None:
    assert compose([], DELTA) == (0.0, DELTA, 0.0)


def test_events_after_some_of_their_rounds() -> None:
    assert Gaussian(2.0, rounds=4).after(3) == Gaussian(2.0, rounds=3)
    assert Gaussian(2.0, rounds=4).after(9) == Gaussian(2.0, rounds=4)
    assert PoissonGaussian(1.0, 0.1, 5).after(2) == PoissonGaussian(1.0, 0.1, 2)
    assert BltGaussian(2.0, 2.0).after(1) == BltGaussian(2.0, 2.0)


def test_other_mechanisms_are_added_up() -> None:
    other = Approximate(0.5, 4e-9)
    spent = compose([Gaussian(3.0), other, other], DELTA)
    assert spent.epsilon == pytest.approx(1.0 + gaussian_epsilon(3.0, 2e-9), rel=1e-9)
    assert spent.zcdp is None
    assert compose([other] * 3, DELTA).epsilon == inf  # their δ alone is larger
    with pytest.raises(FedgramError, match="not known for other noise"):
        other.scaled(2.0)


@pytest.mark.parametrize("event", [Gaussian(2.0, 3), PoissonGaussian(1.5, 0.25, 7), BltGaussian(3.0, 2.5)])
def test_events_are_kept_as_json(event: Gaussian | PoissonGaussian | BltGaussian) -> None:
    assert event_from_json(event_to_json(event)) == event
    assert event.scaled(0.5).multiplier == event.multiplier / 2
    for change in ({"kind": "laplace"}, {"multiplier": "2"}, {"rounds": 1.5}, {"colour": 1}):
        with pytest.raises(InvariantError, match="not a privacy event"):
            event_from_json({**event_to_json(event), **change})


def test_events_without_a_meaning_are_refused() -> None:
    for make, problem in (
        (lambda: Gaussian(0.0), "noise multiplier"),
        (lambda: Gaussian(1.0, 0), "number of rounds"),
        (lambda: PoissonGaussian(1.0, 0.0, 1), "sampling probability"),
        (lambda: PoissonGaussian(1.0, 1.1, 1), "sampling probability"),
        (lambda: BltGaussian(1.0, 0.9), "at least 1"),
    ):
        with pytest.raises(FedgramError, match=problem):
            make()
