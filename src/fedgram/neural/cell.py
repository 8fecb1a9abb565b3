"""Recurrent cells with a projection, layer norm and groups: CIFG-LSTM, LSTM and GRU.

A cell maps its input x and its last output r, both of N_e numbers, to a hidden state of N_h numbers, and projects that
down to the next output r of N_e numbers. Weights are a dictionary of tensors. Every function works on one model, where
a weight matrix is [in, out] and x is [batch, N_e], and as well on a stack of C models of different clients, where every
weight has a leading dimension: [C, in, out] and x is [C, batch, N_e].

    a, b = LN(x·W), LN(r·U), each gate normalised by itself, with a scale of its own
    CIFG  f = σ(a + b), o = σ(a + b), g = tanh(a + b),   c ← f·c + (1 − f)·g,   h = o·tanh(LN(c)),   r = h·P
    LSTM  the same with a gate of its own for the input in place of 1 − f
    GRU   u = σ(a + b), s = σ(a + b), g = tanh(a + s·b),   c ← u·c + (1 − u)·g,   h = LN(c),   r = h·P

Every gate has a bias, every layer norm a scale (Ba et al. 2016).

With groups k, input and output are cut into k parts, and each part of the hidden state sees one of them (Kuchaiev and
Ginsburg 2017); the projection stays whole. Paper: §7.1.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from fedgram.core.errors import FedgramError

GATES = {"cifg": 3, "lstm": 4, "gru": 3}
Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class CellShape:
    """What a cell is made of."""

    kind: str
    inputs: int
    hidden: int
    groups: int = 1

    def __post_init__(self) -> None:
        if self.kind not in GATES:
            raise FedgramError(f"unknown cell {self.kind!r}; choose one of {', '.join(GATES)}")
        if self.groups < 1 or self.inputs % self.groups or self.hidden % self.groups:
            raise FedgramError(
                f"{self.groups} groups do not divide {self.inputs} inputs and {self.hidden} hidden units"
            )

    @property
    def gates(self) -> int:
        """Number of gates, the candidate included."""
        return GATES[self.kind]

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight of one model."""
        part = (self.groups, self.inputs // self.groups, self.gates * self.hidden // self.groups)
        return {
            "input": part,
            "recurrent": part,
            "bias": (self.gates * self.hidden,),
            "input_scale": (self.gates * self.hidden,),
            "recurrent_scale": (self.gates * self.hidden,),
            "cell_scale": (self.hidden,),
            "cell_bias": (self.hidden,),
            "projection": (self.hidden, self.inputs),
        }


def initial_cell(shape: CellShape, generator: torch.Generator) -> Weights:
    """Weights to start from: uniform as wide as the fan-in allows; a forget gate that remembers."""
    weights = {}
    for name, size in shape.sizes().items():
        if name in ("input", "recurrent", "projection"):
            width = 1.0 / sqrt(size[-2])
            weights[name] = (torch.rand(size, generator=generator) * 2.0 - 1.0) * width
        else:
            weights[name] = torch.ones(size) if name.endswith("scale") else torch.zeros(size)
    weights["bias"][: shape.hidden] = 1.0
    return weights


def initial_state(shape: CellShape, batch: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """(r, c) before the first word: zeros, for inputs of this batch shape."""
    return like.new_zeros((*batch, shape.inputs)), like.new_zeros((*batch, shape.hidden))


def cell_inputs(shape: CellShape, weights: Weights, x: Tensor) -> Tensor:
    """What the inputs of all steps contribute to the gates, in one product: x is [..., steps·batch, N_e]."""
    return _norm(_grouped(x, weights["input"], shape), shape.gates) * _row(weights["input_scale"]) + _row(
        weights["bias"]
    )


def cell_step(shape: CellShape, weights: Weights, from_input: Tensor, r: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """(r, c) after one step; `from_input` is this step's part of `cell_inputs`."""
    from_output = _norm(_grouped(r, weights["recurrent"], shape), shape.gates) * _row(weights["recurrent_scale"])
    if shape.kind == "gru":
        a, b = from_input.chunk(3, dim=-1), from_output.chunk(3, dim=-1)
        u, s = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
        c = u * c + (1.0 - u) * torch.tanh(a[2] + s * b[2])
        return _normed_cell(weights, c) @ weights["projection"], c
    gates = (from_input + from_output).chunk(shape.gates, dim=-1)
    f, o, g = torch.sigmoid(gates[0]), torch.sigmoid(gates[1]), torch.tanh(gates[2])
    i = 1.0 - f if shape.kind == "cifg" else torch.sigmoid(gates[3])
    c = f * c + i * g
    return (o * torch.tanh(_normed_cell(weights, c))) @ weights["projection"], c


def _normed_cell(weights: Weights, c: Tensor) -> Tensor:
    return _norm(c, 1) * _row(weights["cell_scale"]) + _row(weights["cell_bias"])


def _grouped(x: Tensor, weight: Tensor, shape: CellShape) -> Tensor:
    """x·W where group j of x meets its own block of W; gates come first in the result, groups within a gate."""
    if shape.groups == 1:
        return x @ weight.squeeze(-3)
    parts = x.unflatten(-1, (shape.groups, -1)).transpose(-2, -3)  # [..., groups, batch, in / groups]
    out = (parts @ weight).unflatten(-1, (shape.gates, -1))  # [..., groups, batch, gates, hidden / groups]
    result: Tensor = out.movedim(-4, -2).flatten(-3)
    return result


def _norm(x: Tensor, parts: int) -> Tensor:
    """Layer norm without scale and bias, over each gate by itself."""
    gates = x.unflatten(-1, (parts, -1))
    return torch.nn.functional.layer_norm(gates, gates.shape[-1:]).flatten(-2)


def _row(vector: Tensor) -> Tensor:
    """A weight vector, or a stack of them, set against batches."""
    return vector.unsqueeze(-2)
