"""The sum of a round while reports come in: each update is checked, then added once or refused with a reason.

Every update of every fleet passes through here: as an object, as bytes, or as part of the sum of a stack that was
computed on a GPU. The members of a stack are checked one by one, by the same rules, before they are added. A task may
want its updates joined in a robust way instead (`robust.py`); then they are kept until the sum is asked for.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.federated.robust import joined, rule_of
from fedgram.federated.task import FederatedTask, Total, Update
from fedgram.federated.validation import MeasuredUpdate, Reason, RefusedUpdateError
from fedgram.federated.wire import update_from_bytes

_HEADER_BYTES = 1 << 16


class Intake:
    """The sum of the updates accepted so far, and the number of refused updates by reason.

    `counted` has the devices in the sum. `participants` has these and the devices whose updates were refused: a device
    that may take part once is not invited again in either case. `empty` is the number of counted devices that had
    nothing to send. `example` has the numbers of a refused update.
    """

    def __init__(self, task: FederatedTask[Any], invited: Iterable[int] | None = None) -> None:
        self._size, self._bits, self._total = task.size, task.bits, None
        self.refused: Counter[Reason] = Counter()
        self.counted: set[int] = set()
        self.participants: set[int] = set()
        self.empty, self.example = 0, ""
        self._rule, self._single = rule_of(task), list[Total]()
        self._bounds, self._invited = task.bounds, None if invited is None else frozenset(invited)
        self._max_bytes = _HEADER_BYTES + 17 * sum(task.size.values())  # 16 for an index and a value, and some slack

    _total: Total | None

    @property
    def total(self) -> Total:
        """The sum so far."""
        if self._rule is not None:
            return joined(self._single, Total.zero(self._size, self._bits), self._rule)
        if self._total is None:
            self._total = Total.zero(self._size, self._bits)
        return self._total

    def offer(self, device: int, report: Update | bytes) -> Reason | None:
        """Add a device's update; if it is refused, the sum stays as it was and the reason is returned."""
        try:
            self._check_turn(device)
            update = report if isinstance(report, Update) else self._parsed(report)
            place = self.total if self._rule is None else Total.zero(self._size, self._bits)
            found = place.add(update, self._bounds)
        except RefusedUpdateError as refusal:
            self._refuse(device, refusal)
            return refusal.reason
        if self._rule is not None:
            self._single.append(place)
        self.counted.add(device)
        self.participants.add(device)
        self.empty += found.weight == 0.0
        return None

    def judge(self, device: int, found: MeasuredUpdate) -> bool:
        """Whether the update of one member of a stack may be added; a refusal is counted."""
        try:
            self._check_turn(device)
            self._bounds.judge(found, self._bits)
        except RefusedUpdateError as refusal:
            self._refuse(device, refusal)
            return False
        return True

    def add_stack(self, devices: Sequence[int], total: Total, found: MeasuredUpdate) -> None:
        """Add the sum of a stack, made of the devices that `judge` accepted; `found` are the numbers of the sum.

        Raises an error if these devices cannot have made the sum.
        """
        if self._rule is not None:
            raise InvariantError("single updates are needed, not the sum of a stack")
        if total.devices != len(set(devices)) or not self.counted.isdisjoint(devices):
            raise InvariantError("the sum of a stack is not that of its accepted devices")
        total.check(self._bounds, found)
        self._total = total if self._total is None else self._total + total
        self.counted.update(devices)
        self.participants.update(devices)

    def _refuse(self, device: int, refusal: RefusedUpdateError) -> None:
        reason, self.example = refusal.reason, self.example or refusal.example
        self.refused[reason] += 1
        if reason not in (Reason.NOT_INVITED, Reason.REPEATED):
            self.participants.add(device)

    def _check_turn(self, device: int) -> None:
        if self._invited is not None and device not in self._invited:
            raise RefusedUpdateError(Reason.NOT_INVITED, "the device was not invited")
        if device in self.counted:
            raise RefusedUpdateError(Reason.REPEATED, "the device has already reported in this round")

    def _parsed(self, report: bytes) -> Update:
        if len(report) > self._max_bytes:
            raise RefusedUpdateError(Reason.SHAPE, "the update is larger than any update of this task")
        try:
            return update_from_bytes(report)
        except RefusedUpdateError:
            raise
        except FedgramError as error:
            raise RefusedUpdateError(Reason.DAMAGED, str(error)) from None
