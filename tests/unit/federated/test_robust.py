"""Median and trimmed mean of updates: right values, few liars move little, and only where single updates are seen."""

from typing import Any

import numpy as np
import pytest

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.settings import SettingError
from fedgram.federated.intake import Intake
from fedgram.federated.robust import RobustRule
from fedgram.federated.task import Total, Update
from fedgram.federated.validation import MeasuredUpdate, NormLimit, Reason, UpdateBounds
from fedgram.training.options import FedAvgOptions


class Task:
    """What an intake needs of a task."""

    size, bits = {"x": 3}, 20
    bounds = UpdateBounds(10.0, (NormLimit(("x",), 100.0, by_weight=True),))

    def __init__(self, rule: RobustRule | None) -> None:
        self.robust = rule


def summed(rule: RobustRule | None, changes: list[list[float]], weights: list[float]) -> Total:
    task: Any = Task(rule)
    intake = Intake(task)
    for device, (change, weight) in enumerate(zip(changes, weights, strict=True)):
        assert intake.offer(device, Update.dense({"x": weight * np.array(change, np.float64)}, weight)) is None
    return intake.total


@pytest.mark.parametrize("kind", ["median", "trimmed"])
def test_few_liars_move_little(kind: Any) -> None:
    rng = np.random.default_rng(0)
    honest, liars = rng.normal(1.0, 0.1, (18, 3)).tolist(), [[50.0, -50.0, 50.0]] * 2
    weights = rng.uniform(1, 10, 20).tolist()
    rule = RobustRule(kind, trim=0.1)
    robust = summed(rule, honest + liars, weights)
    assert robust.devices == 20
    mean = robust.array("x") / (robust.weight * 2.0**-robust.bits)
    assert mean == pytest.approx([1.0, 1.0, 1.0], abs=0.1)
    plain = summed(None, honest + liars, weights)
    assert abs(plain.array("x") / (plain.weight * 2.0**-plain.bits) - 1.0).min() > 1.0


def test_values_and_empty_rounds() -> None:
    assert summed(RobustRule("median"), [[1, 0, 5], [2, 0, 9], [90, 0, 7]], [1, 1, 1]).array("x").tolist() == [6, 0, 21]
    trimmed = RobustRule("trimmed", trim=0.3).of(np.array([[0.0], [1.0], [2.0], [100.0]]))
    assert trimmed.tolist() == [1.5]
    assert RobustRule("trimmed", trim=0.4).of(np.array([[3.0], [9.0]])).tolist() == [6.0]  # something is always left
    nobody = summed(RobustRule("median"), [], [])
    assert (nobody.weight, nobody.devices, nobody.array("x").tolist()) == (0, 0, [0.0, 0.0, 0.0])
    with pytest.raises(FedgramError, match=r"below 0\.5"):
        RobustRule("trimmed", trim=0.5)


def test_an_update_is_refused_by_the_same_rules() -> None:
    task: Any = Task(RobustRule("median"))
    intake = Intake(task)
    assert intake.offer(0, Update.dense({"x": np.array([1e6, 0.0, 0.0])}, 1.0)) == Reason.NORM
    assert intake.total.devices == 0
    with pytest.raises(InvariantError, match="single updates"):
        intake.add_stack([1], Total.zero(task.size, 20), MeasuredUpdate(0.0, 0.0, 0.0, False, ()))


@pytest.mark.parametrize(
    ("more", "why"),
    [({"secure_aggregation": True}, "hides"), ({"noise": "blt", "weighting": "uniform"}, "noise"),
     ({"adaptive_clip": True, "weighting": "uniform"}, "adaptive")],
)  # fmt: skip
def test_masked_and_noisy_rounds_have_no_median(more: dict[str, Any], why: str) -> None:
    assert FedAvgOptions(aggregation="trimmed", trim=0.2).trim == 0.2
    with pytest.raises(SettingError, match=why):
        FedAvgOptions(aggregation="median", **more)
