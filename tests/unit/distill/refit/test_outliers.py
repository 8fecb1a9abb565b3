"""Counts that few devices make unusually large are cut to what is usual, and no others."""

import numpy as np
import pytest

from fedgram.core.errors import FedgramError
from fedgram.distill.refit.count_release import ExactCounts, without_outliers
from fedgram.distill.refit.ngram_collection import NO_LIMITS


def test_few_devices_cannot_make_an_ngram_frequent() -> None:
    rng = np.random.default_rng(0)
    devices = rng.integers(10, 16, 1000)
    count = devices + rng.binomial(devices, 0.1)  # a tenth of the devices type it twice
    length = np.full(1000, 4, np.int32)
    count[:20] = 250 * devices[:20]  # twenty n-grams that liars repeat
    found = without_outliers(count.astype(float), devices, length, 0.1)
    assert (found[:20] <= 1.4 * devices[:20]).all()
    assert np.mean(found[20:] == count[20:]) > 0.88
    assert (found <= count).all()
    assert (found >= devices).all()
    assert np.array_equal(found, np.rint(found))
    assert np.array_equal(without_outliers(count.astype(float), devices, length, 0.0), count)


def test_only_ngrams_of_the_same_length_on_as_many_devices_are_compared() -> None:
    devices = np.array([10, 10, 10, 1000, 1000, 1000, 10, 10, 10, 0])
    length = np.array([2, 2, 2, 2, 2, 2, 1, 1, 1, 2], np.int32)
    count = np.array([10, 10, 90, 5000, 5000, 90000, 10, 10, 9000, 0], np.float64)
    found = without_outliers(count, devices, length, 0.5)
    assert found.tolist() == [10, 10, 10, 5000, 5000, 5000, 10, 10, 9000, 0]  # words keep their counts


def test_the_share_is_checked() -> None:
    with pytest.raises(FedgramError, match="outliers"):
        ExactCounts(NO_LIMITS, 10, outliers=1.0)
