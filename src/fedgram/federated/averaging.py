"""The server's step of FederatedAveraging: the devices' average change, taken as a direction to move in.

With Δ the average change of a round, the server treats −Δ as a gradient g (Reddi et al. 2021):

    momentum  v ← μ·v + g,   w ← w − η·v             or, in Nesterov's form,   w ← w − η·(g + μ·v)
    adam      m ← β₁·m + (1 − β₁)·g,   u ← β₂·u + (1 − β₂)·g²,   w ← w − η·m / (√u + τ)

With η = 1 and μ = 0 the server's model is the average of the devices' models. Paper: §7.1 (η = 1, μ = 0.9, Nesterov).
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.jit import kernel

Array = NDArray[np.floating[Any]]
Arrays = Mapping[str, Array]
Change = NDArray[np.floating[Any]] | NDArray[np.int64]
Changes = Mapping[str, Change]
Empty = Callable[[Array], Array]
_PART, _MOST_THREADS = 1 << 17, 16  # entries that are worth a thread, and threads
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


def move(
    model: ServerModel, change: Changes, step: ServerStep, scale: float = 1.0, empty: Empty = np.empty_like
) -> ServerModel:
    """The model after a round whose devices changed their weights by `scale` times `change` on average.

    A change may be given in whole numbers, as sums in fixed point are. `empty` makes the arrays of the result.
    """
    if change.keys() != model.weights.keys():
        raise InvariantError("the change has other arrays than the model")
    weights, first, second = {}, {}, {}
    for name, w in model.weights.items():
        whole = np.issubdtype(change[name].dtype, np.integer)
        if change[name].size != w.size or not (whole or np.isfinite(change[name]).all()):
            raise InvariantError(f"the change of {name!r} has another shape, or is not finite")
        before = model.first.get(name), model.second.get(name) if step.rule == "adam" else None
        m, u = (np.zeros_like(w) if past is None else past for past in before)
        weights[name], first[name] = empty(w), empty(w)
        flat = w.reshape(-1), m.reshape(-1), weights[name].reshape(-1), first[name].reshape(-1)
        delta = change[name].reshape(-1)
        if step.rule == "adam":
            second[name] = empty(w)
            rates = step.learning_rate, step.momentum, step.second_momentum, step.tau
            _in_parts(_adam, (*flat, u.reshape(-1), second[name].reshape(-1), delta), (scale, *rates))
        else:
            numbers = scale, step.learning_rate, step.momentum, step.rule == "nesterov"
            _in_parts(_momentum, (*flat, delta), numbers)
    return ServerModel(weights, first, second)


def _in_parts(function: Callable[..., None], arrays: tuple[Change, ...], numbers: tuple[float, ...]) -> None:
    """Apply a kernel to flat arrays, entry by entry; long ones are shared by several threads."""
    size = len(arrays[0])
    parts = min(os.cpu_count() or 1, _MOST_THREADS, size // _PART + 1)
    if parts == 1:
        function(*arrays, *numbers)
        return
    bounds = [size * part // parts for part in range(parts + 1)]
    jobs = [
        _threads().submit(function, *(array[a:b] for array in arrays), *numbers) for a, b in pairwise(bounds)
    ]  # fmt: skip
    for job in jobs:
        job.result()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="server-step")


@kernel
def _momentum(
    w: Array, v: Array, new_w: Array, new_v: Array, change: Change, scale: float, eta: float, mu: float, nesterov: bool
) -> None:
    for k in range(len(w)):
        g = -scale * np.float64(change[k])
        new_v[k] = mu * v[k] + g
        new_w[k] = w[k] - eta * (g + mu * new_v[k] if nesterov else new_v[k])


@kernel
def _adam(
    w: Array, m: Array, new_w: Array, new_m: Array, u: Array, new_u: Array, change: Change, scale: float, eta: float,
    beta1: float, beta2: float, tau: float,
) -> None:  # fmt: skip
    for k in range(len(w)):
        g = -scale * np.float64(change[k])
        new_m[k] = beta1 * m[k] + (1.0 - beta1) * g
        new_u[k] = beta2 * u[k] + (1.0 - beta2) * g * g
        new_w[k] = w[k] - eta * new_m[k] / (np.sqrt(new_u[k]) + tau)
