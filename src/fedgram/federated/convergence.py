"""Whether a collected distribution has converged: the measures of the paper's Figure 2, round by round.

The Z statistic (Bhattacharya and Valiant 2015) compares two sets of counts X, Y with totals m₁, m₂:

    Z = Σ_i [ (m₂·X_i − m₁·Y_i)² − (m₂²·V_i + m₁²·W_i) ] / (X_i + Y_i),

divided by m₁^{3/2}·m₂. Its expectation is 0 if both come from the same distribution and positive otherwise, provided
that V and W are the variances of the counts. For independent words these would be X and Y themselves. But the words of
one device are not independent: a person repeats words, and clipping scales all counts of a device. Devices send only
their counts, so the variance is estimated between rounds, whose devices are drawn independently. Let A_r be the sums of
round r, L_r = Σ_i A_ri, R the number of rounds in both sets together, and p_i = (X_i + Y_i)/(m₁ + m₂). Then

    V_i = R/(R − 1)·Σ_r (A_ri − p_i·L_r)²,   over the rounds r of the set,

where R/(R − 1) corrects for p being estimated from the same rounds. This has a cost: the difference between the two
sets is itself one of the R − 1 differences between rounds from which V and W are estimated. Compared with variances
estimated from the counts of every device, Z for two different distributions is smaller by a factor (R − 2)/(R − 1), and
its standard deviation for equal distributions by √((R − 2)/(R − 1)). Their ratio, which decides whether a difference is
detected, is √((R − 2)/(R − 1)) times as high: 0.95 after 12 rounds, 0.998 after 300. On simulated devices
(`tests/unit/federated/test_convergence.py`), in 12 rounds, the standard deviation is 0.95 to 0.97 times that of the
estimate by devices, and Z for two different distributions 0.91 times. With R = 2 no estimate is possible, and Z is 0.

A round draws its devices without replacement. If they are a sizeable part of the population, as in simulations, the
halves differ less than independent draws would. The rounds differ less by the same factor, so V and W need no
correction.

At round k the first half of the rounds is compared with the second half. The halves must be disjoint: if the first were
part of the second, as in "k/2 against k rounds" taken literally, Z would be far below 0. Paper: §3.2.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedgram.core.arrays import FloatArray
from fedgram.federated.unigram_collection import RoundCounts

MOVING_ROUNDS = 20


class RoundSums:
    """Running sums over rounds: A, A² and A·L per word, and L²."""

    def __init__(self, words: int) -> None:
        self.weight, self.square, self.cross = np.zeros(words), np.zeros(words), np.zeros(words)
        self.length_square, self.rounds = 0.0, 0

    def add(self, part: RoundCounts, sign: int = 1) -> None:
        """Add a round, or remove it again (`sign` = −1)."""
        length = float(part.weight.sum())
        self.weight[part.index] += sign * part.weight
        self.square[part.index] += sign * part.weight * part.weight
        self.cross[part.index] += sign * part.weight * length
        self.length_square += sign * length * length
        self.rounds += sign

    def deviation(self, p: FloatArray) -> FloatArray:
        """Σ (A_i − p_i·L)² over the rounds."""
        result: FloatArray = np.maximum(self.square - 2.0 * p * self.cross + p * p * self.length_square, 0.0)
        return result


def z_statistic(X: FloatArray, Y: FloatArray, V: FloatArray, W: FloatArray) -> float:
    """The normalised Z statistic of two disjoint counts X and Y with variances V and W; 0 if one is empty."""
    m1, m2 = float(X.sum()), float(Y.sum())
    if m1 < m2:
        X, Y, V, W, m1, m2 = Y, X, W, V, m2, m1
    if m2 <= 0:
        return 0.0
    both = X + Y
    seen = both > 0
    terms = (m2 * X[seen] - m1 * Y[seen]) ** 2 - (m2 * m2 * V[seen] + m1 * m1 * W[seen])
    return float(np.sum(terms / both[seen]) / (m1**1.5 * m2))


def compare_halves(first: RoundSums, second: RoundSums) -> float:
    """The Z statistic of two disjoint sets of rounds; 0 for fewer than three rounds, which are too few."""
    rounds = first.rounds + second.rounds
    if rounds < 3:
        return 0.0
    both = first.weight + second.weight
    p = both / max(float(both.sum()), 1e-300)
    factor = rounds / (rounds - 1)
    return z_statistic(first.weight, second.weight, factor * first.deviation(p), factor * second.deviation(p))


@dataclass(frozen=True, slots=True)
class Convergence:
    """Per round: the Z statistic, the number of words seen so far (`unique`) and of words seen for the first time
    (`new`), and the share of the last 20 rounds that brought a new word (`moving_average`).
    """

    z: list[float]
    unique: list[int]
    new: list[int]
    moving_average: list[float]


def measure_convergence(rounds: tuple[RoundCounts, ...]) -> Convergence:
    """All measures after every round."""
    used = np.unique(np.concatenate([part.index for part in rounds])) if rounds else np.zeros(0, np.int64)
    rounds = tuple(replace(part, index=np.searchsorted(used, part.index)) for part in rounds)
    first, second = RoundSums(len(used)), RoundSums(len(used))
    seen = np.zeros(len(used), bool)
    result = Convergence([], [], [], [])
    for k, part in enumerate(rounds, 1):
        result.new.append(int(np.sum(~seen[part.index])))
        seen[part.index] = True
        result.unique.append(int(seen.sum()))
        second.add(part)
        if k % 2 == 0:
            first.add(rounds[k // 2 - 1])
            second.add(rounds[k // 2 - 1], sign=-1)
        result.z.append(compare_halves(first, second) if k > 1 else 0.0)
        recent = result.new[-MOVING_ROUNDS:]
        result.moving_average.append(sum(n > 0 for n in recent) / len(recent))
    return result
