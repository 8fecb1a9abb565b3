"""A whole training run: the dev curve, early stopping, the best round, and what interruptions change: nothing."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.training.test_fedavg_engine import LETTERS, REMEDY, WORDS, a_task, people

from fedgram.core.checkpoint import OtherWorkError
from fedgram.core.errors import FedgramError
from fedgram.federated.averaging import ServerStep
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Job
from fedgram.federated.rounds import Checkpointing, RunOptions
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.task import Total
from fedgram.neural.local_training import LocalTraining
from fedgram.neural.network import Coding, WeightArrays
from fedgram.neural.scoring import ScoredText, Scores, text_to_score
from fedgram.text.population import Population, Users, population_from_messages
from fedgram.training import fedavg_run as training
from fedgram.training.fedavg_run import DevSchedule, DivergedError, RoundProgress, TrainingResult, train
from fedgram.training.fedavg_task import FedAvgState, FederatedAveraging
from fedgram.training.plan import Schedule


def talkers(users: int, silent: int = 0) -> Population:
    """Users with enough sentences for several batches, and some without any."""
    words = [" ".join(LETTERS[k % 3 : k % 3 + 6]) for k in range(8)]
    messages = [(f"u{k}", text, "train") for k in range(users) for text in (words if k >= silent else ["!!"])]
    return population_from_messages(messages)


def follow(
    task: FederatedAveraging, *, rounds: int = 6, dev: bool = True, dev_schedule: DevSchedule | None = None,
    population: Population | None = None, folder: Path | None = None,
    on_state: Callable[[FedAvgState], object] = lambda _: None, **options: Any,
) -> TrainingResult:  # fmt: skip
    """A training with two dev users, on whom every round is scored unless told; `on_state` gets every round's state."""

    class Watched(FederatedAveraging):
        def server_update(self, state: FedAvgState, total: Total) -> FedAvgState:
            after = FederatedAveraging.server_update(self, state, total)
            on_state(after)
            return after

    watched: FederatedAveraging = Watched(task.shape, task.start, task.plan, task.coding)
    users, coding = population or people(6, 8), Coding(WORDS, WORDS)
    text: ScoredText | None = text_to_score(coding, users, np.array([2, 3])) if dev else None
    job: Job[FedAvgState] = Job(watched, 5)
    fleet = SimulatedFleet(job, Users(users, users.clients()[users.clients() != 1]), dropout=0.1)
    return train(
        job,
        fleet,
        RunOptions(rounds, RoundPlan(4, 1.3)),
        dev=text,
        dev_schedule=dev_schedule or DevSchedule(1),
        checkpoints=Checkpointing(folder) if folder else None,
        **options,
    )


def same_weights(one: WeightArrays, other: WeightArrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(w, other[name]) for name, w in one.items())


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets the dev users score what a test says, one after the other; the start comes first."""

    def script(*sll_e: float) -> None:
        """SLL falls where SLL^e rises, so that a choice by SLL is another one."""
        values: Iterator[float] = iter(sll_e)

        def score(*_: Any, **__: Any) -> Scores:
            value = next(values)
            return Scores(-20.0 - value, value, 2.0, 1.0, 1.0, 1, 1)

        monkeypatch.setattr(training, "score", score)

    return script


def test_training_gets_better_than_its_start() -> None:
    moments: list[RoundProgress] = []
    result = follow(a_task(), rounds=8, on_round=moments.append)
    history = result.history
    assert history["best_sll_e"] == max(point["sll_e"] for point in history["dev"]) > history["before"]["sll_e"]
    assert [point["round"] for point in history["dev"]] == list(range(1, 9))
    assert [moment.round for moment in moments] == list(range(1, 9))
    assert moments[history["best_round"] - 1].scores is not None
    assert [moment.loss for moment in moments] == history["loss"]
    assert (history["reports"], history["refused"], history["abandoned"]) == (32, {}, 0)
    assert 32 / 7 <= history["participations"] <= 8
    shorter = follow(a_task(), rounds=history["best_round"], dev=False)
    assert same_weights(result.weights, shorter.weights)


@pytest.mark.parametrize(("every", "patience", "stopped"), [(1, 1, 4), (1, 2, 5), (1, 3, 6), (2, 2, 10), (2, 3, 12)])
def test_patience_ends_after_so_many_scores_without_progress(
    every: int, patience: int, stopped: int, scripted: Callable[..., None]
) -> None:
    """The third score is the best; to be as good again is no progress."""
    scripted(-9.0, -8.0, -7.5, -7.0, -7.0, -7.2, -7.1, -6.0)
    result = follow(a_task(), rounds=20, dev_schedule=DevSchedule(every, patience))
    assert (result.history["best_round"], result.history["best_sll_e"]) == (3 * every, -7.0)
    assert len(result.history["loss"]) == stopped
    assert result.history["dev"][-1]["round"] == stopped
    assert same_weights(result.weights, follow(a_task(), rounds=3 * every, dev=False).weights)


def test_patience_begins_with_the_start(scripted: Callable[..., None]) -> None:
    """Before any progress the scores since the start count; progress in the last one in time goes on."""
    rounds: list[int] = []
    scripted(-5.0, -6.0, -6.0, -4.0)
    with pytest.raises(DivergedError, match="no round is better than the start"):
        follow(a_task(), dev_schedule=DevSchedule(1, 2), on_round=lambda m: rounds.append(m.round))
    assert rounds == [1, 2]
    scripted(-5.0, -6.0, -4.0, -6.0, -6.0)
    assert len(follow(a_task(), dev_schedule=DevSchedule(1, 2)).history["loss"]) == 4


def test_progress_that_returns_in_time_goes_on(scripted: Callable[..., None]) -> None:
    scripted(-9.0, -8.0, -8.5, -7.0, -7.5, -6.0, -6.5)
    result = follow(a_task(), dev_schedule=DevSchedule(1, 2))
    assert (len(result.history["loss"]), result.history["best_round"]) == (6, 5)


def test_the_average_of_the_weights_is_exponential_and_leaves_the_start_out() -> None:
    """After the first rounds it is their mean; later ones count by the decay."""
    task = a_task(average=0.6)
    states = [task.init()]
    follow(task, rounds=4, on_state=states.append)
    weights = [state.model.weights["embedding"].astype(np.float64) for state in states[1:]]
    mean = (weights[0] + weights[1]) / 2
    third = 0.6 * mean + 0.4 * weights[2]
    for state, expected in zip(states[1:], (weights[0], mean, third, 0.6 * third + 0.4 * weights[3]), strict=True):
        np.testing.assert_allclose(state.average["embedding"], expected, rtol=1e-5, atol=1e-7)
    restored = task.load(task.save(states[-1]))
    assert same_weights(restored.average, states[-1].average)


def test_of_the_weights_and_their_average_the_better_is_kept(scripted: Callable[..., None]) -> None:
    scripted(-9.0, -8.0, -8.5, -7.0, -6.0, -7.0, -7.0)  # the start, then the weights and the average of each round
    result = follow(a_task(average=0.6), rounds=3)
    assert [point["averaged"] for point in result.history["dev"]] == [False, True, False]
    assert [point["sll_e"] for point in result.history["dev"]] == [-8.0, -6.0, -7.0]
    assert (result.history["best_round"], result.history["best_averaged"]) == (2, True)
    states: list[FedAvgState] = []
    follow(a_task(average=0.6), rounds=2, dev=False, on_state=states.append)
    assert same_weights(result.weights, states[1].average)
    assert not same_weights(result.weights, states[1].model.weights)


@pytest.mark.parametrize("scores", [(-5.0, -6.0, -7.0), (-5.0, -5.0, -5.0)])
def test_the_start_competes(scores: tuple[float, ...], scripted: Callable[..., None]) -> None:
    scripted(*scores)
    expected = rf"\(dev SLL\^e -5.000 before the first round, {scores[-1]:.3f} after the last\); {REMEDY}"
    with pytest.raises(DivergedError, match=expected):
        follow(a_task(), rounds=2)


def test_a_run_that_only_gets_worse_says_so() -> None:
    """A real one: the server's steps are far too long."""
    task = a_task(server=ServerStep("momentum", 300.0, 0.0))
    with pytest.raises(DivergedError, match=f"no round is better than the start .*{REMEDY}"):
        follow(task, rounds=3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("number", [0, 2])
def test_dev_scores_that_are_not_finite_end_the_training(
    value: float, number: int, scripted: Callable[..., None]
) -> None:
    scripted(*[-9.0, -8.0][:number], value)
    with pytest.raises(DivergedError, match=f"dev scores of round {number} are not finite; {REMEDY}"):
        follow(a_task())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_neither_the_weights_nor_their_average_may_have_scores_that_are_not_finite(
    value: float, scripted: Callable[..., None]
) -> None:
    for both in ((value, -8.0), (-8.0, value)):
        scripted(-9.0, *both)
        with pytest.raises(DivergedError, match=f"dev scores of round 1 are not finite; {REMEDY}"):
            follow(a_task(average=0.6))


def test_the_last_round_is_scored_wherever_it_falls(scripted: Callable[..., None]) -> None:
    for rounds, scored in ((1, [1]), (4, [2, 4]), (5, [2, 4, 5])):
        scripted(-9.0, -8.0, -7.0, -6.0)
        result = follow(a_task(), rounds=rounds, dev_schedule=DevSchedule(2))
        assert [point["round"] for point in result.history["dev"]] == scored
        assert result.history["best_round"] == rounds


def test_the_words_of_all_rounds_are_counted() -> None:
    states: list[FedAvgState] = []
    history = follow(a_task(), rounds=3, dev=False, on_state=states.append).history
    targets = [state.targets for state in states]
    assert len(targets) == 3
    assert min(targets) > 0
    assert history["targets"] == sum(targets)


@pytest.mark.parametrize("dev", [False, True])
def test_a_training_whose_devices_all_diverge_says_so(dev: bool) -> None:
    with pytest.raises(DivergedError, match=f"the training diverged: round 1 was abandoned 5 times.*{REMEDY}"):
        follow(a_task(local=LocalTraining(1e30)), dev=dev, population=talkers(8))


def test_devices_without_words_do_not_hide_that_the_others_diverge() -> None:
    for plan in ({"local": LocalTraining(1e30)}, {"local": LocalTraining(1e30), "update_norm": math.inf, "rows": 20}):
        with pytest.raises(DivergedError, match=f"no update of round 1 could be used; {REMEDY}"):
            follow(a_task(**plan), dev=False, population=talkers(6, silent=4))


@pytest.mark.parametrize("dev", [False, True])
@pytest.mark.parametrize("number", [1, 4])
def test_an_interrupted_training_ends_with_the_same_bits(number: int, dev: bool, tmp_path: Path) -> None:
    """With its history, its best weights and its patience; the server's rule remembers two vectors."""
    task = a_task(server=ServerStep("adam", 0.02), client_schedule=Schedule("linear", 7))
    options: dict[str, Any] = {"rounds": 7, "dev": dev, "dev_schedule": DevSchedule(2, 3)}

    def stop(moment: RoundProgress) -> None:
        if moment.round == number:
            raise KeyboardInterrupt

    whole = follow(task, **options)
    with pytest.raises(KeyboardInterrupt):
        follow(task, folder=tmp_path, on_round=stop, **options)
    rounds: list[int] = []
    resumed = follow(task, folder=tmp_path, on_round=lambda m: rounds.append(m.round), **options)
    assert rounds == list(range(number, 8))
    assert same_weights(whole.weights, resumed.weights)
    assert whole.history == resumed.history
    again = follow(task, folder=tmp_path, **options)  # nothing is left to do
    assert same_weights(whole.weights, again.weights)
    assert whole.history == again.history


def test_patience_outlives_an_interruption(scripted: Callable[..., None], tmp_path: Path) -> None:
    task, dev_schedule = a_task(), DevSchedule(1, 3)

    def stop(moment: RoundProgress) -> None:
        if moment.round == 4:
            raise KeyboardInterrupt

    scripted(-9.0, -8.0, -8.5, -8.5, -8.5)
    with pytest.raises(KeyboardInterrupt):
        follow(task, folder=tmp_path, dev_schedule=dev_schedule, on_round=stop)
    scripted(-8.5, -1.0)
    result = follow(task, folder=tmp_path, dev_schedule=dev_schedule)
    assert (len(result.history["loss"]), result.history["best_round"]) == (4, 1)


def test_another_training_is_not_resumed(tmp_path: Path) -> None:
    follow(a_task(), rounds=1, folder=tmp_path)
    others: list[tuple[FederatedAveraging, dict[str, Any], str]] = [
        (a_task(), {"rounds": 2}, "rounds"),
        (a_task(), {"dev_schedule": DevSchedule(3)}, "evaluate_every"),
        (a_task(), {"dev": False}, "dev_words"),
        (a_task(update_norm=0.5), {}, "fedavg.plan"),
        (a_task("lstm"), {}, "fedavg.shape"),
    ]
    for task, options, name in others:
        with pytest.raises(OtherWorkError, match=rf"other settings: (.*, )?{name}[,;]"):
            follow(task, folder=tmp_path, **{"rounds": 1, **options})
    start = {n: w + np.float32(0.1) for n, w in a_task().start.items()}
    other = FederatedAveraging(a_task().shape, start, a_task().plan, Coding(WORDS, WORDS))
    with pytest.raises(OtherWorkError, match="other settings: start;"):
        follow(other, rounds=1, folder=tmp_path)


@pytest.mark.parametrize("options", [{"evaluate_every": 0}, {"patience": 0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(FedgramError, match="at least 1"):
        DevSchedule(**options)
