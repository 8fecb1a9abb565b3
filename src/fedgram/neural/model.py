"""The language model: tied embedding, one or two recurrent layers with residual connections, softmax with a bias.

    x = E[w],   x ← x + cell(x) for each layer,   p = softmax(x·Eᵀ + b)

A row may hold several sentences: the recurrent state is reset to zeros wherever `<s>` is read.

A model is a `ModelShape` and a flat dictionary of weights (`embedding`, `output_bias`, `layer0.input`, …), for one
client or, with a leading dimension on every weight, for a stack of clients. `PRESETS` holds the seven shapes of the
paper's Table 2. The recurrent cell is chosen by name (`neural/cell_registry.py`). Paper: §7.1.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fedgram.core.errors import FedgramError
from fedgram.neural.batching import NOTHING
from fedgram.neural.cell import Cell, CellShape, Weights, initial_state
from fedgram.neural.cell_registry import find_cell
from fedgram.neural.dropout import Dropout
from fedgram.text.vocabulary import BOS


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The architecture of a model; `words` includes `<unk>`, `<s>` and `</s>`, and `cell` is a registered name."""

    words: int
    embedding: int
    hidden: int
    layers: int = 1
    cell: str = "cifg"
    groups: int = 1

    def __post_init__(self) -> None:
        if min(self.words, self.embedding, self.hidden) < 1 or self.layers not in (1, 2):
            raise FedgramError("a model needs at least one word, embedding and hidden unit, and one or two layers")
        self.recurrent_cell().sizes(self.cell_shape())  # raises an error for a shape that the cell does not allow

    def recurrent_cell(self) -> Cell:
        """The cell of every layer."""
        return find_cell(self.cell)

    def cell_shape(self) -> CellShape:
        """The shape of each layer."""
        return CellShape(self.embedding, self.hidden, self.groups)

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight of one model."""
        cells = self.recurrent_cell().sizes(self.cell_shape())
        layers = {f"layer{k}.{name}": size for k in range(self.layers) for name, size in cells.items()}
        return {"embedding": (self.words, self.embedding), "output_bias": (self.words,), **layers}

    def parameters(self) -> int:
        """The number of parameters, S_total."""
        return sum(prod(size) for size in self.sizes().values())


@dataclass(frozen=True, slots=True)
class Preset:
    """A named shape, of words or of word pieces; for those of Table 2, the paper's S_e and S_total in millions."""

    shape: ModelShape
    pieces: bool
    paper_embedding: float | None = None
    paper_total: float | None = None


PRESETS = {
    "W_30K": Preset(ModelShape(30_000, 96, 670), False, 2.91, 3.40),
    "P_4K-S": Preset(ModelShape(4_000, 96, 670), True, 0.38, 0.85),
    "P_4K-L": Preset(ModelShape(4_000, 140, 1080, layers=2), True, 0.56, 2.70),
    "P_4K-G": Preset(ModelShape(4_000, 280, 1080, layers=2, cell="lstm", groups=5), True, 1.12, 2.71),
    "P_16K-S": Preset(ModelShape(16_000, 96, 670), True, 1.54, 2.00),
    "P_16K-L": Preset(ModelShape(16_000, 160, 670), True, 2.56, 3.33),
    "P_30K": Preset(ModelShape(30_000, 96, 670), True, 2.91, 3.40),
    "W_8K": Preset(ModelShape(8_000, 64, 192), False),
    "W_demo": Preset(ModelShape(4_000, 32, 96), False),
    "P_demo": Preset(ModelShape(1_000, 32, 96), True),
}


def initial_weights(shape: ModelShape, *, seed: int) -> Weights:
    """Weights before training; the same seed gives the same weights."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        "embedding": torch.randn(shape.words, shape.embedding, generator=generator) * shape.embedding**-0.5,
        "output_bias": torch.zeros(shape.words),
    }
    for k in range(shape.layers):
        cell = shape.recurrent_cell().initial_weights(shape.cell_shape(), generator)
        weights |= {f"layer{k}.{name}": tensor for name, tensor in cell.items()}
    sizes = shape.sizes()
    if {name: tuple(w.shape) for name, w in weights.items()} != sizes:
        raise FedgramError(f"the initial weights of the cell {shape.cell!r} differ in name or shape from its sizes()")
    return {name: weights[name] for name in sizes}


def layer_weights(weights: Weights, layer: int) -> Weights:
    """The weights of one layer, by the names that its cell uses."""
    prefix = f"layer{layer}."
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def hidden_outputs(shape: ModelShape, weights: Weights, words: Tensor, dropout: Dropout | None = None) -> Tensor:
    """The input of the softmax after each word: `words` is [..., batch, steps], the result [..., batch, steps, N_e]."""
    x = _embed(weights["embedding"], words)
    *leading, batch, steps, width = x.shape
    masks = [dropout.mask(layer, steps, batch, width).transpose(-2, -3) for layer in range(2)] if dropout else []
    if masks:
        x = x * masks[0].view(x.shape)
    cell, cell_shape, keep = shape.recurrent_cell(), shape.cell_shape(), (words != BOS).unsqueeze(-1)
    for k in range(shape.layers):
        layer = layer_weights(weights, k)
        from_input = cell.inputs(cell_shape, layer, x.flatten(-3, -2)).unflatten(-2, (batch, steps))
        state = initial_state(cell, cell_shape, (*leading, batch), x)
        outputs = []
        for t in range(steps):
            kept = tuple(vector * keep[..., t, :] for vector in state)
            output, state = cell.step(cell_shape, layer, from_input[..., t, :], kept)
            outputs.append(output)
        x = x + torch.stack(outputs, dim=-2)
    return x * masks[1].view(x.shape) if masks else x


def _embed(embedding: Tensor, words: Tensor) -> Tensor:
    if embedding.dim() == 2:
        return embedding[words]
    clients = torch.arange(embedding.shape[0], device=words.device)
    return embedding[clients.view(-1, *[1] * (words.dim() - 1)), words]


def logits(weights: Weights, hidden: Tensor) -> Tensor:
    """The scores of all words after each position of `hidden_outputs`."""
    flat = hidden.flatten(-3, -2)
    scores = flat @ weights["embedding"].transpose(-1, -2) + weights["output_bias"].unsqueeze(-2)
    return scores.view(*hidden.shape[:-1], -1)


def word_losses(
    shape: ModelShape, weights: Weights, words: Tensor, targets: Tensor, dropout: Dropout | None = None
) -> Tensor:
    """−log p of every target, and 0 where there is no target; `words` and `targets` are [..., batch, steps]."""
    scores = logits(weights, hidden_outputs(shape, weights, words, dropout)).flatten(0, -2)
    losses = torch.nn.functional.cross_entropy(scores, targets.flatten(), reduction="none", ignore_index=NOTHING)
    return losses.view(targets.shape)
