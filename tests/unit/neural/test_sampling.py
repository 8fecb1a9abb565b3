"""Samples of a network: they do not depend on batches or on the way to draw, and have the network's probabilities."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.reference.tiny_networks import tiny_network

from fedgram.core.arrays import Ragged
from fedgram.core.random import stream_key, uniform_at
from fedgram.neural import drawing
from fedgram.neural.decoder import RecurrentDecoder
from fedgram.neural.drawing import draw_compiled, draw_in_tensors
from fedgram.neural.model import hidden_outputs, logits
from fedgram.neural.network import Network
from fedgram.neural.sampling import sample_labels, walk
from fedgram.text.vocabulary import BOS, EOS

CPU = torch.device("cpu")
SHAPES: list[dict[str, Any]] = [{}, {"layers": 2}, {"cell": "lstm", "groups": 5}, {"cell": "gru"}]


def probabilities(network: Network, words: list[int]) -> np.ndarray:
    """The probabilities after each prefix, from the functions that train the network; `<s>` is left out."""
    weights = {name: torch.from_numpy(w.copy()) for name, w in network.weights.items()}
    scores = logits(weights, hidden_outputs(network.shape, weights, torch.tensor([[BOS, *words]])))[0].double()
    scores[:, BOS] = -np.inf
    return scores.softmax(1).numpy()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_visit_has_the_probabilities_of_its_prefix(shape: dict[str, Any]) -> None:
    network = tiny_network(1, **shape)
    decoder = RecurrentDecoder(network, CPU)
    sentences = sample_labels(decoder, range(5, 45), seed=3, max_length=12)
    key, seen = stream_key(3, "sample"), np.zeros(40, int)
    expected = [probabilities(network, list(map(int, words))) for words in sentences]
    for tile in walk(decoder, range(5, 45), seed=3, max_length=12):
        columns = (tile.sample, tile.row, tile.label, tile.position)
        for sample, row, label, position in zip(*(a.tolist() for a in columns), strict=True):
            p, want = tile.probabilities(decoder.labels)[row].numpy(), expected[sample][position]
            np.testing.assert_allclose(p, want, atol=2e-6)
            assert p[BOS] == 0.0
            assert float(tile.entropy[row]) == pytest.approx(-(want * np.log(np.maximum(want, 1e-99))).sum(), abs=1e-4)
            said = [*sentences[sample].tolist(), EOS][position]
            assert label == said
            u, below = uniform_at(key, sample + 5, position), np.cumsum(want)
            cut = position == 12
            assert cut or below[label] - want[label] - 1e-5 <= u <= below[label] + 1e-5
            seen[sample] += 1
    np.testing.assert_array_equal(seen, np.diff(sentences.offsets) + 1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_samples_and_rows_are_the_same_bits_from_any_batches(shape: dict[str, Any]) -> None:
    decoder = RecurrentDecoder(tiny_network(2, words=300, **shape), CPU)
    whole = sample_labels(decoder, range(300), seed=4, max_length=9)
    for size in (7, 90):
        parts = [
            sample_labels(decoder, range(a, min(a + size, 300)), seed=4, max_length=9) for a in range(0, 300, size)
        ]
        together = Ragged.concatenate(parts)
        np.testing.assert_array_equal(whole.values, together.values)
        np.testing.assert_array_equal(whole.offsets, together.offsets)
    rows = {}
    for tile in walk(decoder, range(300), seed=4, max_length=9):
        for sample, row, position in zip(*(a.tolist() for a in (tile.sample, tile.row, tile.position)), strict=True):
            rows[sample, position] = tile.probabilities(300)[row].numpy().tobytes()
    for first in range(0, 300, 50):
        for at_once in (None, 7, 30):
            seen = 0
            for tile in walk(decoder, range(first, first + 50), seed=4, max_length=9, at_once=at_once):
                columns = tile.sample, tile.row, tile.position
                for sample, row, position in zip(*(a.tolist() for a in columns), strict=True):
                    assert tile.probabilities(300)[row].numpy().tobytes() == rows[first + sample, position]
                    seen += 1
            assert seen == whole.offsets[first + 50] - whole.offsets[first] + 50
        some = sample_labels(decoder, range(first, first + 50), seed=4, max_length=9, at_once=20)
        np.testing.assert_array_equal(some.values, whole.values[whole.offsets[first] : whole.offsets[first + 50]])
    assert not np.array_equal(whole.values, sample_labels(decoder, range(300), seed=5, max_length=9).values)


def test_both_ways_to_draw_give_the_same_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "_BLOCK", 16)
    for seed in range(6):
        decoder = RecurrentDecoder(tiny_network(seed, words=37 + seed), CPU)
        tiles = zip(
            *(walk(decoder, range(200), seed=seed, draw=d, max_length=9) for d in (draw_compiled, draw_in_tensors)),
            strict=True,
        )
        for compiled, tensors in tiles:
            assert torch.equal(compiled.label, tensors.label)
            assert torch.equal(compiled.sample, tensors.sample)
            torch.testing.assert_close(compiled.entropy, tensors.entropy, atol=1e-5, rtol=0.0)
            assert tensors.fixed is not None
            fixed = np.rint(tensors.probabilities(decoder.labels).numpy().astype(np.float64) * 2.0**34)
            np.testing.assert_array_equal(tensors.fixed[:, : fixed.shape[1]].numpy(), fixed)


def test_rows_are_shared_and_labels_as_frequent_as_they_are_probable() -> None:
    decoder = RecurrentDecoder(tiny_network(3, words=12), CPU)
    first = next(walk(decoder, range(20_000), seed=1))
    assert first.probabilities(12).shape == (1, 12)
    counts = np.bincount(first.label.numpy(), minlength=12)
    expected = first.probabilities(12)[0].numpy().astype(np.float64) * 20_000
    kept = expected > 0
    assert (((counts - expected)[kept] ** 2) / expected[kept]).sum() < 31.3  # 0.1 % of χ² with 11 degrees of freedom
    assert counts[~kept].sum() == 0


def test_known_sentences_are_walked_as_if_drawn_and_long_ones_are_cut() -> None:
    decoder = RecurrentDecoder(tiny_network(4, ends=-3.0), CPU)
    sentences = sample_labels(decoder, range(60), seed=2, max_length=6)
    lengths = np.diff(sentences.offsets)
    assert lengths.max() == 6
    visits = np.zeros(60, int)
    pairs = zip(
        walk(decoder, range(60), seed=2, max_length=6),
        walk(decoder, range(60), seed=99, sentences=sentences, max_length=6),
        strict=True,
    )
    for drawn, known in pairs:
        assert torch.equal(drawn.label, known.label)
        assert torch.equal(drawn.probabilities(decoder.labels), known.probabilities(decoder.labels))
        np.add.at(visits, drawn.sample.numpy(), 1)
    np.testing.assert_array_equal(visits, lengths + 1)
