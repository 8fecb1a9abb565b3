"""Packing the sentences of clients into batches, and training clients together or one at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.neural.batching import NOTHING, pack_clients
from fedgram.neural.cell_registry import BUILT_IN_CELLS
from fedgram.neural.local_training import LocalTraining, train_clients
from fedgram.neural.model import ModelShape, initial_weights, word_losses
from fedgram.text.vocabulary import BOS, EOS

CLIENTS = st.lists(st.lists(st.lists(st.integers(3, 19), min_size=1, max_size=9), max_size=7), min_size=1, max_size=4)


def unpack(words: np.ndarray, targets: np.ndarray) -> list[tuple[list[int], list[int]]]:
    """The sentences of a batch, as inputs and targets."""
    found: list[tuple[list[int], list[int]]] = []
    for row_words, row_targets in zip(words.tolist(), targets.tolist(), strict=True):
        for word, target in zip(row_words, row_targets, strict=True):
            if target == NOTHING:
                continue
            if word == BOS:
                found.append(([], []))
            found[-1][0].append(word)
            found[-1][1].append(target)
    return found


@given(CLIENTS, st.integers(1, 4), st.integers(1, 12))
def test_packing_keeps_every_sentence_whole_and_in_its_batch(
    clients: list[list[list[int]]], rows: int, length: int
) -> None:
    packed = pack_clients([Ragged.from_rows(sentences) for sentences in clients], rows=rows, length=length)
    for c, sentences in enumerate(clients):
        batches = [unpack(packed.words[c, s], packed.targets[c, s]) for s in range(packed.words.shape[1])]
        assert [bool(b) for b in batches] == [s < packed.steps[c] for s in range(len(batches))]
        wanted = [([BOS, *s][:length], [*s, EOS][:length]) for s in sentences]
        first = 0
        for batch in batches:  # batches take sentences in order; within a batch, sentences may be in any row
            assert sorted(batch) == sorted(wanted[first : first + len(batch)])
            first += len(batch)
        assert first == len(wanted)
    assert packed.tokens == sum(min(len(s) + 1, length) for sentences in clients for s in sentences)


def test_short_sentences_share_rows() -> None:
    packed = pack_clients([Ragged.from_rows([[3, 4]] * 20)], rows=2, length=6)
    assert packed.words.shape == (1, 5, 2, 6)
    assert packed.padding == 0.0


def test_orders_choose_and_shuffle_sentences() -> None:
    packed = pack_clients([Ragged.from_rows([[3], [4], [5]])], rows=2, length=2, orders=[np.array([2, 0])])
    assert packed.targets[0, 0].tolist() == [[5, EOS], [3, EOS]]


@pytest.mark.parametrize("cell", BUILT_IN_CELLS)
@pytest.mark.parametrize("norm", [None, 0.3])
def test_training_together_is_training_alone(cell: str, norm: float | None) -> None:
    """Compared with a loop over torch's optimiser; clients have different numbers of sentences, one of them none."""
    shape = ModelShape(20, 8, 12, layers=2, cell=cell)
    rng = np.random.default_rng(0)
    sizes = [9, 5, 0, 1]
    clients = [Ragged.from_rows([rng.integers(3, 20, rng.integers(1, 7)).tolist() for _ in range(n)]) for n in sizes]
    weights = {name: w.double() for name, w in initial_weights(shape, seed=1).items()}
    together = train_clients(shape, weights, pack_clients(clients, rows=2, length=6), LocalTraining(0.5, norm))
    for c, sentences in enumerate(clients):
        alone = {name: w.clone().requires_grad_() for name, w in weights.items()}
        optimiser = torch.optim.SGD(alone.values(), lr=0.5)
        packed = pack_clients([sentences], rows=2, length=6)
        summed = 0.0
        for t in range(packed.words.shape[1]):
            words, targets = (torch.from_numpy(a[0, t]).long() for a in (packed.words, packed.targets))
            optimiser.zero_grad()
            loss = word_losses(shape, alone, words, targets).sum()
            summed += float(loss.detach())
            (loss / (targets != NOTHING).sum()).backward()
            if norm:
                torch.nn.utils.clip_grad_norm_(alone.values(), norm)
            optimiser.step()
        assert float(together.loss[c]) == pytest.approx(summed)
        for name, w in alone.items():
            torch.testing.assert_close(together.weights[name][c], w.detach())


def test_training_lowers_the_loss() -> None:
    shape = ModelShape(12, 8, 16)
    packed = pack_clients([Ragged.from_rows([[3, 4, 5, 6]] * 40)], rows=4, length=6)
    weights = initial_weights(shape, seed=0)
    first = train_clients(shape, weights, packed, LocalTraining(0.5))
    second = train_clients(shape, {n: w[0] for n, w in first.weights.items()}, packed, LocalTraining(0.5))
    assert float(second.loss[0]) < 0.4 * float(first.loss[0])


def test_mistakes_are_refused() -> None:
    with pytest.raises(FedgramError, match="learning rate"):
        LocalTraining(0.0)
    with pytest.raises(FedgramError, match="norm limit"):
        LocalTraining(0.1, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0.0}, {"learning_rate": float("inf")}, {"learning_rate": float("nan")},
        {"gradient_norm": 0.0}, {"dropout": 1.0}, {"dropout": -0.1},
    ],
)  # fmt: skip
def test_each_number_outside_its_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(FedgramError):
        LocalTraining(**wrong)
