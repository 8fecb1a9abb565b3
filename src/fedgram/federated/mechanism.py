"""Privacy mechanisms: what happens to the sum of a round before the server uses it.

`NoisySums` adds noise to every vector that has some, and withholds every other vector. It also replaces the weight of
the sum by the expected one: the true number of reports depends on who took part, which is private. A server that
divides by the weight therefore divides by the size that cohorts are planned to have. The noise is measured for that
size too, so nothing is gained by more reports, and a round with fewer reports moves the model less.
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import InvariantError
from fedgram.core.storage import Record
from fedgram.federated.cohort import PoissonCohorts
from fedgram.federated.simulation import Ranks
from fedgram.federated.task import Total
from fedgram.privacy.accounting import Event, PoissonGaussian
from fedgram.privacy.ledger import Ledger
from fedgram.privacy.mechanisms import SumNoise
from fedgram.privacy.noise import Randomness


class Mechanism(Protocol):
    """What happens to the sum of a round before the server uses it: noise, and privacy accounting."""

    @property
    def cohorts(self) -> PoissonCohorts | None:
        """How cohorts are sampled, if the privacy depends on it."""

    @property
    def commits_every_round(self) -> bool:
        """Whether every round must be in a checkpoint before the next one begins.

        Noise that cannot be drawn again must not be added twice to sums of the same round: their difference would have
        less privacy than each of them.
        """

    def begin(self) -> None:
        """A run starts; not called when a run resumes."""

    def check(self, number: int) -> None:
        """Refuse a round that would exceed the privacy budget, before any device is invited."""

    def release(self, number: int, total: Total) -> Total:
        """The sum that the server may use."""

    def epsilon(self) -> float | None:
        """ε spent so far, where it is known without much work."""

    def save(self) -> Record:
        """The state of the noise."""

    def load(self, saved: Record) -> None:
        """Restore what `save` wrote."""


class Exact:
    """A `Mechanism` without noise: the server uses the exact sum."""

    cohorts: PoissonCohorts | None = None
    commits_every_round = False

    def begin(self) -> None:
        """Nothing."""

    def check(self, number: int) -> None:
        """No budget."""

    def release(self, number: int, total: Total) -> Total:  # noqa: ARG002
        """The sum itself."""
        return total

    def epsilon(self) -> float | None:
        """No bound is known."""
        return None

    def save(self) -> Record:
        """Nothing."""
        return Record()

    def load(self, saved: Record) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Account:
    """Where an operation records its rounds: a ledger, the name of the operation, and its event over all rounds."""

    ledger: Ledger
    name: str
    event: Event
    rounds: int
    generator: str
    stands_for: float = 1.0

    def plan(self, run: str) -> None:
        """Enter the operation, or find it again."""
        self.ledger.plan(
            self.name, self.event, rounds=self.rounds, run=run, generator=self.generator, stands_for=self.stands_for
        )  # fmt: skip


class NoisySums:
    """A `Mechanism` that adds noise, for one process or for several that run the same rounds.

    `expected` is the number of devices that a round is planned for, each of which has at most the weight 1. With
    `sampling_probability`, cohorts are Poisson samples. Of several processes the first draws the noise for all, and
    keeps the account.
    """

    def __init__(
        self, noise: SumNoise, randomness: Randomness, account: Account, *, expected: float,
        sampling_probability: float | None = None, ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        self._noise, self._randomness, self._account = noise, randomness, account
        self._expected, self._probability, self._ranks = expected, sampling_probability, ranks
        self._secret: tuple[int, ...] = ()
        self.cohorts: PoissonCohorts | None = None

    @property
    def commits_every_round(self) -> bool:
        """Unless the noise can be drawn again."""
        return self._randomness.is_cryptographic

    @property
    def _leads(self) -> bool:
        return self._ranks is None or self._ranks.rank == 0

    def begin(self) -> None:
        """Draw the secret of the run, and enter it in the ledger."""
        words = self._randomness.words(2, "run", self._account.name).view(np.int64)
        (drawn,) = self._shared([words])
        self._enter(tuple(drawn.tolist()))

    def _enter(self, secret: tuple[int, ...]) -> None:
        self._secret = secret
        if self._probability is not None:
            self.cohorts = PoissonCohorts(self._probability, int(self._digest("cohorts"), 16))
        if self._leads:
            self._account.plan(self._run)

    @property
    def _run(self) -> str:
        """The name of the run in the ledger."""
        return self._digest("run")[:16]

    def _digest(self, purpose: str) -> str:
        """A number from which the secret, and what else is made of it, cannot be found."""
        return hashlib.sha256(f"{purpose} {self._secret}".encode()).hexdigest()

    def check(self, number: int) -> None:
        """Record the round, or refuse it."""
        if self._leads:
            self._account.ledger.spend(self._account.name, number, run=self._run)

    def release(self, number: int, total: Total) -> Total:
        """The sum with noise on every coordinate; vectors without noise are withheld, and the weight is the plan's."""
        drawn = self._noise.draw(number, total.bits) if self._leads else {}
        if self._leads and not drawn.keys() <= total.arrays.keys():
            raise InvariantError("there is noise for a vector that the sum does not have")
        arrays = {name: np.zeros_like(array) for name, array in total.arrays.items()}
        names = [name for name in total.arrays if name in self._noise.size]
        zeros = [arrays[name] for name in names]
        shared = self._shared([drawn[name] for name in names] if self._leads else zeros)
        arrays |= {name: total.arrays[name] + noise for name, noise in zip(names, shared, strict=True)}
        return Total(total.bits, arrays, round(self._expected * 2**total.bits), round(self._expected))

    def _shared(self, arrays: list[LongArray]) -> list[LongArray]:
        """The arrays of the first process."""
        if self._ranks is None or self._ranks.size == 1:
            return arrays
        return self._ranks.sum(arrays if self._leads else [np.zeros_like(array) for array in arrays])

    def epsilon(self) -> float | None:
        """ε of the ledger; not with Poisson sampling, where it takes seconds to compute."""
        ledger = self._account.ledger
        if not self._leads or any(isinstance(entry.event, PoissonGaussian) for entry in ledger.entries):
            return None
        return ledger.spent().epsilon

    def save(self) -> Record:
        """The noise that later rounds need, and the secret of the run."""
        return Record.joined(noise=self._noise.save(), run=Record({"secret": [str(part) for part in self._secret]}))

    def load(self, saved: Record) -> None:
        """Continue the noise and the entry in the ledger."""
        self._noise.load(saved.part("noise"))
        self._enter(tuple(int(part) for part in saved.part("run").fields["secret"]))
