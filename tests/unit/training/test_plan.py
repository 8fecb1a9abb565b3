"""The plan of a training by hand: schedules, the sentences of a device, clipping, weights and losses."""

from collections.abc import Mapping
from dataclasses import replace
from math import exp, inf, nan
from typing import Any

import numpy as np
import pytest
from tests.unit.training.test_fedavg_engine import a_task

from fedgram.core.arrays import FloatArray
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.federated.averaging import ServerStep
from fedgram.federated.task import Total, Update
from fedgram.training.fedavg_device import LOSS, TARGETS, UNCLIPPED, clip_factor, unclipped
from fedgram.training.options import FedAvgOptions
from fedgram.training.plan import Schedule, TrainingPlan


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Schedule(), [1.0] * 6),
        (Schedule("constant", 6, warmup=3), [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        (Schedule("linear", 5), [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]),
        (Schedule("linear", 6, warmup=2), [1 / 3, 2 / 3, 1.0, 0.75, 0.5, 0.25]),
        (Schedule("linear", 5, last=0.5), [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]),
        (Schedule("cosine", 4), [1.0, 0.5 + 0.5**0.5 / 2, 0.5, 0.5 - 0.5**0.5 / 2, 0.0, 0.0]),
    ],
)
def test_a_rate_rises_and_falls_round_by_round(schedule: Schedule, factors: list[float]) -> None:
    assert [schedule.factor(number) for number in range(1, 7)] == pytest.approx(factors)


def test_devices_and_server_follow_their_schedules() -> None:
    plan = TrainingPlan(client_schedule=Schedule("linear", 4), server_schedule=Schedule("linear", 4))
    assert plan.local_in(3).learning_rate == pytest.approx(plan.local.learning_rate / 2)
    assert plan.server.scaled(plan.server_schedule.factor(3)).learning_rate == pytest.approx(0.5)


def test_the_server_moves_by_the_mean_change_and_its_rate_in_the_round() -> None:
    """Two devices of weights 1 and 3: the mean is by weight, and the rate of round 2 of 4 is three quarters."""
    server = ServerStep("momentum", 1.0, 0.0)
    task = a_task(server=server, server_schedule=Schedule("linear", 4), update_norm=inf, average=0.5)
    sizes = task.shape.sizes()
    first = next(iter(sizes))
    total = Total.zero(task.size, task.bits)
    for weight, change in ((1.0, 0.5), (3.0, 0.1)):
        arrays = {name: np.zeros(n) for name, n in task.size.items()}
        arrays[first][0] = weight * change
        total.add(Update.dense(arrays | {LOSS: np.array([6.0]), TARGETS: np.array([2.0])}, weight), task.bounds)
    start = task.init()
    after = [task.server_update(start, total)]
    after.append(task.server_update(after[0], total))
    moved = [(state.model.weights[first].reshape(-1) - task.start[first].reshape(-1))[0] for state in after]
    assert moved == pytest.approx([0.2, 0.2 + 0.75 * 0.2], rel=1e-5)
    assert (after[0].loss, after[0].targets, after[0].devices) == (3.0, 4, 2)
    averages = [(state.average[first].reshape(-1) - task.start[first].reshape(-1))[0] for state in after]
    assert averages == pytest.approx([moved[0], (moved[0] + moved[1]) / 2], rel=1e-5)  # the start does not count
    nobody = task.server_update(after[1], Total.zero(task.size, task.bits))
    assert nobody.model is after[1].model
    restored = task.load(task.save(after[1]))
    assert np.array_equal(restored.average[first], after[1].average[first])


def test_the_limit_follows_the_share_of_devices_within_it() -> None:
    """Log C ← log C − η·(share − γ), with the share limited to what is possible."""
    plan: dict[str, Any] = {"adaptive_clip": True, "weighting": "uniform", "update_norm": 2.0}
    task = a_task(server=ServerStep("momentum", 1.0, 0.0), clip_rate=0.5, clip_target=0.25, **plan)
    first = next(iter(task.shape.sizes()))
    for bits, share in (([0.5, 0.5, -0.5, -0.5], 0.5), ([0.5] * 4, 1.0), ([9.0] * 4, 1.0), ([-9.0] * 4, 0.0)):
        total = Total.zero(task.size, task.bits)
        total.weight, total.devices = 4 << task.bits, 4
        total.arrays[UNCLIPPED][0] = round(sum(bits) * 2**task.bits)
        total.arrays[first][0] = 4 << task.bits
        state = replace(task.init(), clip=8.0)
        after = task.server_update(state, total)
        assert after.clip == pytest.approx(8.0 * exp(-0.5 * (share - 0.25)))
        moved = (after.model.weights[first].reshape(-1) - task.start[first].reshape(-1))[0]
        assert moved == pytest.approx(1.0 * 8.0 / 2.0, rel=1e-5)  # devices sent changes times 2 / 8
        assert task.load(task.save(after)).clip == after.clip


def test_a_device_trains_on_some_of_its_sentences_in_another_order_each_epoch() -> None:
    plan = TrainingPlan(max_sentences=50, epochs=3)
    order = plan.order(80, Stream(1, "client", 1, 1)).reshape(3, 50)
    assert len(set(order[0].tolist())) == 50
    assert len({tuple(epoch.tolist()) for epoch in order}) == 3
    assert all(set(epoch.tolist()) == set(order[0].tolist()) for epoch in order)
    assert sorted(order[0].tolist()) != list(range(50))  # not the first ones
    assert plan.order(80, Stream(1, "client", 2, 1)).tolist() != order.reshape(-1).tolist()
    assert sorted(TrainingPlan(max_sentences=50).order(4, Stream(1, "x")).tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("norm", [inf, 0.5])
def test_a_plan_comes_back_from_its_fields(norm: float) -> None:
    plan = TrainingPlan(update_norm=norm, average=0.5)
    assert TrainingPlan.from_fields(plan.fields()) == plan


@pytest.mark.parametrize(
    ("norm", "limit", "factor"),
    [
        (2.0, 1.0, 0.5),
        (1.0, 1.0, 1.0),
        (0.25, 1.0, 1.0),
        (0.0, 1.0, 1.0),
        (7.0, inf, 1.0),
        (inf, 1.0, 1.0),
        (nan, 1.0, 1.0),
    ],
)
def test_only_a_change_beyond_the_limit_is_shortened(norm: float, limit: float, factor: float) -> None:
    assert clip_factor(norm, limit) == factor


def test_the_bit_says_whether_a_change_is_within_the_limit() -> None:
    assert [unclipped(norm, 1.0) for norm in (0.5, 1.0, 1.0 + 1e-9, inf)] == [0.5, 0.5, -0.5, -0.5]


def update(task: Any, change: Mapping[str, FloatArray], loss: float, weight: float, clip: float) -> Any:
    return task.update_of(change, loss, 7, weight, clip)


def test_an_update_is_the_weighted_change_within_its_limit() -> None:
    task = a_task(update_norm=2.0)
    change = {name: np.zeros(n) for name, n in task.size.items() if name not in (LOSS, TARGETS)}
    first = next(iter(change))
    for length, sent in ((1.0, 3.0), (8.0, 6.0)):  # short ones stay as they are, long ones have length 2
        change[first] = np.zeros(task.size[first])
        change[first][0] = length
        found = update(task, change, 5.0, 3.0, 2.0)
        assert found.values[first][0] == pytest.approx(sent)
        assert (found.weight, found.values[LOSS].tolist(), found.values[TARGETS].tolist()) == (3.0, [5.0], [7.0])


def test_with_an_adapted_limit_updates_have_the_first_one() -> None:
    task = a_task(update_norm=2.0, adaptive_clip=True, weighting="uniform")
    change = {name: np.zeros(n) for name, n in task.size.items() if name not in (LOSS, TARGETS, UNCLIPPED)}
    first = next(iter(change))
    for length, sent, bit in ((1.0, 0.25, 0.5), (16.0, 2.0, -0.5)):  # in a round with the limit 8
        change[first][0] = length
        found = update(task, change, 5.0, 1.0, 8.0)
        assert found.values[first][0] == pytest.approx(sent)
        assert found.values[UNCLIPPED].tolist() == [bit]


def test_a_device_weighs_the_sentences_it_trains_on_or_one() -> None:
    assert [a_task(max_sentences=10).weight(n) for n in (3, 10, 11)] == [3.0, 10.0, 10.0]
    assert a_task(max_sentences=10, weighting="uniform").weight(7) == 1.0


def test_a_huge_loss_is_limited_and_one_that_is_not_finite_is_told() -> None:
    task = a_task(max_sentences=2, length=3, epochs=1)
    limit = 50.0 * 6
    assert [task.reported_loss(loss) for loss in (1.0, limit, limit + 1, inf)] == [1.0, limit, limit, inf]
    assert np.isnan(task.reported_loss(nan))


def test_a_broadcast_must_have_the_round_the_shapes_and_the_limit() -> None:
    task = a_task(update_norm=2.0, adaptive_clip=True, weighting="uniform")
    fine = task.broadcast(task.init())
    assert task.received(fine)[0] == 1
    assert task.clip_in(fine) == 2.0
    name = next(iter(fine.arrays))
    for wrong in ({**fine.arrays, name: fine.arrays[name][:-1]}, {n: a for n, a in fine.arrays.items() if n != name}):
        with pytest.raises(InvariantError, match="do not have the network's shape"):
            task.received(Record(fine.fields, wrong))
    for number in (0, None, 1.5):
        with pytest.raises(InvariantError, match="names no round"):
            task.received(Record({**fine.fields, "round": number}, fine.arrays))
    for clip in (0.0, -1.0, inf, nan, None, 1):
        with pytest.raises(InvariantError, match="no limit on the norm"):
            task.clip_in(Record({**fine.fields, "clip": clip}, fine.arrays))


def test_the_defaults_are_the_papers_and_the_tuned_ones() -> None:
    o = FedAvgOptions()
    assert (o.client_rate, o.rows, o.length, o.epochs, o.server_rate, o.server_momentum) == (0.5, 6, 21, 1, 1.0, 0.9)
    assert (o.update_norm, o.weight_average, o.server_rule, o.weighting) == (1.0, 0.97, "nesterov", "sentences")


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 0}, {"length": 0}, {"epochs": 0}, {"max_sentences": 0}, {"weighting": "words"}, {"update_norm": 0.0},
        {"average": 1.0}, {"average": -0.1}, {"clip_target": 0.0}, {"clip_target": 1.0}, {"clip_rate": 0.0},
        {"adaptive_clip": True}, {"adaptive_clip": True, "weighting": "uniform", "update_norm": inf},
    ],
)  # fmt: skip
def test_each_number_of_a_plan_outside_its_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FedgramError):
        TrainingPlan(**wrong)
