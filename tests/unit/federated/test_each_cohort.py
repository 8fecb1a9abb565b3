"""Who is invited and counted: cohorts of many sizes, retries, rests between rounds, and devices that are too late."""

import numpy as np
import pytest
from tests.unit.federated.runs import CLIENTS, a_fleet, a_job

from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record
from fedgram.federated.cohort import PoissonCohorts, RoundPlan, draw_order
from fedgram.federated.fleet import RoundCall
from fedgram.federated.rounds import Progress, RunOptions
from fedgram.federated.secure.settings import SecureSettings

DEVICES = np.arange(100)


@pytest.mark.parametrize(
    ("devices", "over_selection", "invited"),
    [
        (100, 1.3, 130),
        (1, 1.0, 1),
        (7, 1.3, 10),
        (3, 1.1, 4),
        (10, 1.25, 13),
        (33, 1.5, 50),
        (5, 3.0, 15),
        (1, 1.01, 2),
    ],
)
def test_at_least_as_many_devices_are_invited_as_over_selection_says(
    devices: int, over_selection: float, invited: int
) -> None:
    assert RoundPlan(devices, over_selection).invited == invited


@pytest.mark.parametrize(
    "wrong", [(0, 1.3, 1, 5), (4, 0.99, 1, 5), (4, 1000.1, 1, 5), (4, 1.3, 0, 5), (4, 1.3, 5, 5), (4, 1.3, 1, 0)]
)
def test_each_number_of_a_plan_outside_its_range_is_refused(wrong: tuple[int, float, int, int]) -> None:
    with pytest.raises(FedgramError, match=r"round|over-selection"):
        RoundPlan(*wrong)
    assert RoundPlan(4, 1.0, 4, 1).minimum == 4


def test_masking_raises_the_minimum_of_a_round() -> None:
    masking = SecureSettings(min_devices=3)
    assert RunOptions(1, RoundPlan(4, 1.0, 2), masking).minimum == 3
    assert RunOptions(1, RoundPlan(4, 1.0, 4), masking).minimum == 4
    assert RunOptions(1, RoundPlan(4, 1.0, 2)).minimum == 2
    with pytest.raises(FedgramError, match="too small: secure aggregation needs at least 3"):
        RunOptions(1, RoundPlan(2, 1.0), masking)


def test_every_round_attempt_and_seed_draws_an_order_of_its_own() -> None:
    draws = [(seed, number, attempt) for seed in (1, 2) for number in (1, 2) for attempt in (0, 1, 2)]
    orders = {tuple(draw_order(DEVICES, seed=s, round_number=n, attempt=a).tolist()) for s, n, a in draws}
    assert len(orders) == len(draws)
    assert all(sorted(order) == DEVICES.tolist() for order in orders)


def test_the_order_does_not_depend_on_how_devices_are_listed() -> None:
    listed = np.random.default_rng(0).permutation(DEVICES)
    for one, other in ((DEVICES, listed), (listed, listed[::-1])):
        assert np.array_equal(draw_order(one, seed=1, round_number=3), draw_order(other, seed=1, round_number=3))
        sample = PoissonCohorts(0.3, 1)
        assert np.array_equal(sample.draw(one, round_number=3), sample.draw(other, round_number=3))


def test_every_round_and_attempt_is_a_sample_of_its_own() -> None:
    cohorts = PoissonCohorts(0.3, 1)
    drawn = {tuple(cohorts.draw(DEVICES, round_number=n, attempt=a).tolist()) for n in (1, 2) for a in (0, 1)}
    assert len(drawn) == 4


def test_a_device_takes_part_as_often_and_as_far_apart_as_allowed() -> None:
    progress = Progress()
    progress.took_part(np.array([1, 2]), 1)
    progress.took_part(np.array([2, 3]), 2)
    assert [progress.spent(limit).tolist() for limit in (1, 2, 3, None)] == [[1, 2, 3], [2], [], []]
    assert progress.most == 2
    assert [progress.resting(3, separation).tolist() for separation in (1, 2, 3)] == [[], [2, 3], [1, 2, 3]]
    assert [progress.resting(4, separation).tolist() for separation in (2, 3)] == [[], [2, 3]]


def call(*, attempt: int = 0, number: int = 1) -> RoundCall:
    return RoundCall(number, attempt, CLIENTS, RoundPlan(4, 1.5), Record())


def test_reports_beyond_those_wanted_are_late_and_not_counted() -> None:
    found = a_fleet(a_job(), dropout=0.0).collect(call())
    assert (found.total.devices, found.tally.invited, found.tally.late) == (4, 6, 2)
    assert sorted(found.participants.tolist()) == sorted(CLIENTS[:4].tolist())


def test_other_devices_drop_out_in_a_retry() -> None:
    fleet = a_fleet(a_job(), dropout=0.5)
    there = [tuple(fleet.collect(call(attempt=attempt)).participants.tolist()) for attempt in range(4)]
    assert len(set(there)) > 1


def test_devices_that_are_spent_are_not_invited() -> None:
    fleet = a_fleet(a_job())
    assert fleet.devices(4, np.zeros(0, np.int64)).tolist() == CLIENTS.tolist()
    assert fleet.devices(4, CLIENTS[:3]).tolist() == CLIENTS[3:].tolist()
