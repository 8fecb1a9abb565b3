"""A secure sum equals the plain sum, no matter which devices leave and when, or there is no sum at all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.reference import secure_aggregation as reference

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.federated.secure.rounds import NEVER, STEPS, SecureRound, Traffic, sum_securely
from fedgram.federated.secure.settings import AbandonedRoundError, SecureSettings


@dataclass(frozen=True)
class Case:
    settings: SecureSettings
    vectors: dict[int, LongArray]
    leaving: dict[int, int]
    entropy: Callable[[int], bytes]
    minimum: int = 0

    def run(self) -> tuple[LongArray, tuple[int, ...]]:
        vectors = {d: v.copy for d, v in self.vectors.items()}
        length = len(next(iter(self.vectors.values())))
        about = SecureRound(self.settings, length, b"a round", self.minimum, self.entropy)
        found = sum_securely(about, vectors, leaving=self.leaving)
        return found.vector, found.devices

    @property
    def least(self) -> int:
        return max(self.settings.min_devices, self.minimum)

    def stayed(self, step: int) -> list[int]:
        return sorted(d for d in self.vectors if self.leaving.get(d, NEVER) > step)


def random_case(seed: int) -> Case:
    """Cohorts of 2 to 14 devices with any graph, threshold and number size; many devices leave, or few, or none."""
    rng = np.random.default_rng(seed)
    devices = [int(d) for d in rng.choice(10**6, int(rng.integers(2, 15)), replace=False)]
    settings = SecureSettings(
        min_devices=int(rng.integers(2, 5)),
        neighbours=None if rng.random() < 0.5 else int(rng.integers(1, 9)),
        majority=float(rng.uniform(0.5, 0.9)),
        value_bits=int(rng.integers(1, 59)),
    )
    most, length = 2**settings.value_bits - 1, int(rng.integers(1, 7))
    if rng.random() < 0.3:  # the largest possible numbers
        vectors = {d: np.full(length, int(rng.choice([-most, most]))) for d in devices}
    else:
        vectors = {d: rng.integers(-most, most, length, endpoint=True) for d in devices}
    rate = float(rng.choice([0.0, 0.05, 0.2, 0.5]))
    leaving = {d: int(rng.integers(0, STEPS)) for d in devices if rng.random() < rate}
    minimum = int(rng.integers(2, 7)) if rng.random() < 0.3 else 0
    return Case(settings, vectors, leaving, rng.bytes, minimum)


@pytest.mark.parametrize(
    "cases", [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)  # fmt: skip
def test_sums_are_exact_or_there_is_none(cases: int) -> None:
    exact, abandoned, reasons = 0, 0, set()
    for seed in range(cases):
        case = random_case(seed)
        devices = len(case.stayed(0))
        complete = devices >= 2 and case.settings.degree(devices) == devices - 1
        expected = complete and reference.everybody_completes(
            case.settings.threshold(devices),
            case.settings.quorum(devices),
            case.least,
            [len(case.stayed(s)) for s in range(STEPS)],
        )
        try:
            vector, counted = case.run()
        except AbandonedRoundError as error:
            reasons.add(str(error))
            abandoned += 1
            if expected:
                pytest.fail(f"case {seed} has a sum")
            continue
        assert expected or not complete, seed
        assert list(counted) == case.stayed(2), seed
        assert len(counted) >= case.least, seed
        columns = zip(*(case.vectors[d].tolist() for d in counted), strict=True)
        assert vector.tolist() == [sum(column) for column in columns], seed
        exact += 1
    assert min(exact, abandoned) > 0.2 * cases
    assert all(reason.startswith("the round is abandoned: ") for reason in reasons)


def test_a_device_whose_number_does_not_fit_leaves() -> None:
    settings = SecureSettings(value_bits=8)
    vectors = {d: np.array([255 if d else 256]) for d in range(6)}
    failed: list[tuple[int, FedgramError]] = []
    copies = {d: vectors[d].copy for d in vectors}
    found = sum_securely(SecureRound(settings, 1), copies, on_failure=lambda d, e: failed.append((d, e)))
    assert (found.vector.tolist(), found.devices) == ([5 * 255], (1, 2, 3, 4, 5))
    assert [(d, "too large" in str(e)) for d, e in failed] == [(0, True)]


def test_abandoned_rounds_say_why() -> None:
    def why(devices: int, leaving: dict[int, int], minimum: int = 0, **settings: Any) -> str:
        vectors = {d: np.ones(2, np.int64) for d in range(devices)}
        case = Case(SecureSettings(**settings), vectors, leaving, np.random.default_rng(1).bytes, minimum)
        with pytest.raises(AbandonedRoundError) as caught:
            case.run()
        assert str(caught.value) == f"the round is abandoned: {caught.value.reason}"
        return caught.value.reason

    assert why(5, {0: 0, 1: 0}, min_devices=4) == "3 devices sent keys, 4 are needed"
    assert why(6, {0: 1, 1: 1}, min_devices=5) == "4 devices shared their secrets, 5 are needed"
    assert why(5, {0: 2, 1: 2}, min_devices=4) == "3 devices sent their vectors, 4 are needed"
    assert why(5, {0: 2, 1: 2}, minimum=4) == "3 devices sent their vectors, 4 are needed"
    assert why(5, {0: 1, 1: 1}) == "3 devices shared their secrets, 4 of 5 are needed to agree"
    assert why(5, {0: 2, 1: 2}) == "3 devices sent their vectors, 4 of 5 are needed to agree"
    assert why(5, {0: 3, 1: 3}) == "3 devices confirmed the list of survivors, 4 of 5 are needed to agree"
    missing = "a device's secret cannot be recovered from 2 shares; 3 correct ones are needed"
    assert why(5, {0: 4, 1: 4}) == missing
    half: dict[str, Any] = {"majority": 0.5, "neighbours": 6}
    gone = dict.fromkeys(range(9), 1)  # of twenty: some device has lost four of its six neighbours
    assert why(20, gone, **half) == "2 neighbours of a device shared their secrets, 4 are needed to unmask"


def test_a_device_costs_less_than_two_plain_updates() -> None:
    """Bytes that a device sends and receives in a cohort of 500, compared with its update in single precision."""
    length, traffic, devices = 50, Traffic(), 500
    vectors = {d: (lambda: np.zeros(length, np.int64)) for d in range(devices)}
    sum_securely(SecureRound(SecureSettings(), length), vectors, traffic=traffic)
    assert (SecureSettings().degree(500), SecureSettings().width(500)) == (64, 7)
    overhead = (traffic.up + traffic.down) / devices - 7 * length
    assert overhead < 65_000
    assert (7 * 1_400_000 + overhead) / (4 * 1_400_000) < 1.77


def test_mistakes_are_refused() -> None:
    for wrong in (
        {"min_devices": 1}, {"neighbours": 0}, {"majority": 0.4}, {"majority": 1.0}, {"majority": float("nan")},
        {"value_bits": 0}, {"value_bits": 63},
    ):  # fmt: skip
        with pytest.raises(FedgramError):
            SecureSettings(**wrong)
    with pytest.raises(FedgramError, match="does not fit"):
        SecureSettings(value_bits=60).width(100)


@pytest.mark.parametrize("devices", [2, 3, 7, 25, 26, 100])
def test_the_ring_is_regular_and_mutual(devices: int) -> None:
    for neighbours in (None, 1, 2, 5, 10, 1000):
        settings = SecureSettings(neighbours=neighbours)
        around = [set(settings.ring(i, devices)) for i in range(devices)]
        assert {len(ring) for ring in around} == {settings.degree(devices)}
        assert all(i not in around[i] and all(i in around[j] for j in around[i]) for i in range(devices))
        assert 2 * settings.threshold(devices) > settings.degree(devices) >= settings.threshold(devices)
