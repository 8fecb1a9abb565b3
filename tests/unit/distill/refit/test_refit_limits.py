"""What the parts of a refit refuse, and what its result shows."""

import math
from typing import Any

import numpy as np
import pytest
from tests.reference.ngram_counting import all_occurrences, ngrams
from tests.reference.random_models import vocabulary
from tests.unit.distill.refit.test_refit import KINDS

from fedgram.automata.model import NGramModel
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.settings import SettingError
from fedgram.distill.refit.clipped_ngrams import Clipping
from fedgram.distill.refit.count_fit import Prior
from fedgram.distill.refit.count_release import ExactCounts
from fedgram.distill.refit.ngram_growth import Growth
from fedgram.distill.refit.pair_sketch import CELLS, WORDS, PairCollection, SketchSize
from fedgram.distill.refit.refit import RefitOptions, refit
from fedgram.privacy.options import PrivacyOptions, Protection, as_privacy
from fedgram.text.population import Population, population_from_messages
from fedgram.text.vocabulary import BOS, EOS, UNK


@pytest.mark.parametrize(
    "options",
    [lambda: Prior(0.0), lambda: Prior(3.0, discounts=(1.5, 1, 1)),
     lambda: Prior(3.0, share=2), lambda: Growth(2, 1, 4), lambda: Growth(2, 3, 4, expected=0),
     lambda: SketchSize(3, 40), lambda: ExactCounts(Clipping(5.0), 5, 0, 2),
     lambda: ExactCounts(Clipping(5.0), 5, 2, 0), lambda: Clipping(0.0), lambda: Clipping(math.nan),
     lambda: Clipping(1.0, (1.0, 0.0)), lambda: Clipping(1.0, (1.0, math.inf)), lambda: Clipping(1.0, ())],
)  # fmt: skip
def test_senseless_options_are_refused(options: object) -> None:
    with pytest.raises(FedgramError):
        options()  # type: ignore[operator]


@pytest.mark.parametrize("with_unknown", [True, False])
def test_marks_of_lying_devices_make_no_impossible_pairs(with_unknown: bool) -> None:
    """Devices may mark that they have `<s>` or `<unk>` in places where no text has them."""
    words = vocabulary(KINDS)
    task = PairCollection(words, SketchSize(2, 6), labels=100, with_unknown=with_unknown)
    everything = {WORDS: np.full(len(words), 9), CELLS: np.full(2 << 6, 9)}
    pairs = [tuple(row.tolist()) for row in task.found(everything, least=2, most=10_000)]
    first, second = ({pair[k] for pair in pairs} for k in (0, 1))
    assert (BOS in first, EOS in first, BOS in second, EOS in second) == (True, False, False, True)
    assert (UNK in first, UNK in second) == (with_unknown, with_unknown)


def test_with_noise_the_norm_must_be_finite() -> None:
    for order in (3, 6):
        assert RefitOptions(norm=5.0).counting(PrivacyOptions("dp"), 20, order).release.draws_noise
    with pytest.raises(SettingError, match="norm must be finite with protection dp"):
        RefitOptions(norm=math.inf).counting(PrivacyOptions("dp"), 20, 3)
    with pytest.raises(SettingError, match="norm is needed"):
        RefitOptions().counting(PrivacyOptions("dp"), None, 3)


@pytest.mark.parametrize(
    ("norm", "protection", "expected"),
    [(None, "threshold", 300.0), (None, "none", 300.0), (None, "dp", 20.0), (7.0, "threshold", 7.0), (7.0, "dp", 7.0),
     (math.inf, "threshold", math.inf), (math.inf, "none", math.inf)],
)  # fmt: skip
def test_the_norm_is_that_of_the_options(norm: float | None, protection: Any, expected: float) -> None:
    release: Any = RefitOptions(norm=norm).counting(PrivacyOptions(protection), 40_000, 3).release
    assert release.clipping == Clipping(expected)


def test_only_a_threshold_needs_several_devices() -> None:
    cases: dict[Protection, tuple[int, int]] = {"threshold": (10, 2), "none": (1, 1)}
    for protection, least in cases.items():
        release: Any = RefitOptions(clip=50).counting(as_privacy(protection), 100, 3).release
        assert (release.min_devices, release.network_devices, release.labels) == (*least, 50)


@pytest.mark.parametrize(("least", "parts"), [((1, 1), 2), ((2, 2), 2), ((10, 2), 10)])
def test_pairs_of_a_single_device_are_not_looked_for(least: tuple[int, int], parts: int) -> None:
    assert ExactCounts(Clipping(5.0), 5, *least).part_devices == parts


@pytest.mark.parametrize("protection", ["threshold", "dp"])
@pytest.mark.parametrize(
    ("order", "grow", "model", "longest"), [(4, 3, 3, 4), (2, 1, 2, 4), (6, 1, 3, 6), (6, 0, 3, 4), (4, 0, 7, 7)]
)
def test_there_are_weights_for_all_ngrams_of_a_collection(
    protection: Any, order: int, grow: int, model: int, longest: int
) -> None:
    """Those of the model, and those that grow; the norm is always that of at least 4 lengths."""
    options = RefitOptions(order=order, grow=grow)
    release: Any = options.counting(PrivacyOptions(protection), 100, model).release
    assert release.clipping.weights == (0.125, 0.5, *[1.0] * (longest - 2))


@pytest.mark.parametrize("protection", ["threshold", "dp"])
def test_long_ngrams_are_refitted(protection: Any) -> None:
    text = ["we all see you there soon", "all see you here soon", "you see us all here soon"]
    people = population_from_messages([(f"u{i}", text[i % 3], "train") for i in range(6)])
    model = NGramModel.train(text, order=6, smoothing="witten-bell")
    privacy = PrivacyOptions(protection, min_devices=2, noise_seed=1)
    options: dict[str, Any] = {"devices_per_round": 6, "dropout": 0.0, "sketch_bits": 8, "grow": 2, "order": 7}
    found = refit(model, people.train, privacy=privacy, **options).counted
    assert found.topology.order >= 6
    if protection == "threshold":
        seen = all_occurrences(found.topology, pooled_text(people, model))
        assert found.ngrams.tolist() == [seen[name] for name in ngrams(found.topology)]


def pooled_text(people: Population, model: NGramModel) -> Ragged:
    codes = people.word_ids(model.vocabulary)
    return Ragged.concatenate([people.load(int(c), codes).sentences for c in people.clients("train")])


def test_a_refitted_model_shows_its_size() -> None:
    people = population_from_messages([("ann", "see you soon", "train"), ("bob", "you see", "train")])
    model = NGramModel.train(["see you there", "you see"], order=2)
    refitted = refit(model, people.train, devices_per_round=2, dropout=0.0, pairs=False, grow=0)
    assert repr(model) == f"NGramModel(order 2, {model.topology.arcs} n-grams, 3 words)"
    shown = f"RefittedModel({refitted.topology.arcs} n-grams, 3 words; reports [2]; privacy: threshold)"
    assert repr(refitted) == shown


def test_the_network_may_not_need_more_devices_than_the_devices_themselves() -> None:
    with pytest.raises(FedgramError, match="network_devices must be at most min_devices, 5"):
        PrivacyOptions(min_devices=5, network_devices=6)
    PrivacyOptions(min_devices=5, network_devices=5)
