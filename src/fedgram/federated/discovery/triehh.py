"""TrieHH (Zhu, Kairouz, McMahan, Sun and Li 2020, arXiv 1902.08534): the published way to discover words.

The tree grows by one character per level. At each level a random batch of m of n devices votes for the next character
of its word, and a prefix with θ votes or more survives. No noise is added: the guarantee comes from the sampling and
the threshold alone. With L levels it is

    ε = −L·ln(1 − mθ/n),   δ = (θ − 2) / ((θ − 3)·θ!),   if θ ≥ 4 and θ ≥ e^(ε/L) − 1
"""

from dataclasses import dataclass
from math import ceil, exp, lgamma, log1p

_LEAST_THRESHOLD = 4
_MOST = 40.0  # of ε per level; e⁴⁰ devices are more than there are


@dataclass(frozen=True, slots=True)
class Voting:
    """How many devices vote at each level, and how many votes a prefix needs, with the guarantee that follows."""

    devices: int
    levels: int
    threshold: int
    batch: int

    @property
    def epsilon(self) -> float:
        """ε of all levels together; not more than what was asked for."""
        return -self.levels * log1p(-self.batch * self.threshold / self.devices)

    @property
    def delta(self) -> float:
        """δ of all levels together."""
        return _delta(self.threshold)

    @property
    def holders(self) -> int:
        """The number of holders of a word that has just enough votes on average."""
        return ceil(self.threshold * self.devices / max(self.batch, 1))


def _delta(threshold: int) -> float:
    """(θ − 2) / ((θ − 3)·θ!)."""
    return (threshold - 2) / (threshold - 3) * exp(-lgamma(threshold + 1.0))


def plan_voting(devices: int, levels: int, *, epsilon: float, delta: float) -> Voting:
    """The lowest threshold for δ, and the largest batch for ε (Corollary 1 of the paper).

    >>> plan = plan_voting(1_000_000, 10, epsilon=4, delta=2.3e-12)
    >>> plan.threshold, plan.batch, plan.holders
    (15, 21978, 683)
    """
    threshold = _LEAST_THRESHOLD
    while _delta(threshold) > delta:
        threshold += 1
    threshold = max(threshold, ceil(exp(min(epsilon / levels, _MOST)) - 1))
    return Voting(devices, levels, threshold, int(devices * (1 - exp(-epsilon / levels)) / threshold))
