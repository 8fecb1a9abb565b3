"""The casing of a source: the cased words that its lower-case labels stand for, and their probabilities.

The network is uncased, A_W is cased. The vocabulary Δ of the result has every word of A_W whose lower-case form u(y)
the source knows, and the source's own label if A_W has no form of it. So each label x of the source stands for at least
one word of Δ, and

    p̃(y | ȳ) = p(u(y) | u(ȳ)) · r(y | a),    r(y | a) = p_cap(y | a) / Σ_{y': u(y') = u(y)} p_cap(y' | a),

sums to 1 over Δ, where a is the state of p_cap = A_W after ȳ. Words of A_W that the source does not know are part of
its `<unk>`. The ratio of a class at a is that at the first state on a's backoff path that reads a word of the class, so
one table (`CaseRatios`) holds the ratios of all states. Paper: §5.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedgram.automata.counting import visited_states
from fedgram.automata.topology import Topology, arc_sources
from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged, frozen
from fedgram.core.errors import FedgramError
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.text.normalize import uncase
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary


class CaseRatios(NamedTuple):
    """The ratios r(y | a) of the classes that each state a of A_W reads itself.

    Attributes:
        base: r(y | empty history) of every word of Δ.
        first: State a has the entries `first[a]:first[a + 1]`, in which all words of a class are next to each other.
        word: The word of Δ of each entry.
        ratio: Its ratio.
    """

    base: FloatArray
    first: LongArray
    word: IntArray
    ratio: FloatArray


class CasingArrays(NamedTuple):
    """A casing as one argument for kernels: the label of each word of Δ, the backoff states of A_W, and the ratios."""

    uncased_id: IntArray
    backoff: IntArray
    ratios: CaseRatios


@dataclass(frozen=True, slots=True, eq=False)
class Casing:
    """How the labels of a source become cased words; `casing_of` makes one.

    Attributes:
        capitalizer: The capitaliser, with A_W.
        vocabulary: Δ.
        uncased_id: The source's label for each word of Δ.
        own_id: A_W's id for each word of Δ, that of `<unk>` for words A_W does not know.
        class_of: The case class in A_W of each label of the source, that of `<unk>` for labels A_W does not know.
        cased_id: Δ's id for each word of A_W, −1 for words the source does not know.
        plain_id: Δ's id for each label of the source as it is written; it counts for labels A_W does not know.
        ratios: r(y | a).
    """

    capitalizer: Capitalizer
    vocabulary: Vocabulary
    uncased_id: IntArray
    own_id: IntArray
    class_of: IntArray
    cased_id: IntArray
    plain_id: IntArray
    ratios: CaseRatios

    @property
    def topology(self) -> Topology:
        """The topology of A_W."""
        return self.capitalizer.model.topology

    @property
    def arrays(self) -> CasingArrays:
        """The casing as one argument for kernels."""
        return CasingArrays(self.uncased_id, self.topology.backoff, self.ratios)

    def capitalize(self, sentences: Ragged, *, workers: int = 1) -> Ragged:
        """The cased sentences over Δ of sentences of the source's labels; `workers` threads share them."""
        if workers > 1:
            ends = np.linspace(0, len(sentences), workers + 1).astype(np.int64)
            with ThreadPoolExecutor(workers) as pool:
                parts = pool.map(lambda a, b: self.capitalize(sentences.take(np.arange(a, b))), ends[:-1], ends[1:])
                return Ragged.concatenate(list(parts))
        classes = self.class_of[sentences.values]
        cased = self.cased_id[self.capitalizer.capitalize(Ragged(classes, sentences.offsets)).values]
        return Ragged(np.where(classes == UNK, self.plain_id[sentences.values], cased), sentences.offsets)

    def states(self, cased: Ragged) -> IntArray:
        """The states of A_W that cased sentences over Δ visit."""
        return visited_states(self.topology, Ragged(self.own_id[cased.values], cased.offsets))


def casing_of(capitalizer: Capitalizer, labels: Vocabulary) -> Casing:
    """The casing of a source with these labels, all in lower case, by a capitaliser."""
    if any(uncase(word) != word for word in labels.words):
        raise FedgramError("the source has words with capitals; only a source in lower case can be capitalised")
    classes, words = capitalizer.classes, capitalizer.model.vocabulary
    class_of = np.array([classes.uncased.index.get(word, UNK) for word in labels.words], np.int32)
    known = np.zeros(len(classes.uncased), bool)
    known[class_of] = True
    known[[UNK, BOS, EOS]] = True
    kept = [word for word, u in zip(words.words, classes.uncased_id.tolist(), strict=True) if known[u]]
    vocabulary = Vocabulary.of([*kept, *(w for w, u in zip(labels.words, class_of, strict=True) if u == UNK)])
    cased_id = np.array([vocabulary.index.get(word, -1) for word in words.words], np.int32)
    own_id = np.array([words[word] for word in vocabulary.words], np.int32)
    uncased_id = np.array([labels[uncase(word)] for word in vocabulary.words], np.int32)
    plain_id = np.array([vocabulary[word] for word in labels.words], np.int32)
    ratios = _ratios(capitalizer, cased_id, len(vocabulary))
    for array in (uncased_id, own_id, class_of, cased_id, plain_id):
        frozen(array)
    return Casing(capitalizer, vocabulary, uncased_id, own_id, class_of, cased_id, plain_id, ratios)


def _ratios(capitalizer: Capitalizer, cased_id: IntArray, size: int) -> CaseRatios:
    """The table of r(y | a) over all states of A_W."""
    t, classes = capitalizer.model.topology, capitalizer.classes
    base = np.ones(size)
    base[cased_id[cased_id >= 0]] = capitalizer.case_ratios(0)[cased_id >= 0]
    sizes = np.diff(classes.variants.offsets)
    u = classes.uncased_id[t.label].astype(np.int64)
    reads = (sizes[u] > 1) & (cased_id[t.label] >= 0) & (np.arange(t.arcs) >= t.first_arc[1])
    pairs = np.unique(arc_sources(t)[reads].astype(np.int64) * len(sizes) + u[reads])  # (state, class) as one number
    state, u = pairs // len(sizes), pairs % len(sizes)
    within = np.arange(int(sizes[u].sum())) - np.repeat(np.cumsum(sizes[u]) - sizes[u], sizes[u])
    variant = classes.variants.values[np.repeat(classes.variants.offsets[u], sizes[u]) + within]
    state = np.repeat(state, sizes[u]).astype(np.int32)
    first = np.searchsorted(state, np.arange(t.states + 1)).astype(np.int64)
    return CaseRatios(base, first, cased_id[variant], np.exp(capitalizer.case_log_ratios(state, variant)))
