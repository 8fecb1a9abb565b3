"""Building topologies and counts from sentences and from lists of n-grams."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.automata.model import NGramCounts, has_unknown
from fedgram.automata.topology import Topology, ngram_matrix
from fedgram.automata.trie import first_arc_of_level, index_runs, topology_of
from fedgram.core.arrays import BoolArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.normalize import uncase
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary


def count_ngrams(
    sentences: Ragged, vocabulary: Vocabulary, *, order: int, open_vocabulary: bool | None = None
) -> NGramCounts:
    """Count all n-grams up to `order`, with `<s>` before and `</s>` after every sentence.

    By default, the vocabulary is open if a sentence contains `<unk>`. Every word of the vocabulary becomes a unigram,
    even if it does not occur.
    """
    if bool(np.isin(sentences.values, (BOS, EOS)).any()):
        raise InvariantError("a sentence contains <s> or </s>, which are added when counting; remove them")
    runs = _with_marks(sentences)
    levels, _ = index_runs(runs, order=order, words=len(vocabulary))
    if open_vocabulary is None:
        open_vocabulary = bool(levels[0].count[UNK])
    if levels[0].count[UNK] and not open_vocabulary:
        raise InvariantError("the text contains <unk>, but open_vocabulary is False")
    topology = topology_of(levels, open_vocabulary=open_vocabulary)
    unigrams = levels[0].count[topology.label[: topology.first_arc[1]]]
    count = np.concatenate([unigrams, *(level.count for level in levels[1:])]).astype(np.float64)
    return NGramCounts(topology, vocabulary, count)


def _with_marks(sentences: Ragged) -> Ragged:
    rows = len(sentences)
    offsets = sentences.offsets + 2 * np.arange(rows + 1)
    values = np.empty(len(sentences.values) + 2 * rows, np.int32)
    values[offsets[:-1]] = BOS
    values[offsets[1:] - 1] = EOS
    inner = np.ones(len(values), bool)
    inner[offsets[:-1]] = False
    inner[offsets[1:] - 1] = False
    values[inner] = sentences.values
    return Ragged(values, offsets)


@dataclass(frozen=True, slots=True, eq=False)
class NGramTopology:
    """A topology built from n-grams: `arc[i]` is the arc of n-gram i, or −1 for `<s>` alone.

    The topology also has the n-grams that were added for closure.
    """

    topology: Topology
    arc: IntArray


def topology_from_ngrams(
    ngrams: Ragged, words: int, *, open_vocabulary: bool = True, contexts: BoolArray | None = None
) -> NGramTopology:
    """The smallest backoff-complete topology that has these n-grams, over a vocabulary of `words` ids.

    `<s>` may only be the first word of an n-gram, and `</s>` only the last. Order and repetitions do not matter.
    `contexts` marks n-grams that become states even if no n-gram continues them.
    """
    lengths = np.diff(ngrams.offsets)
    if len(lengths) and lengths.min() < 1:
        raise InvariantError("an n-gram has no words")
    if misplaced_marks(ngrams.values, ngrams.offsets).any():
        raise InvariantError("<s> may only be the first word of an n-gram, and </s> only the last")
    if not open_vocabulary and bool(np.any(ngrams.values == UNK)):
        raise InvariantError("an n-gram contains <unk>, but the vocabulary is closed")
    order = int(lengths.max()) if len(lengths) else 1
    levels, at_start = index_runs(ngrams, order=order, words=words)
    kept: Sequence[BoolArray] = ()
    if contexts is not None:
        kept = [np.zeros(len(level), bool) for level in levels]
        for n in range(1, order + 1):
            kept[n - 1][at_start[n - 1][contexts & (lengths == n)]] = True
    topology = topology_of(levels, open_vocabulary=open_vocabulary, kept=kept)
    arc = np.full(len(ngrams), -1, np.int32)
    unigram = np.full(words, -1, np.int32)
    unigram[topology.label[: topology.first_arc[1]]] = np.arange(topology.first_arc[1], dtype=np.int32)
    arc[lengths == 1] = unigram[at_start[0][lengths == 1]]
    for n in range(2, order + 1):
        offset = first_arc_of_level(levels, n, open_vocabulary=open_vocabulary)
        arc[lengths == n] = offset + at_start[n - 1][lengths == n]
    return NGramTopology(topology, arc)


@kernel
def misplaced_marks(values: IntArray, offsets: LongArray) -> BoolArray:
    """Per n-gram, whether it has `<s>` after the first word or `</s>` before the last."""
    misplaced = np.zeros(len(offsets) - 1, np.bool_)
    for r in range(len(offsets) - 1):
        for i in range(offsets[r], offsets[r + 1]):
            if (values[i] == BOS and i > offsets[r]) or (values[i] == EOS and i < offsets[r + 1] - 1):
                misplaced[r] = True
    return misplaced


def ngrams_of(topology: Topology) -> Ragged:
    """The n-grams of all arcs, in the order of the arcs."""
    matrix, lengths = ngram_matrix(topology)
    return Ragged(matrix[matrix >= 0], np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def relabel(topology: Topology, new_id: IntArray, words: int) -> NGramTopology:
    """The topology with new word ids; several words may get the same id. `arc` is the new arc of each old arc."""
    ngrams = ngrams_of(topology)
    renamed = Ragged(new_id[ngrams.values], ngrams.offsets)
    return topology_from_ngrams(renamed, words, open_vocabulary=has_unknown(topology))


def union_topology(topologies: Iterable[Topology], words: int) -> tuple[Topology, list[IntArray]]:
    """The smallest topology that has the n-grams of all; and for each topology, the arcs that its arcs became."""
    topologies = list(topologies)
    parts = [ngrams_of(t) for t in topologies]
    built = topology_from_ngrams(
        Ragged.concatenate(parts), words, open_vocabulary=any(has_unknown(t) for t in topologies)
    )
    return built.topology, np.split(built.arc, np.cumsum([len(p) for p in parts])[:-1])


def lowercase_topology(topology: Topology, vocabulary: Vocabulary) -> tuple[Topology, Vocabulary]:
    """Every n-gram in lower case, over the vocabulary of lower-case words. Paper: ConvertToLowercaseTopology."""
    lower = [uncase(word) for word in vocabulary.words]
    uncased = Vocabulary.of(lower)
    new_id = np.array([uncased.index[word] for word in lower], np.int32)
    return relabel(topology, new_id, len(uncased)).topology, uncased
