"""The audit of ε: canary devices in the counts of a refit and in the rounds of a training, with noise and without.

The accountant's ε is an upper bound, what the canaries show a lower bound. A lower bound above the accountant's ε means
that the mechanism is broken, and so does an estimate that is above it with 99.9 %. Without noise the lower bound must
be large, or the audit could not find anything.
"""

from collections import Counter
from typing import Any

from fedgram.audit.count_canaries import CanaryScores, audit_counts
from fedgram.audit.one_run import lower_bound
from fedgram.audit.options import EpsilonAuditOptions
from fedgram.audit.round_canaries import audit_rounds
from fedgram.core.progress import Begin, silent
from fedgram.neural.network import Network
from fedgram.neural.new_network import create_network
from fedgram.privacy.options import PrivacyOptions, Protection
from fedgram.text.normalize import uncase
from fedgram.text.population import Population, population_from_messages
from fedgram.text.synthetic.typists import SyntheticPopulation


def audit_epsilon(options: EpsilonAuditOptions, *, seed: int = 0, begin: Begin = silent) -> list[dict[str, Any]]:
    """For each mechanism, with noise and without: ε of the accountant, and the lower bounds."""
    found = []
    for mechanism in ("counts", "rounds"):
        if options.mechanism in ("both", mechanism):
            protections: tuple[Protection, ...] = ("dp", "none")
            for protection in protections:
                scores = _run(mechanism, options, options.privacy(protection), seed, begin)
                found.append({"mechanism": mechanism, "noise": protection == "dp", **bounds(scores, options)})
    return found


def bounds(scores: CanaryScores, options: EpsilonAuditOptions) -> dict[str, Any]:
    """ε of the accountant and the lower bounds; `passed` says that none is above the accountant's ε.

    The lower end of the estimate counts as a bound too. Proven bounds are so cautious that they would miss noise of
    half the size; the estimate finds it.
    """
    found = lower_bound(scores.score, scores.included, delta=options.delta, confidence=options.confidence)
    highest = max(found.epsilon, found.gaussian or 0.0, found.estimate[1] if found.estimate else 0.0)
    passed = None if scores.epsilon is None else highest <= scores.epsilon
    return {"accountant": scores.epsilon, "passed": passed, "canaries": len(scores.score), **found.facts()}


def _run(
    mechanism: str, options: EpsilonAuditOptions, privacy: PrivacyOptions, seed: int, begin: Begin
) -> CanaryScores:
    if mechanism == "counts":
        return audit_counts(options.canaries, privacy, typists=options.typists, seed=seed, begin=begin)
    people = typing_users(options.typists, seed)
    network = network_of(people, seed)
    return audit_rounds(
        network, people.train, options.canaries, privacy, rounds=options.rounds, seed=seed, begin=begin
    )  # fmt: skip


def typing_users(typists: int, seed: int) -> Population:
    """Generated typists, all of whom are train users."""
    rows = SyntheticPopulation("en_us", seed=seed).rows(typists)
    return population_from_messages((name, text, "train") for name, text, _ in rows)


def network_of(users: Population, seed: int) -> Network:
    """A small network with random weights that knows the most frequent words of these users."""
    words = Counter(uncase(users.words[x]) for x in users.token.tolist())
    return create_network("W_demo", {word: float(count) for word, count in words.most_common()}, seed=seed)
