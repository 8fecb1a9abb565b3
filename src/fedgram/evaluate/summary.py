"""Evaluations as plain values: levels with their intervals, changes against a baseline, an experiment.

Rates (`PERCENT`) and changes are in per cent, as the paper prints them; a `ci95` is [low, high], or null where there
are too few users for an interval.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from fedgram.core.errors import FedgramError
from fedgram.evaluate.evaluation import Evaluation
from fedgram.evaluate.experiment import aa_coverage, ab_experiment
from fedgram.evaluate.jackknife import BUCKETS, Estimate, deal_users, level, relative_change

PERCENT = frozenset({"top1", "top3", "oov_rate", "keystroke_savings"})
AA_EXPERIMENTS = 2000


def summarize(
    evaluation: Evaluation, baseline: Evaluation | None = None, *, buckets: int = BUCKETS
) -> dict[str, dict[str, Any]]:
    """Every measure's level, and its relative change against the baseline over the same users, if there is one."""
    if baseline is not None and baseline.client_ids != evaluation.client_ids:
        raise FedgramError("model and baseline were not evaluated on the same users")
    bucket = deal_users(evaluation.client_ids, buckets)
    levels = {
        name: as_dict(level(measure, bucket), 100.0 if name in PERCENT else 1.0)
        for name, measure in evaluation.measures.items()
    }
    if baseline is None:
        return levels
    changes = {
        name: as_dict(relative_change(measure, baseline.measures[name], bucket))
        for name, measure in evaluation.measures.items()
    }
    return {**levels, "change": changes}


def summarize_experiment(
    baseline: Evaluation, models: Mapping[str, Evaluation], *, seed: int, buckets: int = BUCKETS
) -> dict[str, Any]:
    """A simulated A/B experiment, and how often an A/A experiment on these users covers zero."""
    result = ab_experiment(baseline, models, seed=seed, buckets=buckets)
    coverage = aa_coverage(baseline.measures["top1"], experiments=AA_EXPERIMENTS, seed=seed, buckets=buckets)
    return {
        "users_per_arm": len(baseline.client_ids) // 2,
        "aa_coverage": coverage,
        "change": {
            model: {name: as_dict(change) for name, change in changes.items()} for model, changes in result.items()
        },
    }


def as_dict(estimate: Estimate, scale: float = 1.0) -> dict[str, Any]:
    """A figure and the ends of its interval."""
    value = scale * estimate.value if isfinite(estimate.value) else None
    ends = estimate.interval
    return {"value": value, "ci95": [scale * end for end in ends] if ends else None}
