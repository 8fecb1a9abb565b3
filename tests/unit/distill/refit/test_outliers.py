"""Counts that few devices make unusually large are cut to what is usual, and no others."""

import numpy as np
import pytest
from tests.reference.ngram_counting import ngrams

from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError
from fedgram.distill.refit.count_release import ExactCounts, without_outliers, without_their_words
from fedgram.distill.refit.ngram_collection import COUNT, DEVICES, NO_LIMITS, AskedNGrams


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


def test_a_word_keeps_one_occurrence_per_device() -> None:
    model = NGramModel.train(["a b", "b a"] * 5, order=2, smoothing="witten-bell")
    asked = AskedNGrams.all_of(model.topology, model.vocabulary)
    names = [tuple(model.vocabulary.decode(gram)) for gram in ngrams(model.topology)]
    devices = np.full(asked.size, 10, np.int64)
    count = np.array([500.0 if name == ("a", "b") else 12.0 for name in names])
    sums = {COUNT: count.astype(np.int64), DEVICES: devices}
    released = ExactCounts(NO_LIMITS, 2, 2, outliers=0.5).release(0, asked, sums)
    by_name = dict(zip(names, released.ngrams.tolist(), strict=True))
    assert by_name["a", "b"] == 12.0
    assert by_name["a",] == by_name["b",] == 10.0
    assert by_name["b", "a"] == 12.0


def test_the_share_is_checked() -> None:
    with pytest.raises(FedgramError, match="outliers"):
        ExactCounts(NO_LIMITS, 10, 2, outliers=1.0)
