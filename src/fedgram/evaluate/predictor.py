"""What evaluation asks of a model: one small protocol for n-grams, networks and packed device models.

A predictor judges typed text. For every token it says

- `log_prob`: log p of the target's form given what was read before, that is of all its variants together; of `<unk>` if
  the target is not known; −∞ if the model cannot say (a closed vocabulary);
- `rank`: how many other forms it would suggest before the target, at most `SUGGESTIONS`, which also stands for a
  target that is no candidate or not known;
- `letters`: how many letters must be typed until the target is among the first `SUGGESTIONS` candidates that begin with
  them; the number of its letters if it never is.

and for every sentence `end_log_prob`, log p of `</s>`. A form is suggested by its best variant: suggestions are ordered
by p of the variant that would be shown, the lower id first among equals. So accuracy is that of the words a keyboard
shows, and a form takes one place however many variants it has.

Whatever has all probabilities at hand, such as a network, can use `evaluate.dense`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fedgram.core.arrays import FloatArray, IntArray, frozen
from fedgram.evaluate.forms import WordForms
from fedgram.evaluate.typed_text import TypedText

SUGGESTIONS = 3  # places for words above the keys of a keyboard


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """What a predictor says of a typed text; see the module."""

    log_prob: FloatArray
    rank: IntArray
    letters: IntArray
    end_log_prob: FloatArray

    def __post_init__(self) -> None:
        for array in (self.log_prob, self.rank, self.letters, self.end_log_prob):
            frozen(array)


class Predictor(Protocol):
    """A model that can be evaluated."""

    @property
    def forms(self) -> WordForms:
        """Its words, and how they are compared."""

    def judge(self, text: TypedText) -> Judgement:
        """What the model says of a text in the ids of `forms`."""

    def suggest(self, history: Sequence[str], count: int = SUGGESTIONS) -> list[tuple[str, float]]:
        """The words a keyboard shows after the beginning of a sentence, the best first, with their probabilities."""
