"""The statistics of live experiments, on generated devices: coverage, planted differences, power."""

from collections.abc import Callable

import numpy as np
import pytest

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.random import stream
from fedgram.deployment.experiment_options import PowerOptions
from fedgram.deployment.live_result import CONTROL, TREATMENT, Compared, add_buckets, bucket_of, compare_arms
from fedgram.deployment.own_secret import keyed_number
from fedgram.deployment.power import days_needed, device_variance, devices_needed, power_table
from fedgram.deployment.releases import Choice, Release, describe_model
from fedgram.evaluate.jackknife import BUCKETS
from fedgram.evaluate.measure import Measure

SPREAD, WORD_SPREAD, LEVEL = 0.2, 1.0, 0.13


def people(devices: int, days: int, rng: np.random.Generator) -> tuple[FloatArray, LongArray]:
    """How well each device is predicted, and its words per day; a few people type much of the text."""
    width = np.log(1 + WORD_SPREAD**2)
    words = rng.lognormal(np.log(300) - width / 2, np.sqrt(width), devices)[:, None] * rng.gamma(4, 1 / 4, (1, days))
    share = np.clip(rng.normal(LEVEL, SPREAD * LEVEL, devices), 0.01, 0.99)
    return share, rng.poisson(words)


def experiment(
    share: FloatArray, words: LongArray, lift: float, number: int,
    reports: Callable[[int, int], bool] = lambda _device, _day: True,
) -> Compared:  # fmt: skip
    """An experiment in which devices are assigned by their secrets, and report day by day."""
    model = describe_model(b"a model")
    release = Release(1, f"{number:064x}", (Choice(model, 0.5), Choice(model, 0.5)))
    rng = stream(number, "hits")
    sums = np.zeros((2, 2, BUCKETS))
    for device in range(len(share)):
        arm = release.choice_of(device.to_bytes(32, "big"))
        assert arm in (CONTROL, TREATMENT)
        bucket = bucket_of(release.rollout, device, BUCKETS)
        waiting = 0
        for day in range(words.shape[1]):
            waiting += int(words[device, day])  # what is not reported today is reported with the next report
            if reports(device, day):
                level = share[device] * (1 + lift * (arm == TREATMENT))
                sums[arm, :, bucket] += (rng.binomial(waiting, level), waiting)
                waiting = 0
    return compare_arms(*(Measure(sums[arm, 0], sums[arm, 1]) for arm in (CONTROL, TREATMENT)))


def test_aa_experiments_cover_zero_in_95_of_100() -> None:
    share, words = people(500, 1, stream(1, "people"))
    found = [experiment(share, words, 0.0, number) for number in range(200)]
    changes = [f.change for f in found if f.change is not None]
    checks = [f.aa for f in found if f.aa is not None]
    assert len(changes) == len(checks) == 200
    assert sum(change.covers(0.0) for change in changes) / 200 == pytest.approx(0.95, abs=0.03)
    assert sum(check.covers(0.0) for check in checks) / 200 == pytest.approx(0.95, abs=0.045)


def test_a_planted_difference_is_found() -> None:
    share, words = people(500, 7, stream(2, "people"))
    found = experiment(share, words, 0.15, 5)
    assert found.change
    assert found.aa
    assert found.change.covers(15.0)
    assert not found.change.covers(0.0)
    assert found.aa.covers(0.0)
    assert found.control
    assert found.control.covers(LEVEL)


def test_devices_that_vanish_come_back_or_report_late_change_nothing() -> None:
    """Absences do not depend on the arm: the level stays, and what was typed meanwhile is reported later."""
    share, words = people(500, 7, stream(3, "people"))
    full = experiment(share, words, 0.15, 7)

    def flaky(device: int, day: int) -> bool:
        return day == 6 or keyed_number(bytes(32), str(device), str(day)) < 0.3

    late = experiment(share, words, 0.15, 7, flaky)
    gone = experiment(share, words, 0.15, 7, lambda device, day: device % 10 > 0 or day < 3)
    assert full.change
    for found in (late.change, gone.change):
        assert found
        assert found.covers(15.0)
        assert not found.covers(0.0)
        assert found.value == pytest.approx(full.change.value, abs=full.change.half_width)


def test_empty_arms_and_buckets_are_no_figures() -> None:
    nothing, some = Measure(np.zeros(4), np.zeros(4)), Measure(np.array([1.0, 2, 0, 0]), np.array([9.0, 9, 0, 0]))
    found = compare_arms(some, nothing)
    assert (found.treatment, found.change) == (None, None)
    assert found.control
    assert found.aa
    assert compare_arms(nothing, nothing) == Compared(None, None, None, None)


def test_a_device_is_in_one_bucket_and_buckets_are_even() -> None:
    counts = np.bincount([bucket_of("ab" * 32, device, 20) for device in range(10_000)], minlength=20)
    assert counts.min() > 400
    assert counts.max() < 600
    added = add_buckets([{3: {"count": [1, 2]}}, {3: {"count": [10, 20]}, 5: {"count": [7, 7]}}])
    assert added == {3: {"count": [11, 22]}, 5: {"count": [7, 7]}}


def test_power_is_what_it_says() -> None:
    """With the devices that the formula asks for, the effect is found in four of five experiments."""
    options = PowerOptions(
        effect=20.0, words_per_device=300.0, spread=SPREAD, word_spread=WORD_SPREAD, level=100 * LEVEL
    )
    devices = devices_needed(options, 1)
    assert 100 < devices < 500
    found = 0
    for number in range(150):
        share, words = people(devices, 1, stream(number, "powered"))
        change = experiment(share, words, 0.2, number).change
        assert change is not None
        found += not change.covers(0.0) and change.value > 0
    assert found / 150 == pytest.approx(0.8, abs=0.1)


def test_more_days_help_until_people_are_what_differs() -> None:
    options = PowerOptions(effect=0.5, words_per_device=300)
    table = [row.devices for row in power_table(options)]
    assert table == sorted(table, reverse=True)
    least = devices_needed(options, 1e9)
    assert days_needed(options, least - 2) is None
    days = days_needed(options, table[2])
    assert days is not None
    assert devices_needed(options, days) <= table[2] < devices_needed(options, days - 1)
    assert days_needed(options, 10**9) == 1
    assert device_variance(options, 7) < device_variance(options, 1)
