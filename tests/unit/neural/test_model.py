"""The shapes of Table 2; a stack of clients gives the same results as its members."""

import pytest
import torch

from fedgram.core.errors import FedgramError
from fedgram.neural.batching import NOTHING
from fedgram.neural.cell_registry import BUILT_IN_CELLS
from fedgram.neural.model import PRESETS, ModelShape, hidden_outputs, initial_weights, logits, word_losses
from fedgram.text.vocabulary import BOS

TABLE_2 = ["W_30K", "P_4K-S", "P_4K-L", "P_4K-G", "P_16K-S", "P_16K-L", "P_30K"]
SHAPES = [
    ModelShape(50, 10, 15, layers=layers, cell=cell, groups=groups)
    for cell in BUILT_IN_CELLS
    for layers in (1, 2)
    for groups in (1, 5)
]


@pytest.mark.parametrize("name", TABLE_2)
def test_sizes_are_the_papers_within_one_percent(name: str) -> None:
    preset = PRESETS[name]
    assert preset.paper_total is not None
    assert preset.paper_embedding is not None
    assert preset.shape.parameters() / 1e6 == pytest.approx(preset.paper_total, rel=0.01)
    embedding = preset.shape.words * preset.shape.embedding / 1e6
    assert embedding == pytest.approx(preset.paper_embedding, rel=0.011)  # the paper prints two decimals
    weights = initial_weights(preset.shape, seed=0)
    assert sum(w.numel() for w in weights.values()) == preset.shape.parameters()
    assert {name: tuple(w.shape) for name, w in weights.items()} == preset.shape.sizes()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.cell}-{s.layers}-{s.groups}")
def test_a_stack_of_clients_equals_its_members(shape: ModelShape) -> None:
    generator = torch.Generator().manual_seed(1)
    members = [{n: w.double() for n, w in initial_weights(shape, seed=s).items()} for s in range(3)]
    stack = {name: torch.stack([m[name] for m in members]).requires_grad_() for name in members[0]}
    words = torch.randint(0, 50, (3, 4, 7), generator=generator)
    targets = torch.randint(0, 50, (3, 4, 7), generator=generator)
    targets[torch.rand(3, 4, 7, generator=generator) < 0.2] = NOTHING
    losses = word_losses(shape, stack, words, targets)
    losses.sum().backward()
    for k, member in enumerate(members):
        single = {name: w.clone().requires_grad_() for name, w in member.items()}
        alone = word_losses(shape, single, words[k], targets[k])
        torch.testing.assert_close(losses[k], alone)
        alone.sum().backward()
        for name, w in single.items():
            stacked = stack[name].grad
            assert stacked is not None
            torch.testing.assert_close(stacked[k], w.grad)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.cell}-{s.layers}-{s.groups}")
def test_the_future_does_not_leak(shape: ModelShape) -> None:
    weights = initial_weights(shape, seed=2)
    words = torch.arange(10, 16).view(1, 6)
    changed = words.clone()
    changed[0, 4:] = 40
    before, after = (logits(weights, hidden_outputs(shape, weights, w)) for w in (words, changed))
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_groups_see_only_their_part_before_the_projection() -> None:
    grouped, whole = ModelShape(50, 10, 15, groups=5), ModelShape(50, 10, 15)
    assert 5 * grouped.sizes()["layer0.input"][1] == whole.sizes()["layer0.input"][1]
    gates = 3 * 15 * (10 + 10)
    assert whole.parameters() - grouped.parameters() == gates - gates // 5


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(FedgramError, match="unknown cell"):
        ModelShape(10, 4, 4, cell="rnn")
    with pytest.raises(FedgramError, match="do not divide"):
        ModelShape(10, 4, 4, groups=3)
    with pytest.raises(FedgramError, match="one or two layers"):
        ModelShape(10, 4, 4, layers=3)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.cell}-{s.layers}-{s.groups}")
def test_sentences_in_one_row_do_not_see_each_other(shape: ModelShape) -> None:
    weights = initial_weights(shape, seed=3)
    first, second = torch.tensor([BOS, 7, 9]), torch.tensor([BOS, 8, 9, 11])
    together = hidden_outputs(shape, weights, torch.cat((first, second)).view(1, -1))[0]
    for words, outputs in ((first, together[:3]), (second, together[3:])):
        torch.testing.assert_close(hidden_outputs(shape, weights, words.view(1, -1))[0], outputs)


def test_the_shapes_are_those_of_table_2() -> None:
    shapes = {name: PRESETS[name].shape for name in TABLE_2}
    assert {name: (s.words, s.embedding, s.hidden, s.layers, s.cell, s.groups) for name, s in shapes.items()} == {
        "W_30K": (30_000, 96, 670, 1, "cifg", 1), "P_4K-S": (4_000, 96, 670, 1, "cifg", 1),
        "P_4K-L": (4_000, 140, 1080, 2, "cifg", 1), "P_4K-G": (4_000, 280, 1080, 2, "lstm", 5),
        "P_16K-S": (16_000, 96, 670, 1, "cifg", 1), "P_16K-L": (16_000, 160, 670, 1, "cifg", 1),
        "P_30K": (30_000, 96, 670, 1, "cifg", 1),
    }  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.cell}-{s.layers}-{s.groups}")
def test_layers_add_to_their_input_and_the_bias_to_the_scores(shape: ModelShape) -> None:
    """With a projection of zeros a layer adds nothing, so the embeddings of the words go to the softmax."""
    weights = initial_weights(shape, seed=1)
    for k in range(shape.layers):
        weights[f"layer{k}.projection"].zero_()
    words = torch.tensor([[BOS, 7, 9]])
    hidden = hidden_outputs(shape, weights, words)
    assert torch.equal(hidden, weights["embedding"][words])
    weights["output_bias"] = torch.arange(50.0)
    expected = weights["embedding"][words] @ weights["embedding"].T + torch.arange(50.0)
    assert torch.allclose(logits(weights, hidden), expected, atol=1e-5)
