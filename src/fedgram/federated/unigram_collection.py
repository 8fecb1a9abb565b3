"""Collecting a unigram distribution: devices count the words of a whitelist, at most λ words per device.

    U = Σ_i w_i·C_i,   w_i = λ / max(λ, Σ C_i)

With λ = 1 every device has the same influence, with λ = ∞ every word has. A device sends only its clipped counts
a = w·C; convergence is measured from the sums of whole rounds (`convergence.py`). Paper: §3.1. For differential privacy
a limit S on the Euclidean norm of a device's counts is added: w_i ≤ S / ‖C_i‖.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.core.random import Stream
from fedgram.core.storage import Record, limit_from_json, limit_to_json
from fedgram.federated.task import Total, Update
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.text.normalize import uncase
from fedgram.text.population import ClientDataset
from fedgram.text.unigrams import UnigramCounts
from fedgram.text.vocabulary import SPECIAL, Vocabulary, vocabulary_from_bytes, vocabulary_to_bytes

FRACTION_BITS = 24  # counts to 6e-8, and sums up to 2⁶³⁻²⁴ = 5.5e11
COUNT = "count"


@dataclass(frozen=True, slots=True, eq=False)
class RoundCounts:
    """The sums of one round for the words that occurred in it, and the number of its devices."""

    index: LongArray
    weight: FloatArray
    devices: int


@dataclass(frozen=True, slots=True, eq=False)
class UnigramState:
    """The server's state: the sums of each round."""

    rounds: tuple[RoundCounts, ...]


@kernel
def _count_runs(ordered: IntArray, first: int) -> tuple[LongArray, FloatArray]:
    """The distinct ids that are at least `first`, and how often each occurs; `ordered` is sorted."""
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
    """The collection as a `FederatedTask`."""

    name, is_counting, bits = "unigrams", True, FRACTION_BITS

    def __init__(self, vocabulary: Vocabulary, *, clip: float, norm: float = np.inf) -> None:
        if not (clip > 0 and norm > 0):
            raise FedgramError(f"the clipping threshold must be greater than 0, not {min(clip, norm)}")
        self.vocabulary, self.clip, self.norm = vocabulary, clip, norm
        self.size: Mapping[str, int] = {COUNT: len(vocabulary)}
        limits = NormLimit((COUNT,), clip, order=1), NormLimit((COUNT,), norm)
        norms = tuple(limit for limit in limits if np.isfinite(limit.limit))
        self.bounds = UpdateBounds(weight=1.0, norms=norms, non_negative=(COUNT,))

    def settings(self) -> Record:
        """λ, S and the words."""
        limits = {"clip": limit_to_json(float(self.clip)), "norm": limit_to_json(float(self.norm))}
        return Record(limits, {"words": vocabulary_to_bytes(self.vocabulary)})

    @classmethod
    def from_settings(cls, settings: Record) -> "UnigramTask":
        """The task with these settings."""
        words, f = vocabulary_from_bytes(settings.arrays["words"]), settings.fields
        return cls(words, clip=float(limit_from_json(f["clip"])), norm=float(limit_from_json(f["norm"])))

    def encode(self, words: Sequence[str]) -> IntArray:
        """The ids of words, ignoring capitals."""
        return np.array(self.vocabulary.encode([uncase(word) for word in words]), np.int32)

    def init(self) -> UnigramState:
        """Nothing collected yet."""
        return UnigramState(())

    def broadcast(self, state: UnigramState) -> Record:  # noqa: ARG002
        """Nothing: devices need only the job."""
        return Record()

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:  # noqa: ARG002
        """A device's clipped counts, whose sum is at most λ, and their norm at most S."""
        index, C = _count_runs(np.sort(data.sentences.values), len(SPECIAL))
        w = 1.0 if np.isinf(self.clip) else self.clip / max(self.clip, C.sum())
        w = w if np.isinf(self.norm) else min(w, self.norm / max(self.norm, float(np.linalg.norm(C))))
        return Update(self.size, {COUNT: index}, {COUNT: w * C}, weight=1.0)

    def server_update(self, state: UnigramState, total: Total) -> UnigramState:
        """Append the sums of the round."""
        seen = np.flatnonzero(total.arrays[COUNT])
        return UnigramState((*state.rounds, RoundCounts(seen, total.array(COUNT)[seen], total.devices)))

    def save(self, state: UnigramState) -> Record:
        """All rounds, concatenated."""
        rounds = state.rounds
        ends = np.cumsum([0, *(len(part.index) for part in rounds)], dtype=np.int64)
        index = np.concatenate([np.zeros(0, np.int64), *(part.index for part in rounds)])
        weight = np.concatenate([np.zeros(0), *(part.weight for part in rounds)])
        devices = np.array([part.devices for part in rounds], np.int64)
        return Record({}, {"ends": ends, "index": index, "weight": weight, "devices": devices})

    def load(self, saved: Record) -> UnigramState:
        """The rounds that were saved."""
        a = saved.arrays
        pairs = zip(a["ends"][:-1].tolist(), a["ends"][1:].tolist(), a["devices"].tolist(), strict=True)
        return UnigramState(tuple(RoundCounts(a["index"][i:j], a["weight"][i:j], n) for i, j, n in pairs))

    def counts(self, state: UnigramState) -> UnigramCounts:
        """U over all rounds."""
        weight = np.zeros(len(self.vocabulary))
        for part in state.rounds:
            weight[part.index] += part.weight
        devices = sum(part.devices for part in state.rounds)
        return UnigramCounts(self.vocabulary, weight, devices, len(state.rounds), self.clip)
