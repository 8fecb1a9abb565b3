"""Populations: access by client, files, and refusals."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.storage import Artefact, read_artefact, write_artefact
from fedgram.text.messages import SPLITS, split_of, write_messages
from fedgram.text.population import Population, open_population, population_from_messages, write_population
from fedgram.text.vocabulary import Vocabulary

MESSAGES: list[tuple[str, str, str | None]] = [
    ("zoe", "Hello New York. Bye", "train"),
    ("ann", "hello", "dev"),
    ("zoe", "new shoes!", "train"),
    ("bob", "...", "test"),
    ("ann", "Hello again", "dev"),
]


def sentences(people: Population, client: int) -> list[str]:
    return [" ".join(people.words[i] for i in row) for row in people.sentences(client)]


def test_clients_in_the_order_of_their_ids_with_their_messages_in_order() -> None:
    people = population_from_messages(MESSAGES)
    assert people.client_ids == ("ann", "bob", "zoe")
    assert sentences(people, 0) == ["hello", "Hello again"]
    assert sentences(people, 1) == []
    assert sentences(people, 2) == ["Hello New York", "Bye", "new shoes"]
    assert [people.clients(s).tolist() for s in SPLITS] == [[2], [0], [1]]
    assert repr(people) == "Population(1 train, 1 dev, 1 test users; 5 sentences, 9 words)"


def test_clients_load_uncased_ids() -> None:
    people = population_from_messages(MESSAGES)
    words = Vocabulary.of(["hello", "new"])
    data = people.load(2, people.word_ids(words))
    assert [row.tolist() for row in data.sentences] == [[3, 4, 0], [0], [4, 0]]
    cased = people.load(2, people.word_ids(words, cased=True))
    assert [row.tolist() for row in cased.sentences] == [[0, 0, 0], [0], [4, 0]]


@pytest.mark.parametrize("suffix", [".parquet", ".population"])
def test_files_come_back(suffix: str, tmp_path: Path) -> None:
    people = population_from_messages(MESSAGES)
    path = tmp_path / f"users{suffix}"
    if suffix == ".population":
        write_population(path, people)
    else:
        assert write_messages(path, MESSAGES) == 5
    back = open_population(path)
    assert back.client_ids == people.client_ids
    assert [sentences(back, c) for c in range(3)] == [sentences(people, c) for c in range(3)]
    assert np.array_equal(back.split, people.split)


def test_splits_by_hash_are_stable_and_disjoint() -> None:
    names = [f"user{i}" for i in range(2000)]
    splits = [split_of(name) for name in names]
    assert splits == [split_of(name) for name in names]
    assert [splits.count(s) / 2000 for s in SPLITS] == pytest.approx([0.8, 0.1, 0.1], abs=0.03)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedgramError, match="two splits"):
        population_from_messages([("a", "x", "train"), ("a", "y", "dev")])
    with pytest.raises(FedgramError, match="unknown split 'heldout'"):
        population_from_messages([("a", "x", "heldout")])
    with pytest.raises(FedgramError, match="choose one of train"):
        population_from_messages(MESSAGES).clients("all")
    for name in ("broken.parquet", "broken.population"):
        (tmp_path / name).write_bytes(b"not a file of that kind at all")
        with pytest.raises(InputError, match="broken"):
            open_population(tmp_path / name)
    with pytest.raises(InputError, match="is not a population"):
        open_population(tmp_path / "users.txt")
    import pyarrow as pa
    import pyarrow.parquet

    pa.parquet.write_table(pa.table({"who": ["a"], "text": ["b"]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match="no column 'user_id'"):
        open_population(tmp_path / "other.parquet")


def test_a_population_without_words(tmp_path: Path) -> None:
    people = population_from_messages([("a", "!!!", None)])
    write_population(tmp_path / "users.population", people)
    back = open_population(tmp_path / "users.population")
    assert (len(back), back.words, len(back.token)) == (1, (), 0)


def test_columns_of_other_types_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    for bad in ({"text": [1]}, {"text": [b"x"]}, {"user_id": [0]}, {"split": [["train"]]}):
        columns = {"user_id": ["a"], "text": ["b"], "split": ["train"]} | bad
        pa.parquet.write_table(pa.table(columns), tmp_path / "odd.parquet")
        with pytest.raises(InputError, match="not one column of text"):
            open_population(tmp_path / "odd.parquet")


def test_files_of_an_earlier_version_are_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"earlier version of fedgram; use the \.parquet file"):
        open_population(tmp_path / "users.arrow")


def test_equal_populations_have_equal_bytes_and_digests(tmp_path: Path) -> None:
    people = population_from_messages(MESSAGES)
    first, again = (write_population(tmp_path / f"{n}.population", people) for n in (1, 2))
    assert first == again == people.digest == open_population(tmp_path / "1.population").digest
    assert (tmp_path / "1.population").read_bytes() == (tmp_path / "2.population").read_bytes()
    fewer = population_from_messages(MESSAGES[:4])
    assert write_population(tmp_path / "3.population", fewer) != first


def test_opened_populations_are_mapped_and_read_only(tmp_path: Path) -> None:
    path = tmp_path / "users.population"
    write_population(path, population_from_messages(MESSAGES))
    people = open_population(path)
    assert people.path == path
    for array in (people.split, people.first_sentence, people.first_token, people.token):
        assert not array.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize("name", ["", "two\nlines"])
def test_user_ids_that_are_no_line_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FedgramError, match="user id"):
        write_population(tmp_path / "users.population", population_from_messages([(name, "hello", None)]))
    assert list(tmp_path.iterdir()) == []


def test_arrays_that_form_no_population_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "users.population"
    write_population(path, population_from_messages(MESSAGES))
    good = read_artefact(path, kind="population", version=1)
    bad: list[dict[str, NDArray[Any]]] = [
        {"token": good.arrays["token"].astype(np.int64)},
        {"token": good.arrays["token"] + 100},
        {"token": good.arrays["token"].reshape(3, 3)},
        {"first_token": np.zeros(0, np.int64), "first_sentence": good.arrays["first_sentence"] - 6},
        {"split": good.arrays["split"] + np.uint8(3)},
        {"client_ids": good.arrays["client_ids"][::-1]},
        {"client_ids": np.array([255], np.uint8)},
        {"words": np.zeros(0, np.uint8)},
        {"more": np.zeros(1, np.uint8)},
    ]
    for arrays in bad:
        write_artefact(path, Artefact("population", 1, {}, {**good.arrays, **arrays}))
        with pytest.raises(InputError, match="does not hold a population") as refused:
            open_population(path)
        assert "\n" not in str(refused.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """With bytes changed at random, a file is either read as a population or refused."""
    write_population(tmp_path / "users.population", population_from_messages(MESSAGES))
    whole = (tmp_path / "users.population").read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        broken = bytearray(whole)
        for place in rng.integers(0, len(whole), 3):
            broken[place] = int(rng.integers(256))
        (tmp_path / "broken.population").write_bytes(broken)
        try:
            people = open_population(tmp_path / "broken.population")
            ids = people.word_ids(Vocabulary.of(["hello"]))
            for client in range(len(people)):
                people.load(client, ids)
        except FedgramError:
            refused += 1
    assert refused > 390  # a change may hit a byte that already has the new value


BIG = """
import resource, sys
import numpy as np
from fedgram.text.population import Population, open_population, write_population
clients, words = 342_477, 400
path = sys.argv[1]
if sys.argv[2] == "write":
    token = np.random.default_rng(0).integers(0, 1000, clients * words, dtype=np.int32)
    write_population(path, Population(
        tuple(f"user{i:06d}" for i in range(clients)), np.zeros(clients, np.uint8),
        np.arange(clients + 1, dtype=np.int64) * 40, np.arange(clients * 40 + 1, dtype=np.int64) * 10,
        token, tuple(f"w{i}" for i in range(1000))))
else:
    people = open_population(path)
    chosen = np.random.default_rng(1).integers(0, clients, 20_000)
    assert sum(len(people.sentences(int(c)).values) for c in chosen) == 20_000 * words
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


@pytest.mark.slow
def test_a_third_of_a_million_clients_fit_in_two_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "big.population"
    for step in ("write", "read"):
        done = subprocess.run([sys.executable, "-c", BIG, str(path), step], check=True, capture_output=True, text=True)
        assert float(done.stdout) < 2.0, step
