"""What can be distilled: any model of sentences that can be sampled and asked for probabilities.

A `SourceModel` draws sentences by number: sample j of a seed depends on the seed and j alone, as numbers drawn by
`core.random.uniform_at` do, so that samples may be drawn in any batches, by any number of workers. `walk` goes through
a batch in lock-step: a `Step` holds some of its samples at one position, each about to say its next label, and the
probabilities of all labels there. Only a step's rows are in memory at a time. Where samples share a row, as those in
one state of an n-gram model do, it is handed out once.

Whoever counts needs no more than this, so that n-gram models, recurrent networks and transformers serve alike.
Paper: §4.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

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

_STEP_CELLS = 1 << 21
_DEEPEST = MAX_ORDER + 1  # backoff path: one state more than histories are long, for word pieces


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Samples of a batch that are about to say a label.

    Attributes:
        position: How many labels each of them has said, one number where all have said as many.
        sample: Their places in the batch; no sample twice.
        row: The row of `p` that belongs to each.
        word: What each says next; `</s>` for one that ends here, or is cut.
        p: Probabilities of all labels, a row each; rows sum to 1, and `<s>` has none.
        entropy: The entropy of each row in nats, where the source knows it.
    """

    position: int | LongArray
    sample: LongArray
    row: LongArray
    word: IntArray
    p: NDArray[np.floating[Any]]
    entropy: FloatArray | None = None


class SourceModel(Protocol):
    """A model of sentences, of words or of word pieces."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The labels, in the order of a step's columns."""

    @property
    def has_unknown(self) -> bool:
        """Whether `<unk>` may be said."""

    @property
    def digest(self) -> str:
        """A name of the distribution: other weights, other digest."""

    def sample(self, samples: range, *, seed: int) -> Ragged:
        """The samples of these numbers, without marks; long ones may be cut."""

    def walk(self, samples: range, *, seed: int, sentences: Ragged | None = None) -> Iterator[Step]:
        """Go through the samples of these numbers, position by position, every visit of each once.

        A sample of n labels is visited n + 1 times. `sentences` is what `sample` says they are, where that is known
        already, and spares drawing them again.
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
        """The probabilities of the model's arcs."""
        return np.exp(self.model.log_weight)

    @cached_property
    def _entropies(self) -> FloatArray:
        return state_entropies(self.model)

    def sample(self, samples: range, *, seed: int) -> Ragged:
        """Sentences by number, as `sample_sentences` draws them."""
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
    """The entropy of what comes next, at every state, in nats."""
    t = model.topology
    return _state_entropies(t.first_arc, t.backoff, backoff_arcs(t), model.log_weight, model.log_backoff)


@kernel
def _rows(
    first_arc: LongArray, label: IntArray, backoff: IntArray, weight: FloatArray, log_backoff: FloatArray,
    states: IntArray, words: int,
) -> FloatArray:  # fmt: skip
    """p(x | q) for all labels x: the labels of the longest history of q's backoff path that reads them."""
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
    """−Σ_x p(x|q)·log p(x|q) of every state, from that of its backoff without the labels that it reads itself."""
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
