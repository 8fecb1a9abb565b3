"""Evaluation as a federated task: a device scores models on its own text, and sends sums.

For each model and measure a device sends an amount and a count, such as words predicted and words typed: what
`Measure` holds for one user. The devices of a round are a bucket of the jackknife, so the server learns one sum per
bucket and nothing about parts of it. Under masking no bucket is smaller than the masking minimum, because no sum is:
every device refuses to unmask a smaller one. A device takes part in one round, so it is in one bucket.

The numbers are in units of about one per word (`UNITS`), all powers of 2. In fixed point they are exact. A device
whose numbers have an L2 norm of more than `clip` per model scales all of them down to it, so its ratios stay the same.
The norm bounds what one device can do to a figure, and it is the sensitivity that noise is measured for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log2, sqrt
from typing import Any, NamedTuple

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray, Ragged
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.random import Stream
from fedgram.core.storage import Record, limit_from_json, limit_to_json
from fedgram.evaluate.comparison import shared_words
from fedgram.evaluate.evaluation import MEASURES, Evaluation, measurer
from fedgram.evaluate.likelihood import GRID
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.models import as_scorer, vocabulary_of
from fedgram.evaluate.piece_scorer import PieceScorer
from fedgram.evaluate.predictor import Predictor
from fedgram.evaluate.sent_model import SentModel
from fedgram.federated.batched_task import Member
from fedgram.federated.intake import Intake
from fedgram.federated.task import Total, Update
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.text.messages import SPLITS
from fedgram.text.population import ClientDataset, Population

AMOUNT, COUNT = "amount", "count"
MAX_MODELS = 32
EXPONENTIAL = frozenset({"perplexity"})
_NATS, _TAPS = 8.0, 8.0
UNITS = {
    "top1": (1.0, 1.0), "top3": (1.0, 1.0), "oov_rate": (1.0, 1.0), "perplexity": (_NATS, 1.0), "sll": (_NATS, 1.0),
    "sll_e": (_NATS, 1.0), "keystroke_savings": (_TAPS, _TAPS),
}  # fmt: skip
FRACTION_BITS = round(log2(_NATS / GRID))
_BATCH_WORDS = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class ScoringState:
    """The server's state: the sums of each round in fixed point, by vector."""

    rounds: tuple[Mapping[str, LongArray], ...] = ()


class Scorers(NamedTuple):
    """The models of a job, ready to judge text, and 𝒱."""

    models: tuple[Predictor | PieceScorer, ...]
    shared: frozenset[str]


class ScoringTask:
    """The evaluation of some models as a `FederatedTask`, on devices of one `arm`.

    Its settings have the digests of the models, which are broadcast: only devices that take part download them. The
    same models with another clip norm are the same question: a device does not answer it again, because two sums of
    the same figures that differ by one device would be that device's figures.
    """

    name, is_counting, bits = "evaluation", True, FRACTION_BITS
    adaptive = ("clip",)

    def __init__(
        self, about: Sequence[tuple[str, str]], *, cased: bool, arm: str, clip: float = inf,
        models: Sequence[SentModel] = (),
    ) -> None:  # fmt: skip
        """The task of models with these suffixes and digests; the server also has the `models`."""
        if not 1 <= len(about) <= MAX_MODELS or arm not in SPLITS or not clip > 0:
            raise InvariantError(f"an evaluation needs 1 to {MAX_MODELS} models, an arm, and a clip norm above 0")
        self.about, self.cased, self.arm, self.clip = tuple(about), cased, arm, clip
        self._models, self._scorers = tuple(models), None
        self.size = sizes(len(self.about))
        self.bounds = UpdateBounds(
            weight=1.0, norms=() if clip == inf else (NormLimit((AMOUNT, COUNT), self.norm),), non_negative=(COUNT,)
        )  # fmt: skip

    _scorers: Scorers | None

    @classmethod
    def of(cls, models: Sequence[SentModel], *, cased: bool, arm: str, clip: float = inf) -> "ScoringTask":
        """The task of the server, which has the models."""
        about = [(model.suffix, model.digest) for model in models]
        return cls(about, cased=cased, arm=arm, clip=clip, models=models)

    @property
    def norm(self) -> float:
        """The L2 norm of a device's numbers, at most; inf means no limit."""
        return norm_limit(len(self.about), self.clip)

    def settings(self) -> Record:
        """The suffix and the digest of each model, and how they are measured."""
        return Record(
            {"models": [list(each) for each in self.about], "cased": self.cased, "arm": self.arm,
             "clip": limit_to_json(self.clip)}
        )  # fmt: skip

    @classmethod
    def from_settings(cls, settings: Record) -> "ScoringTask":
        """The task with these settings, without the models."""
        f = settings.fields
        about = [(str(suffix), str(digest)) for suffix, digest in f["models"]]
        return cls(about, cased=bool(f["cased"]), arm=str(f["arm"]), clip=float(limit_from_json(f["clip"])))

    def encode(self, words: Sequence[str]) -> Ragged:
        """The characters of each word, as code points + 1, and 0 for the end of the word."""
        return Ragged.from_rows([[*(ord(character) + 1 for character in word), 0] for word in words])

    def init(self) -> ScoringState:
        """Nothing measured yet."""
        return ScoringState()

    def broadcast(self, state: ScoringState) -> Record:  # noqa: ARG002
        """The models."""
        return Record({}, {f"model{i}": np.frombuffer(m.content, np.uint8) for i, m in enumerate(self._models)})

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:  # noqa: ARG002
        """A device's amounts and counts."""
        return self._updates(self.scorers(broadcast), [data])[0]

    def batches(self, members: Sequence[Member]) -> Sequence[Sequence[Member]]:
        """Devices that are measured together."""
        ends = np.cumsum([len(member.data.sentences.values) for member in members])
        part = ends // (8 * _BATCH_WORDS)  # a word has about 5 characters, and the mark of its end
        return [[member for member, p in zip(members, part, strict=True) if p == number] for number in np.unique(part)]

    def client_updates(self, broadcast: Record, batches: Sequence[Sequence[Member]], intake: Intake) -> None:
        """The updates of many devices, the same as one by one."""
        for batch in batches:
            updates = self._updates(self.scorers(broadcast), [member.data for member in batch])
            for member, update in zip(batch, updates, strict=True):
                intake.offer(member.device, update)

    def server_update(self, state: ScoringState, total: Total) -> ScoringState:
        """Append the sums of the round."""
        return ScoringState((*state.rounds, {name: total.arrays[name] for name in self.size}))

    def save(self, state: ScoringState) -> Record:
        """The sums of all rounds, one row each."""
        rows = {name: [part[name] for part in state.rounds] for name in self.size}
        return Record({}, {name: np.array(r, np.int64).reshape(-1, self.size[name]) for name, r in rows.items()})

    def load(self, saved: Record) -> ScoringState:
        """The sums that were saved."""
        count = len(saved.arrays[COUNT])
        return ScoringState(tuple({name: saved.arrays[name][i] for name in self.size} for i in range(count)))

    def scorers(self, broadcast: Record) -> Scorers:
        """The models of a broadcast, which must be those of the settings; they are read once."""
        if self._scorers is None:
            models = [_received(broadcast, i, suffix, digest) for i, (suffix, digest) in enumerate(self.about)]
            loaded = [model.load() for model in models]
            shared = shared_words(map(vocabulary_of, loaded), cased=self.cased)
            self._scorers = Scorers(tuple(as_scorer(model, cased=self.cased) for model in loaded), shared)
        return self._scorers

    def _updates(self, scorers: Scorers, datasets: Sequence[ClientDataset]) -> list[Update]:
        own = typed_population(datasets)
        if not len(own.token):
            return [Update.zero(self.size) for _ in datasets]
        amount, count = (np.zeros((len(datasets), self.size[name])) for name in (AMOUNT, COUNT))
        for i, model in enumerate(scorers.models):
            measures, outside = measurer(model, own, scorers.shared)(own.clients())
            for j, (name, measure) in enumerate(measures.items(), i * len(MEASURES)):
                amount[:, j], count[:, j] = measure.amount / UNITS[name][0], measure.count / UNITS[name][1]
            count[:, -1] = outside
        return [self._clipped(amount[row], count[row]) for row in range(len(datasets))]

    def _clipped(self, amount: FloatArray, count: FloatArray) -> Update:
        if not count.any():
            return Update.zero(self.size)
        norm = sqrt(float(np.dot(amount, amount) + np.dot(count, count)))
        scale = 1.0 if norm <= self.norm else self.norm / norm
        return Update.dense({AMOUNT: amount * scale, COUNT: count * scale}, weight=1.0)

    def evaluations(self, state: ScoringState) -> list[Evaluation]:
        """The evaluation of each model by round: where `Evaluation` has users, these have rounds."""
        rounds, k = len(state.rounds), len(MEASURES)
        ids = tuple(f"round {number}" for number in range(1, rounds + 1))
        rows = self.save(state).arrays
        amount, count = (np.ldexp(rows[name].astype(np.float64), -self.bits) for name in (AMOUNT, COUNT))
        count = np.maximum(count, 0.0)  # noise may make a small count negative
        found = []
        for i in range(len(self.about)):
            measures = {
                name: Measure(amount[:, j] * UNITS[name][0], count[:, j] * UNITS[name][1], name in EXPONENTIAL)
                for j, name in enumerate(MEASURES, i * k)
            }
            found.append(Evaluation(ids, measures, round(float(count[:, -1].sum()))))
        return found

    def __repr__(self) -> str:
        return f"ScoringTask({len(self.about)} models, {self.arm})"


def sizes(models: int) -> Mapping[str, int]:
    """The length of each vector; the last count is that of typed words outside 𝒱."""
    return {AMOUNT: models * len(MEASURES), COUNT: models * len(MEASURES) + 1}


def norm_limit(models: int, clip: float) -> float:
    """The L2 norm of all numbers of a device, at most, from that per model."""
    return clip * sqrt(models)


def typed_population(datasets: Sequence[ClientDataset]) -> Population:
    """What devices typed, from the codes of `ScoringTask.encode`: user i is device i."""
    codes = Ragged.concatenate([data.sentences for data in datasets])
    ends = np.flatnonzero(codes.values == 0)
    text = np.maximum(codes.values - 1, 0).astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
    typed = [text[begin:end] for begin, end in zip([0, *(ends[:-1] + 1).tolist()], ends.tolist(), strict=False)]
    index: dict[str, int] = {}
    token = np.array([index.setdefault(word, len(index)) for word in typed], np.int32)
    first_sentence = np.cumsum([0, *(len(data.sentences) for data in datasets)], dtype=np.int64)
    first_token = np.searchsorted(ends, codes.offsets).astype(np.int64)
    ids = tuple(f"{i:09d}" for i in range(len(datasets)))
    return Population(ids, np.zeros(len(ids), np.uint8), first_sentence, first_token, token, tuple(index))


def _received(broadcast: Record, number: int, suffix: str, digest: str) -> SentModel:
    content: Any = broadcast.arrays.get(f"model{number}")
    if content is None or content.dtype != np.uint8:
        raise FedgramError("a model is missing from the broadcast")
    model = SentModel(suffix, content.tobytes())
    if model.digest != digest:
        raise FedgramError("a model of the broadcast is not the one that the job names")
    return model
