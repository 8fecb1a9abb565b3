"""A whole training run: the round loop with a dev curve, early stopping and the best weights on dev users.

The network that training starts from is scored too and competes for the best: a run that never gets better than its
start has failed, and says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record
from fedgram.federated.fleet import Fleet, RoundSum, Tally
from fedgram.federated.job import Job
from fedgram.federated.mechanism import Mechanism
from fedgram.federated.rounds import Checkpointing, GaveUpError, RunOptions, Tell, run_rounds
from fedgram.federated.validation import Reason
from fedgram.neural.network import WeightArrays, as_tensors
from fedgram.neural.ranks import Ranks
from fedgram.neural.scoring import ScoredText, Scores, score
from fedgram.training.fedavg_task import FedAvgState, FederatedAveraging

_REMEDY = "lower the clients' or the server's learning rate, or the limit on an update's norm"
_SHOWN = ("sll", "sll_e", "perplexity", "top1", "top3")


class DivergedError(FedgramError):
    """Training diverged, or never improved on its start."""


@dataclass(frozen=True, slots=True)
class DevSchedule:
    """How often to score on dev users, and after how many scores without progress to stop."""

    evaluate_every: int = 10
    patience: int | None = None

    def __post_init__(self) -> None:
        if self.evaluate_every < 1 or (self.patience is not None and self.patience < 1):
            raise FedgramError("the rounds between evaluations and the patience must be at least 1")


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """One round, as it is shown while a run goes on."""

    round: int
    loss: float
    tokens_per_second: float
    scores: Scores | None


@dataclass(frozen=True, slots=True, eq=False)
class TrainingResult:
    """The best weights by dev SLL^e, and the history of the run."""

    weights: WeightArrays
    history: Mapping[str, Any]


DevScorer = Callable[[Sequence[WeightArrays]], Sequence[Scores]]  # scores weights elsewhere, such as on devices


class TrainingWatch:
    """Follows a training on dev users, or on devices of the dev arm; without any, the last weights are the best."""

    def __init__(
        self, task: FederatedAveraging, dev: ScoredText | DevScorer | None, dev_schedule: DevSchedule, rounds: int, *,
        ranks: Ranks | None = None, on_round: Callable[[RoundProgress], object] = lambda _: None,
    ) -> None:  # fmt: skip
        self._task, self._dev, self._following, self._rounds = task, dev, dev_schedule, rounds
        self._ranks, self._on_round = ranks or Ranks(), on_round
        self._pieces = task.coding is not None and task.coding.pieces is not None
        self.best: Mapping[str, Any] = task.start
        self.history: dict[str, Any] = {"best_round": 0, "loss": [], "dev": [], "targets": 0}

    def begin(self, state: FedAvgState) -> None:
        """Score the weights to start from."""
        if self._dev is not None:
            self.history["before"] = self._point(0, self._scores([state.model.weights], 0)[0])
            self.history["best_sll_e"] = self.history["before"]["sll_e"]

    def is_over(self, state: FedAvgState) -> bool:  # noqa: ARG002
        """Whether the dev users saw no progress for too long."""
        since = sum(point["round"] > self.history["best_round"] for point in self.history["dev"])
        return self._following.patience is not None and since >= self._following.patience

    def after_round(self, state: FedAvgState, number: int, found: RoundSum, seconds: float) -> None:
        """Take note of the loss, and score the model if it is time to."""
        if not isfinite(state.loss) and state.targets:
            raise DivergedError(f"the training diverged: its loss in round {number} is not finite; {_REMEDY}")
        if not found.total.weight and _has_diverged(found.tally):  # all devices that were counted have no words
            raise DivergedError(f"the training diverged: no update of round {number} could be used; {_REMEDY}")
        self.history["loss"] = [*self.history["loss"], None if np.isnan(state.loss) else state.loss]
        self.history["targets"] += state.targets
        scores = None
        if self._dev is None:
            self.best, self.history["best_round"] = state.model.weights, number
        elif number % self._following.evaluate_every == 0 or number == self._rounds:
            scores, weights = self._better(state)
            is_average = weights is state.average
            self.history["dev"] = [*self.history["dev"], {**self._point(number, scores), "averaged": is_average}]
            if scores.sll_e > self.history["best_sll_e"]:
                self.best, self.history["best_sll_e"] = weights, scores.sll_e
                self.history["best_round"], self.history["best_averaged"] = number, is_average
        self._on_round(RoundProgress(number, state.loss, state.targets / max(seconds, 1e-9), scores))

    def _better(self, state: FedAvgState) -> tuple[Scores, WeightArrays]:
        """Of the weights and their average, those with the better dev SLL^e."""
        several = [w for w in (state.model.weights, state.average) if w]
        return max(zip(self._scores(several, state.round), several, strict=True), key=lambda pair: pair[0].sll_e)

    def _scores(self, several: Sequence[WeightArrays], number: int) -> Sequence[Scores]:
        assert self._dev is not None
        dev = self._dev
        found = [self._scores_here(w, dev) for w in several] if isinstance(dev, ScoredText) else dev(several)
        if not all(isfinite(scores.sll_e) for scores in found):
            raise DivergedError(f"the training diverged: the dev scores of round {number} are not finite; {_REMEDY}")
        return found

    def _scores_here(self, given: WeightArrays, dev: ScoredText) -> Scores:
        """Dev scores; rank 0 computes them for all, so that all agree on the best and on when to stop."""
        numbers = [0.0] * 5
        if self._ranks.rank == 0:
            weights = as_tensors(given, self._task.torch_device)
            s = score(self._task.shape, weights, dev, pieces=self._pieces)
            numbers = [s.sll, s.sll_e, s.perplexity, s.top1 or 0.0, s.top3 or 0.0]
        sll, sll_e, perplexity, top1, top3 = self._ranks.same(numbers)
        size = len(dev.sentences), dev.words
        return Scores(sll, sll_e, perplexity, None if self._pieces else top1, None if self._pieces else top3, *size)

    @staticmethod
    def _point(number: int, scores: Scores) -> dict[str, Any]:
        return {"round": number, **{name: getattr(scores, name) for name in _SHOWN}}

    def save(self) -> Record:
        """The history and the best weights."""
        return Record({"history": self.history}, {name: np.asarray(w) for name, w in self.best.items()})

    def load(self, saved: Record) -> None:
        """Go on from a history."""
        self.history, self.best = dict(saved.fields["history"]), saved.arrays

    def check_progress(self) -> None:
        """Refuse a training that ended no better than it began."""
        if self._dev is not None and self.history["best_round"] == 0:
            last = self.history["dev"][-1]["sll_e"] if self.history["dev"] else float("nan")
            scores = f"dev SLL^e {self.history['best_sll_e']:.3f} before the first round, {last:.3f} after the last"
            raise DivergedError(f"no round is better than the start ({scores}); {_REMEDY}")


def _has_diverged(tally: Tally) -> bool:
    """Whether devices' updates were refused as training that diverges makes them."""
    return any(tally.refused[str(reason)] for reason in (Reason.NOT_FINITE, Reason.TOO_LARGE))


def train(
    job: Job[FedAvgState], fleet: Fleet, options: RunOptions, *, dev: ScoredText | DevScorer | None = None,
    dev_schedule: DevSchedule | None = None, ranks: Ranks | None = None, checkpoints: Checkpointing | None = None,
    on_round: Callable[[RoundProgress], object] = lambda _: None, tell: Tell = lambda *_: None,
    mechanism: Mechanism | None = None,
) -> TrainingResult:  # fmt: skip
    """Train on a fleet, from the start or from the newest checkpoint."""
    task, ranks, dev_schedule = job.task, ranks or Ranks(), dev_schedule or DevSchedule()
    assert isinstance(task, FederatedAveraging)
    assert options.rounds is not None
    watch = TrainingWatch(task, dev, dev_schedule, options.rounds, ranks=ranks, on_round=on_round)
    if checkpoints is not None:
        about = {"rounds": options.rounds, "evaluate_every": dev_schedule.evaluate_every}
        about |= {"dev_words": dev.words if isinstance(dev, ScoredText) else 0, **checkpoints.belongs_to}
        checkpoints = replace(checkpoints, belongs_to=about, lead=ranks.rank == 0)
    try:
        run = run_rounds(job, fleet, options, checkpoints=checkpoints, watch=watch, mechanism=mechanism, tell=tell)
    except GaveUpError as why:
        if _has_diverged(why.tally):
            raise DivergedError(f"the training diverged: {why}; {_REMEDY}") from None
        raise
    watch.check_progress()
    progress = run.progress
    tally = {**progress.tally.fields(), "abandoned": progress.abandoned, "participations": progress.most}
    return TrainingResult(watch.best, {**watch.history, **tally})
