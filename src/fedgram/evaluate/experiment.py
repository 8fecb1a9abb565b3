"""Simulated A/B experiments, as the paper ran on live traffic (§3.3, §7.3).

For every model the users are dealt at random to two arms: one types with the baseline, the other with the model. The
arms hold different people, so intervals are wider than those of the paired comparison that only a simulation can make
(every user under both models): what an experiment of this size could have shown.

An A/A experiment has the same model in both arms, so that every change is chance; a 95 % interval must cover zero in
95 % of them. `aa_coverage` measures in how many it does.
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
    """Users at random in two arms of equal size (up to one), each in random order."""
    if users < LEAST_USERS:
        raise FedgramError(f"an experiment needs at least 2 users in each arm, and there are {users} users")
    order = rng.permutation(users).astype(np.int32)
    return order[::2], order[1::2]


def ab_experiment(
    baseline: Evaluation, models: Mapping[str, Evaluation], *, seed: int, buckets: int = BUCKETS
) -> dict[str, dict[str, Estimate]]:
    """For every model and measure the relative change of the model's arm against the baseline's, in per cent."""
    result = {}
    for number, (name, model) in enumerate(models.items()):
        if model.client_ids != baseline.client_ids:
            raise FedgramError("the models were not evaluated on the same users")
        control, treated = deal_arms(len(baseline.client_ids), stream(seed, "arms", number))
        result[name] = {
            measure: _compare(model.measures[measure].select(treated), old.select(control), buckets)
            for measure, old in baseline.measures.items()
        }
    return result


def aa_coverage(measure: Measure, *, experiments: int, seed: int, buckets: int = BUCKETS) -> float:
    """In what share of simulated A/A experiments the 95 % interval of the change covers zero."""
    rng, covered = stream(seed, "a/a"), 0
    for _ in range(experiments):
        new, old = (measure.select(arm) for arm in deal_arms(measure.users, rng))
        covered += _compare(new, old, buckets).covers(0.0)
    return covered / experiments


def _compare(new: Measure, old: Measure, buckets: int) -> Estimate:
    """Arms come in random order, so every B-th user makes a bucket."""
    buckets = min(buckets, new.users, old.users)
    of_new, of_old = (np.arange(m.users, dtype=np.int32) % buckets for m in (new, old))
    return relative_change(new, old, of_new, of_old)
