"""Counting n-grams with a limit on each device's influence.

A device's n-grams of all orders form one vector, v = (ω₁·S₁, ω₂·S₂, …), S_n its occurrences of n-grams of n words. The
device scales it once to at most the norm `norm`, and sends in each pass its part on the n-grams that are asked for. No
n-gram is asked for twice in a collection, so that all passes together send a vector of at most this norm, however the
server chose the n-grams of later passes from the sums of earlier ones. Numbers are rounded towards 0, which never makes
the vector longer. A vector that is not scaled is sent as it is: ω·S has few bits, so sums of such vectors are exact.

A device may also send one mark for each asked n-gram that it has, whatever the scale. The sum of marks is the number of
devices that have an n-gram, and nobody moves it by more than 1. Beyond the paper.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from fedgram.automata.topology import arc_sources, state_lengths
from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.core.random import Stream
from fedgram.core.storage import Record, limit_from_json, limit_to_json
from fedgram.distill.refit.asked_ngrams import AskedNGrams, NGramCounter, at_most, uncased_ids
from fedgram.federated.counting import CountingTask, Sums
from fedgram.federated.task import Update
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.text.population import ClientDataset
from fedgram.text.vocabulary import BOS, EOS

COUNT, DEVICES = "count", "devices"  # the vectors of an update
BITS = 14  # fraction bits of the sums
_WEIGHTS = (0.125, 0.5, 1.0, 1.0)  # of 1 to 4 words; multiples of 2^-BITS, so that ω·S is exact


@dataclass(frozen=True, slots=True)
class Clipping:
    """The most that a device's vector may be long, and the weights ω of n-grams of 1, 2, … words.

    A norm of inf means no limit. There must be a weight for every length that any pass of a collection asks for. The
    norm is that of n-grams of all these lengths, so a device's scale is the same in every pass, whatever is asked for.
    """

    norm: float
    weights: tuple[float, ...] = _WEIGHTS

    def __post_init__(self) -> None:
        if not self.norm > 0 or not self.weights or not all(0 < w < inf for w in self.weights):
            raise FedgramError("the norm and the weights of n-grams must be greater than 0, and the weights finite")

    @classmethod
    def up_to(cls, order: int, norm: float) -> "Clipping":
        """For n-grams of up to `order` words, at least 4; the last weight holds for longer ones too.

        >>> Clipping.up_to(6, norm=300.0).weights
        (0.125, 0.5, 1.0, 1.0, 1.0, 1.0)
        """
        return cls(norm, _WEIGHTS + _WEIGHTS[-1:] * (order - len(_WEIGHTS)))

    def weights_of(self, ngrams: AskedNGrams) -> FloatArray:
        """ω of every n-gram that is asked for."""
        t = ngrams.topology
        words = state_lengths(t)[arc_sources(t)[ngrams.asked]]  # of the history
        if int(words.max(initial=0)) >= len(self.weights):
            raise FedgramError(f"there are weights for n-grams of up to {len(self.weights)} words only")
        weights: FloatArray = np.array(self.weights)[words]
        return weights

    def scale(self, sentences: Ragged) -> float:
        """The factor of a device that counts these sentences."""
        if self.norm == inf:
            return 1.0
        length = float(np.sqrt(weighted_square(sentences, self.weights)))
        return min(1.0, self.norm / length) if length else 1.0


def weighted_square(sentences: Ragged, weights: Sequence[float]) -> float:
    """‖v‖² over all n-grams of a text, whether anybody asks for them or not."""
    total = 0.0
    for n, weight in enumerate(weights, 1):
        _, count = np.unique(_hashes(sentences.values, sentences.offsets, n), return_counts=True)
        total += weight**2 * float(np.dot(count, count))  # two n-grams of one hash make it larger, never smaller
    return total


@kernel
def _hashes(values: IntArray, offsets: LongArray, n: int) -> LongArray:
    """A number for every n-gram of n words that ends in a word or in the end of a sentence; they begin with `<s>`."""
    result = np.empty(len(values) + len(offsets) - 1, np.int64)
    found = 0
    for s in range(len(offsets) - 1):
        begin, end = offsets[s], offsets[s + 1]
        for last in range(begin, end + 1):
            if last - begin + 2 < n:  # words so far, with <s>
                continue
            h = np.uint64(n)
            for i in range(last - n + 1, last + 1):
                x = BOS if i < begin else EOS if i == end else values[i]
                h = (h ^ np.uint64(x + 1)) * np.uint64(0x9E3779B97F4A7C15)
                h = h ^ (h >> np.uint64(29))
            result[found] = np.int64(h)
            found += 1
    return result[:found]


class ClippedNGrams(CountingTask):
    """The collection as a `FederatedTask`: by asked n-gram, the sum of ω·S and, with `marks`, the number of devices.

    A device counts at most `labels` labels (λ). `choice` is a seed: passes with the same one count the same sentences
    of a device that has more. Sums have `BITS` fraction bits; `counts_from_sums` and `devices_from_sums` read them.
    """

    name = "ngrams"
    bits = BITS

    def __init__(
        self, ngrams: AskedNGrams, clipping: Clipping, choice: int = 0, *, labels: float = inf, marks: bool = False
    ) -> None:
        if not labels >= 1:
            raise FedgramError(f"a device must count at least 1 label, not {labels}")
        self.ngrams, self.clipping, self.choice, self.labels, self.marks = ngrams, clipping, choice, labels, marks
        vectors = (COUNT, DEVICES) if marks else (COUNT,)
        self.size: Mapping[str, int] = dict.fromkeys(vectors, ngrams.size)
        limits = tuple(limit for limit in self._norms() if limit.limit < inf)
        self.bounds = UpdateBounds(1.0, limits, non_negative=vectors, marks=vectors[1:])
        self._counter: tuple[NGramCounter, FloatArray] | None = None

    def _norms(self) -> Iterator[NormLimit]:
        """At each label one n-gram of every length ends."""
        order = self.ngrams.topology.order
        yield NormLimit((COUNT,), self.clipping.norm)
        yield NormLimit((COUNT,), self.labels * sum(self.clipping.weights[:order]), order=1)
        if self.marks:
            yield NormLimit((DEVICES,), self.labels * order, order=1)

    def settings(self) -> Record:
        """The limits, whether there are marks, and the n-grams that are asked for."""
        clipping = {"norm": limit_to_json(float(self.clipping.norm)), "weights": list(self.clipping.weights)}
        more = {"choice": self.choice, "labels": limit_to_json(float(self.labels)), "marks": self.marks}
        asked = self.ngrams.record()
        return Record({"clipping": clipping, **more, **asked.fields}, asked.arrays)

    @classmethod
    def from_settings(cls, settings: Record) -> "ClippedNGrams":
        """The task of these settings."""
        f, c = settings.fields, settings.fields["clipping"]
        return cls(
            AskedNGrams.from_record(settings),
            Clipping(float(limit_from_json(c["norm"])), tuple(map(float, c["weights"]))),
            int(f["choice"]), labels=float(limit_from_json(f["labels"])), marks=bool(f["marks"]),
        )  # fmt: skip

    def encode(self, words: Sequence[str]) -> IntArray:
        """The labels of words."""
        return uncased_ids(self.ngrams.vocabulary, words)

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:  # noqa: ARG002
        """One device's part of its vector on the n-grams that are asked for, and its marks."""
        if self._counter is None:
            self._counter = NGramCounter(self.ngrams), self.clipping.weights_of(self.ngrams)
        counter, weights = self._counter
        sentences = at_most(data.sentences, self.labels, Stream(self.choice, "sentences"))
        place, count = counter.occurrences(sentences)
        values = self.clipping.scale(sentences) * weights[place] * count
        grid = np.floor(values * 2.0**BITS)
        sent = grid > 0
        index, parts = {COUNT: place[sent]}, {COUNT: np.ldexp(grid[sent], -BITS)}
        if self.marks:
            index[DEVICES], parts[DEVICES] = place, np.ones(len(place))
        return Update(self.size, index, parts, weight=1.0)


def counts_from_sums(sums: Sums, ngrams: AskedNGrams, clipping: Clipping) -> FloatArray:
    """S(x, q) by asked n-gram, as far as devices sent it: whole numbers if none of them scaled its vector."""
    return np.ldexp(sums[COUNT].astype(np.float64), -BITS) / clipping.weights_of(ngrams)


def devices_from_sums(sums: Sums) -> LongArray:
    """The number of devices that have each asked n-gram, rounded down: a part of a mark is none."""
    return sums[DEVICES] >> BITS
