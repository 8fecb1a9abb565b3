"""Choosing a BLT matrix: minimise the noise at the end of a training for a given privacy cost.

For one multiplier of the privacy event, the fresh noise grows with the sensitivity, and the noise in the sum of all
rounds with the last prefix error, so the matrix should minimise

    log(prefix error of the last round · sensitivity)

C and C⁻¹ are both BLT matrices, with decays θ and θ̂ that interlace, 1 ≥ θ₁ > θ̂₁ > θ₂ > θ̂₂ > … > 0, and

    ω_j = Π_i (θ_j − θ̂_i) / Π_{i≠j} (θ_j − θ_i)

so the search is over the 2·d ratios of successive decays, which lie in (0, 1) and have no other constraint. It is done
by L-BFGS-B from several starts: some of the best matrices have a buffer that hardly decays (θ₁ ≈ 1), and others do not.
The results for common numbers of rounds are in `blt_table.json`, which this module writes:

    python -m fedgram.privacy.blt_design > src/fedgram/privacy/blt_table.json
"""

import json
import sys
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from math import log
from typing import Any

import numpy as np

from fedgram.core.arrays import FloatArray
from fedgram.core.errors import FedgramError, MissingDependencyError
from fedgram.privacy.blt import (
    Blt,
    Participation,
    prefix_errors,
    sensitivity,
    squared_prefix_errors,
    squared_sensitivity,
    toeplitz_coefficients,
)

BUFFERS = 3
_TABLE = "blt_table.json"
_TABLE_ROUNDS = (100, 200, 240, 300, 400, 480, 500, 600, 800, 1000, 1500, 2000, 3000)
_TABLE_PARTICIPATIONS = (1, 2, 3, 4, 5, 6, 8, 10)
_SLOWEST, _LIMIT = 14.0, 30.0  # logits of a ratio: that of a buffer that hardly decays, and the limit of the search
_NEGLIGIBLE = 1e-8  # a buffer with a smaller scale is left out
_REFUSED = 1e9  # the loss of a matrix whose sensitivity is not known


def design_blt(participation: Participation, *, buffers: int = BUFFERS) -> Blt:
    """The best BLT matrix with at most so many buffers: from the table, or by a search that takes some seconds."""
    if buffers < 0:
        raise FedgramError(f"the number of buffers must not be negative, but is {buffers}")
    if buffers == 0 or participation.rounds == 1:
        return Blt((), ())
    return _table().get((_key(participation), buffers)) or search_blt(participation, buffers=buffers)


def max_loss(blt: Blt, participation: Participation) -> float:
    """The noise in the sum of all rounds, for a Gaussian event of multiplier 1 and contributions of norm 1."""
    return float(prefix_errors(blt, participation.rounds)[-1]) * sensitivity(blt, participation)


@cache
def search_blt(participation: Participation, *, buffers: int = BUFFERS) -> Blt:
    """The best matrix that the search finds; the same on every machine up to rounding."""
    try:
        from scipy.optimize import minimize
    except ModuleNotFoundError:
        raise MissingDependencyError("the search for BLT noise", "privacy") from None
    found = [
        minimize(
            _loss, start, args=(participation,), method="L-BFGS-B", bounds=[(-_LIMIT, _LIMIT)] * len(start),
            options={"maxiter": 2000, "maxfun": 20_000, "ftol": 1e-13, "gtol": 1e-8},
        )
        for start in _starts(participation, buffers)
    ]  # fmt: skip
    best: Any = min(found, key=lambda result: result.fun)
    theta, inverse = _interlaced(best.x)
    used = [(decay, scale) for decay, scale in zip(theta, _scales(theta, inverse), strict=True) if scale > _NEGLIGIBLE]
    return Blt(tuple(float(decay) for decay, _ in used), tuple(float(scale) for _, scale in used))


def _starts(participation: Participation, buffers: int) -> Iterator[FloatArray]:
    """Logits to start from: the slowest buffer forgets within a separation, within all rounds, or hardly at all."""
    apart, rounds = participation.min_separation, participation.rounds
    for slowest in (log(apart + 1.0), log(rounds + 1.0) + 1.0, _SLOWEST):
        for gap in (0.5, 2.0):
            yield np.array([slowest, -0.5] + [gap, -0.5] * (buffers - 1))
    forgotten = np.geomspace(1.0 / (apart + 1.0), 0.8, 2 * buffers)  # 1 − θ and 1 − θ̂, evenly on a log scale
    for decays in (1.0 - forgotten, 1.0 - np.append(np.exp(-_SLOWEST), forgotten[:-1])):
        ratios = np.append(decays[0], decays[1:] / decays[:-1])
        yield np.log(ratios / (1.0 - ratios))


def _interlaced(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """θ and θ̂: products of the ratios, which are the logistic function of x."""
    decays = np.cumprod(1.0 / (1.0 + np.exp(-x))).astype(np.float64, copy=False)
    return decays[0::2], decays[1::2]


def _scales(theta: FloatArray, inverse: FloatArray) -> FloatArray:
    gaps = theta[:, None] - theta[None, :]
    np.fill_diagonal(gaps, 1.0)
    scales: FloatArray = np.prod(theta[:, None] - inverse[None, :], axis=1) / np.prod(gaps, axis=1)
    return scales


def _loss(x: FloatArray, participation: Participation) -> float:
    theta, inverse = _interlaced(x)
    if np.diff(np.concatenate([theta, inverse])[np.argsort(-np.concatenate([theta, inverse]))]).max() > -1e-10:
        return _REFUSED  # decays too close to each other to compute the scales
    n = participation.rounds
    c = toeplitz_coefficients(theta, _scales(theta, inverse), n)
    if c.min() < 0 or bool((np.diff(c) > 0).any()):
        return _REFUSED
    error = squared_prefix_errors(toeplitz_coefficients(inverse, _scales(inverse, theta), n))[-1]
    return 0.5 * log(error * squared_sensitivity(c, participation))


def _key(participation: Participation) -> tuple[int, int, int]:
    return participation.rounds, participation.min_separation, participation.most


@cache
def _table() -> dict[tuple[tuple[int, int, int], int], Blt]:
    rows = json.loads((files("fedgram.privacy") / _TABLE).read_text("utf-8"))
    return {
        ((row["rounds"], row["min_separation"], row["participations"]), row["buffers"]): Blt(
            tuple(row["decay"]), tuple(row["scale"])
        )
        for row in rows
    }


def _rows() -> list[dict[str, Any]]:
    rows = []
    for rounds in _TABLE_ROUNDS:
        for most in _TABLE_PARTICIPATIONS:
            plan = Participation(rounds, -(-rounds // most))
            blt = search_blt(plan)
            about = {"rounds": rounds, "min_separation": plan.min_separation, "participations": plan.most}
            rows.append({**about, "buffers": BUFFERS, "decay": blt.decay, "scale": blt.scale})
    return rows


if __name__ == "__main__":
    sys.stdout.write("[\n" + ",\n".join(json.dumps(row) for row in _rows()) + "\n]\n")
