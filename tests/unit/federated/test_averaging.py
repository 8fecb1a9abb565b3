"""The server's step agrees with torch's optimisers."""

import numpy as np
import pytest
import torch

from fedgram.core.arrays import FloatArray
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.federated import averaging
from fedgram.federated.averaging import ServerModel, ServerStep, averaged, move


def random_changes(rounds: int) -> list[dict[str, FloatArray]]:
    rng = np.random.default_rng(0)
    return [{"a": rng.normal(size=(3, 2)), "b": rng.normal(size=4)} for _ in range(rounds)]


@pytest.mark.parametrize("rule", ["nesterov", "momentum"])
def test_momentum_is_torchs(rule: str) -> None:
    changes = random_changes(6)
    model = ServerModel({name: np.ones_like(a) for name, a in changes[0].items()})
    theirs = {name: torch.ones(a.shape, dtype=torch.float64, requires_grad=True) for name, a in changes[0].items()}
    optimiser = torch.optim.SGD(theirs.values(), lr=0.7, momentum=0.9, nesterov=rule == "nesterov")
    for change in changes:
        model = move(model, change, ServerStep(rule, learning_rate=0.7))
        for name, tensor in theirs.items():
            tensor.grad = -torch.from_numpy(change[name])
        optimiser.step()
    for name, tensor in theirs.items():
        np.testing.assert_allclose(model.weights[name], tensor.detach().numpy(), rtol=1e-12)


def test_adam_follows_its_formula() -> None:
    step = ServerStep("adam", learning_rate=0.1, momentum=0.8, second_momentum=0.95, tau=0.01)
    changes = [0.5, -0.25]
    model = ServerModel({"w": np.array([2.0])})
    m = u = 0.0
    w = 2.0
    for change in changes:
        model = move(model, {"w": np.array([change])}, step)
        m, u = 0.8 * m - 0.2 * change, 0.95 * u + 0.05 * change * change
        w -= 0.1 * m / (u**0.5 + 0.01)
    assert model.weights["w"][0] == pytest.approx(w)


def test_without_momentum_the_server_takes_the_average() -> None:
    model = move(
        ServerModel({"w": np.array([1.0, 2.0])}), {"w": np.array([0.5, -1.0])}, ServerStep("momentum", 1.0, 0.0)
    )
    assert model.weights["w"].tolist() == [1.5, 1.0]


def test_an_average_moves_towards_the_weights_by_one_minus_its_decay() -> None:
    found = averaged({"w": np.array([1.0, -2.0])}, {"w": np.array([5.0, 2.0])}, 0.75)
    assert found["w"].tolist() == [2.0, -1.0]


@pytest.mark.parametrize("size", [399, 400, 1001])
def test_long_arrays_are_averaged_to_their_end(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their parts are computed by several threads."""
    monkeypatch.setattr(averaging, "_PART", 100)
    monkeypatch.setattr(averaging, "available_cores", lambda: 4)
    before, weights = np.arange(size, dtype=np.float64), np.full(size, 8.0)
    found = averaged({"w": before}, {"w": weights}, 0.5, empty=lambda w: np.full_like(w, np.nan))
    assert found["w"].tolist() == [k / 2 + 4 for k in range(size)]


def test_mistakes_are_refused() -> None:
    for wrong in ({"rule": "sgd"}, {"learning_rate": 0.0}, {"momentum": 1.0}, {"tau": 0.0}):
        with pytest.raises(FedgramError):
            ServerStep(**wrong)
    model = ServerModel({"w": np.zeros(2)})
    for change in ({"x": np.zeros(2)}, {"w": np.zeros(3)}, {"w": np.array([0.0, np.nan])}):
        with pytest.raises(InvariantError):
            move(model, change, ServerStep())
