"""A network refuses weights that are not its own, and knows as many words as it says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.reference.tiny_networks import tiny_network

from fedgram.core.errors import InputError, InvariantError
from fedgram.core.storage import Artefact, write_artefact
from fedgram.neural.network import coding_arrays, piece_coding, read_network, word_coding, write_network
from fedgram.text.wordpieces import train_pieces

FREQUENCY = {"one": 9, "two": 8, "three": 7, "four": 6, "five": 5, "six": 4, "seven": 3}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["embedding", "output_bias"])
def test_a_weight_that_is_not_finite_is_refused(name: str, value: float) -> None:
    network = tiny_network(1)
    weight = np.array(network.weights[name])
    weight.flat[-1] = value
    with pytest.raises(InvariantError, match="not a finite number"):
        replace(network, weights={**network.weights, name: weight})


def test_weights_in_double_precision_are_refused() -> None:
    network = tiny_network(1)
    bias = network.weights["output_bias"].astype(np.float64)
    with pytest.raises(InvariantError, match="in single precision"):
        replace(network, weights={**network.weights, "output_bias": bias})  # type: ignore[dict-item]


def test_weights_of_another_shape_are_refused() -> None:
    """Each has the names of the network's weights; one has a row too few, the other is the other way round."""
    network = tiny_network(1)
    embedding = network.weights["embedding"]
    for other in (embedding[:-1], embedding.T):
        with pytest.raises(InvariantError, match="do not have its shape"):
            replace(network, weights={**network.weights, "embedding": other})


def test_a_weight_that_is_missing_or_not_asked_for_is_refused() -> None:
    network = tiny_network(1)
    weights = dict(network.weights)
    bias = weights.pop("output_bias")
    for other in (weights, {**weights, "output_bias": bias, "more": bias}):
        with pytest.raises(InvariantError, match="do not have its shape"):
            replace(network, weights=other)


def test_a_file_with_such_weights_is_refused(tmp_path: Path) -> None:
    network = tiny_network(1)
    write_network(tmp_path / "good", network)
    assert read_network(tmp_path / "good").shape == network.shape
    shape = {"words": 40, "embedding": 10, "hidden": 15, "layers": 1, "cell": "cifg", "groups": 1}
    for name, bias in (("long", np.zeros(41, np.float32)), ("infinite", np.full(40, np.inf, np.float32))):
        arrays = {f"weights.{name}": w for name, w in network.weights.items()} | {"weights.output_bias": bias}
        content = Artefact("network", 1, {"shape": shape, "about": {}}, {**arrays, **coding_arrays(network.coding)})
        write_artefact(tmp_path / name, content)
        with pytest.raises(InputError, match="does not hold a network"):
            read_network(tmp_path / name)


def test_the_special_words_count_among_the_known_ones(tmp_path: Path) -> None:
    """Of 7 places, 3 are for the special words, whether ids are words or word pieces."""
    pytest.importorskip("sentencepiece")
    train_pieces(FREQUENCY, size=16, path=tmp_path / "pieces.model", or_fewer=True)
    pieces = (tmp_path / "pieces.model").read_bytes()
    for coding in (word_coding(FREQUENCY, 7), piece_coding(pieces, FREQUENCY, 7)):
        assert coding.known.words == ("<unk>", "<s>", "</s>", "one", "two", "three", "four")
        assert coding.is_known(["Four", "five"]).tolist() == [True, False]
