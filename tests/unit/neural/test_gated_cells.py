"""One step of the gated cells is that of their formulas, computed with numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from fedgram.neural.cell import CellShape
from fedgram.neural.gated_cells import CifgCell, GruCell, LstmCell

SHAPE = CellShape(inputs=4, hidden=6, groups=1)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def normed(x: Any) -> Any:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5)


def by_hand(kind: type, weights: dict[str, Any], x: Any, r: Any, c: Any) -> tuple[Any, Any]:
    """The next r and c; every gate has a layer norm of its own."""

    def gates(y: Any, name: str) -> Any:
        return np.array([normed(gate) for gate in np.split(y @ weights[name][0], len(weights["bias"]) // 6)])

    scales = [weights[name].reshape(-1, 6) for name in ("input_scale", "recurrent_scale", "bias")]
    a, b = gates(x, "input") * scales[0] + scales[2], gates(r, "recurrent") * scales[1]
    if kind is GruCell:
        u, s = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
        c = u * c + (1 - u) * np.tanh(a[2] + s * b[2])
        return (normed(c) * weights["cell_scale"] + weights["cell_bias"]) @ weights["projection"], c
    f, o, g = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1]), np.tanh(a[2] + b[2])
    c = f * c + (1 - f if kind is CifgCell else sigmoid(a[3] + b[3])) * g
    return (o * np.tanh(normed(c) * weights["cell_scale"] + weights["cell_bias"])) @ weights["projection"], c


@pytest.mark.parametrize("kind", [CifgCell, LstmCell, GruCell])
def test_a_step_follows_its_formula(kind: Any) -> None:
    rng, cell = np.random.default_rng(1), kind()
    weights = {name: rng.normal(size=size) for name, size in cell.sizes(SHAPE).items()}
    x, r, c = rng.normal(size=4), rng.normal(size=4), rng.normal(size=6)
    ours = {name: torch.from_numpy(array) for name, array in weights.items()}
    state = torch.from_numpy(r)[None], torch.from_numpy(c)[None]
    output, (_, after) = cell.step(SHAPE, ours, cell.inputs(SHAPE, ours, torch.from_numpy(x)[None]), state)
    expected = by_hand(kind, weights, x, r, c)
    assert output[0].numpy() == pytest.approx(expected[0], abs=1e-9)
    assert after[0].numpy() == pytest.approx(expected[1], abs=1e-9)


@pytest.mark.parametrize("kind", [CifgCell, LstmCell, GruCell])
def test_cells_remember_at_first(kind: Any) -> None:
    """The gate that keeps the cell vector begins with a bias of 1, unlike the others."""
    bias = kind().initial_weights(SHAPE, torch.Generator().manual_seed(0))["bias"]
    assert bias[:6].tolist() == [1.0] * 6
    assert not (bias[6:] == 1.0).any()
