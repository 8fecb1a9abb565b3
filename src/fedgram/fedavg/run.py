"""A whole training run: round after round, with a dev curve, early stopping, checkpoints; it ends with the best."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from fedgram.core.errors import FedgramError
from fedgram.fedavg.checkpoint import Checkpoint, read_checkpoint, remove_checkpoints, write_checkpoint
from fedgram.fedavg.engine import Chunk, RoundReport, chunk_size, plan_round, prefetched, train_round
from fedgram.fedavg.task import FedAvgState, FederatedAveraging
from fedgram.federated.cohort import Cohort, CohortPlan, choose_cohort
from fedgram.federated.driver import Devices, Tally, collect_round
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import Total
from fedgram.neural.network import WeightArrays, as_tensors
from fedgram.neural.ranks import Ranks
from fedgram.neural.scoring import ScoredText, Scores, score


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How long to train, how often to look at the dev users, and when to stop for lack of progress."""

    rounds: int
    seed: int = 0
    evaluate_every: int = 10
    patience: int | None = None
    checkpoint_every: int = 1
    secure: SecureSettings | None = None

    def __post_init__(self) -> None:
        if min(self.rounds, self.evaluate_every, self.checkpoint_every) < 1:
            raise FedgramError("rounds, and the rounds between evaluations and checkpoints, must be at least 1")
        if self.patience is not None and self.patience < 1:
            raise FedgramError("the patience must be at least 1 evaluation")


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


Collect = Callable[[FedAvgState, dict[str, Any]], tuple[Total, RoundReport, int]]


def train(
    task: FederatedAveraging, devices: Devices, cohorts: CohortPlan, dev: ScoredText | None, options: RunOptions, *,
    pieces: bool, device: str = "cpu", ranks: Ranks | None = None, folder: Path | None = None,
    settings: Mapping[str, Any] | None = None, resume: bool = False,
    on_round: Callable[[Moment], object] = lambda _: None,
) -> RunResult:  # fmt: skip
    """Train on simulated devices, from the beginning or from the newest checkpoint in the folder."""
    if not len(devices.clients):
        raise FedgramError("the population has no clients to train on; check the split")
    place, ranks = torch.device(device), ranks or Ranks()
    if options.secure is not None and (ranks.size > 1 or place.type != "cpu"):
        raise FedgramError("secure aggregation is simulated by one process on the CPU; use --workers 1 --device cpu")
    plans: Iterator[tuple[Cohort, list[Chunk], RoundReport]] | None = None

    def collect(state: FedAvgState, story: dict[str, Any]) -> tuple[Total, RoundReport, int]:
        nonlocal plans
        plans = plans or prefetched(_plans(task, devices, cohorts, options, state.round, place))
        cohort, chunks, report = next(plans)
        if options.secure is None:
            total, refused = train_round(task, state, chunks, device=place, ranks=ranks)
        else:
            total, refused = _train_securely(task, state, devices, cohort, options, story)
        return total, report, refused

    return follow(
        task, collect, dev, options, pieces=pieces, device=device, ranks=ranks, folder=folder, settings=settings,
        resume=resume, on_round=on_round,
    )  # fmt: skip


def follow(
    task: FederatedAveraging, collect: Collect, dev: ScoredText | None, options: RunOptions, *,
    pieces: bool, device: str = "cpu", ranks: Ranks | None = None, folder: Path | None = None,
    settings: Mapping[str, Any] | None = None, resume: bool = False,
    on_round: Callable[[Moment], object] = lambda _: None,
) -> RunResult:  # fmt: skip
    """Train on whatever devices `collect` asks; it returns the sum of a round, what is known of it, and the refused.

    It may add to the story of the run.
    """
    place, ranks = torch.device(device), ranks or Ranks()
    if folder is not None and not resume and ranks.rank == 0:
        remove_checkpoints(folder)
    found = read_checkpoint(folder, settings or {}) if folder is not None and resume else None
    state, best = (found.state, found.best) if found else (task.init(), dict(task.start))
    story: dict[str, Any] = dict(found.story) if found else _new_story()
    last = _is_over(story, options)
    while not last:
        began = perf_counter()
        total, report, refused = collect(state, story)
        state = task.server_update(state, total)
        seconds = perf_counter() - began
        scores = None
        if dev is not None and (state.round % options.evaluate_every == 0 or state.round == options.rounds):
            scores = _evaluate(task, state, dev, pieces, place, ranks)
            if scores.sll_e > story["best_sll_e"]:
                best, story["best_sll_e"], story["best_round"] = state.model.weights, scores.sll_e, state.round
        elif dev is None:
            best, story["best_round"] = state.model.weights, state.round
        _tell(story, state, report, refused, scores)
        last = _is_over(story, options)
        if folder is not None and ranks.rank == 0 and (last or state.round % options.checkpoint_every == 0):
            write_checkpoint(folder, Checkpoint(state, best, story), settings or {})
        on_round(Moment(state.round, state.loss, report.targets / seconds, scores))
    return RunResult(best, story)


def _train_securely(
    task: FederatedAveraging, state: FedAvgState, devices: Devices, cohort: Cohort, options: RunOptions,
    story: dict[str, Any],
) -> tuple[Total, int]:  # fmt: skip
    """The same sum, device by device, each update masked; an abandoned round leaves the model as it is."""
    tally = Tally()
    total = collect_round(
        task, state, devices, cohort, seed=options.seed, round_number=state.round + 1, secure=options.secure,
        tally=tally,
    )  # fmt: skip
    story["abandoned"] = [*story.get("abandoned", []), *tally.abandoned]
    for name, amount in (("bytes_up", tally.traffic.up), ("bytes_down", tally.traffic.down)):
        story[name] = story.get(name, 0) + amount
    return total, tally.refused.total()


def _plans(
    task: FederatedAveraging, devices: Devices, cohorts: CohortPlan, options: RunOptions, done: int,
    device: torch.device,
) -> Iterator[tuple[Cohort, list[Chunk], RoundReport]]:  # fmt: skip
    size = chunk_size(task, device)
    for number in range(done + 1, options.rounds + 1):
        cohort = choose_cohort(cohorts, devices.clients, seed=options.seed, round_number=number)
        yield cohort, *plan_round(task, devices, cohort, seed=options.seed, round_number=number, chunk=size)


def _evaluate(
    task: FederatedAveraging, state: FedAvgState, dev: ScoredText, pieces: bool, device: torch.device, ranks: Ranks
) -> Scores:
    """Dev scores; rank 0 computes them for all, so that all agree on the best and on when to stop."""
    numbers = [0.0] * 5
    if ranks.rank == 0:
        s = score(task.shape, as_tensors(state.model.weights, device), dev, pieces=pieces)
        numbers = [s.sll, s.sll_e, s.perplexity, s.top1 or 0.0, s.top3 or 0.0]
    sll, sll_e, perplexity, top1, top3 = ranks.same(numbers)
    size = len(dev.sentences), dev.words
    return Scores(sll, sll_e, perplexity, None if pieces else top1, None if pieces else top3, *size)


def _new_story() -> dict[str, Any]:
    return {
        "best_sll_e": -inf, "best_round": 0, "loss": [], "dev": [],
        "reports": 0, "empty": 0, "refused": 0, "targets": 0,
    }  # fmt: skip


def _tell(story: dict[str, Any], state: FedAvgState, report: RoundReport, refused: int, scores: Scores | None) -> None:
    story["loss"] = [*story["loss"], state.loss]
    for name, amount in (
        ("reports", report.reports), ("empty", report.empty), ("refused", refused), ("targets", report.targets)
    ):  # fmt: skip
        story[name] += amount
    if scores is not None:
        story["dev"] = [
            *story["dev"],
            {
                "round": state.round, "sll": scores.sll, "sll_e": scores.sll_e, "perplexity": scores.perplexity,
                "top1": scores.top1, "top3": scores.top3,
            },
        ]  # fmt: skip


def _is_over(story: Mapping[str, Any], options: RunOptions) -> bool:
    """All rounds are done, or the dev users saw no progress for too long."""
    if len(story["loss"]) >= options.rounds:
        return True
    since = sum(point["round"] > story["best_round"] for point in story["dev"])
    return options.patience is not None and since >= options.patience
