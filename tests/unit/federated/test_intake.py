"""Malformed updates do not enter a sum, are counted by reason, and do not stop a round."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedgram.core.arrays import FloatArray
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.storage import Artefact, artefact_to_bytes
from fedgram.federated.intake import Intake
from fedgram.federated.task import Total, Update
from fedgram.federated.unigram_collection import COUNT, UnigramTask
from fedgram.federated.validation import NormLimit, Reason, RefusedUpdateError, UpdateBounds
from fedgram.federated.wire import update_from_bytes, update_to_bytes
from fedgram.text.vocabulary import Vocabulary

TASK = UnigramTask(Vocabulary.of([f"w{k}" for k in range(40)]), clip=10.0)
WORDS = 43


def fine(rng: np.random.Generator) -> Update:
    """The update of a device with a few words, as the task makes it."""
    index = np.sort(rng.choice(np.arange(3, WORDS), int(rng.integers(1, 9)), replace=False))
    return Update(TASK.size, {COUNT: index}, {COUNT: rng.dirichlet(np.ones(len(index))) * 10.0}, 1.0)


@dataclass(frozen=True)
class Faults:
    """Ways to spoil an update, each with the reason for which it must be refused."""

    rng: np.random.Generator

    def value(self, update: Update, number: float) -> Update:
        spoilt = update.values[COUNT].copy()
        spoilt[int(self.rng.integers(len(spoilt)))] = number
        return replace(update, values={COUNT: spoilt})

    def places(self, update: Update, change: Callable[[np.ndarray], np.ndarray]) -> Update:
        return replace(update, index={COUNT: change(update.index[COUNT])})

    def spoilt(self, update: Update) -> tuple[bytes, Reason]:
        rng = self.rng
        kind = int(rng.integers(16))
        content = update_to_bytes(update)
        if kind == 0:
            return content[: int(rng.integers(len(content)))], Reason.DAMAGED
        if kind == 1:
            damaged = bytearray(content)
            damaged[int(rng.integers(len(damaged)))] ^= 1 << int(rng.integers(8))
            return bytes(damaged), Reason.DAMAGED
        if kind == 2:
            return rng.bytes(int(rng.integers(200))), Reason.DAMAGED
        if kind == 3:
            return content + bytes(1 << 17), Reason.SHAPE
        if kind == 4:
            fields = json.loads('{"size": {"weight": 1e999}, "weight": 1}')
            return artefact_to_bytes(Artefact("update", 1, fields, {})), Reason.DAMAGED
        ways: list[tuple[Callable[[], Update], Reason]] = [
            (lambda: self.value(update, np.nan), Reason.NOT_FINITE),
            (lambda: self.value(update, float(rng.choice([np.inf, -np.inf]))), Reason.NOT_FINITE),
            (lambda: self.value(update, float(rng.choice([1e30, -1e300, 2.0**26]))), Reason.TOO_LARGE),
            (lambda: self.value(update, float(rng.choice([-0.1, -1e6, -1e-12]))), Reason.NEGATIVE),
            (lambda: self.value(update, float(rng.choice([1e3, 1e6, 10.1]))), Reason.NORM),
            (lambda: replace(update, weight=float(rng.choice([np.nan, np.inf, -1.0, 1.5, 1e300]))), Reason.WEIGHT),
            (lambda: replace(update, weight=0.0), Reason.WEIGHT),  # an update without weight must be empty
            (lambda: self.places(update, lambda index: index + WORDS), Reason.SHAPE),
            (lambda: self.places(update, lambda index: -index), Reason.SHAPE),
            (lambda: self.places(update, lambda index: np.append(index, 42)), Reason.SHAPE),
            (lambda: Update.dense({COUNT: np.ones(int(rng.choice([0, 1, 42, 44, 59])))}, 1.0), Reason.SHAPE),
        ]
        made, reason = ways[kind - 5]
        return update_to_bytes(made()), reason


@pytest.mark.parametrize(
    "malformed", [1000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_malformed_updates_are_refused_while_the_round_commits(malformed: int) -> None:
    """Good reports arrive among malformed ones, replays, and reports of devices that were not invited."""
    rng = np.random.default_rng(5)
    good = {device: fine(rng) for device in range(50)}
    intake, faults, expected, plain = (
        Intake(TASK, range(200)),
        Faults(rng),
        Counter[Reason](),
        Total.zero(TASK.size, 24),
    )
    turns = set(rng.choice(malformed, len(good), replace=False).tolist())
    waiting = list(good)
    for turn in range(malformed):
        if turn in turns:
            device = waiting.pop()
            assert intake.offer(device, update_to_bytes(good[device])) is None
            plain.add(good[device], TASK.bounds)
        if turn % 10 == 0 and intake.counted:
            known = sorted(intake.counted)[turn % len(intake.counted)]
            device, report, why = known, update_to_bytes(good[known]), Reason.REPEATED
        elif turn % 10 == 1:
            device, report, why = 200 + turn, update_to_bytes(fine(rng)), Reason.NOT_INVITED
        else:
            device, (report, why) = int(rng.integers(100, 200)), faults.spoilt(fine(rng))
        reason = intake.offer(device, report)
        assert reason == why, turn
        expected[reason] += 1
    assert intake.refused == expected
    assert expected.total() == malformed
    assert set(expected) == set(Reason) - {Reason.NOT_WHOLE}  # this task's numbers need not be whole
    assert intake.counted == set(good)
    assert intake.counted < intake.participants <= set(range(200))
    assert (intake.total.devices, intake.total.weight) == (50, plain.weight)
    for name, array in plain.arrays.items():
        assert np.array_equal(intake.total.arrays[name], array)
    assert TASK.server_update(TASK.init(), intake.total).rounds[0].devices == 50


def judge(bounds: UpdateBounds, values: Mapping[str, FloatArray], weight: float = 1.0, bits: int = 24) -> None:
    bounds.judge(bounds.measure(values, weight), bits)


def test_norms_of_each_kind() -> None:
    values = {"a": np.array([3.0, -4.0]), "b": np.array([12.0])}

    def holds(limit: NormLimit, weight: float) -> bool:
        return limit.allows(limit.norm(values), weight)

    assert holds(NormLimit(("a",), 5.0), 1.0)
    assert not holds(NormLimit(("a",), 4.99), 1.0)
    assert holds(NormLimit(("a", "b"), 13.0), 1.0)
    assert not holds(NormLimit(("a",), 6.9, order=1), 1.0)
    assert holds(NormLimit(("a",), 2.5, by_weight=True), 2.0)
    assert not holds(NormLimit(("a",), 2.5, by_weight=True), 1.9)
    for wrong in ({"order": 3}, {"limit": 0.0}, {"limit": float("nan")}):
        with pytest.raises(FedgramError):
            NormLimit(**{"vectors": ("a",), "limit": 1.0, **wrong})  # type: ignore[arg-type]
    with pytest.raises(FedgramError, match="norm is above"):
        judge(UpdateBounds(2.0, (NormLimit(("a",), 1.0),)), values)
    with pytest.raises(FedgramError, match="weight"):
        judge(UpdateBounds(2.0), values, 2.5)


@pytest.mark.parametrize(
    ("bounds", "entry", "weight", "reason"),
    [
        (UpdateBounds(), 1.0, 1.0, None),
        (UpdateBounds(), -1.0, 1.0, None),
        (UpdateBounds(), 2.0**26, 1.0, Reason.TOO_LARGE),
        (UpdateBounds(), -(2.0**26), 1.0, Reason.TOO_LARGE),
        (UpdateBounds(), 1.0, 2.0**26, Reason.WEIGHT),
        (UpdateBounds(), 1.0, 0.0, Reason.WEIGHT),
        (UpdateBounds(), 0.0, 0.0, None),
        (UpdateBounds(), math.nan, 1.0, Reason.NOT_FINITE),
        (UpdateBounds(), -math.inf, 1.0, Reason.NOT_FINITE),
        (UpdateBounds(entry=2.0), -2.5, 1.0, Reason.TOO_LARGE),
        (UpdateBounds(non_negative=("w",)), -1e-9, 1.0, Reason.NEGATIVE),
        (UpdateBounds(non_negative=("w",)), 0.5, 1.0, None),
        (UpdateBounds(whole=True), 0.5, 1.0, Reason.NOT_WHOLE),
        (UpdateBounds(whole=True), -1.0, 1.0, Reason.NOT_WHOLE),
        (UpdateBounds(whole=True), 7.0, 1.0, None),
    ],
)
def test_every_bound_of_an_update(bounds: UpdateBounds, entry: float, weight: float, reason: Reason | None) -> None:
    """The entry stands between others, which must not hide it. A sum refuses the same updates and stays as it was."""
    values = np.array([1.0, entry, 2.0] if entry else [0.0])
    total = Total.zero({"w": len(values)}, 24)
    if reason is None:
        judge(bounds, {"w": values}, weight)
        total.add(Update.dense({"w": values}, weight), bounds)
        assert total.array("w").tolist() == values.tolist()
        return
    for refuse in (
        lambda: judge(bounds, {"w": values}, weight),
        lambda: total.add(Update.dense({"w": values}, weight), bounds),
    ):
        with pytest.raises(RefusedUpdateError) as error:
            refuse()
        assert error.value.reason == reason
    assert (total.weight, total.devices) == (0, 0)
    assert not total.arrays["w"].any()


def whole_sum(updates: Sequence[Update], bounds: UpdateBounds, bits: int = 24) -> Total:
    total = Total.zero(updates[0].size, bits)
    for update in updates:
        total.add(update, bounds)
    return total


def test_sums_of_accepted_updates_pass_and_others_do_not() -> None:
    """A sum that n devices within the bounds can make is accepted, including rounding; a little more is not."""
    rng = np.random.default_rng(3)
    cases = {
        Reason.NORM: UpdateBounds(5.0, (NormLimit(("a", "b"), 0.7, by_weight=True), NormLimit(("a",), 9.0, order=1))),
        Reason.TOO_LARGE: UpdateBounds(5.0, entry=3.0),
        Reason.NEGATIVE: UpdateBounds(5.0, entry=9.0, non_negative=("a", "b")),
        Reason.WEIGHT: UpdateBounds(5.0),
    }
    for reason, bounds in cases.items():
        for devices in (1, 2, 9):
            values = rng.random(7) * 3.0
            values *= 0.7 * 5.0 / np.linalg.norm(values) if reason == Reason.NORM else 1.0
            one = Update.dense({"a": values[:4], "b": values[4:]}, 5.0)
            fine = whole_sum([one] * devices, bounds, bits=6)  # coarse, so that rounding is large
            fine.check(bounds)
            spoilt = whole_sum([one] * devices, bounds, bits=6)
            if reason == Reason.WEIGHT:
                spoilt.weight += devices << 6
            else:
                spoilt.arrays["a"][1] = -1 if reason == Reason.NEGATIVE else 4 * devices << 6
            with pytest.raises(RefusedUpdateError) as error:
                spoilt.check(bounds)
            assert error.value.reason == reason


def test_no_sum_wraps_in_silence() -> None:
    """Even without bounds, a sum that is larger than its devices may send is refused."""
    total = whole_sum([Update.dense({"a": np.array([2.0**25])}, 1.0)] * 3, UpdateBounds())
    total.check(UpdateBounds())
    total.arrays["a"][0] = np.iinfo(np.int64).max
    with pytest.raises(RefusedUpdateError, match="larger than its devices may send"):
        total.check(UpdateBounds())


def test_a_stack_is_judged_device_by_device() -> None:
    """Updates computed together are refused for the same reasons, and only accepted ones enter the sum."""
    intake, rng = Intake(TASK, range(6)), np.random.default_rng(1)
    updates = {device: fine(rng) for device in range(8)}
    updates[1] = replace(updates[1], values={COUNT: updates[1].values[COUNT] * 2.0})
    updates[2] = replace(updates[2], weight=math.nan)
    assert intake.offer(0, updates[0]) is None
    measured = {d: TASK.bounds.measure(u.values, u.weight) for d, u in updates.items()}
    let_through = [d for d in range(8) if intake.judge(d, measured[d])]
    assert let_through == [3, 4, 5]
    reasons = {Reason.REPEATED: 1, Reason.NORM: 1, Reason.WEIGHT: 1, Reason.NOT_INVITED: 2}
    assert intake.refused == reasons
    stack = whole_sum([updates[d] for d in let_through], TASK.bounds)

    def add(devices: list[int], total: Total) -> None:
        found = TASK.bounds.measure({COUNT: total.array(COUNT)}, total.weight * 2.0**-24)
        intake.add_stack(devices, total, found)

    for devices in ([3, 4], [0, 3, 4], [3, 3, 4]):
        with pytest.raises(InvariantError, match="not that of its accepted devices"):
            add(devices, stack)
    hostile = Total(stack.bits, {COUNT: stack.arrays[COUNT] + (30 << 24)}, stack.weight, 3)
    with pytest.raises(RefusedUpdateError):
        add(let_through, hostile)
    assert intake.total.devices == 1
    add(let_through, stack)
    assert intake.counted == {0, 3, 4, 5}
    assert intake.participants == {0, 1, 2, 3, 4, 5}  # also the refused devices, but not those that were not invited
    expected = whole_sum([updates[d] for d in (0, 3, 4, 5)], TASK.bounds)
    assert np.array_equal(intake.total.arrays[COUNT], expected.arrays[COUNT])
    assert intake.offer(4, updates[4]) == Reason.REPEATED


def test_devices_with_nothing_to_send_count() -> None:
    intake = Intake(TASK)
    assert intake.offer(3, Update.zero(TASK.size)) is None
    assert intake.offer(4, update_to_bytes(fine(np.random.default_rng(0)))) is None
    assert (intake.empty, intake.total.devices, intake.counted) == (1, 2, {3, 4})


def test_numbers_without_end_are_refused() -> None:
    for fields in ({"size": {"a": float("inf")}, "weight": 1}, {"size": {}, "weight": 10**400}):
        with pytest.raises(FedgramError):
            update_from_bytes(artefact_to_bytes(Artefact("update", 1, fields, {})))
