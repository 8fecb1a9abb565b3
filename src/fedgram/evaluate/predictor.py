"""The interface between evaluation and models: one small protocol for n-gram models, networks and packed models.

A predictor judges typed text. For each token it gives

- `log_prob`: log p of the target's form given the history, the sum over all its variants; log p of `<unk>` if the
  target is not known; −∞ if the model cannot score it (a closed vocabulary);
- `rank`: the number of other forms that it would suggest before the target, at most `SUGGESTIONS`; also `SUGGESTIONS`
  for a target that is not a candidate or not known;
- `letters`: the number of letters to type until the target is among the first `SUGGESTIONS` candidates that start with
  them; the length of the target if it never is.

For each sentence it gives `end_log_prob`, log p of `</s>`. A form is suggested as its best variant. Suggestions are
ordered by p of the variant shown; among equals, the lower id is first. So accuracy is measured on the words that a
keyboard shows, and a form takes one place however many variants it has.

Models that compute all probabilities at once, such as networks, can use `evaluate.dense`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fedgram.core.arrays import FloatArray, IntArray, frozen
from fedgram.evaluate.forms import WordForms
from fedgram.evaluate.typed_text import TypedText

SUGGESTIONS = 3  # the number of words that a keyboard shows above its keys


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """A predictor's results for a typed text; see the module's description."""

    log_prob: FloatArray
    rank: IntArray
    letters: IntArray
    end_log_prob: FloatArray

    def __post_init__(self) -> None:
        for array in (self.log_prob, self.rank, self.letters, self.end_log_prob):
            frozen(array)


@runtime_checkable
class Predictor(Protocol):
    """A model that evaluation can use."""

    @property
    def forms(self) -> WordForms:
        """The forms of the model's words."""

    def judge(self, text: TypedText) -> Judgement:
        """Judge a text that is given in the ids of `forms`."""

    def suggest(self, history: Sequence[str], count: int = SUGGESTIONS) -> list[tuple[str, float]]:
        """The words that a keyboard shows after the start of a sentence, best first, with their probabilities."""
