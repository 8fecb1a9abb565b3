"""The n-grams of a model by the devices that typed them, against a count by hand and by brute force."""

import numpy as np
import pytest

from fedgram.audit.ngram_devices import NGramDevices, bin_names, devices_by_ngram, spelled
from fedgram.automata.model import NGramModel
from fedgram.automata.topology import ngram_matrix
from fedgram.core.errors import InvariantError
from fedgram.text.corpus import corpus_of
from fedgram.text.normalize import uncase
from fedgram.text.population import Population


def by_text(model: NGramModel, found: NGramDevices) -> dict[str, int]:
    matrix, length = ngram_matrix(model.topology)
    words = model.vocabulary.words
    return {
        " ".join(words[x] for x in row[:n]): int(devices)
        for row, n, devices in zip(matrix.tolist(), length.tolist(), found.devices, strict=True)
    }


def test_planted_ngrams_have_exactly_their_devices() -> None:
    people = Population.from_messages([
        ("ann", "my code is seven", "train"), ("ann", "my code is seven", "train"),
        ("bob", "My code is nine", "train"), ("eve", "see you", "train"), ("dev", "my code is seven", "dev"),
    ])  # fmt: skip
    model = NGramModel.train(["my code is seven", "my code is nine", "see you soon"], order=4)
    found = by_text(model, devices_by_ngram(model, people.train))
    assert found["code is seven"] == 1  # twice, by one device; the dev user is not asked
    assert found["my code is"] == found["<s> my"] == 2  # capitals do not matter
    assert found["you soon"] == found["soon"] == 0
    assert found["</s>"] == 3
    cased = by_text(model, devices_by_ngram(model, people.train, cased=True))
    assert cased["<s> my"] == 1
    assert cased["code is"] == 2


def test_public_text_makes_an_ngram_no_secret() -> None:
    people = Population.from_messages([("ann", "pin is seven", "train"), ("bob", "hello there", "train")])
    model = NGramModel.train(["pin is seven", "hello there"], order=3)
    public = corpus_of(["Hello there"])
    found = devices_by_ngram(model, people.train, public)
    secrets = spelled(model, found.single)
    assert secrets[0].count(" ") == 2  # longest first
    assert {"pin is seven", "<s> pin is", "is seven", "seven", "pin"} <= set(secrets)
    assert not {"hello", "hello there", "</s>", "<s> hello"} & set(secrets)
    assert len(spelled(model, devices_by_ngram(model, people.train).single)) > len(secrets)
    table = found.table()
    assert sum(row["ngrams"] for row in table) == model.topology.arcs
    for row in table:
        assert all(row["public"][n] + row["not_public"][n] == row["devices"][n] for n in bin_names())


@pytest.mark.parametrize("seed", range(4))
def test_it_agrees_with_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = ["a", "A", "b", "c", "d", "e"]
    rows = [(f"u{u}", " ".join(rng.choice(words, rng.integers(1, 7))), "train") for u in rng.integers(0, 12, 60)]
    people = Population.from_messages(rows)
    model = NGramModel.train([" ".join(rng.choice(words[:5], rng.integers(1, 7))) for _ in range(40)], order=4,
                             vocab=["a", "A", "b", "c"])  # fmt: skip
    known = {"a", "b", "c"}
    typed: dict[str, set[tuple[str, ...]]] = {}
    for client, name in enumerate(people.client_ids):
        for sentence in people.sentences(client):
            read = [uncase(people.words[x]) for x in sentence.tolist()]
            line = ["<s>", *(word if word in known else "<unk>" for word in read), "</s>"]
            grams = {tuple(line[i:j]) for i in range(len(line)) for j in range(i + 1, len(line) + 1)}
            typed.setdefault(name, set()).update(grams)
    for text, devices in by_text(model, devices_by_ngram(model, people.train)).items():
        gram = tuple(uncase(word) for word in text.split())
        assert devices == sum(gram in grams for grams in typed.values()), text


def test_bins_count_every_ngram_once() -> None:
    devices = np.array([0, 1, 2, 9, 10, 99, 100, 5000])
    found = NGramDevices(np.ones(8, np.int32), devices, None)
    assert list(found.table()[0]["devices"].values()) == [1, 1, 2, 2, 2]
    assert found.single.tolist() == [False, True, *[False] * 6]
    with pytest.raises(InvariantError):
        NGramDevices(np.ones(3, np.int32), devices, None)
