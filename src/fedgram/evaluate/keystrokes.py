"""Keystroke savings: the share of taps that three suggestions save a person who accepts every helpful suggestion.

The model of the keyboard: it shows the three best words that start with the letters typed so far, ignoring case; before
the first letter, it shows the three best next words. A person who wants a word of n letters types until the word is
shown and taps it, which also enters the space. So the word costs min(letters, n) + 1 taps instead of n + 1, where
`letters` is the number of letters to type before it is shown. A word that is never shown costs n + 1 taps: all letters
and the space. There are no typing errors and no corrections; shift and reading the suggestions cost nothing. So the
result is an upper bound on the savings of real people, computed in the same way for all models.
"""

import numpy as np

from fedgram.core.arrays import sum_by
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.predictor import Judgement
from fedgram.evaluate.typed_text import TypedText


def keystroke_savings(text: TypedText, judgement: Judgement) -> Measure:
    """The share of taps that suggestions save, over typed words, per user."""
    saved = np.where(text.is_word, text.letters - np.minimum(judgement.letters, text.letters), 0)
    taps = np.where(text.is_word, text.letters + 1, 0)
    return Measure(
        sum_by(text.user, saved.astype(float), text.users), sum_by(text.user, taps.astype(float), text.users)
    )
