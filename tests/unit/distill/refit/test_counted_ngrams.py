"""The file of what devices counted: counts come back as they were, and no others are read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgram.automata.model import NGramModel
from fedgram.core.checkpoint import OtherWorkError
from fedgram.core.errors import InputError
from fedgram.distill.refit.counted_ngrams import counting_settings, read_counted, write_counted
from fedgram.distill.refit.device_counts import CountedNGrams
from fedgram.federated.cohort import CohortOptions
from fedgram.privacy.options import PrivacyOptions


def trained(*text: str, vocab: str = "a b c") -> NGramModel:
    return NGramModel.train(text, order=2, vocab=vocab.split(), smoothing="witten-bell")


def settings_of(model: NGramModel) -> dict[str, Any]:
    nothing = np.zeros(model.topology.arcs, bool)
    return counting_settings(model, CohortOptions(), PrivacyOptions(), nothing)


def counts_on(model: NGramModel) -> CountedNGrams:
    numbers = np.arange(model.topology.arcs, dtype=np.float64)
    deviation = np.where(numbers < len(numbers) - 1, numbers / 2, np.inf)  # of the last, nothing was released
    return CountedNGrams(model.topology, numbers * 3.5 - 2, deviation, ({"reports": 7, "rounds": 2},))


def test_counts_come_back_as_they_were(tmp_path: Path) -> None:
    """Noisy counts may be negative, and the deviation of what was not released is infinite."""
    model = trained("a b")
    written = counts_on(model)
    write_counted(tmp_path / "counts", written, settings_of(model))
    read = read_counted(tmp_path / "counts", model, settings_of(model))
    assert read.ngrams.tolist() == written.ngrams.tolist()
    assert read.deviation.tolist() == written.deviation.tolist()
    assert read.topology.label.tolist() == model.topology.label.tolist()
    assert read.passes == ({"reports": 7, "rounds": 2},)


@pytest.mark.parametrize(("text", "words"), [("b a", "a b c"), ("a b", "a b d")])
def test_counts_of_another_model_are_refused(text: str, words: str, tmp_path: Path) -> None:
    """Even if the models have as many n-grams, so that all else is equal."""
    model, other = trained("a b"), trained(text, vocab=words)
    assert other.topology.arcs == model.topology.arcs
    write_counted(tmp_path / "counts", counts_on(model), settings_of(model))
    with pytest.raises(OtherWorkError, match="made with other settings: model;"):
        read_counted(tmp_path / "counts", other, settings_of(other))


@pytest.mark.parametrize(
    ("name", "value"),
    [("deviation", -0.5), ("deviation", -np.inf), ("deviation", np.nan), ("ngrams", np.nan),
     ("ngrams", np.inf)],
)  # fmt: skip
def test_impossible_counts_are_refused(name: str, value: float, tmp_path: Path) -> None:
    """One wrong value is enough, wherever it is; a count may be negative, but not the deviation of its noise."""
    model = trained("a b")
    for place in (0, 4, model.topology.arcs - 1):
        array = getattr(counts_on(model), name).copy()
        array[place] = value
        write_counted(tmp_path / "counts", replace(counts_on(model), **{name: array}), settings_of(model))
        with pytest.raises(InputError, match="does not hold counts of n-grams: the invariant one count per arc"):
            read_counted(tmp_path / "counts", model, settings_of(model))


@pytest.mark.parametrize("name", ["ngrams", "deviation"])
@pytest.mark.parametrize("wrong", [lambda a: a[1:], lambda a: a.astype(np.float32)], ids=["too few", "other kind"])
def test_counts_that_do_not_fit_their_ngrams_are_refused(name: str, wrong: Any, tmp_path: Path) -> None:
    model = trained("a b")
    array = wrong(getattr(counts_on(model), name))
    write_counted(tmp_path / "counts", replace(counts_on(model), **{name: array}), settings_of(model))
    with pytest.raises(InputError, match="one count per arc"):
        read_counted(tmp_path / "counts", model, settings_of(model))
