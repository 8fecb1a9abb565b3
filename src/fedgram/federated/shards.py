"""A fleet made of fleets: several servers, each with devices of its own, share the rounds of one loop.

Each collects, judges and unmasks its share of a cohort; the loop adds their exact totals. A server that fails costs its
share of the round and nothing else.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import ceil

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.federated.fleet import Abandoned, Fleet, RoundCall, RoundSum, Tally

_NOBODY = np.zeros(0, np.int64)
_LOOK = 0.1  # seconds between looks at who is there


class ShardedFleet:
    """Several fleets as one; a device belongs to the first that has it.

    The devices of a fleet that has fewer than `least`, the fewest whose sum may be known, are left out.
    """

    def __init__(
        self, shards: Sequence[Fleet], wait_seconds: float = 0.0, idle_seconds: float = 0.0, least: int = 1
    ) -> None:
        self._shards, self._wait, self._idle, self._least = list(shards), wait_seconds, idle_seconds, least
        self._members: list[LongArray] = [_NOBODY for _ in self._shards]
        self._pool = ThreadPoolExecutor(len(self._shards))

    def devices(self, wanted: int, spent: LongArray) -> LongArray:
        """The devices of all shards that can be asked; waits for as many as are wanted, less the share of shards that
        have failed.
        """
        end = time.monotonic() + (self._idle if len(spent) else self._wait)
        while True:
            known, problems = self._look(spent)
            if len(problems) == len(self._shards):
                raise FedgramError(problems[0])
            living = 1 - len(problems) / len(self._shards)
            if len(known) >= ceil(wanted * living) or time.monotonic() >= end:
                return known
            time.sleep(_LOOK)

    def _look(self, spent: LongArray) -> tuple[LongArray, list[str]]:
        """Who is there now, and why shards have failed."""
        asked = [self._pool.submit(_present, shard, spent) for shard in self._shards]
        known, problems = _NOBODY, []
        for number, future in enumerate(asked):
            devices, problem = future.result()
            own = np.setdiff1d(devices, known)
            self._members[number] = own if len(own) >= self._least else _NOBODY
            known = np.union1d(known, self._members[number])
            problems += [problem] if problem else []
        return known, problems

    def prepare(self, call: RoundCall) -> None:
        """Let every shard prepare its share."""
        for shard, own in zip(self._shards, self._shares(call), strict=True):
            if own is not None:
                shard.prepare(own)

    def collect(self, call: RoundCall) -> RoundSum:
        """The sum of the shares that have one; with none, or too few reports, the attempt is abandoned."""
        asked = [
            self._pool.submit(_collect, shard, own)
            for shard, own in zip(self._shards, self._shares(call), strict=True)
            if own is not None
        ]
        if not asked:
            raise Abandoned("no server has enough devices for its share of the round", Tally())
        sums, tally, seen, problems = list[RoundSum](), Tally(), [_NOBODY], list[str]()
        for future in asked:
            found = future.result()
            tally += found.tally
            if isinstance(found, RoundSum) and any(len(np.intersect1d(found.devices, s.devices)) for s in sums):
                problems.append("two servers have counted the same device")  # one moved between attempts
            elif isinstance(found, RoundSum):
                sums.append(found)
            else:
                problems.append(str(found))
                seen.append(found.seen)
        reported = np.concatenate([_NOBODY, *(found.devices for found in sums)])
        if not sums or sum(found.total.devices for found in sums) < call.plan.minimum:
            why = "; ".join(problems) or f"{len(reported)} of at least {call.plan.minimum} reports"
            raise Abandoned(why, tally, np.union1d(reported, np.concatenate(seen)))
        total = sums[0].total
        for other in sums[1:]:
            total = total + other.total
        if problems:
            tally.failed["server failed"] += len(problems)
        return RoundSum(total, np.union1d(reported, np.concatenate(seen)), tally)

    def _shares(self, call: RoundCall) -> list[RoundCall | None]:
        """A call for each shard: its devices in the draw's order, and its share of the devices wanted.

        A share of fewer devices than may be summed goes to the other shards, as far as they have more.
        """
        invited = call.order[: call.plan.invited]
        counts = np.array([np.isin(invited, members).sum() for members in self._members])
        exact = counts * (call.plan.devices / max(len(invited), 1))
        wanted = np.floor(exact).astype(np.int64)
        room = min(call.plan.devices, len(invited)) - int(wanted.sum())
        wanted[np.argsort(wanted - exact, kind="stable")[: max(room, 0)]] += 1
        least = max(1, call.masking.min_devices if call.masking else 1)
        most = np.array([np.isin(call.order, members).sum() for members in self._members])
        return [
            _share(call, members, int(n), least) if n >= least else None
            for members, n in zip(self._members, _moved(np.minimum(wanted, counts), most, least), strict=True)
        ]


def _moved(wanted: LongArray, most: LongArray, least: int) -> LongArray:
    """The shares after each that is smaller than `least` went to others, none of which has more than its `most`."""
    order = np.argsort(most, kind="stable")
    for small in order:
        if 0 < wanted[small] < least:
            freed, wanted[small] = int(wanted[small]), 0
            for other in order[::-1]:
                given = min(freed, int(most[other] - wanted[other])) if other != small else 0
                wanted[other] += given
                freed -= given
    return wanted


def _share(call: RoundCall, members: LongArray, devices: int, least: int) -> RoundCall:
    share = ceil(call.plan.minimum * devices / call.plan.devices)
    plan = replace(call.plan, devices=devices, minimum=min(devices, max(share, least)))
    return replace(call, order=call.order[np.isin(call.order, members)], plan=plan)


def _present(shard: Fleet, spent: LongArray) -> tuple[LongArray, str]:
    try:
        return shard.devices(0, spent), ""
    except FedgramError as error:
        return _NOBODY, str(error)


def _collect(shard: Fleet, call: RoundCall) -> RoundSum | Abandoned:
    try:
        return shard.collect(call)
    except Abandoned as why:
        return why
    except FedgramError as error:
        return Abandoned(str(error), Tally())
