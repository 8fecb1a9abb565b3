"""The score of taps for a word by plain recursion: the readable reference of the keyboard's search."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedgram.keyboard.decoder import TapOptions


def alignment(cost: NDArray[np.float64], word: list[int], options: TapOptions) -> float:
    """The score of the best alignment of taps and letters; `cost[t, letter]` is the score of tap t for a letter.

    A letter may be missed before one that was hit, or at the end, but not two in a row.
    """

    @cache
    def best(t: int, j: int) -> float:
        """The same for the first t taps and the first j letters, if no letter is missed after the last tap."""
        if t == 0:
            return 0.0 if j == 0 else -np.inf
        ways = [best(t - 1, j) + options.insertion]
        if j >= 1:
            ways.append(best(t - 1, j - 1) + cost[t - 1, word[j - 1]])
        if j >= 2:
            ways.append(best(t - 1, j - 2) + options.deletion + cost[t - 1, word[j - 1]])
        if j >= 2 and t >= 2:
            swapped = cost[t - 1, word[j - 2]] + cost[t - 2, word[j - 1]]
            ways.append(best(t - 2, j - 2) + options.transposition + swapped)
        return max(ways)

    return max(best(len(cost), len(word)), best(len(cost), len(word) - 1) + options.deletion)


def warped(a: NDArray[np.float64], b: NDArray[np.float64], band: int) -> float:
    """Dynamic time warping: the mean squared distance per point, where a step along both lines counts twice."""

    @cache
    def best(i: int, j: int) -> float:
        if i == 0 and j == 0:
            return 0.0
        if i == 0 or j == 0 or abs(i - j) > band:
            return np.inf
        squared = float(((a[i - 1] - b[j - 1]) ** 2).sum())
        return min(best(i - 1, j - 1) + 2 * squared, best(i - 1, j) + squared, best(i, j - 1) + squared)

    return best(len(a), len(b)) / (len(a) + len(b))
