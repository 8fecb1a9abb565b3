"""The server's step of FederatedAveraging: an optimizer step along the devices' average change.

With Δ the average change of a round, the server treats −Δ as a gradient g (Reddi et al. 2021):

    momentum  v ← μ·v + g,   w ← w − η·v             or, in Nesterov's form,   w ← w − η·(g + μ·v)
    adam      m ← β₁·m + (1 − β₁)·g,   u ← β₂·u + (1 − β₂)·g²,   w ← w − η·m / (√u + τ)

With η = 1 and μ = 0 the server's model is the average of the devices' models. Paper: §7.1 (η = 1, μ = 0.9, Nesterov).

An exponential average of the weights over the rounds (Polyak and Juditsky 1992) is smoother than the weights, which
move with the choice of devices.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgram.core.compute import available_cores
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.jit import kernel

Array = NDArray[np.floating[Any]]
Arrays = Mapping[str, Array]
Change = NDArray[np.floating[Any]] | NDArray[np.int64]
Changes = Mapping[str, Change]
Empty = Callable[[Array], Array]
_PART, _MOST_THREADS = 1 << 17, 16  # minimum number of entries per thread, and maximum number of threads
RULES = ("nesterov", "momentum", "adam")


@dataclass(frozen=True, slots=True)
class ServerStep:
    """The server's optimizer: a rule and its parameters; for Adam, `momentum` is β₁ and `second_momentum` β₂."""

    rule: str = "nesterov"
    learning_rate: float = 1.0
    momentum: float = 0.9
    second_momentum: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise FedgramError(f"unknown server rule {self.rule!r}; use one of {', '.join(RULES)}")
        if not self.learning_rate > 0:
            raise FedgramError(f"the server's learning rate must be greater than 0, not {self.learning_rate}")
        if not (0 <= self.momentum < 1 and 0 <= self.second_momentum < 1):
            raise FedgramError("the server's momentum must be in [0, 1)")
        if not self.tau > 0:
            raise FedgramError(f"tau must be greater than 0, not {self.tau}")

    def scaled(self, factor: float) -> "ServerStep":
        """The same step with its learning rate multiplied by `factor`."""
        return replace(self, learning_rate=max(self.learning_rate * factor, 1e-12))


@dataclass(frozen=True, slots=True, eq=False)
class ServerModel:
    """The server's weights, and the optimizer's first and second moments."""

    weights: Arrays
    first: Arrays = field(default_factory=lambda: MappingProxyType({}))
    second: Arrays = field(default_factory=lambda: MappingProxyType({}))


class _MomentumArrays(NamedTuple):
    """One array's step: the weights and the moment before it and after it, and the devices' change."""

    w: Array
    v: Array
    new_w: Array
    new_v: Array
    change: Change


class _AverageArrays(NamedTuple):
    """One array's weights, and their average before this round and after it."""

    w: Array
    before: Array
    after: Array


class _MomentumRates(NamedTuple):
    """The factor of the change, and the parameters of the rule."""

    scale: float
    eta: float
    mu: float
    nesterov: bool


class _AdamArrays(NamedTuple):
    """One array's step: the weights and both moments before it and after it, and the devices' change."""

    w: Array
    m: Array
    u: Array
    new_w: Array
    new_m: Array
    new_u: Array
    change: Change


class _AdamRates(NamedTuple):
    """The factor of the change, and the parameters of the rule."""

    scale: float
    eta: float
    beta1: float
    beta2: float
    tau: float


def move(
    model: ServerModel, change: Changes, step: ServerStep, scale: float = 1.0, empty: Empty = np.empty_like
) -> ServerModel:
    """The model after a round whose devices changed their weights by `scale` times `change` on average.

    A change may be an array of integers, such as a fixed-point sum. `empty` allocates the arrays of the result.
    """
    if change.keys() != model.weights.keys():
        raise InvariantError("the change and the model have different arrays")
    weights, first, second = {}, {}, {}
    for name, w in model.weights.items():
        integers = np.issubdtype(change[name].dtype, np.integer)
        if change[name].size != w.size or not (integers or np.isfinite(change[name]).all()):
            raise InvariantError(f"the change of {name!r} has the wrong shape, or is not finite")
        m = model.first[name] if name in model.first else np.zeros_like(w)
        weights[name], first[name] = empty(w), empty(w)
        if step.rule == "adam":
            u = model.second[name] if name in model.second else np.zeros_like(w)
            second[name] = empty(w)
            adam = _AdamArrays(w, m, u, weights[name], first[name], second[name], change[name])
            rates = _AdamRates(scale, step.learning_rate, step.momentum, step.second_momentum, step.tau)
            _in_parts(_adam, adam, rates)
        else:
            momentum = _MomentumArrays(w, m, weights[name], first[name], change[name])
            numbers = _MomentumRates(scale, step.learning_rate, step.momentum, step.rule == "nesterov")
            _in_parts(_momentum, momentum, numbers)
    return ServerModel(weights, first, second)


def averaged(average: Arrays, weights: Arrays, decay: float, empty: Empty = np.empty_like) -> Arrays:
    """The exponential average after one more round: decay·average + (1 − decay)·weights, in new arrays."""
    result = {}
    for name, w in weights.items():
        result[name] = empty(w)
        _in_parts(_average, _AverageArrays(w, average[name], result[name]), decay)
    return result


def _in_parts(
    function: Callable[[Any, Any], None], arrays: _MomentumArrays | _AdamArrays | _AverageArrays,
    rates: _MomentumRates | _AdamRates | float,
) -> None:  # fmt: skip
    """Apply an elementwise kernel to arrays, taken as flat; long arrays are split over several threads."""
    kind: Callable[..., Any] = type(arrays)
    flat, size = [array.reshape(-1) for array in arrays], arrays.w.size
    parts = min(available_cores(), _MOST_THREADS, size // _PART + 1)
    if parts == 1:
        function(kind(*flat), rates)
        return
    bounds = [size * part // parts for part in range(parts + 1)]
    jobs = [_threads().submit(function, kind(*(array[a:b] for array in flat)), rates) for a, b in pairwise(bounds)]
    for job in jobs:
        job.result()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="server-step")


@kernel
def _average(arrays: _AverageArrays, decay: float) -> None:
    w, before, after = arrays
    for k in range(len(w)):
        after[k] = decay * before[k] + (1.0 - decay) * w[k]


@kernel
def _momentum(arrays: _MomentumArrays, rates: _MomentumRates) -> None:
    w, v, new_w, new_v, change = arrays
    scale, eta, mu, nesterov = rates
    for k in range(len(w)):
        g = -scale * np.float64(change[k])
        new_v[k] = mu * v[k] + g
        new_w[k] = w[k] - eta * (g + mu * new_v[k] if nesterov else new_v[k])


@kernel
def _adam(arrays: _AdamArrays, rates: _AdamRates) -> None:
    w, m, u, new_w, new_m, new_u, change = arrays
    scale, eta, beta1, beta2, tau = rates
    for k in range(len(w)):
        g = -scale * np.float64(change[k])
        new_m[k] = beta1 * m[k] + (1.0 - beta1) * g
        new_u[k] = beta2 * u[k] + (1.0 - beta2) * g * g
        new_w[k] = w[k] - eta * new_m[k] / (np.sqrt(new_u[k]) + tau)
