"""What a recurrent cell must provide; `neural/gated_cells.py` holds CIFG-LSTM, LSTM and GRU.

Each layer of a network adds the output of a recurrent cell to its input (`neural/model.py`). A cell is an object with
the five methods of `Cell`. It holds no weights: every method takes them as a dictionary of tensors. Other packages add
cells of their own by name (`neural/cell_registry.py`; `examples/custom_cell.py` shows one).

Every method must work on one model and on a stack of C models, one per client, in which every weight and every input
has a leading dimension of C:

                    one model          a stack of C models
    weight matrix   [in, out]          [C, in, out]
    weight vector   [out]              [C, out]
    input, state    [batch, size]      [C, batch, size]

`x @ matrix` and `x + row(vector)` are right for both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Protocol

import torch
from torch import Tensor

from fedgram.core.errors import FedgramError

Weights = dict[str, Tensor]
State = tuple[Tensor, ...]  # what a network carries from one step to the next
Sizes = Mapping[str, tuple[int, ...]]  # the shape of every weight, by its name


@dataclass(frozen=True, slots=True)
class CellShape:
    """The sizes of a cell: N_e inputs and outputs, N_h hidden units, and the groups that they are divided into."""

    inputs: int
    hidden: int
    groups: int = 1

    def __post_init__(self) -> None:
        if self.groups < 1 or self.inputs % self.groups or self.hidden % self.groups:
            raise FedgramError(
                f"{self.groups} groups do not divide {self.inputs} inputs and {self.hidden} hidden units"
            )


class Cell(Protocol):
    """A kind of recurrent cell: N_e numbers in, N_e numbers out, and a state that it carries from step to step.

    The state before the first word of a sentence is zeros. Gradients come from automatic differentiation, for which
    every weight must take part in `inputs` or `step`.
    """

    def sizes(self, shape: CellShape) -> Sizes:
        """The shape of every weight of one model; raises FedgramError for a CellShape that the cell does not allow."""

    def initial_weights(self, shape: CellShape, generator: torch.Generator) -> Weights:
        """The weights of one model before training, drawn from `generator`; see `uniform_weights`."""

    def state_sizes(self, shape: CellShape) -> tuple[int, ...]:
        """The length of each vector of the state."""

    def inputs(self, shape: CellShape, weights: Weights, x: Tensor) -> Tensor:
        """The part of a step that depends on the input alone, for all steps at once: x is [..., steps·batch, N_e]."""

    def step(self, shape: CellShape, weights: Weights, from_input: Tensor, state: State) -> tuple[Tensor, State]:
        """The output [..., batch, N_e] and the state after one step; `from_input` is this step's part of `inputs`."""


def initial_state(cell: Cell, shape: CellShape, batch: tuple[int, ...], like: Tensor) -> State:
    """The state before the first word, zeros, for inputs of this batch shape."""
    return tuple(like.new_zeros((*batch, size)) for size in cell.state_sizes(shape))


def uniform_weights(sizes: Sizes, generator: torch.Generator) -> Weights:
    """Matrices uniform within ±1/√fan-in; vectors whose names end in `scale` are ones, all other vectors zeros."""
    weights = {}
    for name, size in sizes.items():
        if len(size) > 1:
            weights[name] = (torch.rand(size, generator=generator) * 2.0 - 1.0) * (1.0 / sqrt(size[-2]))
        else:
            weights[name] = torch.ones(size) if name.endswith("scale") else torch.zeros(size)
    return weights


def row(vector: Tensor) -> Tensor:
    """A weight vector, or a stack of them, shaped so that it broadcasts over a batch."""
    return vector.unsqueeze(-2)
