"""Membership of users: the AUC is exact, its interval covers, and memorised users are found."""

import numpy as np
import pytest

from fedgram.audit.membership import Membership, auc, audit_membership
from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError
from fedgram.text.population import Population, population_from_messages
from fedgram.text.synthetic.typists import SyntheticPopulation


def test_the_auc_is_the_share_of_pairs() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, 40).astype(float), rng.integers(0, 7, 30).astype(float)
    pairs = np.mean([(x > y) + 0.5 * (x == y) for x in a for y in b])
    assert auc(a, b).value == pytest.approx(pairs)
    assert auc(b, a).value == pytest.approx(1 - pairs)


def test_the_interval_covers_the_true_auc() -> None:
    """Two normal distributions one standard deviation apart: the AUC is Φ(1/√2) = 0.7602."""
    covered = []
    for seed in range(400):
        rng = np.random.default_rng(seed)
        covered.append(auc(rng.normal(1.0, 1.0, 60), rng.normal(0.0, 1.0, 40)).covers(0.76025))
    assert 0.91 < np.mean(covered) < 0.98


def test_all_users_told_apart_still_have_an_interval() -> None:
    found = auc(np.arange(10.0, 40.0), np.arange(0.0, 5.0))
    assert found.value == 1.0
    assert found.interval is not None
    assert found.interval[0] == pytest.approx(1 - 3 / 5)
    assert Membership(np.arange(10.0, 40.0), np.arange(5.0)).found(0.01) == 1.0


@pytest.fixture(scope="module")
def people() -> Population:
    rows = SyntheticPopulation("en_us", seed=8).rows(120)
    return population_from_messages((name, text, "train" if int(name[1:]) % 2 else "test") for name, text, _ in rows)


def texts(people: Population, split: str) -> list[str]:
    return [
        " ".join(people.words[x] for x in sentence.tolist())
        for client in people.clients(split).tolist()
        for sentence in people.sentences(client)
    ]


def clean(count: int) -> list[str]:
    return [" ".join(words) for words in SyntheticPopulation("en_us", seed=99).clean_sentences(count)]


def test_users_of_the_training_text_are_found(people: Population) -> None:
    vocab = sorted(set(people.words))
    model = NGramModel.train(texts(people, "train"), order=4, vocab=vocab)
    reference = NGramModel.train(clean(3000), order=4, vocab=vocab)
    found = audit_membership(model, people.train, people.test, reference=reference)
    facts = found.facts()
    assert facts["members"] == len(people.train)
    assert facts["auc"] > 0.95
    assert facts["auc_ci95"][0] > 0.9
    assert facts["found_at_false_positives"]["0.1"] > 0.8
    turned = audit_membership(model, people.test, people.train, reference=reference)
    assert turned.auc.value == pytest.approx(1 - found.auc.value)


def test_a_reference_finds_members_that_the_model_alone_does_not_show(people: Population) -> None:
    vocab, public = sorted(set(people.words)), clean(5000)
    model = NGramModel.train([*public, *texts(people, "train")], order=1, vocab=vocab)
    alone = audit_membership(model, people.train, people.test).auc
    ratio = audit_membership(
        model, people.train, people.test, reference=NGramModel.train(public, order=1, vocab=vocab)
    ).auc
    assert ratio.value > alone.value + 0.1
    assert not ratio.covers(0.5)


def test_a_model_of_other_text_shows_nothing(people: Population) -> None:
    text = clean(3000)
    model, reference = NGramModel.train(text[:1500], order=3), NGramModel.train(text[1500:], order=3)
    found = audit_membership(model, people.train, people.test, reference=reference)
    assert found.auc.covers(0.5)


def test_too_few_users_are_refused(people: Population) -> None:
    with pytest.raises(FedgramError, match="at least 2"):
        audit_membership(NGramModel.train(["a b"]), people.train.first(1), people.test)
    with pytest.raises(FedgramError, match="finite"):
        Membership(np.array([1.0, np.nan]), np.zeros(2))
