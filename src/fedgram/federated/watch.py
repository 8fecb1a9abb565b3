"""Observers of a run: they see every round, and may end the run."""

from typing import Any, Protocol, TypeVar

from fedgram.core.storage import Record
from fedgram.federated.fleet import RoundSum

Watched = TypeVar("Watched", contravariant=True)


class Watch(Protocol[Watched]):
    """Observes a run and may end it. Its state is part of the checkpoint."""

    def begin(self, state: Watched) -> None:
        """A run starts from this state; not called when a run resumes."""

    def is_over(self, state: Watched) -> bool:
        """Whether the run should end after this state."""

    def after_round(self, state: Watched, number: int, found: RoundSum, seconds: float) -> None:
        """Called after each round, with the state that it led to."""

    def save(self) -> Record:
        """Its own state."""

    def load(self, saved: Record) -> None:
        """Restore what `save` wrote."""


class Unwatched:
    """A `Watch` that never ends a run."""

    def begin(self, state: Any) -> None:
        """Nothing to do."""

    def is_over(self, state: Any) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def after_round(self, state: Any, number: int, found: RoundSum, seconds: float) -> None:
        """Nothing to do."""

    def save(self) -> Record:
        """Nothing."""
        return Record()

    def load(self, saved: Record) -> None:
        """Nothing to restore."""
