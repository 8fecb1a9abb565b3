"""Packing clients into rectangles, and training them together or one at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.neural.batching import pack_clients
from fedgram.neural.cell import GATES
from fedgram.neural.local_training import LocalTraining, train_clients
from fedgram.neural.model import ModelShape, initial_weights, word_losses
from fedgram.text.vocabulary import BOS, EOS

CLIENTS = st.lists(st.lists(st.lists(st.integers(3, 19), min_size=1, max_size=9), max_size=7), min_size=1, max_size=4)


@given(CLIENTS, st.integers(1, 4), st.integers(1, 12))
def test_packing_keeps_every_word_in_its_place(clients: list[list[list[int]]], batch: int, length: int) -> None:
    packed = pack_clients([Ragged.from_rows(rows) for rows in clients], batch=batch, length=length)
    for c, rows in enumerate(clients):
        flat = [a[c].reshape(-1, a.shape[-1]) for a in (packed.words, packed.targets, packed.mask)]
        for row, sentence in enumerate(rows):
            used = int(flat[2][row].sum())
            assert used == min(len(sentence) + 1, length)
            assert flat[0][row, :used].tolist() == [BOS, *sentence][:used]
            assert flat[1][row, :used].tolist() == [*sentence, EOS][:used]
        assert flat[2][len(rows) :].sum() == 0
    assert packed.tokens == sum(min(len(s) + 1, length) for rows in clients for s in rows)


def test_orders_choose_and_shuffle_sentences() -> None:
    packed = pack_clients([Ragged.from_rows([[3], [4], [5]])], batch=2, length=4, orders=[np.array([2, 0])])
    assert packed.targets[0, 0, :, 0].tolist() == [5, 3]
    assert packed.mask.shape == (1, 1, 2, 2)
    assert 0 <= packed.padding < 1


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("norm", [None, 0.3])
def test_training_together_is_training_alone(cell: str, norm: float | None) -> None:
    """Against a plain loop with torch's own optimiser; clients are ragged, and one has nothing at all."""
    shape = ModelShape(20, 8, 12, layers=2, cell=cell)
    rng = np.random.default_rng(0)
    sizes = [5, 1, 0, 9]
    clients = [Ragged.from_rows([rng.integers(3, 20, rng.integers(1, 7)).tolist() for _ in range(n)]) for n in sizes]
    weights = {name: w.double() for name, w in initial_weights(shape, seed=1).items()}
    together = train_clients(shape, weights, pack_clients(clients, batch=2, length=6), LocalTraining(0.5, norm))
    for c, sentences in enumerate(clients):
        alone = {name: w.clone().requires_grad_() for name, w in weights.items()}
        optimiser = torch.optim.SGD(alone.values(), lr=0.5)
        packed = pack_clients([sentences], batch=2, length=6)
        for t in range(packed.mask.shape[1]):
            batch = [torch.from_numpy(a[0, t]) for a in (packed.words, packed.targets, packed.mask)]
            optimiser.zero_grad()
            (word_losses(shape, alone, *batch).sum() / batch[2].sum()).backward()
            if norm:
                torch.nn.utils.clip_grad_norm_(alone.values(), norm)
            optimiser.step()
        assert int(together.tokens[c]) == packed.tokens
        for name, w in alone.items():
            torch.testing.assert_close(together.change[name][c], w.detach() - weights[name])


def test_training_lowers_the_loss() -> None:
    shape = ModelShape(12, 8, 16)
    client = Ragged.from_rows([[3, 4, 5, 6]] * 40)
    packed = pack_clients([client], batch=4, length=6)
    weights = initial_weights(shape, seed=0)
    first = train_clients(shape, weights, packed, LocalTraining(0.5))
    trained = {name: w + first.change[name][0] for name, w in weights.items()}
    second = train_clients(shape, trained, packed, LocalTraining(0.5))
    assert float(second.loss[0]) < 0.4 * float(first.loss[0])


def test_mistakes_are_refused() -> None:
    with pytest.raises(FedgramError, match="learning rate"):
        LocalTraining(0.0)
    with pytest.raises(FedgramError, match="norm limit"):
        LocalTraining(0.1, 0.0)
