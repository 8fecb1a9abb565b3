"""Every rule for updates and sums on its own: a case that breaks one rule alone, and one at the edge that keeps it."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.federated.intake import Intake
from fedgram.federated.task import Total, Update
from fedgram.federated.unigram_collection import COUNT, UnigramTask
from fedgram.federated.validation import MeasuredUpdate, NormLimit, Reason, RefusedUpdateError, UpdateBounds
from fedgram.federated.wire import update_to_bytes
from fedgram.text.vocabulary import Vocabulary

BITS = 24
ROOM = 2.0 ** (50 - BITS)
L2, BY_WEIGHT = NormLimit(("a", "b"), 2.0), NormLimit(("a", "b"), 2.0, by_weight=True)
A, B = [1.0, 0.0], [1.0]


def refusal(judge: Callable[[], None]) -> Reason | None:
    try:
        judge()
    except RefusedUpdateError as error:
        return error.reason
    return None


@pytest.mark.parametrize(
    ("bounds", "a", "b", "weight", "reason"),
    [
        (UpdateBounds(weight=5.0), A, B, 5.0, None),
        (UpdateBounds(weight=5.0), A, B, 5.0 + 1e-9, Reason.WEIGHT),
        (UpdateBounds(weight=5.0), A, B, -1.0, Reason.WEIGHT),
        (UpdateBounds(), A, B, ROOM - 1, None),
        (UpdateBounds(), A, B, ROOM, Reason.WEIGHT),
        (UpdateBounds(), A, B, nan, Reason.WEIGHT),
        (UpdateBounds(), A, B, inf, Reason.WEIGHT),
        (UpdateBounds(), A, B, 0.0, Reason.WEIGHT),
        (UpdateBounds(), [0.0], [0.0], 0.0, None),
        (UpdateBounds(), [0.0], [0.0], -1.0, Reason.WEIGHT),
        (UpdateBounds(), [0.0], [0.0], 2.0**-BITS, None),
        (UpdateBounds(), [0.0], [0.0], 2.0**-BITS / 2 - 1e-12, Reason.WEIGHT),  # it rounds to nothing
        (UpdateBounds(), A, [nan], 1.0, Reason.NOT_FINITE),
        (UpdateBounds(), [5.0, nan, 7.0], B, 1.0, Reason.NOT_FINITE),
        (UpdateBounds(), A, [-inf], 1.0, Reason.NOT_FINITE),
        (UpdateBounds(entry=2.0), [2.0, -2.0], B, 1.0, None),
        (UpdateBounds(entry=2.0), [1.0, -2.0 - 1e-9], B, 1.0, Reason.TOO_LARGE),
        (UpdateBounds(), [1.0, ROOM - 1], B, 1.0, None),
        (UpdateBounds(), [1.0, -ROOM], B, 1.0, Reason.TOO_LARGE),
        (UpdateBounds(marks=("b",)), [3.0], [1.0], 1.0, None),
        (UpdateBounds(marks=("b",)), [3.0], [1.5], 1.0, Reason.TOO_LARGE),
        (UpdateBounds(whole=True), [1.0, 3.0], [2.0], 1.0, None),
        (UpdateBounds(whole=True), [1.0, 2.5], [2.0], 1.0, Reason.NOT_WHOLE),
        (UpdateBounds(whole=True), [1.0, 0.0], [2.0], 1.0, Reason.NOT_WHOLE),
        (UpdateBounds(non_negative=("b",)), [-1.0], [0.0], 1.0, None),
        (UpdateBounds(non_negative=("b",)), [-1.0], [-1e-9], 1.0, Reason.NEGATIVE),
        (UpdateBounds(norms=(L2,)), [1.2], [1.6 * (1 + 5e-7)], 1.0, None),
        (UpdateBounds(norms=(L2,)), [1.2], [1.6 * (1 + 5e-6)], 1.0, Reason.NORM),
        (UpdateBounds(norms=(BY_WEIGHT,)), [2.4], [3.2], 2.0, None),
        (UpdateBounds(norms=(BY_WEIGHT,)), [1.2], [1.6], 0.9, Reason.NORM),
        (UpdateBounds(norms=(L2,)), [1e200], [0.0], 1.0, Reason.TOO_LARGE),
        (UpdateBounds(norms=(NormLimit(("a",), 3.0, order=1),)), [2.0, -1.0], B, 1.0, None),
        (UpdateBounds(norms=(NormLimit(("a",), 3.0, order=1),)), [2.0, -1.1], B, 1.0, Reason.NORM),
    ],
)
def test_each_bound_of_an_update_alone(
    bounds: UpdateBounds, a: list[float], b: list[float], weight: float, reason: Reason | None
) -> None:
    found = bounds.measure({"a": np.array(a), "b": np.array(b)}, weight)
    assert refusal(lambda: bounds.judge(found, BITS)) == reason


@pytest.mark.parametrize(
    ("a", "b", "problem"),
    [
        ([8.0, -4.0], 0.0, "the 1-norm of a is 12, and its limit is 10"),
        ([3.0, 0.0], 4.0, "the 2-norm of a and b is 5, and its limit is 4"),
        ([8.0, -4.0], 4.0, "the 1-norm of a is 12, and its limit is 10"),  # the first of both
    ],
)
def test_a_norm_above_its_limit_is_named(a: list[float], b: float, problem: str) -> None:
    bounds = UpdateBounds(norms=(NormLimit(("a",), 10.0, order=1), BY_WEIGHT))
    found = bounds.measure({"a": np.array(a), "b": np.array([b])}, 2.0)
    with pytest.raises(RefusedUpdateError, match=r"^the update's norm is above the limit$") as error:
        bounds.judge(found, BITS)
    assert error.value.example == problem


@pytest.mark.parametrize("in_stack", [False, True])
def test_an_intake_keeps_by_how_much_an_update_exceeded_a_norm_first(in_stack: bool) -> None:
    task = UnigramTask(Vocabulary.of(["you"]), clip=1.0)
    intake = Intake(task)
    for device, entry in enumerate((nan, 2.0, 3.0)):
        update = Update.dense({name: np.full(n, entry) for name, n in task.size.items()}, 1.0)
        if in_stack:
            intake.judge(device, task.bounds.measure(update.values, 1.0))
        else:
            intake.offer(device, update)
        assert intake.example == ("the 1-norm of count is 8, and its limit is 1" if device else "")


def test_a_norm_that_is_not_finite_is_above_every_limit() -> None:
    bounds = UpdateBounds(norms=(L2,))
    for norm in (inf, nan):
        with pytest.raises(RefusedUpdateError) as error:
            bounds.judge(MeasuredUpdate(1.0, 1.0, 0.0, False, (norm,)), BITS)
        assert error.value.reason == Reason.NORM


SUM = MeasuredUpdate(weight=3.0, max_abs=2.0, min_count=0.0, whole=False, norms=(), max_mark=1.0)


@pytest.mark.parametrize(
    ("bounds", "change", "reason"),
    [
        (UpdateBounds(weight=1.0), {}, None),
        (UpdateBounds(weight=1.0), {"weight": 3.0 + 2e-7}, Reason.WEIGHT),
        (UpdateBounds(weight=1.0), {"weight": 3.0 + 3 * 2.0 ** -(BITS + 1)}, None),
        (UpdateBounds(weight=1.0), {"weight": -1e-9}, Reason.WEIGHT),
        (UpdateBounds(entry=2.0), {"max_abs": 6.0}, None),
        (UpdateBounds(entry=2.0), {"max_abs": 6.0 + 1e-6}, Reason.TOO_LARGE),
        (UpdateBounds(), {"max_abs": 3 * ROOM}, None),
        (UpdateBounds(), {"max_abs": 3 * ROOM + 1}, Reason.TOO_LARGE),
        (UpdateBounds(), {"max_mark": 3.0}, None),
        (UpdateBounds(), {"max_mark": 4.0}, Reason.TOO_LARGE),
        (UpdateBounds(), {"min_count": -1e-9}, Reason.NEGATIVE),
        (UpdateBounds(norms=(L2,)), {"norms": (6.0,)}, None),
        (UpdateBounds(norms=(L2,)), {"norms": (6.0 + 1e-4,)}, Reason.NORM),
        (UpdateBounds(norms=(BY_WEIGHT,)), {"norms": (6.0 + 1e-4,), "weight": 3.1}, None),
        (UpdateBounds(norms=(BY_WEIGHT,)), {"norms": (5.0,), "weight": 2.4}, Reason.NORM),
    ],
)
def test_each_bound_of_a_sum_of_three_alone(
    bounds: UpdateBounds, change: dict[str, Any], reason: Reason | None
) -> None:
    found = SUM._replace(**change)
    assert refusal(lambda: bounds.judge_sum(found, 3, {"a": 2, "b": 1}, BITS)) == reason


@pytest.mark.parametrize(("order", "most"), [(1, 100.0), (2, 10.0)])
def test_a_sum_may_exceed_its_norm_by_the_rounding_of_its_entries(order: int, most: float) -> None:
    """100 entries of three devices, each rounded by at most half a unit of 2⁻⁴."""
    bounds, slack = UpdateBounds(norms=(NormLimit(("a",), 2.0, order=order),)), 3 * 2.0**-5 * most
    bounds.judge_sum(SUM._replace(norms=(6.0 + slack,)), 3, {"a": 100}, 4)
    with pytest.raises(RefusedUpdateError):
        bounds.judge_sum(SUM._replace(norms=(6.0 + 1.01 * slack,)), 3, {"a": 100}, 4)


def test_the_largest_norm_in_a_sum_includes_rounding() -> None:
    assert NormLimit(("a",), 2.0).most(100, 3.0, 4) == pytest.approx(2.0 * (1 + 1e-6) + 10 * 2.0**-5)
    assert NormLimit(("a",), 2.0, by_weight=True).most(0, 3.0, 4) == pytest.approx(6.0 * (1 + 1e-6))


@pytest.mark.parametrize("wrong", [{"order": 0}, {"order": 3}, {"limit": 0.0}, {"limit": -1.0}, {"limit": nan}])
def test_a_norm_of_another_order_or_without_a_limit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FedgramError, match="order 1 or 2 and a limit greater than 0"):
        NormLimit(**{"vectors": ("a",), "limit": 1.0, **wrong})


FINE = Update({"a": 4}, {"a": np.array([0, 3])}, {"a": np.array([1.0, 2.0])}, 1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"index": {"a": np.array([0, 4])}},
        {"index": {"a": np.array([-1, 3])}},
        {"index": {"a": np.array([3, 3])}},
        {"index": {"a": np.array([3, 0])}},
        {"index": {"a": np.array([0, 3], np.int32)}},
        {"index": {"a": np.array([[0, 3]])}, "values": {"a": np.array([[1.0, 2.0]])}},
        {"values": {"a": np.array([1.0, 2.0], np.float32)}},
        {"values": {"a": np.array([1.0])}},
        {"values": {}},
        {"index": {}},
        {"size": {"a": 5}},
        {"size": {"a": 4, "b": 1}, "index": {**FINE.index, "b": np.zeros(0, np.int64)}},
    ],
)
def test_each_flaw_in_the_shape_of_an_update_alone(change: dict[str, Any]) -> None:
    total = Total.zero({"a": 4}, BITS)
    with pytest.raises(RefusedUpdateError) as error:
        total.add(replace(FINE, **change), UpdateBounds())
    assert error.value.reason == Reason.SHAPE
    assert total.devices == 0
    total.add(FINE, UpdateBounds())
    assert total.array("a").tolist() == [1.0, 0.0, 0.0, 2.0]


def test_weights_are_rounded_to_the_grid_of_the_sum() -> None:
    total = Total.zero({"a": 4}, 2)
    for weight in (0.45, 0.3):  # 1.8 and 1.2 quarters
        total.add(replace(FINE, weight=weight), UpdateBounds())
    assert (total.weight, total.devices) == (3, 2)


def test_totals_of_other_precision_or_size_are_not_added() -> None:
    one = Total.zero({"a": 4}, 2)
    for other in (Total.zero({"a": 4}, 3), Total.zero({"a": 5}, 2), Total.zero({"b": 4}, 2)):
        with pytest.raises(InvariantError, match="different tasks"):
            one + other
    one.add(FINE, UpdateBounds())
    both = one + one
    assert (both.devices, both.weight, both.array("a").tolist()) == (2, 8, [2.0, 0.0, 0.0, 4.0])


TASK = UnigramTask(Vocabulary.of(["x", "y"]), clip=10.0)
REPORT = Update(TASK.size, {COUNT: np.array([3])}, {COUNT: np.array([2.0])}, 1.0)


def test_a_device_counts_once_if_it_was_invited() -> None:
    intake = Intake(TASK, [1, 2, 3])
    assert intake.offer(4, REPORT) == Reason.NOT_INVITED
    assert intake.offer(1, REPORT) is None
    assert intake.offer(1, REPORT) == Reason.REPEATED
    assert intake.offer(2, replace(REPORT, weight=2.0)) == Reason.WEIGHT
    assert (intake.counted, intake.participants) == ({1}, {1, 2})  # a refused device has taken part, a stranger not
    assert intake.total.array(COUNT)[3] == 2.0


def test_an_update_that_is_larger_than_any_of_the_task_is_not_parsed() -> None:
    content = update_to_bytes(REPORT)
    for size, reason in ((1 << 17, Reason.SHAPE), (1 << 10, Reason.DAMAGED)):
        assert Intake(TASK).offer(1, content + bytes(size)) == reason


def test_the_sum_of_a_stack_must_be_that_of_its_devices_and_within_their_bounds() -> None:
    intake = Intake(TASK, range(9))
    intake.offer(0, REPORT)

    def stack(devices: int, count: float) -> tuple[Total, MeasuredUpdate]:
        total = Total.zero(TASK.size, TASK.bits)
        for _ in range(devices):
            total.add(REPORT, TASK.bounds)
        total.arrays[COUNT][3] = round(count * 2**TASK.bits)
        return total, TASK.bounds.measure({COUNT: total.array(COUNT)}, float(devices))

    for devices, of in (([1, 2], 3), ([1, 2, 3], 2), ([0, 1], 2), ([1, 1], 2)):
        with pytest.raises(InvariantError, match="not that of its accepted devices"):
            intake.add_stack(devices, *stack(of, 4.0))
    with pytest.raises(RefusedUpdateError):
        intake.add_stack([1, 2], *stack(2, 20.1))
    intake.add_stack([1, 2], *stack(2, 20.0))
    assert intake.counted == {0, 1, 2}
    assert intake.total.array(COUNT)[3] == 22.0
