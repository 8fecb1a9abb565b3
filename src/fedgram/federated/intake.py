"""A round's sum while reports come in: each is judged, counted once or refused with a reason, and never half added.

Every update of every fleet passes through here: as an object, as bytes, or as the sum of a stack that was computed on a
GPU, whose members were each judged by the same rules before they were added.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.federated.task import FederatedTask, Total, Update
from fedgram.federated.validation import Measured, Reason, RefusedUpdateError
from fedgram.federated.wire import update_from_bytes

_HEADER_BYTES = 1 << 16


class Intake:
    """The sum of the updates that were accepted so far, and how many were refused, by reason.

    `counted` has the devices in the sum, `seen` also those whose updates were refused: a device that may take part once
    is not asked again for either. `empty` is how many of the counted had nothing to send.
    """

    def __init__(self, task: FederatedTask[Any], asked: Iterable[int] | None = None) -> None:
        self._size, self._bits, self._total = task.size, task.bits, None
        self.refused: Counter[Reason] = Counter()
        self.counted: set[int] = set()
        self.seen: set[int] = set()
        self.empty = 0
        self._bounds, self._asked = task.bounds, None if asked is None else frozenset(asked)
        self._most_bytes = _HEADER_BYTES + 17 * sum(task.size.values())  # an index and a value each, and some room

    _total: Total | None

    @property
    def total(self) -> Total:
        """The sum so far."""
        if self._total is None:
            self._total = Total.zero(self._size, self._bits)
        return self._total

    def offer(self, device: int, report: Update | bytes) -> Reason | None:
        """Add a device's update; if it is refused, the sum is as before, and the reason is returned."""
        try:
            self._check_turn(device)
            update = report if isinstance(report, Update) else self._parsed(report)
            found = self.total.add(update, self._bounds)
        except RefusedUpdateError as refusal:
            self._refuse(device, refusal.reason)
            return refusal.reason
        self.counted.add(device)
        self.seen.add(device)
        self.empty += found.weight == 0.0
        return None

    def judge(self, device: int, found: Measured) -> bool:
        """Whether an update of a stack may be added; a refusal is counted."""
        try:
            self._check_turn(device)
            self._bounds.judge(found, self._bits)
        except RefusedUpdateError as refusal:
            self._refuse(device, refusal.reason)
            return False
        return True

    def add_stack(self, devices: Sequence[int], total: Total, found: Measured) -> None:
        """Add the sum of the updates of devices that `judge` let through; a sum they cannot have made is an error.

        `found` are the sum's own numbers.
        """
        if total.devices != len(set(devices)) or not self.counted.isdisjoint(devices):
            raise InvariantError("a stack's sum is not of the devices that were let through")
        total.check(self._bounds, found)
        self._total = total if self._total is None else self._total + total
        self.counted.update(devices)
        self.seen.update(devices)

    def _refuse(self, device: int, reason: Reason) -> None:
        self.refused[reason] += 1
        if reason not in (Reason.NOT_ASKED, Reason.REPEATED):
            self.seen.add(device)

    def _check_turn(self, device: int) -> None:
        if self._asked is not None and device not in self._asked:
            raise RefusedUpdateError(Reason.NOT_ASKED, "a device reports that was not asked")
        if device in self.counted:
            raise RefusedUpdateError(Reason.REPEATED, "a device reports twice in a round")

    def _parsed(self, report: bytes) -> Update:
        if len(report) > self._most_bytes:
            raise RefusedUpdateError(Reason.SHAPE, "an update is larger than any of this task")
        try:
            return update_from_bytes(report)
        except RefusedUpdateError:
            raise
        except FedgramError as error:
            raise RefusedUpdateError(Reason.DAMAGED, str(error)) from None
