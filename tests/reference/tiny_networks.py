"""Small networks with random weights, whose sentences are short."""

from typing import Any

import numpy as np

from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import Coding, Network
from fedgram.text.vocabulary import EOS, Vocabulary


def tiny_network(seed: int, words: int = 40, *, ends: float = 3.0, **shape: Any) -> Network:
    """`ends` raises the score of `</s>`."""
    vocabulary = Vocabulary.of(f"w{i}" for i in range(words - 3))
    return network_over(vocabulary, seed, ends=ends, **shape)


def network_over(
    vocabulary: Vocabulary, seed: int, *, ends: float = 3.0, pieces: bytes | None = None, **shape: Any
) -> Network:
    form = ModelShape(len(vocabulary), 10, 15, **shape)
    weights: dict[str, Any] = {name: w.numpy() for name, w in initial_weights(form, seed=seed).items()}
    weights["embedding"] *= np.float32(1.5)
    weights["output_bias"][EOS] = ends
    return Network(form, weights, Coding(vocabulary, vocabulary, pieces))
