"""Collecting U from devices: the formula by hand, and how often a device takes part."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.random import Stream
from fedgram.core.settings import SettingError
from fedgram.core.storage import Record
from fedgram.federated.collect_unigrams import collect_unigrams
from fedgram.federated.devices import SimulatedDevices
from fedgram.federated.intake import Intake
from fedgram.federated.task import Update
from fedgram.federated.unigram_collection import COUNT, UnigramTask
from fedgram.privacy.ledger import Budget, BudgetError, Ledger
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.population import ClientDataset, Population, population_from_messages
from fedgram.text.vocabulary import Vocabulary

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
    assert found.convergence is not None
    assert found.convergence.unique == [3]


def test_a_device_takes_part_once_unless_told(people: Population) -> None:
    once = collect_unigrams(people.train, ["yes"], rounds=5, **EVERYBODY)
    often = collect_unigrams(people.train, ["yes"], rounds=5, participations=0, **EVERYBODY)
    assert (once.clients, often.clients) == (3, 15)
    assert often.frequency()["yes"] == pytest.approx(5 * once.frequency()["yes"])


def test_the_whitelist_is_in_lower_case(people: Population) -> None:
    with pytest.raises(InputError, match="1 words are not in lower case"):
        collect_unigrams(people.train, ["Yes"], rounds=1)


def test_a_limit_on_the_norm_of_a_devices_counts() -> None:
    words = Vocabulary.of(["maybe", "no", "yes"])
    task = UnigramTask(words, clip=float("inf"), norm=2.5)
    text = population_from_messages([("ann", "yes yes yes yes no no no", "train")])  # of the norm 5
    data = text.load(0, task.encode(text.words))
    sent = task.client_update(Record(), ClientDataset("x", data.sentences), Stream(0)).array(COUNT)
    assert sent[words.encode(["maybe", "no", "yes"])].tolist() == [0.0, 1.5, 2.0]
    short = population_from_messages([("bob", "yes no", "train")])
    data = short.load(0, task.encode(short.words))
    assert task.client_update(Record(), data, Stream(0)).array(COUNT).max() == 1.0

    def offered(value: float) -> object:
        return Intake(task).offer(0, Update(task.size, {COUNT: np.array([4])}, {COUNT: np.array([value])}, 1.0))

    assert offered(2.5) is None
    assert offered(2.6) is not None


def test_noise_is_added_once_to_the_sum_of_all_devices() -> None:
    """Words that many have stand out from the noise, and are off by its standard deviation."""
    rows = [(f"u{i:03d}", "yes no", "train") for i in range(100)]
    words = ["yes", "no", *(f"other{i}" for i in range(2000))]
    users = population_from_messages(rows).train
    privacy = PrivacyOptions("dp", epsilon=1.0, delta=1e-6, simulated=1_000_000, noise_seed=3)
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    found = collect_unigrams(users, words, privacy=privacy, ledger=ledger, **{**EVERYBODY, "devices_per_round": 30})
    deviation = privacy.event.multiplier * 1000 / 10_000  # the norm 1,000, and 10,000 users per device
    assert found.convergence is None
    assert found.clients == 100
    for word in ("yes", "no"):
        assert 0 < abs(found.frequency()[word] - 100.0) < 5 * deviation
    assert len(found.frequency()) < 2 + 2000 * 0.01
    assert ledger.spent(1e-6).epsilon == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(BudgetError, match="would exceed"):
        collect_unigrams(users, words[:9], privacy=privacy, ledger=ledger, **EVERYBODY)


def test_the_noise_of_a_collection_is_drawn_once_and_its_exact_sums_are_removed(tmp_path: Path) -> None:
    """The mean of many releases would be the sum itself, while the ledger counts one."""
    users = population_from_messages([(f"u{i:03d}", "yes no", "train") for i in range(60)]).train
    privacy, ledger = PrivacyOptions("dp", epsilon=8.0, delta=1e-6, simulated=1_000_000), Ledger()
    settings: dict[str, Any] = {**EVERYBODY, "devices_per_round": 30}
    found = [
        collect_unigrams(users, ["yes", "no"], privacy=privacy, ledger=ledger, folder=tmp_path, **settings)
        for _ in range(3)
    ]
    assert found[0].weight.tolist() == found[1].weight.tolist() == found[2].weight.tolist()
    assert [c.clients for c in found] == [60] * 3
    assert len(ledger.entries) == 1
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["released", "run"]
    again = collect_unigrams(users, ["yes", "no"], privacy=privacy, ledger=ledger, **settings)
    assert again.weight.tolist() != found[0].weight.tolist()
    assert len(ledger.entries) == 2


class Uncounted(SimulatedDevices):
    """Devices whose number is not known, as those of a federation."""

    @property
    def count(self) -> int | None:
        return None


def test_where_the_number_of_devices_is_not_known_the_norm_is_given() -> None:
    """The noise is then that of real devices, each of which stands for one user."""
    users = population_from_messages([(f"u{i:03d}", "yes no", "train") for i in range(300)]).train
    privacy, settings = PrivacyOptions("dp", epsilon=8.0, noise_seed=1), {**EVERYBODY, "devices_per_round": 100}
    words = ["yes", "no", *(f"other{i}" for i in range(2000))]
    found = collect_unigrams(Uncounted(users), words, privacy=privacy, norm=1.5, **settings)
    deviation = privacy.event.multiplier * 1.5
    assert all(0 < abs(found.frequency()[word] - 300) < 5 * deviation for word in ("yes", "no"))
    with pytest.raises(SettingError, match="norm is needed"):
        collect_unigrams(Uncounted(users), words, privacy=privacy, **settings)
    with pytest.raises(SettingError, match="simulated is for simulations"):
        collect_unigrams(
            Uncounted(users), words, privacy=replace(privacy, simulated=10**6), norm=1.5, **settings
        )  # fmt: skip


def test_noise_that_hides_everything_is_an_error_that_says_so(people: Population) -> None:
    with pytest.raises(FedgramError, match="the noise hides all words"):
        collect_unigrams(people.train, ["yes", "no"], privacy=PrivacyOptions("dp", noise_seed=1), **EVERYBODY)
