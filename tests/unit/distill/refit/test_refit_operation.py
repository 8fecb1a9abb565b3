"""The refit as an operation: a cased model of other text learns what devices write, and keeps its capitals."""

import numpy as np

from fedgram.automata.budget import Budget
from fedgram.automata.model import NGramModel
from fedgram.automata.properties import model_faults
from fedgram.distill.refit.refit import refit
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.normalize import uncase
from fedgram.text.population import population_from_messages

SERVER = ["She lives in New York", "She saw a new film in London", "The new house is in York", "In London it rains"]
USERS = ["she saw the new house", "the new house is in new york", "she lives in the new house"]


def test_it_learns_the_users_text_and_keeps_the_capitals() -> None:
    rows = [(f"u{i}", USERS[i % 3], "train") for i in range(9)]
    model = NGramModel.train(SERVER, order=3, smoothing="witten-bell")
    result = refit(
        model, population_from_messages(rows).train, devices_per_round=9, dropout=0.0, sketch_bits=8,
        privacy=PrivacyOptions(min_devices=3), budget=Budget(max_ngrams=120),
    )  # fmt: skip
    assert model_faults(result) == []
    assert result.topology.arcs <= 120
    assert [counted["reports"] for counted in result.counted.passes] == [9] * 5
    words = result.counted.topology.first_arc[1]
    assert result.counted.ngrams[:words].sum() == sum(len(text.split()) + 1 for _, text, _ in rows)
    lower = NGramModel.train([uncase(text) for text in SERVER], order=3, smoothing="witten-bell")
    for text in USERS:
        assert result.uncased.score(text) > lower.score(text) + 1.0
    assert {"York", "London"} <= set(result.vocabulary.words)
    again = refit(
        model, population_from_messages(rows).train, devices_per_round=9, dropout=0.0, sketch_bits=8,
        privacy=PrivacyOptions(min_devices=3), budget=Budget(max_ngrams=120),
    )  # fmt: skip
    assert np.array_equal(again.log_weight, result.log_weight)
