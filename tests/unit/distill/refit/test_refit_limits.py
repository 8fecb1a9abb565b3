"""What the parts of a refit refuse, and what its result shows."""

import numpy as np
import pytest
from tests.reference.random_models import vocabulary
from tests.unit.distill.refit.test_refit import KINDS

from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError
from fedgram.distill.refit.clipped_ngrams import Clipping
from fedgram.distill.refit.count_fit import Prior
from fedgram.distill.refit.count_release import ExactCounts
from fedgram.distill.refit.ngram_collection import Limits
from fedgram.distill.refit.ngram_growth import Growth
from fedgram.distill.refit.pair_sketch import CELLS, WORDS, PairCollection, SketchSize
from fedgram.distill.refit.refit import refit
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.population import population_from_messages
from fedgram.text.vocabulary import BOS, EOS, UNK


@pytest.mark.parametrize(
    "options",
    [lambda: Limits(0, 5), lambda: Limits(5, 0), lambda: Prior(0.0), lambda: Prior(3.0, discounts=(1.5, 1, 1)),
     lambda: Prior(3.0, share=2), lambda: Growth(2, 1, 4), lambda: Growth(2, 3, 4, expected=0),
     lambda: SketchSize(3, 40), lambda: ExactCounts(Limits(5, 5), 0, 2),
     lambda: ExactCounts(Limits(5, 5), 2, 0), lambda: Clipping(0.0),
     lambda: Clipping(1.0, (1.0, 0.0))],
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


def test_a_cap_on_one_ngram_is_a_whole_number() -> None:
    with pytest.raises(FedgramError, match=r"whole number, not 2\.5"):
        Limits(10, 2.5)


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
