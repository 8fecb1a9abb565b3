"""Counts that few devices make unusually large are cut to what is usual, and no others."""

import math

import numpy as np
import pytest
from tests.reference.ngram_counting import ngrams

from fedgram.automata.model import NGramModel
from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.errors import FedgramError
from fedgram.distill.refit.asked_ngrams import AskedNGrams
from fedgram.distill.refit.clipped_ngrams import BITS, COUNT, DEVICES, Clipping
from fedgram.distill.refit.count_release import ExactCounts, without_outliers, without_their_words


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
    assert np.array_equal(without_outliers(count.astype(float), devices, length, 0.0), count)


def test_only_ngrams_of_the_same_length_on_as_many_devices_are_compared() -> None:
    devices = np.array([10, 10, 10, 1000, 1000, 1000, 10, 10, 10, 0])
    length = np.array([2, 2, 2, 2, 2, 2, 1, 1, 1, 2], np.int32)
    count = np.array([10, 10, 90, 5000, 5000, 90000, 10, 10, 9000, 0], np.float64)
    found = without_outliers(count, devices, length, 0.5)
    assert found.tolist() == [10, 10, 10, 5000, 5000, 5000, 10, 10, 9000, 0]  # words keep their counts


def test_words_lose_what_is_cut_from_their_pairs() -> None:
    """Liars type "i live here" 90 times; the honest type all three words elsewhere too."""
    texts = ["i live", "live here", "i am", "am here", "we am", "we live"]
    model = NGramModel.train(texts, order=2, smoothing="witten-bell")
    asked = AskedNGrams.all_of(model.topology, model.vocabulary)
    names = [tuple(model.vocabulary.decode(gram)) for gram in ngrams(model.topology)]
    pairs: dict[tuple[str, ...], float] = {("i", "live"): 90.0, ("live", "here"): 80.0, ("we", "live"): 5.0}
    cut = np.array([pairs.get(name, 0.0) for name in names])
    found = {name: lost for name, lost in zip(names, without_their_words(asked, cut).tolist(), strict=True) if lost}
    assert found == {**pairs, ("i",): 90.0, ("we",): 5.0, ("here",): 80.0, ("live",): 95.0}


UNLIMITED = Clipping(math.inf)


def released(
    asked: AskedNGrams, names: list[tuple[str, ...]], count: FloatArray, devices: LongArray
) -> dict[tuple[str, ...], float]:
    """The counts of what devices sent, which need not be whole; half of what is usual is cut."""
    weight = UNLIMITED.weights_of(asked)
    sums = {COUNT: np.rint(count * weight * 2.0**BITS).astype(np.int64), DEVICES: devices << BITS}
    found = ExactCounts(UNLIMITED, math.inf, 2, 2, outliers=0.5).release(0, asked, sums)
    return dict(zip(names, found.ngrams.tolist(), strict=True))


def test_a_word_keeps_one_occurrence_per_device() -> None:
    model = NGramModel.train(["a b", "b a"] * 5, order=2, smoothing="witten-bell")
    asked = AskedNGrams.all_of(model.topology, model.vocabulary)
    names = [tuple(model.vocabulary.decode(gram)) for gram in ngrams(model.topology)]
    devices = np.full(asked.size, 10, np.int64)
    count = np.array([500.0 if name == ("a", "b") else 12.0 for name in names])
    by_name = released(asked, names, count, devices)
    assert by_name["a", "b"] == 12.0
    assert by_name["a",] == by_name["b",] == 10.0
    assert by_name["b", "a"] == 12.0


def test_counts_below_one_per_device_are_never_raised() -> None:
    """Devices that scale their counts down send parts of occurrences; what few send more often is cut all the same."""
    model = NGramModel.train(["a b", "b a"] * 5, order=2, smoothing="witten-bell")
    asked = AskedNGrams.all_of(model.topology, model.vocabulary)
    names = [tuple(model.vocabulary.decode(gram)) for gram in ngrams(model.topology)]
    devices = np.full(asked.size, 10, np.int64)
    count = np.array([500.0 if name == ("a", "b") else 2.5 for name in names])
    found = released(asked, names, count, devices)
    assert found.pop(("a", "b")) == 10.0
    assert set(found.values()) == {2.5}


def test_no_count_changes_but_those_that_are_cut() -> None:
    rng = np.random.default_rng(2)
    devices = rng.integers(1, 40, 2000)
    count, length = devices * rng.uniform(0.1, 3.0, 2000), rng.integers(2, 5, 2000).astype(np.int32)
    found = without_outliers(count, devices, length, 0.1)
    assert (found <= count).all()
    assert 0.85 < np.mean(found == count) < 0.99
    assert np.array_equal(without_outliers(count, devices, length, 0.0), count)


def test_what_nobody_marked_is_not_counted() -> None:
    """A lying device could raise the count of an n-gram that nobody else has, and no rate would be unusual."""
    model = NGramModel.train(["a b", "b a"] * 5, order=2, smoothing="witten-bell")
    asked = AskedNGrams.all_of(model.topology, model.vocabulary)
    weight, marks = UNLIMITED.weights_of(asked), np.full(asked.size, 3 << BITS)
    marks[-1] = (1 << BITS) - 1  # nearly a mark
    marks[-2] = (2 << BITS) + 5000
    sums = {COUNT: np.rint(4.0 * weight * 2.0**BITS).astype(np.int64), DEVICES: marks}
    for outliers in (0.0, 0.1):
        found = ExactCounts(UNLIMITED, math.inf, 3, 1, outliers).release(0, asked, sums)
        assert found.ngrams.tolist() == [4.0] * (asked.size - 1) + [0.0]
        assert found.is_visible.tolist() == [True] * (asked.size - 2) + [False, False]
        assert found.may_stay.tolist() == [True] * (asked.size - 1) + [False]


def test_the_share_is_checked() -> None:
    with pytest.raises(FedgramError, match="outliers"):
        ExactCounts(UNLIMITED, math.inf, 10, 2, outliers=1.0)
