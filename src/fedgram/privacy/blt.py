"""BLT noise: correlated noise for training, most of which cancels over the rounds (McMahan et al. 2024, 2408.08868).

The server adds C⁻¹z to the sums of n rounds, where z is independent Gaussian noise and C a lower triangular Toeplitz
matrix with c₀ = 1 and

    c_i = Σ_j ω_j·θ_j^(i−1)

so that C⁻¹z is computed one round after another from d buffers m_j of the model's size (`BltNoise`):

    z̃ = z − Σ_j ω_j·m_j,   m_j ← θ_j·m_j + z̃,   release  Σ clipped updates + z̃

Privacy: all rounds together are one Gaussian event of multiplier σ/sensitivity. The sensitivity is the largest norm of
the sum of those columns of C in which one user takes part. If c is non-negative and non-increasing, the user who takes
part first, and again as soon and as often as allowed, is the worst case (Kalinin and Lampert 2024, 2405.13763).

Accuracy: with ĉ the coefficients of C⁻¹ and B_s = ĉ_0 + … + ĉ_s, the noise in the sum of the first t rounds has the
standard deviation √(B_0² + … + B_{t−1}²), per unit of fresh noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedgram.core.arrays import FloatArray
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.storage import Record
from fedgram.privacy.noise import Randomness, normals

_TOLERANCE = 1e-12  # of rounding, in the check that coefficients do not increase


@dataclass(frozen=True, slots=True)
class Participation:
    """How often a user takes part: in at most `participations` of `rounds` rounds, `min_separation` or more apart.

    A separation of 1 allows every round. Participations that do not fit into the rounds are left out.
    """

    rounds: int
    min_separation: int = 1
    participations: int | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "min_separation"):
            if getattr(self, name) < 1:
                raise FedgramError(f"{name.replace('_', ' ')} must be at least 1, not {getattr(self, name)}")
        if self.participations is not None and self.participations < 1:
            raise FedgramError(f"a user must be allowed to take part at least once, not {self.participations} times")

    @property
    def most(self) -> int:
        """The largest number of rounds in which one user takes part."""
        fit = -(-self.rounds // self.min_separation)
        return fit if self.participations is None else min(self.participations, fit)


@dataclass(frozen=True, slots=True)
class Blt:
    """A BLT matrix C: the decays θ of its buffers, and their scales ω. Without buffers, C is the identity."""

    decay: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.decay) != len(self.scale):
            raise FedgramError(f"BLT noise has {len(self.decay)} decays but {len(self.scale)} scales")
        if not all(0 <= decay <= 1 for decay in self.decay) or len(set(self.decay)) < len(self.decay):
            raise FedgramError("the decays of BLT noise must be different numbers in [0, 1]")
        if not all(map(isfinite, self.scale)):
            raise FedgramError("the scales of BLT noise must be finite")

    def coefficients(self, rounds: int) -> FloatArray:
        """c, the first column of C."""
        return toeplitz_coefficients(np.array(self.decay), np.array(self.scale), rounds)

    def inverse_coefficients(self, rounds: int) -> FloatArray:
        """ĉ, the first column of C⁻¹: the noise that follows from z = (1, 0, 0, …)."""
        decay, scale = np.array(self.decay), np.array(self.scale)
        inverse, buffers = np.empty(rounds), np.zeros(len(decay))
        for t in range(rounds):
            inverse[t] = (t == 0) - scale @ buffers
            buffers = decay * buffers + inverse[t]
        return inverse


def toeplitz_coefficients(decay: FloatArray, scale: FloatArray, rounds: int) -> FloatArray:
    """The coefficients 1, Σ ω_j, Σ ω_j·θ_j, Σ ω_j·θ_j², … of a BLT matrix."""
    return np.append(1.0, decay[None, :] ** np.arange(rounds - 1)[:, None] @ scale)


def sensitivity(blt: Blt, participation: Participation) -> float:
    """The largest norm of C·x, where x says in which rounds a user takes part with a contribution of norm 1.

    Exact. A matrix whose coefficients are negative or increase is refused, because its worst case is not known.
    """
    c = blt.coefficients(participation.rounds)
    if c.min() < 0 or bool((np.diff(c) > _TOLERANCE).any()):
        raise FedgramError("the sensitivity of BLT noise is known only for non-negative, non-increasing coefficients")
    return sqrt(squared_sensitivity(c, participation))


def squared_sensitivity(c: FloatArray, participation: Participation) -> float:
    """The square of ‖Σ_{i<k} C[:, i·b]‖ for non-negative, non-increasing coefficients c."""
    b, k = participation.min_separation, participation.most
    blocks = np.zeros((-(-len(c) // b), b))
    blocks.reshape(-1)[: len(c)] = c
    column = np.cumsum(blocks, axis=0)  # row r: the sum of blocks 0 … r, of which the last k count
    column[k:] -= column[:-k].copy()
    summed = column.reshape(-1)[: len(c)]
    return float(summed @ summed)


def prefix_errors(blt: Blt, rounds: int) -> FloatArray:
    """The standard deviation of the noise in the sum of the first 1, 2, …, n rounds, per unit of fresh noise."""
    return np.sqrt(squared_prefix_errors(blt.inverse_coefficients(rounds)))


def squared_prefix_errors(inverse: FloatArray) -> FloatArray:
    """The squares of the errors, from the coefficients of C⁻¹."""
    squares: FloatArray = np.cumsum(np.cumsum(inverse) ** 2)
    return squares


class BltNoise:
    """The noise C⁻¹z, one round after another, for vectors by name. The fresh noise z has standard deviation 1.

    Buffers in single precision (`dtype`) need half the memory. The noise is in double precision in any case, and then
    equals C⁻¹z up to about 10⁻⁶. `label` tells apart the noise of several runs with the same seed.
    """

    def __init__(
        self, blt: Blt, size: Mapping[str, int], randomness: Randomness, *, dtype: DTypeLike = np.float64,
        label: str = "",
    ) -> None:  # fmt: skip
        self.blt, self.round = blt, 0
        self._names = (label, "blt") if label else ("blt",)
        self._randomness = randomness
        self._decay, self._scale = np.array(blt.decay, dtype)[:, None], np.array(blt.scale, dtype)
        self._buffers = {name: np.zeros((len(blt.decay), n), dtype) for name, n in size.items()}

    def next(self) -> dict[str, FloatArray]:
        """The noise of the next round."""
        self.round += 1
        return {name: self._advance(name, buffers) for name, buffers in self._buffers.items()}

    def _advance(self, name: str, buffers: NDArray[Any]) -> FloatArray:
        noise = normals(self._randomness, buffers.shape[1], *self._names, self.round, name)
        noise -= self._scale @ buffers
        buffers *= self._decay
        buffers += noise
        return noise

    def save(self) -> Record:
        """The round and the buffers. Whoever has them can remove part of the noise, so they stay on the server."""
        fields = {"round": self.round, "decay": list(self.blt.decay), "scale": list(self.blt.scale)}
        return Record(fields, {f"buffers.{name}": buffers.copy() for name, buffers in self._buffers.items()})

    def load(self, saved: Record) -> None:
        """Continue the stream from what `save` wrote."""
        f, found = saved.fields, saved.part("buffers").arrays
        if [f.get("decay"), f.get("scale")] != [list(self.blt.decay), list(self.blt.scale)]:
            raise InvariantError("the saved noise was made with other BLT parameters")
        shapes = {name: (a.shape, a.dtype) for name, a in self._buffers.items()}
        if shapes != {name: (a.shape, a.dtype) for name, a in found.items()}:
            raise InvariantError("the saved noise has other vectors than the sum")
        self.round = int(f["round"])
        self._buffers = {name: found[name].copy() for name in self._buffers}
