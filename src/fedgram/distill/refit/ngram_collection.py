"""Counting n-grams where the text is: devices count those of a topology that the server chose, and send the counts.

A device's sentences walk the topology, and every label is read by one arc, that of the longest n-gram that fits: these
are the counts C(x, q) of a source that says what the device's user wrote. A device counts at most λ labels, of
sentences drawn at random if it has more, and at most m of them at one arc. So its counts are whole numbers, its
sentences stay on it, and nobody moves the sum by more than λ in all, or by more than m at one n-gram. Sums are exact.
Beyond the paper; the limit is that of §3.1.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from fedgram.automata.counting import TopologyCounts, counts_from_arcs, read_arcs
from fedgram.automata.properties import topology_faults
from fedgram.automata.topology import Topology, arc_sources, backoff_arcs, entering_arcs
from fedgram.core.arrays import IntArray, LongArray, Ragged, sum_by
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.jit import kernel
from fedgram.core.random import Stream
from fedgram.core.storage import Record, limit_from_json, limit_to_json
from fedgram.distill.sample_approx import topology_arrays
from fedgram.federated.counting import CountingTask
from fedgram.federated.task import Update
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.text.normalize import uncase
from fedgram.text.population import ClientDataset
from fedgram.text.vocabulary import EOS, Vocabulary, vocabulary_from_bytes, vocabulary_to_bytes

COUNT = "count"


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one device counts: `labels` (λ) in all, `at_ngram` (m) at one n-gram."""

    labels: float
    at_ngram: float

    def __post_init__(self) -> None:
        if not (self.labels >= 1 and self.at_ngram >= 1):
            raise FedgramError(f"labels and at_ngram must be at least 1, not {self.labels} and {self.at_ngram}")
        if not (math.isinf(self.at_ngram) or float(self.at_ngram).is_integer()):
            raise FedgramError(f"the cap on the count of one n-gram must be a whole number, not {self.at_ngram}")


NO_LIMITS = Limits(math.inf, math.inf)


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


class NGramCollection(CountingTask):
    """The collection as a `FederatedTask`, whose state is C(x, q) by arc; the vocabulary names the labels."""

    name = "ngrams"

    def __init__(self, topology: Topology, vocabulary: Vocabulary, limits: Limits) -> None:
        self.topology, self.vocabulary, self.limits = topology, vocabulary, limits
        self.size: Mapping[str, int] = {COUNT: topology.arcs}
        norms = (NormLimit((COUNT,), limits.labels, order=1),)
        self.bounds = UpdateBounds(1.0, norms, entry=limits.at_ngram, whole=True)

    def settings(self) -> Record:
        """The limits, the topology and its words."""
        limits = {name: limit_to_json(float(limit)) for name, limit in asdict(self.limits).items()}
        arrays = {**topology_arrays(self.topology), "words": vocabulary_to_bytes(self.vocabulary)}
        return Record({"limits": limits, "start": self.topology.start}, arrays)

    @classmethod
    def from_settings(cls, settings: Record) -> "NGramCollection":
        """The task of these settings; what is not the topology of an n-gram model is refused."""
        a, limits = settings.arrays, settings.fields["limits"]
        kinds = {"first_arc": np.int64, "label": np.int32, "dest": np.int32, "backoff": np.int32}
        if any(a[name].dtype != kind or a[name].ndim != 1 for name, kind in kinds.items()):
            raise InvariantError("an array of a topology has another type or shape")
        topology = Topology(a["first_arc"], a["label"], a["dest"], a["backoff"], int(settings.fields["start"]))
        vocabulary = vocabulary_from_bytes(a["words"])
        if faults := topology_faults(topology, words=len(vocabulary)):
            raise InvariantError(f"the invariant {faults[0]} of a topology does not hold")
        given = {name: float(limit_from_json(limit)) for name, limit in limits.items()}
        return cls(topology, vocabulary, Limits(**given))

    def encode(self, words: Sequence[str]) -> IntArray:
        """The labels of words."""
        return uncased_ids(self.vocabulary, words)

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:  # noqa: ARG002
        """One device's counts, within the limits."""
        read = read_arcs(self.topology, at_most(data.sentences, self.limits.labels, rng))
        index, count = np.unique(read[read >= 0], return_counts=True)
        values = np.minimum(count, self.limits.at_ngram).astype(np.float64)
        return Update(self.size, {COUNT: index.astype(np.int64)}, {COUNT: values}, weight=1.0)


def occurrences(topology: Topology, count: LongArray) -> tuple[LongArray, LongArray]:
    """S(x, q), how often each n-gram occurs, and T(q), how often each history does, from C(x, q).

    A history occurs as often as its own n-gram, `<s>` as often as a sentence ends, and none more rarely than what
    follows it: limits at single n-grams may have cut it below that.
    """
    t = topology
    S = _sum_up(count.copy(), backoff_arcs(t))
    followed = np.rint(sum_by(arc_sources(t), S.astype(np.float64), t.states)).astype(np.int64)
    entering = entering_arcs(t)
    T = np.where(entering >= 0, S[np.maximum(entering, 0)], 0)
    T[t.start] = max(int(T[t.start]), _sentences(t, S))
    return S, np.maximum(T, followed)


def topology_counts(topology: Topology, count: LongArray) -> TopologyCounts:
    """C(x, q), C(φ, q) and N(q) of the devices' text."""
    S, T = occurrences(topology, count)
    visits = T.astype(np.float64)
    visits -= sum_by(topology.backoff[1:], visits[1:], topology.states)
    sentences = float(max(_sentences(topology, S), 1))
    return counts_from_arcs(topology, count.astype(np.float64), np.maximum(visits, 0.0), sentences)


def _sentences(topology: Topology, S: LongArray) -> int:
    return int(S[np.searchsorted(topology.label[: topology.first_arc[1]], EOS)])


@kernel
def _sum_up(values: LongArray, parent: IntArray) -> LongArray:
    for i in range(len(values) - 1, -1, -1):
        if parent[i] >= 0:
            values[parent[i]] += values[i]
    return values
