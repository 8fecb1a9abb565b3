"""What a run says of its final model: better, not measurably so, worse, or not even from devices."""

from typing import Any

import pytest

from fedgram.pipeline.verdict import verdict


def final(chosen: str, *, cased: bool = False) -> dict[str, Any]:
    scores = {"A_W_r": 10.0, "Refit": 11.0, "Baseline": 12.0, "Baseline, unigrams tail": 12.5}
    return {"chosen": chosen, "baseline_is_best": chosen.startswith("Baseline"), "cased": cased, "dev_top1": scores}


def evaluation(value: float | None, ci95: list[float] | None) -> dict[str, Any]:
    models: dict[str, dict[str, Any]] = {
        "Baseline": {"top1": {"value": 20.0, "ci95": [19.5, 20.5]}},
        "Final model": {
            "top1": {"value": 21.0, "ci95": [20.0, 22.0]},
            "change": {"top1": {"value": value, "ci95": ci95}},
        },
    }
    levels = {
        name: {"top1": {"value": value, "ci95": None}} for name, value in (("Baseline", 5.0), ("Final model", 6.0))
    }
    other = {name: {**models[name], **levels[name]} for name in models}
    return {"split": "test", "users": 1234, "uncased": {"models": models}, "cased": {"models": other}}


def test_a_better_model_needs_no_warning() -> None:
    found = verdict(final("Refit"), evaluation(5.0, [3.0, 7.0]))
    assert (found.better, found.warnings, found.baseline.value, found.final.value) == (True, (), 20.0, 21.0)
    assert found.sentence == (
        "The final model is better than the baseline: it predicts 21.0 ± 1.0 % of next words, against 20.0 ± 0.5 %. "
        "That is 5.0 ± 2.0 % more, on 1,234 test users."
    )
    assert verdict(final("Refit", cased=True), evaluation(5.0, [3.0, 7.0])).final.value == 6.0


def test_too_few_users_are_no_result() -> None:
    found = verdict(final("Refit"), {**evaluation(53.0, [-1.0, 107.0]), "users": 3})
    assert found.sentence.startswith("No result: 3 test users are too few to tell the final model from the baseline;")
    assert "between -1.0 % and +107.0 %" in found.sentence
    (said,) = found.warnings
    assert "3 test users are too few" in said
    small = verdict(final("Refit"), evaluation(0.5, [-0.5, 1.5]))
    assert small.sentence.startswith("The final model and the baseline do not differ measurably on 1,234 test users;")


@pytest.mark.parametrize(
    ("value", "ci95", "warning"),
    [
        (1.0, [-0.5, 2.5], "not significantly better than the baseline on 1,234 test users: top-1 changes by +1.00 % "
         "(95 % interval -0.50 to +2.50 %)"),
        (-2.0, [-3.0, -1.0], "worse than the baseline on 1,234 test users: top-1 changes by -2.00 %"),
        (9.0, None, "too few to tell the final model from the baseline: top-1 changes by +9.00 %, without an interval"),
        (0.0, [0.0, 0.0], "not significantly better"),
        (None, None, "changes by an unknown amount"),
    ],
)  # fmt: skip
def test_one_that_is_not_better_is_said_so(value: float | None, ci95: list[float] | None, warning: str) -> None:
    found = verdict(final("Refit"), evaluation(value, ci95))
    assert not found.better
    (said,) = found.warnings
    assert warning in said


def test_a_final_model_that_is_the_baseline_is_said_once() -> None:
    found = verdict(final("Baseline"), evaluation(0.0, [0.0, 0.0]), {"dev_users": 2345})
    assert found.sentence == (
        "The final model is the baseline: no model from devices was better on 2,345 dev users "
        "(best: Refit, 11.0 % against 12.0 %)."
    )
    (said,) = found.warnings
    assert "so the final model is it; the best model from devices is Refit (11.00 %)" in said
    assert not found.better
    on_devices = {**final("Baseline"), "measured_on": "devices"}
    assert "was better on dev devices (best" in verdict(on_devices, evaluation(0.0, [0.0, 0.0])).sentence


def test_a_baseline_that_wins_on_dev_users() -> None:
    found = verdict(final("Baseline, unigrams tail"), evaluation(1.0, [0.5, 1.5]))
    (said,) = found.warnings
    assert said.startswith("the baseline is the best model on dev users (12.00 % top-1), so the final model is made")
    assert said.endswith("the best model from devices is Refit (11.00 %)")
    assert found.better
