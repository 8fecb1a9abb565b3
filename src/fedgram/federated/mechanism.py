"""Privacy mechanisms: what happens to the sum of a round before the server uses it."""

from typing import Protocol

from fedgram.core.storage import Record
from fedgram.federated.task import Total


class Mechanism(Protocol):
    """What happens to the sum of a round before the server uses it: noise, and privacy accounting."""

    def check(self, number: int) -> None:
        """Refuse a round that would exceed the privacy budget, before any device is invited."""

    def release(self, number: int, total: Total) -> Total:
        """The sum that the server may use."""

    def save(self) -> Record:
        """The budget spent so far."""

    def load(self, saved: Record) -> None:
        """Restore what `save` wrote."""


class Exact:
    """A `Mechanism` without noise: the server uses the exact sum."""

    def check(self, number: int) -> None:
        """No budget."""

    def release(self, number: int, total: Total) -> Total:  # noqa: ARG002
        """The sum itself."""
        return total

    def save(self) -> Record:
        """Nothing."""
        return Record()

    def load(self, saved: Record) -> None:
        """Nothing."""
