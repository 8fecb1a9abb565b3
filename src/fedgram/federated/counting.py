"""The server's side of counting tasks: the state is the sum of all updates so far, in whole numbers."""

from collections.abc import Mapping

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.storage import Record
from fedgram.federated.task import Total

Sums = Mapping[str, LongArray]


class CountingTask:
    """What counting tasks have in common. A subclass adds the rest of a `FederatedTask`: settings and `client_update`.

    An update is a function of the device's text alone, so a real device takes part once.
    """

    is_counting, bits = True, 0
    size: Mapping[str, int]

    def init(self) -> Sums:
        """Nothing counted yet."""
        return {name: np.zeros(n, np.int64) for name, n in self.size.items()}

    def broadcast(self, state: Sums) -> Record:  # noqa: ARG002
        """Nothing: devices need only the job."""
        return Record()

    def server_update(self, state: Sums, total: Total) -> Sums:
        """Add the sum of a round."""
        return {name: state[name] + total.arrays[name] for name in self.size}

    def save(self, state: Sums) -> Record:
        """The sums."""
        return Record({}, state)

    def load(self, saved: Record) -> Sums:
        """The sums that were saved."""
        return {name: saved.arrays[name] for name in self.size}
