"""Central training goes on after an interruption, to the same weights."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.neural.batching import ClientBatches, pack_clients
from fedgram.neural.cell import Weights
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.training import central_training
from fedgram.training.central_training import CentralTraining, _rate, train_centrally

SHAPE = ModelShape(30, 10, 15, layers=2)
OPTIONS = CentralTraining(epochs=3, rows=4, length=8, seed=3)


class Interruption(Exception):
    """As if the process had ended here."""


def some_sentences() -> Ragged:
    rng = np.random.default_rng(5)
    return Ragged.from_rows([rng.integers(3, 30, rng.integers(1, 12)).tolist() for _ in range(60)])


def train(checkpoint: Path | None = None, *, until: float = 2.0, options: CentralTraining = OPTIONS) -> Weights:
    def on_batch(done: float, _: float) -> None:
        if done >= until:
            raise Interruption

    start = initial_weights(SHAPE, seed=1)
    return train_centrally(SHAPE, start, some_sentences(), options, on_batch=on_batch, checkpoint=checkpoint, pause=0.0)


def same(a: Weights, b: Weights) -> bool:
    return all(torch.equal(w, b[name]) for name, w in a.items())


def test_interrupted_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    whole, checkpoint = train(), tmp_path / "checkpoint"
    for until in (0.3, 0.3, 0.6):
        with pytest.raises(Interruption):
            train(checkpoint, until=until)
        assert checkpoint.exists()
    heard: list[float] = []
    weights = train_centrally(
        SHAPE, initial_weights(SHAPE, seed=1), some_sentences(), OPTIONS, checkpoint=checkpoint,
        on_batch=lambda done, _: heard.append(done),
    )  # fmt: skip
    assert min(heard) > 0.5, "it began anew"
    assert same(weights, whole)
    assert not checkpoint.exists()


def test_a_checkpoint_that_is_damaged_or_of_other_work_is_not_used(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(Interruption):
        train(checkpoint, until=0.5, options=CentralTraining(epochs=3, rows=4, length=8, seed=4))
    assert same(train(checkpoint), train())
    with pytest.raises(Interruption):
        train(checkpoint, until=0.5)
    content = bytearray(checkpoint.read_bytes())
    content[-3] ^= 1
    checkpoint.write_bytes(content)
    assert same(train(checkpoint), train())


def test_a_checkpoint_of_other_text_is_not_used(tmp_path: Path) -> None:
    checkpoint, start = tmp_path / "checkpoint", initial_weights(SHAPE, seed=1)
    with pytest.raises(Interruption):
        train(checkpoint, until=0.5)
    other = some_sentences().take(np.arange(60)[::-1])
    fresh = train_centrally(SHAPE, start, other, OPTIONS)
    assert same(train_centrally(SHAPE, start, other, OPTIONS, checkpoint=checkpoint), fresh)
    assert not same(fresh, train())


def test_the_learning_rate_rises_and_then_falls_to_nearly_nothing() -> None:
    assert _rate(0.0) < 0.01 < _rate(0.03) < _rate(0.06)
    assert _rate(0.1) > _rate(0.5) > _rate(0.9)
    assert _rate(0.5) == pytest.approx(0.5)
    assert _rate(1.0) == pytest.approx(0.0, abs=1e-12)


def test_every_epoch_has_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[list[int]] = []

    def packed(clients: Sequence[Ragged], **settings: Any) -> ClientBatches:
        orders.append(settings["orders"][0].tolist())
        return pack_clients(clients, **settings)

    monkeypatch.setattr(central_training, "pack_clients", packed)
    train()
    assert [sorted(order) for order in orders] == [list(range(60))] * OPTIONS.epochs
    assert len({tuple(order) for order in orders}) == OPTIONS.epochs


def test_gradients_are_clipped_to_their_limit() -> None:
    """Adam moves by its rate if gradients are far above its ε of 1e-8, and by a hundredth of it if they are 1e-10."""

    def largest_change(limit: float) -> float:
        weights, start = train(options=replace(OPTIONS, gradient_norm=limit)), initial_weights(SHAPE, seed=1)
        return max(float((w - start[name]).abs().max()) for name, w in weights.items())

    assert largest_change(1e-10) < 0.05 * largest_change(1.0)
    assert largest_change(1e6) != largest_change(0.5)


def test_no_text_is_refused() -> None:
    with pytest.raises(FedgramError, match="no text"):
        train_centrally(SHAPE, initial_weights(SHAPE, seed=1), Ragged.from_rows([]), OPTIONS)
