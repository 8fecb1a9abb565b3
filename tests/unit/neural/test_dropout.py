"""Dropout: how many units it drops, what its choices depend on, and that training by hand drops the same units."""

import numpy as np
import pytest
import torch

from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.neural.batching import pack_clients
from fedgram.neural.dropout import Dropout, seeds_in_step
from fedgram.neural.local_training import LocalTraining, mean_gradient, train_clients
from fedgram.neural.model import ModelShape, initial_weights, word_losses


def seeds(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def test_the_share_of_units_that_are_dropped_and_the_factor_of_the_others() -> None:
    mask = Dropout(0.3, seeds(5, 6, 7)).mask(0, 21, 16, 96)
    dropped = (mask == 0).double()
    assert dropped.mean().item() == pytest.approx(0.3, abs=0.003)
    assert mask.max().item() == pytest.approx(1 / 0.7)
    assert mask.double().mean().item() == pytest.approx(1.0, abs=0.01)
    for axis in range(1, 4):  # neighbours in time, rows and units are independent
        first, second = dropped.narrow(axis, 0, mask.shape[axis] - 1), dropped.narrow(axis, 1, mask.shape[axis] - 1)
        assert (first * second).mean().item() == pytest.approx(0.09, abs=0.003)


def test_clients_steps_and_layers_drop_other_units() -> None:
    base = Dropout(0.5, seeds(5, 6))
    masks = [
        base.mask(0, 9, 4, 64)[0], base.mask(0, 9, 4, 64)[1], base.mask(1, 9, 4, 64)[0],
        Dropout(0.5, seeds_in_step(seeds(5), 1)).mask(0, 9, 4, 64)[0],
        Dropout(0.5, seeds_in_step(seeds(5), 1 << 20)).mask(0, 9, 4, 64)[0],
    ]  # fmt: skip
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert ((one == 0) == (other == 0)).double().mean().item() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("layers", [1, 2])
def test_by_hand_and_by_differentiation_the_same_units_are_dropped(layers: int) -> None:
    shape, rng = ModelShape(40, 8, 12, layers=layers), np.random.default_rng(0)
    weights = initial_weights(shape, seed=1)
    clients = [Ragged.from_rows([rng.integers(3, 40, 5).tolist() for _ in range(n)]) for n in (9, 5)]
    packed = pack_clients(clients, rows=3, length=8, seeds=[11, 12])
    by_hand = train_clients(shape, weights, packed, LocalTraining(0.5, None, 0.25))
    differentiated = train_clients(shape, weights, packed, LocalTraining(0.5, 1e9, 0.25))
    assert packed.steps.tolist() == [3, 2]
    for name, w in by_hand.weights.items():
        torch.testing.assert_close(w, differentiated.weights[name], rtol=1e-4, atol=1e-5)
    plain = train_clients(shape, weights, packed, LocalTraining(0.5))
    assert not torch.allclose(plain.loss, by_hand.loss)


def test_a_client_drops_the_same_units_alone_and_in_a_stack() -> None:
    shape, rng = ModelShape(40, 8, 12), np.random.default_rng(1)
    weights, options = initial_weights(shape, seed=1), LocalTraining(0.5, None, 0.4)
    clients = [Ragged.from_rows([rng.integers(3, 40, 5).tolist() for _ in range(n)]) for n in (9, 5)]
    both = train_clients(shape, weights, pack_clients(clients, rows=3, length=8, seeds=[11, 12]), options)
    alone = train_clients(shape, weights, pack_clients(clients[1:], rows=3, length=8, seeds=[12]), options)
    other = train_clients(shape, weights, pack_clients(clients[1:], rows=3, length=8, seeds=[13]), options)
    torch.testing.assert_close(both.weights["embedding"][1], alone.weights["embedding"][0])
    assert not torch.allclose(other.weights["embedding"][0], alone.weights["embedding"][0])


@pytest.mark.parametrize("cell", ["cifg", "lstm"])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_gradient_of_a_batch_is_that_of_its_mean_loss(cell: str, share: float) -> None:
    shape = ModelShape(40, 8, 12, cell=cell)
    weights = initial_weights(shape, seed=2)
    words, targets = torch.randint(3, 40, (2, 5, 7), generator=torch.Generator().manual_seed(0))
    targets[1, 4:] = -1
    dropout = Dropout(share, seeds(3)) if share else None
    gradient, loss = mean_gradient(shape, weights, words, targets, dropout)
    leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
    wanted = word_losses(shape, leaves, words, targets, dropout).sum() / 32
    wanted.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    for name, w in leaves.items():
        torch.testing.assert_close(gradient[name], w.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_an_impossible_share_is_refused(share: float) -> None:
    with pytest.raises(FedgramError, match="dropout must be"):
        LocalTraining(dropout=share)
