"""The user's own words while the user types or glides: each is aligned with the taps or the trail.

There are few personal words, so they need no search, and words that the packed model does not know take part like all
others. A word's worth includes its probability under both models together (see `personal`). The probability of every
other word is multiplied by 1 − α, so the worth of all of them falls by the same −weight · ln(1 − α): they keep their
order, and none loses more than the guard.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import FloatArray
from fedgram.core.jit import kernel
from fedgram.keyboard.layout import Layout
from fedgram.keyboard.lexicon import MAX_LETTERS, Spelled
from fedgram.keyboard.personal import PersonalModel
from fedgram.keyboard.tap_search import TapCosts

_LEAST = 1e-300


@dataclass(frozen=True, slots=True, eq=False)
class OwnWords:
    """The learned words that a layout can type, with their probabilities in one context.

    `log_rest` is ln(1 − α), which is added to the log-probability of every other word.
    """

    words: tuple[str, ...]
    spelled: Spelled
    log_p: FloatArray
    log_rest: float


def own_words(personal: PersonalModel | None, layout: Layout, context: str | Sequence[str]) -> OwnWords | None:
    """The learned words in a context; None if no word was learned."""
    if personal is None or not personal.share:
        return None
    typed = personal.table.on_layout(layout)
    log_p = np.log(np.maximum(personal.mixed(context)[typed.indices], _LEAST))
    return OwnWords(typed.words, typed.spelled, log_p, float(np.log1p(-personal.share)))


@kernel
def align(taps: FloatArray, spelled: Spelled, costs: TapCosts) -> tuple[FloatArray, FloatArray]:
    """The score of the taps for each word: if it was typed in full, and if it was typed in part.

    `taps[t, letter]` is the log-likelihood of tap t for a letter. As in `tap_search`, a letter may be missed before one
    that was hit or at the end. A word that was typed in part costs `completion` per missing letter.
    """
    letter, offsets = spelled
    count = len(offsets) - 1
    whole, begun = np.full(count, -np.inf), np.full(count, -np.inf)
    rows = np.empty((3, MAX_LETTERS + 1))
    for w in range(count):
        first, n = offsets[w], offsets[w + 1] - offsets[w]
        rows[:, :] = -np.inf
        rows[0, 0] = 0.0
        for t in range(1, len(taps) + 1):
            now, last, before = rows[t % 3], rows[(t - 1) % 3], rows[(t - 2) % 3]
            for j in range(n + 1):
                value = last[j] + costs.insertion
                if j >= 1:
                    value = max(value, last[j - 1] + taps[t - 1, letter[first + j - 1]])
                if j >= 2:
                    value = max(value, last[j - 2] + costs.deletion + taps[t - 1, letter[first + j - 1]])
                    if t >= 2:
                        swapped = taps[t - 1, letter[first + j - 2]] + taps[t - 2, letter[first + j - 1]]
                        value = max(value, before[j - 2] + costs.transposition + swapped)
                now[j] = value
        end = rows[len(taps) % 3]
        whole[w] = max(end[n], end[n - 1] + costs.deletion)
        for j in range(1, n):
            begun[w] = max(begun[w], end[j] + costs.completion * (n - j))
    return whole, begun
