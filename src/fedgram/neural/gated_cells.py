"""CIFG-LSTM, LSTM and GRU, with a projection, layer norm and groups.

Each maps its input x and its last output r, both of N_e numbers, to a hidden vector h of N_h numbers, and projects h
down to its next output r. Its state is r and the cell vector c of N_h numbers.

    a, b = LN(x·W), LN(r·U)      each gate has a layer norm of its own, with its own scale
    CIFG   f = σ(a + b), o = σ(a + b), g = tanh(a + b),   c ← f·c + (1 − f)·g,   h = o·tanh(LN(c)),   r = h·P
    LSTM   the same with an input gate in place of 1 − f
    GRU    u = σ(a + b), s = σ(a + b), g = tanh(a + s·b),   c ← u·c + (1 − u)·g,   h = LN(c),   r = h·P

Every gate has a bias, and every layer norm has a scale (Ba et al. 2016). The gates lie one after the other in the last
dimension of W, U and the bias, in the order f, o, g and the LSTM's input gate, or u, s, g.

With k groups, input and output are divided into k parts, and each part of the gates sees one of them (Kuchaiev and
Ginsburg 2017). The projection is not divided. Paper: §7.1.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fedgram.neural.cell import CellShape, State, Weights, row, uniform_weights


class _GatedCell(ABC):
    """What the three cells share; a subclass sets `gates` and defines `_update`."""

    gates: int  # the candidate g included

    def sizes(self, shape: CellShape) -> dict[str, tuple[int, ...]]:
        """The shape of every weight of one model."""
        part = (shape.groups, shape.inputs // shape.groups, self.gates * shape.hidden // shape.groups)
        return {
            "input": part,
            "recurrent": part,
            "bias": (self.gates * shape.hidden,),
            "input_scale": (self.gates * shape.hidden,),
            "recurrent_scale": (self.gates * shape.hidden,),
            "cell_scale": (shape.hidden,),
            "cell_bias": (shape.hidden,),
            "projection": (shape.hidden, shape.inputs),
        }

    def initial_weights(self, shape: CellShape, generator: torch.Generator) -> Weights:
        """Uniform weights, and a bias of 1 for the first gate, so that the cell remembers at first."""
        weights = uniform_weights(self.sizes(shape), generator)
        weights["bias"][: shape.hidden] = 1.0
        return weights

    def state_sizes(self, shape: CellShape) -> tuple[int, ...]:
        """Of r and c."""
        return shape.inputs, shape.hidden

    def inputs(self, shape: CellShape, weights: Weights, x: Tensor) -> Tensor:
        """The scaled layer norm of x·W, plus the bias."""
        a = self._norm_gates(x, weights["input"], shape)
        return a * row(weights["input_scale"]) + row(weights["bias"])

    def step(self, shape: CellShape, weights: Weights, from_input: Tensor, state: State) -> tuple[Tensor, State]:
        """(r, c) after one step; the output is r."""
        r, c = state
        from_output = self._norm_gates(r, weights["recurrent"], shape) * row(weights["recurrent_scale"])
        h, c = self._update(weights, from_input, from_output, c)
        r = h @ weights["projection"]
        return r, (r, c)

    @abstractmethod
    def _update(self, weights: Weights, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """(h, c) after one step, from what the input (a) and the last output (b) contribute to the gates."""

    def _norm_gates(self, x: Tensor, weight: Tensor, shape: CellShape) -> Tensor:
        """LN(x·W), each gate normalised separately; group j of x is multiplied by block j of W."""
        if shape.groups == 1:
            return _norm(x @ weight.squeeze(-3), self.gates)
        parts = x.unflatten(-1, (shape.groups, -1)).transpose(-2, -3)  # [..., groups, batch, in / groups]
        product = (parts @ weight).unflatten(-1, (self.gates, -1))  # [..., groups, batch, gates, hidden / groups]
        return _norm(product.movedim(-4, -2).flatten(-3), self.gates)


class CifgCell(_GatedCell):
    """An LSTM whose input gate is coupled to its forget gate: i = 1 − f."""

    gates = 3

    def _update(self, weights: Weights, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        forget, output, candidate = (a + b).chunk(3, dim=-1)
        f, o, g = torch.sigmoid(forget), torch.sigmoid(output), torch.tanh(candidate)
        c = f * c + (1.0 - f) * g
        return o * torch.tanh(_normed_cell(weights, c)), c


class LstmCell(_GatedCell):
    """An LSTM."""

    gates = 4

    def _update(self, weights: Weights, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        forget, output, candidate, inner = (a + b).chunk(4, dim=-1)
        f, o, g = torch.sigmoid(forget), torch.sigmoid(output), torch.tanh(candidate)
        c = f * c + torch.sigmoid(inner) * g
        return o * torch.tanh(_normed_cell(weights, c)), c


class GruCell(_GatedCell):
    """A gated recurrent unit."""

    gates = 3

    def _update(self, weights: Weights, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        (a_u, a_s, a_g), (b_u, b_s, b_g) = a.chunk(3, dim=-1), b.chunk(3, dim=-1)
        u, s = torch.sigmoid(a_u + b_u), torch.sigmoid(a_s + b_s)
        c = u * c + (1.0 - u) * torch.tanh(a_g + s * b_g)
        return _normed_cell(weights, c), c


def _normed_cell(weights: Weights, c: Tensor) -> Tensor:
    return _norm(c, 1) * row(weights["cell_scale"]) + row(weights["cell_bias"])


def _norm(x: Tensor, parts: int) -> Tensor:
    """Layer norm without scale and bias, over each of `parts` equal parts of the last dimension."""
    gates = x.unflatten(-1, (parts, -1))
    return torch.nn.functional.layer_norm(gates, gates.shape[-1:]).flatten(-2)
