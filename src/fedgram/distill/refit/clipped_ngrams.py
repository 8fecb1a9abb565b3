"""Counting n-grams with a limit on each device's influence, for differential privacy.

A device's n-grams of all orders form one vector, v = (ω₁·S₁, ω₂·S₂, …), S_n its occurrences of n-grams of n words. The
device scales it once to at most the norm `norm`, and sends in each pass its part on the n-grams that are asked for. No
n-gram is asked for twice in a collection, so that all passes together send a vector of at most this norm, however the
server chose the n-grams of later passes from the sums of earlier ones. Numbers are rounded towards 0, which never makes
the vector longer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf

import numpy as np

from fedgram.automata.topology import arc_sources, state_lengths
from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.distill.refit.ngram_collection import COUNT, AskedNGrams, NGramCounter, uncased_ids
from fedgram.federated.counting import CountingTask
from fedgram.federated.task import Update
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.text.population import ClientDataset
from fedgram.text.vocabulary import BOS, EOS

BITS = 14  # fraction bits of the sums


@dataclass(frozen=True, slots=True)
class Clipping:
    """The most that a device's vector may be long, and the weights ω of n-grams of 1, 2, … words."""

    norm: float
    weights: tuple[float, ...] = (0.1, 0.5, 1.0, 1.0)

    def __post_init__(self) -> None:
        if not 0 < self.norm < inf or not self.weights or not all(0 < w < inf for w in self.weights):
            raise FedgramError("the norm and the weights of n-grams must be greater than 0 and finite")

    def weights_of(self, ngrams: AskedNGrams) -> FloatArray:
        """ω of every n-gram that is asked for."""
        t = ngrams.topology
        words = state_lengths(t)[arc_sources(t)[ngrams.asked]]  # of the history
        if int(words.max(initial=0)) >= len(self.weights):
            raise FedgramError(f"there are weights for n-grams of up to {len(self.weights)} words only")
        weights: FloatArray = np.array(self.weights)[words]
        return weights

    def scale(self, sentences: Ragged) -> float:
        """The factor of a device with these sentences."""
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
    """The collection as a `FederatedTask`, whose state is the sum of ω·S over devices, by asked n-gram."""

    name = "clipped-ngrams"
    bits = BITS

    def __init__(self, ngrams: AskedNGrams, clipping: Clipping, choice: int = 0) -> None:
        self.ngrams, self.clipping, self.choice = ngrams, clipping, choice
        self.size: Mapping[str, int] = {COUNT: ngrams.size}
        self.bounds = UpdateBounds(1.0, (NormLimit((COUNT,), clipping.norm),), non_negative=(COUNT,))
        self._counter: tuple[NGramCounter, FloatArray] | None = None

    def settings(self) -> Record:
        """The clipping, and the n-grams that are asked for."""
        asked = self.ngrams.record()
        return Record({"clipping": asdict(self.clipping), "choice": self.choice, **asked.fields}, asked.arrays)

    @classmethod
    def from_settings(cls, settings: Record) -> "ClippedNGrams":
        """The task of these settings."""
        c = settings.fields["clipping"]
        clipping = Clipping(float(c["norm"]), tuple(map(float, c["weights"])))
        return cls(AskedNGrams.from_record(settings), clipping, int(settings.fields["choice"]))

    def encode(self, words: Sequence[str]) -> IntArray:
        """The labels of words."""
        return uncased_ids(self.ngrams.vocabulary, words)

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:  # noqa: ARG002
        """One device's part of its vector on the n-grams that are asked for."""
        if self._counter is None:
            self._counter = NGramCounter(self.ngrams), self.clipping.weights_of(self.ngrams)
        counter, weights = self._counter
        place, count = counter.occurrences(data.sentences)
        values = self.clipping.scale(data.sentences) * weights[place] * count
        grid = np.floor(values * 2.0**BITS)
        sent = grid > 0
        return Update(self.size, {COUNT: place[sent]}, {COUNT: np.ldexp(grid[sent], -BITS)}, weight=1.0)
