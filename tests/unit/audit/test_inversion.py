"""What updates show: all of one plain update, little of a sum, next to nothing of a sum with noise."""

import numpy as np
import pytest

from fedgram.audit.epsilon import network_of, typing_users
from fedgram.audit.inversion import Shown, _compare, _sum, _truth, audit_inversion
from fedgram.audit.options import InversionOptions
from fedgram.core.errors import FedgramError
from fedgram.federated.cohort import CohortOptions
from fedgram.federated.run_task import run_task
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.population import Population, population_from_messages
from fedgram.text.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def people() -> Population:
    return typing_users(45, 2)


@pytest.fixture(scope="module")
def shown(people: Population) -> dict[tuple[str, str], Shown]:
    options = InversionOptions(targets=6, cohort=40, epsilon=1.0, noise_seed=3)
    found = audit_inversion(people.train, network_of(people, 2), options.privacy, targets=6, cohort=40, seed=1)
    return {(row.task, row.release): row for row in found}


@pytest.mark.parametrize("task", ["unigrams", "pairs", "n-grams"])
def test_one_plain_update_of_counts_shows_everything(task: str, shown: dict[tuple[str, str], Shown]) -> None:
    row = shown[task, "one update"]
    assert row.recovered == 1.0
    assert row.right > (0.99 if task == "pairs" else 0.9999)  # a sketch may have a collision


def test_one_plain_update_of_training_shows_most_words(shown: dict[tuple[str, str], Shown]) -> None:
    alone = shown["none", "frequency alone"]
    assert shown["training", "one update"].recovered > max(0.8, alone.recovered + 0.2)


@pytest.mark.parametrize("task", ["unigrams", "pairs", "n-grams"])
def test_a_sum_does_not_say_whose(task: str, shown: dict[tuple[str, str], Shown]) -> None:
    row = shown[task, "sum of 40"]
    assert row.recovered == 1.0
    assert row.right < 0.3


@pytest.mark.parametrize("task", ["unigrams", "n-grams", "training"])
def test_noise_hides_the_rest(task: str, shown: dict[tuple[str, str], Shown]) -> None:
    row = shown[task, "sum of 40 with noise"]
    assert row.recovered < shown["none", "frequency alone"].recovered
    assert row.recovered < 0.3 * shown[task, "one update"].recovered


def test_words_and_pairs_are_those_of_the_device() -> None:
    users = population_from_messages([("ann", "See you. see them zzz", "train"), ("bob", "x", "train")]).train
    vocabulary = Vocabulary.of(["see", "you", "them"])
    see, you, them = (vocabulary[word] for word in ("see", "you", "them"))
    assert _truth(users, 0, vocabulary, "words") == {see, you, them}
    assert _truth(users, 0, vocabulary, "pairs") == {(see, you), (see, them)}
    assert _compare({1, 2, 3, 4}, {3, 4, 5}) == (2 / 3, 0.5, 4.0)


def test_the_sum_is_that_of_a_masked_round(people: Population) -> None:
    task = UnigramTask(network_of(people, 2).coding.vocabulary, clip=np.inf)
    users = people.train.first(12)
    masked = run_task(task, users, CohortOptions(12, 1.0, 0.0, secure_aggregation=True), rounds=1, participations=1)
    plain = task.server_update(task.init(), _sum(task, users, users.clients.tolist()))
    for left, right in zip(masked.state.rounds, plain.rounds, strict=True):
        assert np.array_equal(left.index, right.index)
        assert np.array_equal(left.weight, right.weight)


def test_too_few_users_are_refused(people: Population) -> None:
    with pytest.raises(FedgramError, match="too few"):
        audit_inversion(people.train, network_of(people, 2), PrivacyOptions("dp"), targets=5, cohort=400)
