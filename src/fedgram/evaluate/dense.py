"""A predictor for models that compute the probabilities of all words at once, such as networks.

It needs one function, from sentences (word ids without sentence marks) to rows of log-probabilities. A sentence has
len(sentence) + 1 rows: the first is for the position before any word, the last for the position after all words. A row
has one value per word of the vocabulary. Rows may come in batches of any size, as float32 or float64.

The ranks are those of `evaluate.predictor`, found in one pass over a row. The same pass finds the number of letters: if
the third longest prefix that a better form shares with the target has n letters, then n letters are too few, and n + 1
are enough.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.evaluate.forms import Prefixes, WordForms
from fedgram.evaluate.predictor import SUGGESTIONS, Judgement
from fedgram.evaluate.typed_text import TypedText, read_as
from fedgram.text.vocabulary import EOS, UNK, Vocabulary

Rows = NDArray[np.float32] | FloatArray


class DensePredictor:
    """Judges text and suggests words with rows of log-probabilities."""

    def __init__(self, vocabulary: Vocabulary, log_probs: Callable[[Ragged], Iterator[Rows]], *, cased: bool) -> None:
        self.forms = WordForms.of(vocabulary, cased=cased)
        self._log_probs = log_probs

    def judge(self, text: TypedText) -> Judgement:
        """Judge a text; see `evaluate.predictor`."""
        positions = len(text.target) + len(text.read)
        is_end = np.zeros(positions, bool)
        is_end[text.read.offsets[1:] + np.arange(len(text.read))] = True
        target, lengths = np.full(positions, EOS, np.int32), np.zeros(positions, np.int32)
        target[~is_end], lengths[~is_end] = text.target, text.letters
        log_prob, rank, letters = np.empty(positions), np.empty(positions, np.int32), lengths
        done, variants = 0, self.forms.variants
        for rows in self._log_probs(text.read):
            part = slice(done, done + len(rows))
            if rows.ndim != 2 or rows.shape[1] != len(self.forms.vocabulary) or part.stop > positions:
                raise InvariantError("the rows of log-probabilities do not fit the text or the vocabulary")
            _judge(
                rows, self.forms.prefixes, self.forms.form, variants.values, variants.offsets, target[part],
                log_prob[part], rank[part], letters[part], SUGGESTIONS,
            )  # fmt: skip
            done = part.stop
        if done != positions:
            raise InvariantError("there are fewer rows of log-probabilities than words and sentence ends in the text")
        return Judgement(log_prob[~is_end], rank[~is_end], letters[~is_end], log_prob[is_end])

    def suggest(self, history: Sequence[str], count: int = SUGGESTIONS) -> list[tuple[str, float]]:
        """The best next words after the start of a sentence, with their probabilities."""
        sentence = Ragged.from_rows([[read_as(word, self.forms) for word in history]])
        row = np.concatenate(list(self._log_probs(sentence)))[-1]
        best: dict[int, int] = {}
        for x in np.argsort(-row, kind="stable").tolist():
            if self.forms.candidate[self.forms.form[x]]:
                best.setdefault(int(self.forms.form[x]), x)
            if len(best) == count:
                break
        return [(self.forms.vocabulary.words[x], float(np.exp(row[x]))) for x in best.values()]


@kernel
def _judge(
    rows: Rows, prefixes: Prefixes, form: IntArray, variants: IntArray, first_variant: LongArray, target: IntArray,
    log_prob: FloatArray, rank: IntArray, letters: IntArray, k: int,
) -> None:  # fmt: skip
    longest = np.empty(k, np.int64)  # the longest prefixes that better forms share with the target, in descending order
    for i in range(len(rows)):
        row, f = rows[i], target[i]
        rank[i] = k
        if f < 0:
            log_prob[i] = row[UNK]
            continue
        p = 0.0
        for v in variants[first_variant[f] : first_variant[f + 1]]:
            p += np.exp(np.float64(row[v]))
        log_prob[i] = np.log(p) if p > 0.0 else -np.inf
        if prefixes.rank[f] < 0 or p == 0.0:
            continue
        best = _best_variant(row, variants, first_variant, f)
        score, count = row[best], 0
        longest[:] = -1
        for x in range(len(row)):
            if row[x] < score or (row[x] == score and x >= best):
                continue
            g = form[x]
            if prefixes.rank[g] < 0 or x != _best_variant(row, variants, first_variant, g):
                continue
            count += 1
            common, at = _common_letters(prefixes, f, g), k
            while at > 0 and longest[at - 1] < common:
                at -= 1
            for j in range(k - 1, at, -1):
                longest[j] = longest[j - 1]
            if at < k:
                longest[at] = common
        rank[i] = min(count, k)
        letters[i] = min(longest[k - 1] + 1, letters[i])


@kernel
def _best_variant(row: Rows, variants: IntArray, first_variant: LongArray, f: int) -> int:
    best = variants[first_variant[f]]
    for j in range(first_variant[f] + 1, first_variant[f + 1]):
        if row[variants[j]] > row[best]:
            best = variants[j]
    return int(best)


@kernel
def _common_letters(prefixes: Prefixes, f: int, g: int) -> int:
    """The length of the common prefix of two forms: the number of tree nodes that they share."""
    a, b, count = prefixes.first_letter[f], prefixes.first_letter[g], 0
    while a < prefixes.first_letter[f + 1] and b < prefixes.first_letter[g + 1]:
        if prefixes.nodes[a] != prefixes.nodes[b]:
            break
        a, b, count = a + 1, b + 1, count + 1
    return count
