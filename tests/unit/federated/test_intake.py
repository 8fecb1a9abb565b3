"""What is malformed does not enter a sum, is counted by its reason, and does not keep the round from its end."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedgram.core.errors import FedgramError
from fedgram.core.storage import Artefact, artefact_to_bytes
from fedgram.federated.intake import Intake
from fedgram.federated.task import Total, Update
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.federated.validation import NormLimit, Reason, UpdateBounds
from fedgram.federated.wire import update_from_bytes, update_to_bytes
from fedgram.text.vocabulary import Vocabulary

TASK = UnigramTask(Vocabulary.of([f"w{k}" for k in range(40)]), clip=10.0)
WORDS = 43


def fine(rng: np.random.Generator) -> Update:
    """The update of a device with a few words, as the task makes it."""
    index = np.sort(rng.choice(np.arange(3, WORDS), int(rng.integers(1, 9)), replace=False))
    a = rng.dirichlet(np.ones(len(index))) * 10.0
    b = a / 10.0
    values = {"weight": a, "square": b * b, "cross": b * b.sum(), "length_square": np.array([float(b.sum()) ** 2])}
    places = {"weight": index, "square": index, "cross": index, "length_square": np.zeros(1, np.int64)}
    return Update(TASK.size, places, values, 1.0)


@dataclass(frozen=True)
class Faults:
    """Ways to spoil an update; each says what it will be refused for."""

    rng: np.random.Generator

    def value(self, update: Update, number: float) -> Update:
        values = dict(update.values)
        spoilt = values["weight"].copy()
        spoilt[int(self.rng.integers(len(spoilt)))] = number
        return replace(update, values={**values, "weight": spoilt})

    def places(self, update: Update, change: Callable[[np.ndarray], np.ndarray]) -> Update:
        return replace(update, index={**update.index, "weight": change(update.index["weight"])})

    def spoilt(self, update: Update) -> tuple[bytes, Reason]:
        rng = self.rng
        kind = int(rng.integers(14))
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
            (lambda: self.value(update, float(rng.choice([1e3, -1e6, 10.1]))), Reason.NORM),
            (lambda: replace(update, weight=float(rng.choice([np.nan, np.inf, -1.0, 1.5, 1e300]))), Reason.WEIGHT),
            (lambda: self.places(update, lambda index: index + WORDS), Reason.SHAPE),
            (lambda: self.places(update, lambda index: -index), Reason.SHAPE),
            (lambda: self.places(update, lambda index: np.append(index, 42)), Reason.SHAPE),
            (lambda: Update.dense({"weight": np.ones(int(rng.integers(60)))}, 1.0), Reason.SHAPE),
        ]
        made, reason = ways[kind - 5]
        return update_to_bytes(made()), reason


@pytest.mark.parametrize(
    "malformed", [1000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_malformed_updates_are_refused_while_the_round_commits(malformed: int) -> None:
    """Good reports come in among the malformed; some of those are replays, or come from devices nobody asked."""
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
            plain.add(good[device])
        if turn % 10 == 0 and intake.counted:
            known = sorted(intake.counted)[turn % len(intake.counted)]
            device, report, why = known, update_to_bytes(good[known]), Reason.REPEATED
        elif turn % 10 == 1:
            device, report, why = 200 + turn, update_to_bytes(fine(rng)), Reason.NOT_ASKED
        else:
            device, (report, why) = int(rng.integers(100, 200)), faults.spoilt(fine(rng))
        reason = intake.offer(device, report)
        assert reason == why, turn
        expected[reason] += 1
    assert intake.refused == expected
    assert expected.total() == malformed
    assert set(expected) == set(Reason)
    assert intake.counted == set(good)
    assert (intake.total.devices, intake.total.weight) == (50, plain.weight)
    for name, array in plain.arrays.items():
        assert np.array_equal(intake.total.arrays[name], array)
    assert TASK.server_update(TASK.init(), intake.total).rounds[0].devices == 50


def test_norms_of_each_kind() -> None:
    values = {"a": np.array([3.0, -4.0]), "b": np.array([12.0])}
    assert NormLimit(("a",), 5.0).holds(values, 1.0)
    assert not NormLimit(("a",), 4.99).holds(values, 1.0)
    assert NormLimit(("a", "b"), 13.0).holds(values, 1.0)
    assert not NormLimit(("a",), 6.9, order=1).holds(values, 1.0)
    assert NormLimit(("a",), 2.5, by_weight=True).holds(values, 2.0)
    assert not NormLimit(("a",), 2.5, by_weight=True).holds(values, 1.9)
    with pytest.raises(FedgramError):
        NormLimit(("a",), 1.0, order=3)
    with pytest.raises(FedgramError, match="longer"):
        UpdateBounds(2.0, (NormLimit(("a",), 1.0),)).check(values, 1.0)
    with pytest.raises(FedgramError, match="weight"):
        UpdateBounds(2.0).check(values, 2.5)


def test_numbers_without_end_are_refused() -> None:
    for fields in ({"size": {"a": float("inf")}, "weight": 1}, {"size": {}, "weight": 10**400}):
        with pytest.raises(FedgramError):
            update_from_bytes(artefact_to_bytes(Artefact("update", 1, fields, {})))
