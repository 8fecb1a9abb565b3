"""Collecting U from devices: the formula by hand, and how often a device takes part."""

from typing import Any

import pytest

from fedgram.core.errors import InputError
from fedgram.federated.collect_unigrams import collect_unigrams
from fedgram.text.population import Population, population_from_messages

ROWS = [
    ("ann", "yes yes no", "train"),
    ("bob", "Yes", "train"),
    ("cat", "no maybe zebra", "train"),
    ("dev", "no", "dev"),
]
EVERYBODY: dict[str, Any] = {"devices_per_round": 3, "over_selection": 1.0, "dropout": 0.0}


@pytest.fixture
def people() -> Population:
    return population_from_messages(ROWS)


@pytest.mark.parametrize(
    ("clip", "U"),
    [
        (float("inf"), {"yes": 3.0, "no": 2.0, "maybe": 1.0}),
        (1.0, {"yes": 2 / 3 + 1, "no": 1 / 3 + 1 / 2, "maybe": 1 / 2}),  # zebra is not on the whitelist
        (2.0, {"yes": 2 * 2 / 3 + 1, "no": 2 / 3 + 1, "maybe": 1.0}),
    ],
)
def test_U_is_the_sum_of_clipped_counts(people: Population, clip: float, U: dict[str, float]) -> None:
    found = collect_unigrams(people.train, ["maybe", "no", "yes"], clip=clip, rounds=1, **EVERYBODY)
    assert found.frequency() == pytest.approx(U, abs=1e-6)
    assert (found.clients, found.rounds, found.clip) == (3, 1, clip)
    assert found.convergence.unique == [3]


def test_a_device_takes_part_once_unless_told(people: Population) -> None:
    once = collect_unigrams(people.train, ["yes"], rounds=5, **EVERYBODY)
    often = collect_unigrams(people.train, ["yes"], rounds=5, participations=0, **EVERYBODY)
    assert (once.clients, often.clients) == (3, 15)
    assert often.frequency()["yes"] == pytest.approx(5 * once.frequency()["yes"])


def test_the_whitelist_is_in_lower_case(people: Population) -> None:
    with pytest.raises(InputError, match="1 words are not in lower case"):
        collect_unigrams(people.train, ["Yes"], rounds=1)
