"""Several fleets as one: how long they wait for devices, and for how many."""

from collections.abc import Sequence

import numpy as np
import pytest

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record
from fedgram.federated import shards
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.fleet import AbandonedAttemptError, RoundCall, RoundSum, Tally
from fedgram.federated.shards import ShardedFleet, Waiting
from fedgram.federated.task import Total

NOBODY = np.zeros(0, np.int64)


class Arriving:
    """A fleet whose devices appear look by look; None means that its server has failed."""

    def __init__(self, devices: Sequence[list[int] | None]) -> None:
        self._devices, self._looks = devices, 0

    def devices(self, wanted: int, spent: LongArray) -> LongArray:
        assert wanted == 0  # the shards do not wait themselves
        there = self._devices[min(self._looks, len(self._devices) - 1)]
        self._looks += 1
        if there is None:
            raise FedgramError("the server is away")
        return np.setdiff1d(np.array(there, np.int64), spent)

    def prepare(self, call: RoundCall) -> None:
        raise NotImplementedError

    def collect(self, call: RoundCall) -> RoundSum:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_POLL_SECONDS", 1e-3)


def test_the_wait_ends_with_as_many_devices_as_a_round_wants() -> None:
    said: list[str] = []
    fleet = ShardedFleet([Arriving([[], [1], [1, 2]]), Arriving([[], [7]])], Waiting(60.0), on_wait=said.append)
    assert fleet.devices(3, NOBODY).tolist() == [1, 2, 7]
    assert said == [
        "waiting for devices: 0 of 3 are ready",
        "waiting for devices: 2 of 3 are ready",
        "",
    ]


def test_the_wait_ends_with_as_many_devices_as_are_set() -> None:
    """`devices` of the waiting counts, not the size of a round."""
    for number, expected in ((1, [7]), (3, [1, 2, 7])):
        fleet = ShardedFleet([Arriving([[], [], [1, 2]]), Arriving([[], [7]])], Waiting(60.0, devices=number))
        assert fleet.devices(20, NOBODY).tolist() == expected


def test_without_a_number_wanted_there_is_no_wait() -> None:
    fleet = ShardedFleet([Arriving([[]]), Arriving([[]])], Waiting(60.0, devices=3))
    assert not len(fleet.devices(0, NOBODY))


def test_a_failed_server_is_not_waited_for() -> None:
    said: list[str] = []
    fleet = ShardedFleet([Arriving([None]), Arriving([[4], [4, 5]])], Waiting(60.0), on_wait=said.append)
    assert fleet.devices(4, NOBODY).tolist() == [4, 5]
    assert said == ["waiting for devices: 1 of 2 are ready, 1 of 2 servers failed", ""]
    with pytest.raises(FedgramError, match="the server is away"):
        ShardedFleet([Arriving([None]), Arriving([None])], Waiting(60.0)).devices(4, NOBODY)


def test_the_wait_is_shorter_once_devices_have_taken_part() -> None:
    fleet = ShardedFleet([Arriving([[1, 2, 3]])], Waiting(seconds=60.0, idle_seconds=0.0))
    assert fleet.devices(9, np.array([2])).tolist() == [1, 3]


def test_a_server_with_too_few_devices_is_left_out() -> None:
    fleet = ShardedFleet([Arriving([[1, 2, 3]]), Arriving([[3, 4, 5]])], min_devices=3)
    assert fleet.devices(9, NOBODY).tolist() == [1, 2, 3]  # device 3 belongs to the first server


class Summing(Arriving):
    """A fleet that sums the numbers of its devices, or abandons the attempt after it has seen their reports."""

    def __init__(self, devices: list[int], *, fails: bool = False) -> None:
        super().__init__([devices])
        self._fails = fails

    def collect(self, call: RoundCall) -> RoundSum:
        if self._fails:
            raise AbandonedAttemptError("the power went out", Tally(), call.order)
        total = Total(0, {"sum": np.array([call.order.sum()])}, len(call.order), len(call.order))
        return RoundSum(total, call.order, Tally(reports=len(call.order)))


def collected(*fleets: Summing, minimum: int = 1) -> RoundSum:
    fleet = ShardedFleet(fleets)
    order = fleet.devices(0, NOBODY)
    return fleet.collect(RoundCall(1, 0, order, RoundPlan(len(order), 1.0, minimum=minimum), Record(), None))


def test_the_sum_is_that_of_all_shards() -> None:
    found = collected(Summing([1, 2]), Summing([10, 20]), Summing([300]), minimum=5)
    assert found.total.arrays["sum"].tolist() == [333]
    assert (found.total.devices, found.total.weight) == (5, 5)
    assert found.participants.tolist() == [1, 2, 10, 20, 300]


def test_devices_of_a_shard_that_failed_have_taken_part() -> None:
    """They have sent their reports, though the sum lacks them."""
    found = collected(Summing([1, 2]), Summing([10, 20], fails=True))
    assert found.total.arrays["sum"].tolist() == [3]
    assert found.participants.tolist() == [1, 2, 10, 20]
    assert found.tally.failed == {"server failed": 1}


def test_shards_with_too_few_reports_together_make_no_sum() -> None:
    with pytest.raises(AbandonedAttemptError, match="the power went out") as abandoned:
        collected(Summing([1, 2]), Summing([10, 20]), Summing([300], fails=True), minimum=5)
    assert abandoned.value.participants.tolist() == [1, 2, 10, 20, 300]
