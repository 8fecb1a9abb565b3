"""Simulated A/B experiments, as the paper ran on live traffic (§3.3, §7.3).

For each model, users are assigned at random to two arms: one types with the baseline, the other with the model. The
arms have different users, so intervals are wider than those of the paired comparison, in which every user types with
both models and which only a simulation can make. The intervals show what an experiment of this size could detect.

An A/A experiment has the same model in both arms, so every change is due to chance. The 95 % interval should cover zero
in 95 % of such experiments; `aa_coverage` measures the actual share.
"""

from collections.abc import Mapping

import numpy as np

from fedgram.core.arrays import IntArray
from fedgram.core.errors import FedgramError
from fedgram.core.random import stream
from fedgram.evaluate.evaluation import Evaluation
from fedgram.evaluate.jackknife import BUCKETS, Estimate, relative_change
from fedgram.evaluate.measure import Measure

LEAST_USERS = 4


def deal_arms(users: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Assign users at random to two arms, whose sizes differ by at most one; each arm is in random order."""
    if users < LEAST_USERS:
        raise FedgramError(f"an experiment needs at least {LEAST_USERS} users, not {users}")
    order = rng.permutation(users).astype(np.int32)
    return order[::2], order[1::2]


def ab_experiment(
    baseline: Evaluation, models: Mapping[str, Evaluation], *, seed: int, buckets: int = BUCKETS
) -> dict[str, dict[str, Estimate]]:
    """The relative change between the model's and the baseline's arm, in per cent, for each model and measure."""
    result = {}
    for number, (name, model) in enumerate(models.items()):
        if model.client_ids != baseline.client_ids:
            raise FedgramError("the models were evaluated on different users; evaluate them on the same users")
        control, treated = deal_arms(len(baseline.client_ids), stream(seed, "arms", number))
        result[name] = {
            measure: _compare(model.measures[measure].select(treated), old.select(control), buckets)
            for measure, old in baseline.measures.items()
        }
    return result


def aa_coverage(measure: Measure, *, experiments: int, seed: int, buckets: int = BUCKETS) -> float:
    """The share of simulated A/A experiments in which the 95 % interval of the change covers zero."""
    rng, covered = stream(seed, "a/a"), 0
    for _ in range(experiments):
        new, old = (measure.select(arm) for arm in deal_arms(measure.users, rng))
        covered += _compare(new, old, buckets).covers(0.0)
    return covered / experiments


def _compare(new: Measure, old: Measure, buckets: int) -> Estimate:
    """Compare two arms. They are in random order, so taking every B-th user gives random buckets."""
    buckets = min(buckets, new.users, old.users)
    of_new, of_old = (np.arange(m.users, dtype=np.int32) % buckets for m in (new, old))
    return relative_change(new, old, of_new, of_old)
