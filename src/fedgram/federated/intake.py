"""A round's sum while reports come in: each is judged, counted once or refused with a reason, and never half added."""

from collections import Counter
from collections.abc import Iterable

from fedgram.core.errors import FedgramError
from fedgram.federated.task import FederatedTask, State, Total, Update
from fedgram.federated.validation import Reason, RefusedUpdateError
from fedgram.federated.wire import update_from_bytes

_HEADER_BYTES = 1 << 16


class Intake:
    """The sum of the updates that were accepted so far, and how many were refused, by reason."""

    def __init__(self, task: FederatedTask[State], asked: Iterable[int] | None = None) -> None:
        self.total = Total.zero(task.size, task.bits)
        self.refused: Counter[Reason] = Counter()
        self.counted: set[int] = set()
        self._bounds, self._asked = task.bounds, None if asked is None else frozenset(asked)
        self._most_bytes = _HEADER_BYTES + 17 * sum(task.size.values())  # an index and a value each, and some room

    def offer(self, device: int, report: Update | bytes) -> Reason | None:
        """Add a device's update; if it is refused, the sum is as before, and the reason is returned."""
        try:
            self._add(device, report)
        except RefusedUpdateError as refusal:
            self.refused[refusal.reason] += 1
            return refusal.reason
        return None

    def _add(self, device: int, report: Update | bytes) -> None:
        if self._asked is not None and device not in self._asked:
            raise RefusedUpdateError(Reason.NOT_ASKED, "a device reports that was not asked")
        if device in self.counted:
            raise RefusedUpdateError(Reason.REPEATED, "a device reports twice in a round")
        update = report if isinstance(report, Update) else self._parsed(report)
        self.total.check(update)
        self._bounds.check(update.values, update.weight)
        self.total.add_checked(update)
        self.counted.add(device)

    def _parsed(self, report: bytes) -> Update:
        if len(report) > self._most_bytes:
            raise RefusedUpdateError(Reason.SHAPE, "an update is larger than any of this task")
        try:
            return update_from_bytes(report)
        except RefusedUpdateError:
            raise
        except FedgramError as error:
            raise RefusedUpdateError(Reason.DAMAGED, str(error)) from None
