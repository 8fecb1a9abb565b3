"""What can be distilled: any model of sentences that gives samples and probabilities.

A `SourceModel` draws sentences by number. Sample j depends on the seed and j alone, like the numbers of
`core.random.uniform_at`, so samples can be drawn in any batches, by any number of workers. `walk` goes through a batch
position by position: a `Step` holds some of its samples before their next label, and the probabilities of all labels
there. Only the rows of one step are in memory. Samples may share a row, as those in one state of an n-gram model do.

Counting needs no more than this, so n-gram models, recurrent networks and transformers can all be sources. Paper: §4.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedgram.automata.counting import visited_states
from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.sampling import MAX_LENGTH, sample_sentences
from fedgram.automata.topology import backoff_arcs
from fedgram.automata.trie import MAX_ORDER
from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.jit import kernel
from fedgram.core.storage import content_digest
from fedgram.text.vocabulary import EOS, Vocabulary

_STEP_CELLS = 1 << 21  # the largest number of probabilities of a step
_DEEPEST = MAX_ORDER + 1  # states on a backoff path: one more than the length of a history, for word pieces


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Samples of a batch before their next label.

    Attributes:
        position: The number of labels that each sample has so far; one number if all have the same.
        sample: The places of the samples in the batch; no sample occurs twice.
        row: The row of `p` for each sample.
        word: The next label of each sample; `</s>` for one that ends here or is cut.
        p: The probabilities of all labels by row; rows sum to 1, and `<s>` has probability 0.
        entropy: The entropy of each row in nats, or None if the source does not know it.
    """

    position: int | LongArray
    sample: LongArray
    row: LongArray
    word: IntArray
    p: NDArray[np.floating[Any]]
    entropy: FloatArray | None = None


@runtime_checkable
class SourceModel(Protocol):
    """A model of sentences, of words or of word pieces."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The labels, in the order of the columns of `Step.p`."""

    @property
    def has_unknown(self) -> bool:
        """Whether `<unk>` can be drawn."""

    @property
    def digest(self) -> str:
        """A digest of the distribution, with all weights."""

    def sample(self, samples: range, *, seed: int) -> Ragged:
        """The samples with these numbers, without `<s>` and `</s>`; long ones may be cut."""

    def walk(self, samples: range, *, seed: int, sentences: Ragged | None = None) -> Iterator[Step]:
        """Go through the samples with these numbers, position by position.

        A sample of n labels has n + 1 visits, each in one step. `sentences` are the same samples from `sample`; pass
        them where they are known, to avoid drawing them again.
        """


class NGramSource:
    """An n-gram model, or any weighted backoff automaton, as a source."""

    def __init__(self, model: NGramModel, *, max_length: int = MAX_LENGTH) -> None:
        self.model = renormalize(model)
        self.max_length = max_length

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's words."""
        return self.model.vocabulary

    @property
    def has_unknown(self) -> bool:
        """Whether the model has `<unk>`."""
        return self.model.has_unknown

    @cached_property
    def digest(self) -> str:
        """Of the vocabulary and all arrays."""
        t = self.model.topology
        fields = {"vocabulary": self.vocabulary.digest, "start": t.start, "max_length": self.max_length}
        arrays: dict[str, NDArray[Any]] = {"first_arc": t.first_arc, "label": t.label, "dest": t.dest}
        arrays |= {"backoff": t.backoff, "weight": self.model.log_weight, "backoff_weight": self.model.log_backoff}
        return content_digest(fields, arrays)

    @cached_property
    def weight(self) -> FloatArray:
        """The probability of each of the model's arcs."""
        return np.exp(self.model.log_weight)

    @cached_property
    def _entropies(self) -> FloatArray:
        return state_entropies(self.model)

    def sample(self, samples: range, *, seed: int) -> Ragged:
        """The samples with these numbers, as `sample_sentences` draws them."""
        return sample_sentences(self.model, len(samples), seed=seed, first=samples.start, max_length=self.max_length)

    def walk(self, samples: range, *, seed: int, sentences: Ragged | None = None) -> Iterator[Step]:
        """Position by position; samples in one state share a row."""
        sentences = self.sample(samples, seed=seed) if sentences is None else sentences
        t, words, weight = self.model.topology, len(self.vocabulary), self.weight
        states, lengths = visited_states(t, sentences), np.diff(sentences.offsets)
        first_visit = sentences.offsets[:-1] + np.arange(len(sentences))
        said = np.append(sentences.values, EOS)
        rows = max(_STEP_CELLS // words, 1)
        for position in range(int(lengths.max(initial=-1)) + 1):
            alive = np.flatnonzero(lengths >= position)
            alive = alive[np.argsort(states[first_visit[alive] + position], kind="stable")]
            visited, row = np.unique(states[first_visit[alive] + position], return_inverse=True)
            at = np.where(lengths[alive] > position, sentences.offsets[alive] + position, len(sentences.values))
            word = said[at]
            for begin in range(0, len(visited), rows):
                part = slice(*np.searchsorted(row, (begin, begin + rows)))
                chunk = visited[begin : begin + rows]
                p = _rows(t.first_arc, t.label, t.backoff, weight, self.model.log_backoff, chunk, words)
                yield Step(position, alive[part], row[part] - begin, word[part], p, self._entropies[chunk])

    def __repr__(self) -> str:
        return f"NGramSource({self.model})"


def state_entropies(model: NGramModel) -> FloatArray:
    """The entropy of the next label at every state, in nats."""
    t = model.topology
    return _state_entropies(t.first_arc, t.backoff, backoff_arcs(t), model.log_weight, model.log_backoff)


@kernel
def _rows(
    first_arc: LongArray, label: IntArray, backoff: IntArray, weight: FloatArray, log_backoff: FloatArray,
    states: IntArray, words: int,
) -> FloatArray:  # fmt: skip
    """p(x | q) for all labels x, each from the longest history on q's backoff path that has an arc for x."""
    p = np.zeros((len(states), words))
    path, scale = np.empty(_DEEPEST, np.int32), np.empty(_DEEPEST)
    for i in range(len(states)):
        line, q, n, log_scale = p[i], states[i], 0, 0.0
        while q >= 0:
            path[n], scale[n] = q, np.exp(log_scale)
            log_scale += log_backoff[q]
            q = backoff[q]
            n += 1
        for k in range(n - 1, -1, -1):
            for e in range(first_arc[path[k]], first_arc[path[k] + 1]):
                line[label[e]] = scale[k] * weight[e]
    return p


@kernel
def _state_entropies(
    first_arc: LongArray, backoff: IntArray, lower: IntArray, log_weight: FloatArray, log_backoff: FloatArray
) -> FloatArray:
    """−Σ_x p(x|q)·log p(x|q) of every state, from its own arcs and the entropy of its backoff without their labels."""
    entropy = np.zeros(len(backoff))
    for q in range(len(backoff)):
        own, left, left_entropy = 0.0, 1.0, 0.0
        if q:
            left_entropy = entropy[backoff[q]]
        for e in range(first_arc[q], first_arc[q + 1]):
            own -= np.exp(log_weight[e]) * log_weight[e]
            if q:
                below = np.exp(log_weight[lower[e]])
                left -= below
                left_entropy += below * log_weight[lower[e]]
        entropy[q] = own
        if q:
            entropy[q] += np.exp(log_backoff[q]) * (left_entropy - max(left, 0.0) * log_backoff[q])
    return entropy
