"""Keystroke savings: how many taps a keyboard with three suggestions spares somebody who takes every one that helps.

The model of the keyboard. Above the keys stand the three best words that begin with the letters typed so far, whatever
their case; before the first letter, the three best next words. A person who wants a word of n letters types until it is
shown and taps it, which also enters the space. So the word costs min(letters, n) + 1 taps in place of n + 1, where
`letters` is what must be typed before it is shown; a word that is never shown costs n + 1, all letters and the space.
Every tap is right, nothing is corrected, shift costs nothing, and reading suggestions is free: an upper bound on what
people save, the same for all models.
"""

import numpy as np

from fedgram.core.arrays import sum_by
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.predictor import Judgement
from fedgram.evaluate.typed_text import TypedText


def keystroke_savings(text: TypedText, judgement: Judgement) -> Measure:
    """The share of taps that suggestions spare, over typed words, by user."""
    saved = np.where(text.is_word, text.letters - np.minimum(judgement.letters, text.letters), 0)
    taps = np.where(text.is_word, text.letters + 1, 0)
    return Measure(
        sum_by(text.user, saved.astype(float), text.users), sum_by(text.user, taps.astype(float), text.users)
    )
