"""Canary devices for rounds of training: what the weights show of single devices (Andrew et al. 2023, 2302.03098).

A canary device sends a random direction, as long as the limit on the norm allows. All canaries are devices of the
training, among users who train; those that the coin leaves out send nothing. Directions are drawn again when they are
needed, since all together do not fit into memory.

A canary's score is the change of the weights along its direction in the rounds that it took part in. BLT noise is
correlated over rounds: with the matrix C of the mechanism, the releases x are sums + C⁻¹·z, so that C·x has independent
noise z. A canary of round t is in row s of C·x with the weight C[s, t], and is looked for with these weights.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.audit.count_canaries import CanaryScores, coins
from fedgram.core.arrays import BoolArray, FloatArray, LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.progress import Advance, Begin, silent
from fedgram.core.random import stream
from fedgram.federated.cohort import CohortOptions
from fedgram.federated.devices import SimulatedDevices
from fedgram.federated.fleet import Fleet, RoundCall, RoundSum, Tally
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions
from fedgram.federated.task import Total, Update
from fedgram.neural.network import Network
from fedgram.privacy.ledger import Ledger
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.population import Users
from fedgram.training.noise_plan import NoisePlan, with_noise
from fedgram.training.options import FedAvgOptions
from fedgram.training.train_federated import train_federated


def direction(seed: int, canary: int, entries: int) -> FloatArray:
    """The direction of a canary, a random vector of length 1."""
    drawn = stream(seed, "canary direction", canary).standard_normal(entries)
    unit: FloatArray = drawn / np.linalg.norm(drawn)
    return unit


class CanaryDevices:
    """Users of a population and canaries as the devices of a training; a canary has a number after all users'."""

    def __init__(self, users: Users, included: BoolArray, norm: float, seed: int) -> None:
        self._simulated, self._users = SimulatedDevices(users), users
        self.included, self.norm, self.seed = included, norm, seed
        self.weights: list[FloatArray] = []  # of the server, as they were broadcast in each round
        self.rounds: list[LongArray] = []  # the canaries of each round

    @property
    def count(self) -> int | None:
        """Users and canaries, included or not: the plan must not depend on the coins."""
        return len(self._users) + len(self.included)

    def participations(self, limit: int | None) -> int | None:
        """The limit that is asked for."""
        return limit

    def run_options(self, cohort: CohortOptions, rounds: int | None) -> RunOptions:
        """Rounds of the cohort's size."""
        return self._simulated.run_options(cohort, rounds)

    @contextmanager
    def working_on(self, job: Job[Any], cohort: CohortOptions, rounds: int | None) -> Iterator[Fleet]:
        """The simulated fleet with the canaries."""
        with self._simulated.working_on(job, replace(cohort, dropout=0.0), rounds) as fleet:
            yield _CanaryFleet(fleet, job, len(self._users.population), self)


class _CanaryFleet:
    """A fleet to which canaries were added."""

    def __init__(self, fleet: Fleet, job: Job[Any], first: int, canaries: CanaryDevices) -> None:
        self._fleet, self._first, self._canaries = fleet, first, canaries
        self._task: Any = job.task  # federated averaging, which has a shape
        self._numbers = first + np.arange(len(canaries.included), dtype=np.int64)

    def devices(self, wanted: int, spent: LongArray) -> LongArray:
        """All that are not spent."""
        return np.concatenate([self._fleet.devices(wanted, spent), np.setdiff1d(self._numbers, spent)])

    def prepare(self, call: RoundCall) -> None:
        """Nothing: users are told apart from canaries when a round is collected."""

    def collect(self, call: RoundCall) -> RoundSum:
        """The sum of the users' updates and of the canaries' directions."""
        if call.masking is not None:
            raise FedgramError("canary devices take part in plain rounds only; masking changes no sum")
        counted = call.order[: call.plan.devices]
        users, canaries = counted[counted < self._first], counted[counted >= self._first]
        total, tally = Total.zero(self._task.size, self._task.bits), Tally()
        if len(users):
            found = self._fleet.collect(replace(call, order=users, plan=replace(call.plan, devices=len(users))))
            total, tally = found.total, found.tally
        self._canaries.weights.append(_flat({name: call.broadcast.arrays[name] for name in self._task.shape.sizes()}))
        self._canaries.rounds.append(canaries - self._first)
        for canary in (canaries - self._first).tolist():
            if self._canaries.included[canary]:
                total.add(self._update(canary), self._task.bounds)
        tally.reports += len(canaries)
        return RoundSum(total, counted, tally)

    def _update(self, canary: int) -> Update:
        sizes = {name: self._task.size[name] for name in self._task.shape.sizes()}
        whole = direction(self._canaries.seed, canary, sum(sizes.values())) * self._canaries.norm
        parts = np.split(whole, np.cumsum(list(sizes.values()))[:-1])
        others = {name: np.zeros(n) for name, n in self._task.size.items() if name not in sizes}
        return Update.dense({**dict(zip(sizes, parts, strict=True)), **others}, 1.0)


def audit_rounds(
    network: Network, users: Users, canaries: int, privacy: PrivacyOptions, *, rounds: int = 4, norm: float = 1.0,
    seed: int = 0, begin: Begin = silent,
) -> CanaryScores:  # fmt: skip
    """Train a network with canary devices among users, and score the canaries.

    With noise everybody takes part once, without noise in every round.
    """
    included, count = coins(canaries, seed), len(users) + canaries
    if count < rounds:
        raise FedgramError(f"{count} devices are too few for {rounds} rounds")
    plain = FedAvgOptions(
        rounds=rounds, devices_per_round=count // rounds, over_selection=1.0, dropout=0.0, weighting="uniform",
        update_norm=norm, server_rule="momentum", server_momentum=0.0, server_rate=1.0, weight_average=0.0,
        dev_users=0,
    )  # fmt: skip
    options, ledger = with_noise(plain, privacy, count), Ledger()
    if options.noise == "none":  # nothing limits how often a device takes part, so that all of them always do
        options = replace(options, devices_per_round=count)
    devices, plan = CanaryDevices(users, included, norm, seed), NoisePlan.of(options, count)
    trained = train_federated(network, devices, options, seed=seed, ledger=ledger, begin=begin)
    weights = [*devices.weights, _flat({name: trained.weights[name] for name in trained.shape.sizes()})]
    released = np.diff(np.array(weights), axis=0)
    mixing = _mixing(plan, rounds)
    score = _scores(mixing, mixing @ released, devices, begin("Scoring canaries", canaries))
    return CanaryScores(score, included, ledger.spent(privacy.delta).epsilon if ledger.entries else None)


def _mixing(plan: NoisePlan | None, rounds: int) -> FloatArray:
    """C, with which the noise of rounds becomes independent."""
    matrix = np.eye(rounds)
    if plan is not None:
        c = plan.privacy.blt.coefficients(rounds)
        for i in range(1, rounds):
            matrix += c[i] * np.eye(rounds, k=-i)
    return matrix


def _scores(mixing: FloatArray, whitened: FloatArray, devices: CanaryDevices, advance: Advance) -> FloatArray:
    """By canary, the releases along its direction, with the weights that it has in each of them."""
    score = np.zeros(len(devices.included))
    for canary in range(len(score)):
        taken = np.array([canary in found for found in devices.rounds], np.float64)
        if taken.any():
            expected = mixing @ taken
            along = whitened @ direction(devices.seed, canary, whitened.shape[1])
            score[canary] = expected @ along / np.linalg.norm(expected)
        advance(1)
    return score


def _flat(weights: Mapping[str, NDArray[Any]]) -> FloatArray:
    return np.concatenate([w.ravel().astype(np.float64) for w in weights.values()])
