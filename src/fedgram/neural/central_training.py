"""Training on text that a server may see, such as a supplemental corpus: Adam over shuffled batches, many epochs.

Federated training may start from such a network, and a network trained on pooled text says what the same model could
reach if text were collected.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi

import numpy as np
import torch

from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.random import stream
from fedgram.neural.batching import NOTHING, pack_clients
from fedgram.neural.cell import Weights
from fedgram.neural.model import ModelShape, word_losses

_WARMUP = 0.05  # the share of all batches over which the learning rate rises


@dataclass(frozen=True, slots=True)
class CentralTraining:
    """Epochs, the largest learning rate, and the size of a batch; the rate rises a little while, then falls to 0."""

    epochs: int = 5
    learning_rate: float = 2e-3
    rows: int = 128
    length: int = 32
    gradient_norm: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.epochs, self.rows, self.length) < 1 or not self.learning_rate > 0 or not self.gradient_norm > 0:
            raise FedgramError("epochs, rows, length, the learning rate and the norm limit must be greater than 0")


def train_centrally(
    shape: ModelShape, start: Weights, sentences: Ragged, options: CentralTraining, *,
    on_batch: Callable[[float, float], object] = lambda *_: None,
) -> Weights:  # fmt: skip
    """Train weights on sentences, on the weights' device; `on_batch` hears the share that is done, and the loss."""
    if not len(sentences.values):
        raise FedgramError("there is no text to train on")
    device = start["embedding"].device
    weights = {name: w.clone().requires_grad_() for name, w in start.items()}
    optimizer = torch.optim.Adam(weights.values(), lr=options.learning_rate)
    for epoch in range(options.epochs):
        order = stream(options.seed, "central", epoch).permutation(len(sentences))
        packed = pack_clients([sentences], rows=options.rows, length=options.length, orders=[order.astype(np.int64)])
        words, targets = (torch.from_numpy(a[0]).to(device).long() for a in (packed.words, packed.targets))
        for k in range(len(words)):
            done = (epoch + k / len(words)) / options.epochs
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * _rate(done)
            loss = word_losses(shape, weights, words[k], targets[k]).sum() / (targets[k] != NOTHING).sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(weights.values()), options.gradient_norm)
            optimizer.step()
            if k % 20 == 0:
                on_batch(done, float(loss.detach()))
    return {name: w.detach() for name, w in weights.items()}


def _rate(done: float) -> float:
    """A short rise, then a cosine down to 0."""
    return min(1.0, done / _WARMUP + 1e-3) * (1.0 + cos(pi * done)) / 2.0
