"""Tasks that compute the updates of many simulated devices at once, as on a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.federated.intake import Intake
from fedgram.text.population import ClientDataset


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One device of a simulated round: its number, its data and its random numbers."""

    device: int
    data: ClientDataset
    rng: Stream


@runtime_checkable
class BatchedTask(Protocol):
    """A `FederatedTask` that can also compute updates in batches."""

    def batches(self, members: Sequence[Member]) -> Sequence[Any]:
        """The members in batches, ready to be computed; may be called ahead of time, in another thread."""

    def client_updates(self, broadcast: Record, batches: Sequence[Any], intake: Intake) -> None:
        """Compute the updates of some batches and hand each to the intake, which judges and sums them."""
