"""A whole training run: the round loop with a dev curve, early stopping and the best weights on dev users.

The network that training starts from is scored too and competes for the best: a run that never gets better than its
start has failed, and says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record
from fedgram.federated.fleet import Fleet, RoundSum, Tally
from fedgram.federated.job import Job
from fedgram.federated.rounds import GaveUp, RunOptions, Tell, run_rounds
from fedgram.federated.validation import Reason
from fedgram.neural.network import WeightArrays, as_tensors
from fedgram.neural.ranks import Ranks
from fedgram.neural.scoring import ScoredText, Scores, score
from fedgram.training.fedavg_task import FedAvgState, FederatedAveraging

_REMEDY = "lower the clients' or the server's learning rate, or the limit on an update's norm"
_SHOWN = ("sll", "sll_e", "perplexity", "top1", "top3")


class Diverged(FedgramError):
    """Training diverged, or never improved on its start."""


@dataclass(frozen=True, slots=True)
class Following:
    """How often to score on dev users, and after how many scores without progress to stop."""

    evaluate_every: int = 10
    patience: int | None = None

    def __post_init__(self) -> None:
        if self.evaluate_every < 1 or (self.patience is not None and self.patience < 1):
            raise FedgramError("the rounds between evaluations and the patience must be at least 1")


@dataclass(frozen=True, slots=True)
class Moment:
    """One round, as it is shown while a run goes on."""

    round: int
    loss: float
    tokens_per_second: float
    scores: Scores | None


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """The best weights by dev SLL^e, and the story of the run."""

    weights: WeightArrays
    story: Mapping[str, Any]


class TrainingWatch:
    """Follows a training on dev users; without any, the last weights are the best."""

    def __init__(
        self, task: FederatedAveraging, dev: ScoredText | None, following: Following, rounds: int, *,
        ranks: Ranks | None = None, on_round: Callable[[Moment], object] = lambda _: None,
    ) -> None:  # fmt: skip
        self._task, self._dev, self._following, self._rounds = task, dev, following, rounds
        self._ranks, self._on_round = ranks or Ranks(), on_round
        self._pieces = task.coding is not None and task.coding.pieces is not None
        self.best: Mapping[str, Any] = task.start
        self.story: dict[str, Any] = {"best_round": 0, "loss": [], "dev": [], "targets": 0}

    def begin(self, state: FedAvgState) -> None:
        """Score the weights to start from."""
        if self._dev is not None:
            self.story["before"] = self._point(0, self._scores(state))
            self.story["best_sll_e"] = self.story["before"]["sll_e"]

    def is_over(self, state: FedAvgState) -> bool:  # noqa: ARG002
        """Whether the dev users saw no progress for too long."""
        since = sum(point["round"] > self.story["best_round"] for point in self.story["dev"])
        return self._following.patience is not None and since >= self._following.patience

    def after_round(self, state: FedAvgState, number: int, found: RoundSum, seconds: float) -> None:
        """Take note of the loss, and score the model if it is time to."""
        if not isfinite(state.loss) and state.targets:
            raise Diverged(f"the training diverged: its loss in round {number} is not finite; {_REMEDY}")
        if not state.targets and _has_diverged(found.tally):  # all devices that were counted have no words
            raise Diverged(f"the training diverged: no update of round {number} could be used; {_REMEDY}")
        self.story["loss"] = [*self.story["loss"], None if np.isnan(state.loss) else state.loss]
        self.story["targets"] += state.targets
        scores = None
        if self._dev is None:
            self.best, self.story["best_round"] = state.model.weights, number
        elif number % self._following.evaluate_every == 0 or number == self._rounds:
            scores = self._scores(state)
            self.story["dev"] = [*self.story["dev"], self._point(number, scores)]
            if scores.sll_e > self.story["best_sll_e"]:
                self.best, self.story["best_sll_e"] = state.model.weights, scores.sll_e
                self.story["best_round"] = number
        self._on_round(Moment(number, state.loss, state.targets / max(seconds, 1e-9), scores))

    def _scores(self, state: FedAvgState) -> Scores:
        """Dev scores; rank 0 computes them for all, so that all agree on the best and on when to stop."""
        assert self._dev is not None
        numbers = [0.0] * 5
        if self._ranks.rank == 0:
            weights = as_tensors(state.model.weights, self._task.torch_device)
            s = score(self._task.shape, weights, self._dev, pieces=self._pieces)
            numbers = [s.sll, s.sll_e, s.perplexity, s.top1 or 0.0, s.top3 or 0.0]
        sll, sll_e, perplexity, top1, top3 = self._ranks.same(numbers)
        if not isfinite(sll_e):
            raise Diverged(f"the training diverged: the dev scores of round {state.round} are not finite; {_REMEDY}")
        size = len(self._dev.sentences), self._dev.words
        return Scores(sll, sll_e, perplexity, None if self._pieces else top1, None if self._pieces else top3, *size)

    @staticmethod
    def _point(number: int, scores: Scores) -> dict[str, Any]:
        return {"round": number, **{name: getattr(scores, name) for name in _SHOWN}}

    def save(self) -> Record:
        """The story and the best weights."""
        return Record({"story": self.story}, {name: np.asarray(w) for name, w in self.best.items()})

    def load(self, saved: Record) -> None:
        """Go on from a story."""
        self.story, self.best = dict(saved.fields["story"]), saved.arrays

    def check_progress(self) -> None:
        """Refuse a training that ended no better than it began."""
        if self._dev is not None and self.story["best_round"] == 0:
            last = self.story["dev"][-1]["sll_e"] if self.story["dev"] else float("nan")
            scores = f"dev SLL^e {self.story['best_sll_e']:.3f} before the first round, {last:.3f} after the last"
            raise Diverged(f"no round is better than the start ({scores}); {_REMEDY}")


def _has_diverged(tally: Tally) -> bool:
    """Whether devices' updates were refused as training that diverges makes them."""
    return any(tally.refused[str(reason)] for reason in (Reason.NOT_FINITE, Reason.TOO_LARGE))


def train(
    job: Job[FedAvgState], fleet: Fleet, options: RunOptions, *, dev: ScoredText | None = None,
    following: Following | None = None, ranks: Ranks | None = None, folder: Path | None = None, resume: bool = False,
    belongs_to: Mapping[str, Any] | None = None, on_round: Callable[[Moment], object] = lambda _: None,
    tell: Tell = lambda *_: None,
) -> RunResult:  # fmt: skip
    """Train on a fleet, from the beginning or from the newest checkpoint in the folder.

    `belongs_to` says what else a checkpoint must agree with to be resumed.
    """
    task, ranks, following = job.task, ranks or Ranks(), following or Following()
    assert isinstance(task, FederatedAveraging)
    assert options.rounds is not None
    watch = TrainingWatch(task, dev, following, options.rounds, ranks=ranks, on_round=on_round)
    try:
        run = run_rounds(
            job, fleet, options, watch=watch, folder=folder, resume=resume, lead=ranks.rank == 0, tell=tell,
            belongs_to={"rounds": options.rounds, "evaluate_every": following.evaluate_every,
                        "dev_words": dev.words if dev else 0, **(belongs_to or {})},
        )  # fmt: skip
    except GaveUp as why:
        if _has_diverged(why.tally):
            raise Diverged(f"the training diverged: {why}; {_REMEDY}") from None
        raise
    watch.check_progress()
    progress = run.progress
    tally = {**progress.tally.fields(), "abandoned": progress.abandoned, "participations": progress.most}
    return RunResult(watch.best, {**watch.story, **tally})
