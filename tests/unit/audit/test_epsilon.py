"""Canary devices in the real mechanisms: noise holds, no noise is found out, and broken mechanisms are caught."""

import numpy as np
import pytest

from fedgram.audit.count_canaries import CanaryScores, audit_counts, canary_word
from fedgram.audit.epsilon import _run, audit_epsilon, bounds
from fedgram.audit.options import EpsilonAuditOptions
from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.progress import silent
from fedgram.distill.refit import count_release
from fedgram.distill.refit.clipped_ngrams import Clipping
from fedgram.federated.validation import NormLimit
from fedgram.privacy import mechanisms
from fedgram.privacy.noise import Randomness, gaussian_noise, on_grid
from fedgram.privacy.options import PrivacyOptions

OPTIONS = EpsilonAuditOptions(canaries=600, epsilon=3.42, noise_seed=4, typists=20)


def counts(options: EpsilonAuditOptions = OPTIONS) -> dict[str, object]:
    privacy = options.privacy("dp")
    return bounds(audit_counts(options.canaries, privacy, typists=options.typists), options)


@pytest.fixture(scope="module")
def audits() -> dict[tuple[str, bool], dict[str, float]]:
    return {(row["mechanism"], row["noise"]): row for row in audit_epsilon(OPTIONS)}


@pytest.mark.parametrize("mechanism", ["counts", "rounds"])
def test_with_noise_the_bound_is_below_the_accountant_and_the_estimate_near(
    mechanism: str, audits: dict[tuple[str, bool], dict[str, float]]
) -> None:
    row = audits[mechanism, True]
    assert row["accountant"] == pytest.approx(3.42)
    assert row["passed"]
    assert 0.5 < row["epsilon_bound"] <= row["gaussian_bound"] < 3.42
    assert row["estimate_low"] < 3.42
    assert row["estimate"] == pytest.approx(3.42, rel=0.35)  # the canaries reach the limit of a device


@pytest.mark.parametrize("mechanism", ["counts", "rounds"])
def test_without_noise_the_bound_is_large(mechanism: str, audits: dict[tuple[str, bool], dict[str, float]]) -> None:
    row = audits[mechanism, False]
    assert row["accountant"] is row["passed"] is None
    assert row["epsilon_bound"] > 3.4
    assert row["gaussian_bound"] > 5
    assert row["estimate_low"] > 50


def test_halved_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(count: int, deviation: float, randomness: Randomness, *names: str | int) -> LongArray:
        return gaussian_noise(count, deviation / 2, randomness, *names)

    monkeypatch.setattr(count_release, "gaussian_noise", halved)
    monkeypatch.setattr(mechanisms, "on_grid", lambda unit, deviation: on_grid(unit, deviation / 2))
    for mechanism in ("counts", "rounds"):
        row = bounds(_run(mechanism, OPTIONS, OPTIONS.privacy("dp"), 0, silent), OPTIONS)
        assert row["estimate_low"] > 3.42
        assert row["accountant"] == pytest.approx(3.42)  # the account does not know
        assert row["passed"] is False


def test_a_skipped_clip_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clipping, "scale", lambda *_: 3.0)  # a device that sends three times what it may,
    with pytest.raises(FedgramError):  # which the server refuses
        counts()
    monkeypatch.setattr(NormLimit, "allows", lambda *_: True)  # unless its check is broken too
    monkeypatch.setattr(NormLimit, "allows_sum", lambda *_: True)
    row = counts()
    assert row["passed"] is False
    assert row["gaussian_bound"] > 3.42  # type: ignore[operator]


def test_the_audit_is_repeatable_with_a_seed_and_only_then() -> None:
    assert counts() == counts()
    fresh = EpsilonAuditOptions(canaries=50, typists=5)
    runs = [audit_counts(50, fresh.privacy("dp"), typists=5).score for _ in range(2)]
    assert not np.array_equal(runs[0], runs[1])


def test_canaries_are_bounded_and_distinct() -> None:
    assert len({canary_word(i) for i in range(5000)}) == 5000
    with pytest.raises(FedgramError, match="at least 2"):
        audit_counts(1, PrivacyOptions("none"))
    with pytest.raises(FedgramError, match="score"):
        CanaryScores(np.zeros(2), np.zeros(3, bool), None)
