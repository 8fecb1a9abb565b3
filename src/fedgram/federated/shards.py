"""A fleet made of fleets: several servers, each with its own devices, share the rounds of one loop.

Each server collects, checks and unmasks its share of a cohort; their exact totals are added here. If a server fails, a
round loses only the share of that server.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.federated.fleet import AbandonedAttemptError, Fleet, RoundCall, RoundSum, Tally

_NOBODY = np.zeros(0, np.int64)
_POLL_SECONDS = 0.1  # while waiting for devices


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long to wait for devices: `seconds`, or `idle_seconds` once some devices may not take part again.

    The wait ends early when `devices` are there; 0 means as many as a round wants.
    """

    seconds: float = 0.0
    idle_seconds: float = 0.0
    devices: int = 0


class ShardedFleet:
    """Several fleets as one; a device belongs to the first fleet that has it.

    A fleet with fewer than `min_devices` devices is left out: its sum would be of too few. `on_wait` is told in words
    what the fleet waits for, and "" when the wait is over.
    """

    def __init__(
        self, shards: Sequence[Fleet], waiting: Waiting | None = None, *, min_devices: int = 1,
        on_wait: Callable[[str], object] = lambda _: None,
    ) -> None:  # fmt: skip
        self._shards, self._waiting, self._min_devices = list(shards), waiting or Waiting(), min_devices
        self._on_wait = on_wait
        self._members: list[LongArray] = [_NOBODY for _ in self._shards]
        self._pool = ThreadPoolExecutor(len(self._shards))

    def devices(self, wanted: int, spent: LongArray) -> LongArray:
        """The devices of all shards that can be invited.

        Waits until enough are there. Shards that have failed are not waited for: their share is deducted.
        """
        goal = (self._waiting.devices or wanted) if wanted else 0
        end = time.monotonic() + (self._waiting.idle_seconds if len(spent) else self._waiting.seconds)
        while True:
            known, problems = self._look(spent)
            if len(problems) == len(self._shards):
                raise FedgramError(problems[0])
            needed = ceil(goal * (1 - len(problems) / len(self._shards)))
            if len(known) >= needed or time.monotonic() >= end:
                self._on_wait("")
                return known
            failed = f", {len(problems)} of {len(self._shards)} servers failed" if problems else ""
            self._on_wait(f"waiting for devices: {len(known)} of {needed} are ready{failed}")
            time.sleep(_POLL_SECONDS)

    def _look(self, spent: LongArray) -> tuple[LongArray, list[str]]:
        """The devices that are there now, and the problem of each shard that has failed."""
        present = [self._pool.submit(_present, shard, spent) for shard in self._shards]
        known, problems = _NOBODY, []
        for number, future in enumerate(present):
            devices, problem = future.result()
            own = np.setdiff1d(devices, known)
            self._members[number] = own if len(own) >= self._min_devices else _NOBODY
            known = np.union1d(known, self._members[number])
            problems += [problem] if problem else []
        return known, problems

    def prepare(self, call: RoundCall) -> None:
        """Let every shard prepare its share."""
        for shard, own in zip(self._shards, self._shares(call), strict=True):
            if own is not None:
                shard.prepare(own)

    def collect(self, call: RoundCall) -> RoundSum:
        """The sum of all shares that have one; abandoned if none has, or if there are too few reports."""
        shares = [
            self._pool.submit(_collect, shard, own)
            for shard, own in zip(self._shards, self._shares(call), strict=True)
            if own is not None
        ]
        if not shares:
            raise AbandonedAttemptError("no server has enough devices for its share of the round", Tally())
        sums, tally, participants, problems = list[RoundSum](), Tally(), _NOBODY, list[str]()
        for share in shares:
            found = share.result()
            tally += found.tally
            if isinstance(found, AbandonedAttemptError):
                problems.append(found.reason)
            elif any(len(np.intersect1d(found.participants, other.participants)) for other in sums):
                problems.append("two servers have counted the same device")  # it moved between attempts
                continue
            else:
                sums.append(found)
            participants = np.union1d(participants, found.participants)
        if not sums or sum(found.total.devices for found in sums) < call.plan.minimum:
            reported = sum(len(found.participants) for found in sums)
            reason = "; ".join(problems) or f"{reported} of at least {call.plan.minimum} reports"
            raise AbandonedAttemptError(reason, tally, participants)
        total = sums[0].total
        for other in sums[1:]:
            total = total + other.total
        if problems:
            tally.failed["server failed"] += len(problems)
        return RoundSum(total, participants, tally)

    def _shares(self, call: RoundCall) -> list[RoundCall | None]:
        """A call for each shard: its devices in the order of the draw, and its share of the reports wanted.

        A share that is too small to be summed moves to other shards, as far as these have more devices.
        """
        invited = call.order[: call.plan.invited]
        counts = np.array([np.isin(invited, members).sum() for members in self._members])
        exact = counts * (call.plan.devices / max(len(invited), 1))
        wanted = np.floor(exact).astype(np.int64)
        room = min(call.plan.devices, len(invited)) - int(wanted.sum())
        wanted[np.argsort(wanted - exact, kind="stable")[: max(room, 0)]] += 1
        least = max(1, call.masking.min_devices if call.masking else 1)
        available = np.array([np.isin(call.order, members).sum() for members in self._members])
        return [
            _share(call, members, int(n), least) if n >= least else None
            for members, n in zip(self._members, _moved(np.minimum(wanted, counts), available, least), strict=True)
        ]


def _moved(wanted: LongArray, available: LongArray, least: int) -> LongArray:
    """The shares after each share smaller than `least` has moved to other shards with devices available."""
    order = np.argsort(available, kind="stable")
    for small in order:
        if 0 < wanted[small] < least:
            freed, wanted[small] = int(wanted[small]), 0
            for other in order[::-1]:
                given = min(freed, int(available[other] - wanted[other])) if other != small else 0
                wanted[other] += given
                freed -= given
    return wanted


def _share(call: RoundCall, members: LongArray, devices: int, least: int) -> RoundCall:
    minimum = ceil(call.plan.minimum * devices / call.plan.devices)
    plan = replace(call.plan, devices=devices, minimum=min(devices, max(minimum, least)))
    return replace(call, order=call.order[np.isin(call.order, members)], plan=plan)


def _present(shard: Fleet, spent: LongArray) -> tuple[LongArray, str]:
    try:
        return shard.devices(0, spent), ""
    except FedgramError as error:
        return _NOBODY, str(error)


def _collect(shard: Fleet, call: RoundCall) -> RoundSum | AbandonedAttemptError:
    try:
        return shard.collect(call)
    except AbandonedAttemptError as abandoned:
        return abandoned
    except FedgramError as error:
        return AbandonedAttemptError(str(error), Tally())
