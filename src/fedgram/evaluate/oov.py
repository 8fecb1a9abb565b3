"""The out-of-vocabulary (OOV) rate: the share of typed words whose form the model lacks. Paper: §3.3, Table 1."""

from fedgram.core.arrays import sum_by
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.typed_text import UNKNOWN, TypedText


def oov_rate(text: TypedText) -> Measure:
    """The share of typed words that are out of vocabulary, per user."""
    unknown = (text.target == UNKNOWN) & text.is_word
    return Measure(
        sum_by(text.user, unknown.astype(float), text.users), sum_by(text.user, text.is_word.astype(float), text.users)
    )
