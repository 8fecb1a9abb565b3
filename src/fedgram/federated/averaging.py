"""The server's step of FederatedAveraging: the devices' average change, taken as a direction to move in.

With Δ the average change of a round, the server treats −Δ as a gradient g (Reddi et al. 2021):

    momentum  v ← μ·v + g,   w ← w − η·v             or, in Nesterov's form,   w ← w − η·(g + μ·v)
    adam      m ← β₁·m + (1 − β₁)·g,   u ← β₂·u + (1 − β₂)·g²,   w ← w − η·m / (√u + τ)

With η = 1 and μ = 0 the server's model is the average of the devices' models. Paper: §7.1 (η = 1, μ = 0.9, Nesterov).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.jit import kernel

Array = NDArray[np.floating[Any]]
Arrays = Mapping[str, Array]
RULES = ("nesterov", "momentum", "adam")


@dataclass(frozen=True, slots=True)
class ServerStep:
    """How the server moves: a rule and its numbers; `momentum` is β₁ for Adam."""

    rule: str = "nesterov"
    learning_rate: float = 1.0
    momentum: float = 0.9
    second_momentum: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise FedgramError(f"unknown server rule {self.rule!r}; choose one of {', '.join(RULES)}")
        if not self.learning_rate > 0:
            raise FedgramError(f"the server's learning rate must be greater than 0, not {self.learning_rate}")
        if not (0 <= self.momentum < 1 and 0 <= self.second_momentum < 1):
            raise FedgramError("the server's momentum must lie in [0, 1)")
        if not self.tau > 0:
            raise FedgramError(f"tau must be greater than 0, not {self.tau}")

    def scaled(self, factor: float) -> "ServerStep":
        """The same with another learning rate."""
        return replace(self, learning_rate=max(self.learning_rate * factor, 1e-12))


@dataclass(frozen=True, slots=True, eq=False)
class ServerModel:
    """The server's weights, and what its rule remembers of earlier rounds."""

    weights: Arrays
    first: Arrays = field(default_factory=lambda: MappingProxyType({}))
    second: Arrays = field(default_factory=lambda: MappingProxyType({}))


def move(model: ServerModel, change: Arrays, step: ServerStep) -> ServerModel:
    """The model after a round whose devices changed their weights by `change` on average."""
    if change.keys() != model.weights.keys():
        raise InvariantError("the change has other arrays than the model")
    weights, first, second = {}, {}, {}
    for name, w in model.weights.items():
        if change[name].shape != w.shape or not np.isfinite(change[name]).all():
            raise InvariantError(f"the change of {name!r} has another shape, or is not finite")
        weights[name], first[name] = w.copy(), model.first.get(name, np.zeros_like(w)).copy()
        flat = weights[name].reshape(-1), first[name].reshape(-1)
        if step.rule == "adam":
            second[name] = model.second.get(name, np.zeros_like(w)).copy()
            rates = step.learning_rate, step.momentum, step.second_momentum, step.tau
            _adam(*flat, second[name].reshape(-1), change[name].reshape(-1), *rates)
        else:
            nesterov = step.rule == "nesterov"
            _momentum(*flat, change[name].reshape(-1), step.learning_rate, step.momentum, nesterov)
    return ServerModel(weights, first, second)


@kernel
def _momentum(w: Array, v: Array, change: Array, eta: float, mu: float, nesterov: bool) -> None:
    for k in range(len(w)):
        g = -np.float64(change[k])
        v[k] = mu * v[k] + g
        w[k] -= eta * (g + mu * v[k] if nesterov else v[k])


@kernel
def _adam(w: Array, m: Array, u: Array, change: Array, eta: float, beta1: float, beta2: float, tau: float) -> None:
    for k in range(len(w)):
        g = -np.float64(change[k])
        m[k] = beta1 * m[k] + (1.0 - beta1) * g
        u[k] = beta2 * u[k] + (1.0 - beta2) * g * g
        w[k] -= eta * m[k] / (np.sqrt(u[k]) + tau)
