"""The server's side of tasks that count: the state is the sum of all updates so far, by vector, in whole numbers."""

from collections.abc import Mapping

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.storage import Record
from fedgram.federated.task import Total

Sums = Mapping[str, LongArray]


class CountingTask:
    """What tasks that count have in common; the rest of a `FederatedTask` is theirs.

    An update is a function of the device's text alone, so that a real device takes part once.
    """

    counting, bits = True, 0
    size: Mapping[str, int]

    def init(self) -> Sums:
        """Nothing counted yet."""
        return {name: np.zeros(n, np.int64) for name, n in self.size.items()}

    def broadcast(self, state: Sums) -> Record:  # noqa: ARG002
        """Devices need nothing but the job."""
        return Record()

    def server_update(self, state: Sums, total: Total) -> Sums:
        """Add a round's sum."""
        return {name: state[name] + total.arrays[name] for name in self.size}

    def save(self, state: Sums) -> Record:
        """The sums."""
        return Record({}, state)

    def load(self, saved: Record) -> Sums:
        """The sums that were saved."""
        return {name: saved.arrays[name] for name in self.size}
