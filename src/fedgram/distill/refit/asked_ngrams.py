"""The n-grams that the server asks devices for, and how a device finds them in its text.

The server names n-grams by the arcs of a topology. A device counts how often each of them occurs in its text, S(x, q),
in at most λ labels: of sentences drawn at random if it has more. Beyond the paper; the limit is that of §3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.automata.counting import read_arcs
from fedgram.automata.properties import topology_faults
from fedgram.automata.topology import Topology, arc_sources, backoff_arcs, state_lengths
from fedgram.core.arrays import BoolArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.distill.sample_approx import topology_arrays
from fedgram.text.normalize import uncase
from fedgram.text.vocabulary import Vocabulary, vocabulary_from_bytes, vocabulary_to_bytes


def at_most(sentences: Ragged, labels: float, rng: Stream) -> Ragged:
    """The sentences; if they hold more than `labels` labels, their ends included, a random subset within the limit."""
    lengths = np.diff(sentences.offsets) + 1
    if lengths.sum() <= labels:
        return sentences
    order = rng.generator().permutation(len(sentences))
    return sentences.take(np.sort(order[np.cumsum(lengths[order]) <= labels]))


def uncased_ids(vocabulary: Vocabulary, words: Sequence[str]) -> IntArray:
    """The ids of words in an uncased vocabulary, however they are written."""
    return np.array(vocabulary.encode([uncase(word) for word in words]), np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class AskedNGrams:
    """The n-grams that devices are asked for: some arcs of a topology, whose labels the vocabulary names."""

    topology: Topology
    vocabulary: Vocabulary
    asked: BoolArray

    def __post_init__(self) -> None:
        if self.asked.shape != (self.topology.arcs,):
            raise InvariantError("the n-grams that are asked for are not those of the topology")

    @classmethod
    def all_of(cls, topology: Topology, vocabulary: Vocabulary) -> "AskedNGrams":
        """All n-grams of a topology."""
        return cls(topology, vocabulary, np.ones(topology.arcs, bool))

    def record(self) -> Record:
        """As a task sends it to devices."""
        arrays = {**topology_arrays(self.topology), "words": vocabulary_to_bytes(self.vocabulary)}
        return Record({"start": self.topology.start}, {**arrays, "asked": np.packbits(self.asked)})

    @classmethod
    def from_record(cls, record: Record) -> "AskedNGrams":
        """What a device was sent; what is not the topology of an n-gram model is refused."""
        a = record.arrays
        kinds = {"first_arc": np.int64, "label": np.int32, "dest": np.int32, "backoff": np.int32, "asked": np.uint8}
        if any(a[name].dtype != kind or a[name].ndim != 1 for name, kind in kinds.items()):
            raise InvariantError("an array of a topology has another type or shape")
        topology = Topology(a["first_arc"], a["label"], a["dest"], a["backoff"], int(record.fields["start"]))
        vocabulary = vocabulary_from_bytes(a["words"])
        if faults := topology_faults(topology, words=len(vocabulary)):
            raise InvariantError(f"the invariant {faults[0]} of a topology does not hold")
        if len(a["asked"]) != -(-topology.arcs // 8):
            raise InvariantError("the n-grams that are asked for are not those of the topology")
        return cls(topology, vocabulary, np.unpackbits(a["asked"], count=topology.arcs).astype(bool))

    @property
    def lengths(self) -> IntArray:
        """The number of words of each."""
        lengths: IntArray = state_lengths(self.topology)[arc_sources(self.topology)[self.asked]] + 1
        return lengths

    @property
    def size(self) -> int:
        """How many there are."""
        return int(np.count_nonzero(self.asked))


class NGramCounter:
    """Counts the asked n-grams of a text; what this needs of the topology is computed once."""

    def __init__(self, ngrams: AskedNGrams) -> None:
        self._topology, self._asked = ngrams.topology, ngrams.asked
        self._shorter = backoff_arcs(ngrams.topology)
        self._place = np.cumsum(ngrams.asked) - 1

    def occurrences(self, sentences: Ragged) -> tuple[LongArray, LongArray]:
        """The places, among the asked n-grams, of those that occur, and how often each does."""
        read = read_arcs(self._topology, sentences)  # by the longest n-gram at each label; shorter ones occur too
        found, read = [], read[read >= 0]
        while len(read):
            found.append(read)
            read = self._shorter[read]
            read = read[read >= 0]
        arcs = np.concatenate(found) if found else np.zeros(0, np.int32)
        arc, count = np.unique(arcs[self._asked[arcs]], return_counts=True)
        return self._place[arc].astype(np.int64), count.astype(np.int64)
