"""Networks that are sampled from: one step of many prefixes at a time.

A decoder holds a network on a torch device. It works on *rows*: each row is a prefix of labels with the network's state
after this prefix. `neural/sampling.py` walks sentences with a decoder, and `neural/gpu/sampling.py` has a faster one.
"""

from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedgram.neural.cell import State
from fedgram.neural.model import layer_weights
from fedgram.neural.network import Network
from fedgram.text.vocabulary import BOS, EOS

NEVER = -1e30  # the score of a label that is never drawn


class Decoder(Protocol):
    """A network that reads one label per row and scores the next; a score of `NEVER` makes a label impossible."""

    @property
    def fills_tiles(self) -> bool:
        """Whether its numbers for a row depend on the number of rows, so that every tile must have the same number."""

    @property
    def can_draw(self) -> bool:
        """Whether the GPU kernels of `neural/gpu/sampling.py` can draw from its scores."""

    @property
    def labels(self) -> int:
        """The number of labels."""

    @property
    def torch_device(self) -> torch.device:
        """Where it computes."""

    @property
    def begin(self) -> int:
        """The label that is read first."""

    @property
    def end(self) -> int:
        """The label that ends a sentence."""

    def initial(self, rows: int) -> State:
        """The state before anything is read."""

    def step(self, state: State, labels: Tensor) -> tuple[State, Tensor]:
        """The state after the labels are read, and the scores of the next label, [rows, labels]."""


class RecurrentDecoder:
    """A recurrent network; `<s>` is never drawn."""

    begin, end = BOS, EOS
    fills_tiles, can_draw = True, False

    def __init__(self, network: Network, torch_device: torch.device) -> None:
        self.shape, self.torch_device = network.shape, torch_device
        weights = {name: torch.from_numpy(w.copy()).to(torch_device) for name, w in network.weights.items()}
        self.embedding, self.bias = weights["embedding"], weights["output_bias"]
        self.bias[BOS] = NEVER
        self.output = self.embedding.t().contiguous()
        self.layers = [layer_weights(weights, k) for k in range(self.shape.layers)]

    @cached_property
    def _output_and_bias(self) -> Tensor:
        """The bias as one more row of the output matrix: one product then gives the scores."""
        return torch.cat([self.output, self.bias.unsqueeze(0)])

    @property
    def labels(self) -> int:
        """The size of the vocabulary."""
        return self.shape.words

    def initial(self, rows: int) -> State:
        """Zeros: the cell's state, layer after layer."""
        sizes = self.shape.recurrent_cell().state_sizes(self.shape.cell_shape()) * self.shape.layers
        return tuple(torch.zeros(rows, size, device=self.torch_device) for size in sizes)

    def step(self, state: State, labels: Tensor) -> tuple[State, Tensor]:
        """One step of every layer."""
        cell, shape, x = self.shape.recurrent_cell(), self.shape.cell_shape(), self.embedding[labels]
        after: list[Tensor] = []
        for layer in self.layers:
            own = state[len(after) : len(after) + len(state) // len(self.layers)]
            output, own = cell.step(shape, layer, cell.inputs(shape, layer, x), own)
            x = x + output
            after += own
        return tuple(after), torch.nn.functional.pad(x, (0, 1), value=1.0) @ self._output_and_bias
