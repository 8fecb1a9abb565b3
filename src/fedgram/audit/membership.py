"""Was this user's text used? Membership of users by a likelihood ratio.

A user's score is the mean, over the user's words and sentence ends, of log p(model) − log p(reference). The reference
is a model of the same kind that was trained without these users: it takes away how hard a user's text is to predict.
Without one, the score is the mean of log p(model). Members are users whose text was used, and should score higher than
others. The AUC is the chance that a random member scores higher than a random other user, where equal scores count
half: 0.5 if nothing shows. Users are the units of its interval (DeLong et al. 1988).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import nan, sqrt
from typing import Any

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.progress import Begin, silent
from fedgram.evaluate.forms import shared_forms
from fedgram.evaluate.jackknife import Estimate
from fedgram.evaluate.likelihood import perplexity
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.models import Model, as_predictor, vocabulary_of
from fedgram.evaluate.predictor import Predictor
from fedgram.evaluate.typed_text import TypedTextReader
from fedgram.text.population import Population, Users

FALSE_POSITIVES = (0.01, 0.1)
_NORMAL_95 = 1.959964


@dataclass(frozen=True, slots=True, eq=False)
class Membership:
    """The scores of members and of other users, in nats per word, and what they tell."""

    members: FloatArray
    others: FloatArray

    def __post_init__(self) -> None:
        if min(len(self.members), len(self.others)) < 2:
            raise FedgramError("there must be at least 2 members and 2 other users who typed something")
        if not (np.isfinite(self.members).all() and np.isfinite(self.others).all()):
            raise FedgramError("a score is not finite")

    @property
    def auc(self) -> Estimate:
        """The AUC with its 95 % interval."""
        return auc(self.members, self.others)

    def found(self, false_positives: float) -> float:
        """The share of members that are found if this share of others may be taken for members."""
        threshold = np.quantile(self.others, 1.0 - false_positives, method="higher")
        return float((self.members > threshold).mean())

    def facts(self) -> dict[str, Any]:
        """Everything as JSON values."""
        estimate = self.auc
        found = {f"{share:g}": self.found(share) for share in FALSE_POSITIVES}
        return {
            "members": len(self.members), "others": len(self.others), "auc": estimate.value,
            "auc_ci95": list(estimate.interval) if estimate.interval else None,
            "found_at_false_positives": found, "mean_member": float(self.members.mean()),
            "mean_other": float(self.others.mean()),
        }  # fmt: skip


def auc(higher: FloatArray, lower: FloatArray) -> Estimate:
    """The chance that one of `higher` is above one of `lower`, with its 95 % interval.

    >>> auc(np.array([3.0, 4.0]), np.array([1.0, 2.0])).value
    1.0
    """
    above, below = _shares(higher, lower), 1.0 - _shares(lower, higher)
    value = float(above.mean())
    error = sqrt(above.var(ddof=1) / len(above) + below.var(ddof=1) / len(below))
    if error == 0.0 and 0.0 < value < 1.0:
        error = nan
    if error == 0.0:  # everybody was told apart: the interval of so many successes (rule of three)
        error = 3.0 / min(len(above), len(below)) / _NORMAL_95
    low, high = max(value - _NORMAL_95 * error, 0.0), min(value + _NORMAL_95 * error, 1.0)
    return Estimate(value, None if np.isnan(error) else (low, high))


def _shares(these: FloatArray, those: FloatArray) -> FloatArray:
    """For each of these, the share of those that are below it; equal ones count half."""
    ordered = np.sort(those)
    left, right = np.searchsorted(ordered, these, "left"), np.searchsorted(ordered, these, "right")
    shares: FloatArray = (left + right) / (2.0 * len(those))
    return shares


def audit_membership(
    model: "Model | Predictor", members: Users, others: Users, *, reference: "Model | Predictor | None" = None,
    begin: Begin = silent,
) -> Membership:  # fmt: skip
    """Tell members from other users of the same population by a model, and by a reference if there is one."""
    if members.population is not others.population:
        raise FedgramError("members and other users must be of one population")
    population, several = members.population, [model] if reference is None else [model, reference]
    shared = shared_forms([vocabulary_of(one) for one in several], cased=False)
    clients = np.concatenate([members.clients, others.clients])
    scores = np.zeros(len(clients))
    typed = np.ones(len(clients), bool)
    for sign, one in zip((1.0, -1.0), several, strict=False):
        advance = begin("Scoring users", len(clients), unit="users")
        found = _measured(as_predictor(one, cased=False), population, clients, shared, advance)
        typed &= found.count > 0
        scores -= sign * found.amount / np.maximum(found.count, 1.0)
    split = len(members)
    return Membership(scores[:split][typed[:split]], scores[split:][typed[split:]])


def _measured(
    predictor: Predictor, population: Population, clients: LongArray, shared: frozenset[str],
    advance: Callable[[int], object],
) -> Measure:  # fmt: skip
    """Nats and symbols by user."""
    parts = []
    for text in TypedTextReader(population, predictor.forms, shared).chunks(clients):
        parts.append(perplexity(text, predictor.judge(text)))
        advance(text.users)
    return Measure.join(parts)
