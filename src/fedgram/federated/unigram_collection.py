"""Collecting a unigram distribution: devices count the words of a whitelist, and nobody counts for more than λ.

    U = Σ_i w_i·C_i,   w_i = λ / max(λ, Σ C_i)

With λ = 1 every device has the same say, with λ = ∞ every word has. To judge convergence the server also sums, with
a = w·C and ℓ = Σ a of a device, a² and a·ℓ by word and ℓ² over all words. Paper: §3.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.core.random import Stream
from fedgram.federated.task import Total, Update
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.text.population import ClientDataset
from fedgram.text.unigrams import UnigramCounts
from fedgram.text.vocabulary import SPECIAL, Vocabulary

_USUAL_LENGTH = 1000.0
FRACTION_BITS = 24  # counts to 6e-8, and sums up to 2⁶³⁻²⁴ = 5.5e11


@dataclass(frozen=True, slots=True, eq=False)
class RoundCounts:
    """One round's sums at the words that occurred in it: a, a² and a·ℓ by word, and ℓ² over the devices."""

    index: LongArray
    weight: FloatArray
    square: FloatArray
    cross: FloatArray
    length_square: float
    devices: int


@dataclass(frozen=True, slots=True, eq=False)
class UnigramState:
    """Everything the server has: the sums of each round."""

    rounds: tuple[RoundCounts, ...]


@kernel
def _count_runs(ordered: IntArray, first: int) -> tuple[LongArray, FloatArray]:
    """The distinct ids from `first` on, of ids in rising order, and how often each occurs."""
    index, count = np.empty(len(ordered), np.int64), np.zeros(len(ordered))
    distinct = 0
    for i in range(len(ordered)):
        if ordered[i] < first:
            continue
        if distinct == 0 or index[distinct - 1] != ordered[i]:
            index[distinct] = ordered[i]
            distinct += 1
        count[distinct - 1] += 1.0
    return index[:distinct].copy(), count[:distinct].copy()


class UnigramTask:
    """The collection as a `FederatedTask`; device data must be in the ids of `vocabulary`."""

    bits = FRACTION_BITS

    def __init__(self, vocabulary: Vocabulary, *, clip: float) -> None:
        if not clip > 0:
            raise FedgramError(f"the clipping threshold must be greater than 0, not {clip}")
        self.vocabulary, self.clip = vocabulary, clip
        self.unit = _USUAL_LENGTH if np.isinf(clip) else clip  # squares are sent in its square, to stay within range
        n = len(vocabulary)
        self.size: Mapping[str, int] = {"weight": n, "square": n, "cross": n, "length_square": 1}
        longest = {"weight": clip, "square": 1.0, "cross": 1.0, "length_square": 1.0}
        norms = () if np.isinf(clip) else tuple(NormLimit((name,), most, order=1) for name, most in longest.items())
        self.bounds = UpdateBounds(weight=1.0, norms=norms)

    def init(self) -> UnigramState:
        """Nothing collected yet."""
        return UnigramState(())

    def client_update(self, state: UnigramState, data: ClientDataset, rng: Stream) -> Update:  # noqa: ARG002
        """The sums of one device; those of a = w·C add up to at most λ."""
        index, C = _count_runs(np.sort(data.sentences.values), len(SPECIAL))
        w = 1.0 if np.isinf(self.clip) else self.clip / max(self.clip, C.sum())
        a = w * C
        b = a / self.unit
        length = float(b.sum())
        places = {"weight": index, "square": index, "cross": index, "length_square": np.zeros(1, np.int64)}
        values = {"weight": a, "square": b * b, "cross": b * length, "length_square": np.array([length * length])}
        return Update(self.size, places, values, weight=1.0)

    def server_update(self, state: UnigramState, total: Total) -> UnigramState:
        """Keep the round's sums."""
        seen = np.flatnonzero(total.arrays["weight"])
        scale = self.unit * self.unit
        square, cross = (scale * total.array(name)[seen] for name in ("square", "cross"))
        length_square = scale * float(total.array("length_square")[0])
        weight = total.array("weight")[seen]
        return UnigramState((*state.rounds, RoundCounts(seen, weight, square, cross, length_square, total.devices)))

    def counts(self, state: UnigramState) -> UnigramCounts:
        """U over all rounds."""
        weight = np.zeros(len(self.vocabulary))
        for part in state.rounds:
            weight[part.index] += part.weight
        devices = sum(part.devices for part in state.rounds)
        return UnigramCounts(self.vocabulary, weight, devices, len(state.rounds), self.clip)
