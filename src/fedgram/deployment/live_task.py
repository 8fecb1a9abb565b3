"""Measuring the installed model on a device, as a federated task: what one arm of an experiment typed in a period.

It is the evaluation of one model (`evaluate/scoring_task.py`), with two differences. The model is not broadcast,
because the devices of the arm have installed it. And a device measures only what was typed since then, and since its
last report (`live_text.py`). Perplexity and SLL are left out: the arms' models have different words, so these figures
would not be comparable. A device also marks whether its messages have no times; all of its text is then measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from fedgram.core.arrays import LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.core.random import Stream
from fedgram.core.storage import Record, limit_from_json, limit_to_json
from fedgram.deployment.releases import is_digest
from fedgram.evaluate.evaluation import MEASURES
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.scoring_task import AMOUNT, COUNT, EXPONENTIAL, UNITS, ScoringTask
from fedgram.federated.task import Total, Update
from fedgram.federated.validation import UpdateBounds
from fedgram.text.population import ClientDataset

UNTIMED, ANY_ARM = "untimed", "any"
COMPARED = ("top1", "top3", "oov_rate", "keystroke_savings")  # figures that do not depend on a model's own words


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """Which devices measure what: those that installed choice `choice` of a rollout, in a period of the experiment."""

    rollout: str
    choice: int
    period: int
    model: str
    cased: bool = False
    clip: float = inf

    def __post_init__(self) -> None:
        if not (is_digest(self.rollout) and is_digest(self.model)):
            raise InvariantError("a live measurement needs the digests of a rollout and of a model")
        if min(self.choice, self.period) < 0 or not self.clip > 0:
            raise InvariantError("choices and periods are numbers from 0, and a clip norm is above 0")


class LiveTask:
    """The measurement of an arm in a period as a `FederatedTask`; its state is the sum so far."""

    name, is_counting, arm = "live", True, ANY_ARM

    def __init__(self, about: LiveSettings) -> None:
        self.about = about
        self._scoring = ScoringTask([(".fgram", about.model)], cased=about.cased, arm="test", clip=about.clip)
        self.bits = self._scoring.bits
        self.size: Mapping[str, int] = {**self._scoring.size, UNTIMED: 1}
        bounds = self._scoring.bounds
        self.bounds = UpdateBounds(
            weight=1.0, norms=bounds.norms, non_negative=(COUNT, UNTIMED), marks=(UNTIMED,)
        )  # fmt: skip

    def settings(self) -> Record:
        """Everything but the model, which the device has."""
        a = self.about
        return Record(
            {"rollout": a.rollout, "choice": a.choice, "period": a.period, "model": a.model, "cased": a.cased,
             "clip": limit_to_json(a.clip)}
        )  # fmt: skip

    @classmethod
    def from_settings(cls, settings: Record) -> "LiveTask":
        """The task with these settings."""
        f = settings.fields
        clip = float(limit_from_json(f["clip"]))
        return cls(
            LiveSettings(str(f["rollout"]), int(f["choice"]), int(f["period"]), str(f["model"]), bool(f["cased"]), clip)
        )

    def encode(self, words: Sequence[str]) -> Ragged:
        """The characters of each word."""
        return self._scoring.encode(words)

    def init(self) -> dict[str, LongArray]:
        """Nothing measured yet."""
        return {name: np.zeros(n, np.int64) for name, n in self.size.items()}

    def broadcast(self, state: Mapping[str, LongArray]) -> Record:  # noqa: ARG002
        """Nothing: the device has the model."""
        return Record()

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:
        """The amounts and counts of a device; `broadcast` has the model, and whether messages have no times."""
        found = self._scoring.client_update(broadcast, data, rng)
        if not found.weight:
            return Update.zero(self.size)
        untimed = np.array([float(bool(broadcast.fields.get(UNTIMED)))])
        return Update.dense({**{name: found.array(name) for name in (AMOUNT, COUNT)}, UNTIMED: untimed}, weight=1.0)

    def server_update(self, state: Mapping[str, LongArray], total: Total) -> dict[str, LongArray]:
        """Add the sums of a round."""
        return {name: state[name] + total.arrays[name] for name in self.size}

    def save(self, state: Mapping[str, LongArray]) -> Record:
        """The sums."""
        return Record({}, dict(state))

    def load(self, saved: Record) -> dict[str, LongArray]:
        """The sums that were saved."""
        return {name: saved.arrays[name] for name in self.size}

    def measures(self, sums: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Measure]:
        """The compared measures, with one entry per sum: a bucket of devices takes the place of a user."""
        found = {}
        for j, name in enumerate(MEASURES):
            if name in COMPARED:
                amount, count = (
                    np.array([float(part[which][j]) for part in sums]) * UNITS[name][side] * 2.0**-self.bits
                    for side, which in enumerate((AMOUNT, COUNT))
                )
                found[name] = Measure(amount, np.maximum(count, 0.0), name in EXPONENTIAL)
        return found

    def __repr__(self) -> str:
        return f"LiveTask(arm {self.about.choice}, period {self.about.period})"
