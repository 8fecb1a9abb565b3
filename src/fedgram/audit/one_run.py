"""A lower bound on ε from one run of a mechanism.

Every one of m canaries is put in or left out by a fair coin. Whoever sees the output of the mechanism gives each canary
a score, and guesses for some of them: those with the highest scores are in, those with the lowest are out. A mechanism
that is private does not allow many right guesses, so that many right guesses bound its ε from below.

- `epsilon_bound` (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846) holds for every (ε, δ)-private mechanism. With
  q = 1/(1 + e^−ε), the chance of v or more right guesses of r is at most

      P[B ≥ v] + 2·m·δ·max_i P[v > B ≥ v − i]/i,        B ~ Binomial(r, q)

- `gaussian_bound` (Mahloujifar, Melis and Chaudhuri 2024, arXiv 2410.22235) is tighter, and holds for mechanisms whose
  trade-off function is that of a Gaussian event with μ = 1/σ, as all counts and all rounds with BLT noise are.

Both are statements with a confidence: with the chance 1 − confidence the bound is above the true ε. They are valid for
any scores, and cautious: at best they reach about half of the true ε.

- `estimate_mu` (Andrew et al. 2023, arXiv 2302.03098) fits two normal distributions to the scores. If the scores are
  normal, it is close to the true μ, so that it shows noise that is too small. It is an estimate, not a proof.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, lgamma, log, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np

from fedgram.core.arrays import BoolArray, FloatArray
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.privacy.gaussian import gaussian_epsilon

SHARES = (0.02, 0.1, 0.3, 1.0)  # of the canaries that are guessed: few sure guesses, or many unsure ones
_STEPS = 40  # of a bisection
_MOST_EPSILON, _MOST_MU = 60.0, 12.0
_SURE = 0.999  # confidence of the lower end of the estimate
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Guesses:
    """How many of the canaries were guessed, and how many of the guesses were right."""

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.made <= self.canaries:
            raise InvariantError("there are more right guesses than guesses, or more guesses than canaries")


@dataclass(frozen=True, slots=True)
class EpsilonBound:
    """Lower bounds on ε at δ that hold together with this confidence; `gaussian` is None if it does not apply.

    `estimate` is the estimate of ε for a Gaussian mechanism, and a limit above which the true ε is with 99.9 %.
    """

    epsilon: float
    gaussian: float | None
    estimate: tuple[float, float] | None
    delta: float
    confidence: float
    guesses: tuple[Guesses, ...]

    def facts(self) -> dict[str, Any]:
        """The bounds as JSON values."""
        guesses = [{"made": g.made, "right": g.right} for g in self.guesses]
        bounds: dict[str, Any] = {"epsilon_bound": self.epsilon, "gaussian_bound": self.gaussian}
        if self.estimate is not None:
            bounds |= {"estimate": self.estimate[0], "estimate_low": self.estimate[1]}
        return {**bounds, "delta": self.delta, "confidence": self.confidence, "guesses": guesses}


def lower_bound(
    score: FloatArray, included: BoolArray, *, delta: float, confidence: float = 0.95, gaussian: bool = True
) -> EpsilonBound:
    """Lower bounds on ε from the scores of canaries, and whether each was included.

    Several numbers of guesses are tried, and the confidence is that of all bounds together.
    """
    if not 0 < confidence < 1:
        raise FedgramError(f"the confidence must be between 0 and 1, not {confidence}")
    if len(score) < 2 or score.shape != included.shape:
        raise FedgramError("there must be at least 2 canaries, each with a score")
    made = sorted({max(2, round(share * len(score))) for share in SHARES})
    found = tuple(guess(score, included, count) for count in made)
    risk = (1.0 - confidence) / (len(found) * (2 if gaussian else 1))
    general = max(epsilon_bound(guesses, delta, risk) for guesses in found)
    if not gaussian:
        return EpsilonBound(general, None, None, delta, confidence, found)
    bound = _epsilon(max(gaussian_bound(guesses, risk) for guesses in found), delta)
    mu, error = estimate_mu(score, included)
    low = mu - _NORMAL.inv_cdf(_SURE) * error
    return EpsilonBound(general, bound, (_epsilon(mu, delta), _epsilon(low, delta)), delta, confidence, found)


def _epsilon(mu: float, delta: float) -> float:
    """ε of a Gaussian event of this μ; that of the largest one where there is no end."""
    return gaussian_epsilon(1.0 / min(mu, _MOST_MU), delta) if mu > 0 else 0.0


def estimate_mu(score: FloatArray, included: BoolArray) -> tuple[float, float]:
    """The distance of the mean scores with and without a canary in standard deviations, and its standard error."""
    inside, outside = score[included], score[~included]
    if min(len(inside), len(outside)) < 2:
        raise FedgramError("too few canaries: some must be included, and some not")
    n = len(score)
    squares = ((inside - inside.mean()) ** 2).sum() + ((outside - outside.mean()) ** 2).sum()
    deviation, distance = sqrt(float(squares) / (n - 2)), float(inside.mean() - outside.mean())
    if deviation <= abs(distance) / _MOST_MU:
        return (_MOST_MU if distance > 0 else 0.0), 0.0
    mu = distance / deviation
    return mu, sqrt(1.0 / len(inside) + 1.0 / len(outside) + mu**2 / (2.0 * (n - 2)))


def guess(score: FloatArray, included: BoolArray, count: int) -> Guesses:
    """Guess that the canaries with the highest scores are in, and those with the lowest are out."""
    order = np.argsort(score, kind="stable")
    out, into = order[: count // 2], order[len(order) - (count - count // 2) :]
    return Guesses(len(score), count, int(included[into].sum() + (~included[out]).sum()))


def epsilon_bound(guesses: Guesses, delta: float, risk: float) -> float:
    """The largest ε with which an (ε, δ)-private mechanism allows so many right guesses with less than this risk."""
    return _largest(lambda epsilon: _chance(guesses, epsilon, delta) < risk, _MOST_EPSILON)


def _chance(guesses: Guesses, epsilon: float, delta: float) -> float:
    """The most likely that so many guesses, or more, are right, if the mechanism is (ε, δ)-private."""
    below = _binomial(guesses.made, 1.0 / (1.0 + exp(-epsilon)))
    v = guesses.right
    beta = float(below[v:].sum())
    tails = np.cumsum(below[:v][::-1])  # P[v > B ≥ v − i] for i = 1, 2, …
    alpha = float((tails / np.arange(1, v + 1)).max(initial=0.0))
    return min(beta + 2.0 * guesses.canaries * delta * alpha, 1.0)


def _binomial(n: int, q: float) -> FloatArray:
    """The chance of 0, 1, …, n successes; q is not 0 or 1."""
    if q >= 1.0:
        return np.concatenate([np.zeros(n), np.ones(1)])
    k = np.arange(n + 1)
    of = np.array([lgamma(i + 1.0) for i in range(n + 1)])
    chances: FloatArray = np.exp(of[n] - of - of[::-1] + k * log(q) + (n - k) * np.log1p(-q))
    return chances


def gaussian_bound(guesses: Guesses, risk: float) -> float:
    """The largest μ with which a Gaussian mechanism allows so many right guesses with less than this risk."""
    return _largest(lambda mu: not _gaussian_allows(guesses, mu, risk), _MOST_MU)


def _gaussian_allows(guesses: Guesses, mu: float, risk: float) -> bool:
    """Whether so many right guesses have at least this chance, by the recursion of the paper (its Algorithm 3).

    From the last right guess down, r is a bound on the chance of one more right guess than i, and h of a wrong one.
    """
    made, c = guesses.made, guesses.right
    part = made / guesses.canaries
    r, h = risk * part * c / made, risk * part * (made - c) / made
    for i in range(c - 1, -1, -1):
        higher = max(h, _NORMAL.cdf(_NORMAL.inv_cdf(r) - mu)) if 0.0 < r < 1.0 else max(h, r)
        r += i / (made - i) * (higher - h)
        h = higher
        if r + h > part:
            return False
    return True


def _largest(is_refuted: Callable[[float], bool], most: float) -> float:
    """The largest value that is refuted, given that all smaller ones are then; 0 if none is."""
    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, most
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low
