"""Top-k accuracy: how often the next typed word is among the first k suggestions before any of its letters is typed.

It is measured over all typed words; a word whose form the model does not have counts as wrong. Paper: §7.2, "prediction
accuracy is evaluated over user-typed words".
"""

from fedgram.core.arrays import sum_by
from fedgram.core.errors import FedgramError
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.predictor import SUGGESTIONS, Judgement
from fedgram.evaluate.typed_text import TypedText


def accuracy(text: TypedText, judgement: Judgement, *, k: int) -> Measure:
    """The share of typed words that are among the first k suggestions, per user."""
    if not 1 <= k <= SUGGESTIONS:
        raise FedgramError(f"top-k accuracy: k must be from 1 to {SUGGESTIONS}, not {k}")
    right = (judgement.rank < k) & text.is_word
    return Measure(
        sum_by(text.user, right.astype(float), text.users), sum_by(text.user, text.is_word.astype(float), text.users)
    )
