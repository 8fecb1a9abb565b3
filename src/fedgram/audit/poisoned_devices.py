"""Devices that lie: what they type, and what they send in a training.

    backdoor    They type only phrases that end in a word of the attacker's choice, until the limit of a device. In a
                training they send the change that these phrases make, scaled up to the limit.
    sabotage    They type random words. In a training they send the opposite of what their own text would change, scaled
                up to the limit.

All of this passes the server's checks, because it is within the limits of an honest device. Where a training has no
limit, the change is scaled up so far that a single device replaces the model (Bagdasaryan et al. 2020).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isinf
from typing import Any, Literal

import numpy as np

from fedgram.audit.planting import replaced
from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.random import Stream, stream
from fedgram.core.storage import Record
from fedgram.federated.cohort import CohortOptions
from fedgram.federated.devices import SimulatedDevices
from fedgram.federated.fleet import Fleet
from fedgram.federated.job import Job
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.task import Update
from fedgram.text.normalize import uncase
from fedgram.text.population import ClientDataset, Population, Users
from fedgram.training.fedavg_task import FederatedAveraging

Attack = Literal["backdoor", "sabotage"]
_PHRASE = 3  # words of a trigger


@dataclass(frozen=True, slots=True)
class Backdoor:
    """A phrase that people type, and the word that the attacker wants to be suggested after it."""

    trigger: tuple[str, ...]
    target: str


def common_phrases(users: Users, count: int) -> list[tuple[str, ...]]:
    """The phrases of three words that most users go on from, most first."""
    words, holders = [uncase(word) for word in users.population.words], Counter[tuple[int, ...]]()
    for client in users.clients.tolist():
        sentences = users.population.sentences(client)
        holders.update({tuple(s[i : i + _PHRASE].tolist()) for s in sentences for i in range(len(s) - _PHRASE)})
    by_phrase = Counter[tuple[str, ...]]()
    for ids, number in holders.items():
        by_phrase[tuple(words[x] for x in ids)] += number
    plain = [phrase for phrase in by_phrase if all(word and word[0].isalpha() for word in phrase)]
    return sorted(plain, key=lambda phrase: (-by_phrase[phrase], phrase))[:count]


def backdoors(phrases: Sequence[tuple[str, ...]], words: Sequence[str], seed: int) -> list[Backdoor]:
    """For every phrase another target, drawn from words that no trigger has."""
    free = [word for word in words if not any(word in phrase for phrase in phrases)]
    if len(free) < len(phrases):
        raise FedgramError(f"{len(free)} words are too few for {len(phrases)} backdoors")
    drawn = stream(seed, "targets").choice(len(free), len(phrases), replace=False).tolist()
    return [Backdoor(phrase, free[i]) for phrase, i in zip(phrases, drawn, strict=True)]


def liars(users: Users, share: float, seed: int) -> LongArray:
    """The users whose devices lie: this share, at least one."""
    count = max(1, round(share * len(users)))
    chosen: LongArray = np.sort(stream(seed, "liars").choice(users.clients, count, replace=False))
    return chosen


def backdoored(population: Population, clients: LongArray, doors: Sequence[Backdoor], words: int) -> Population:
    """The population in which these clients type nothing but the backdoors, in turn, until `words` words."""
    phrases = [(*door.trigger, door.target) for door in doors]
    sentences, typed = list[tuple[str, ...]](), 0
    while typed + len(phrase := phrases[len(sentences) % len(phrases)]) + 1 <= words:
        sentences.append(phrase)
        typed += len(phrase) + 1  # a sentence's end counts too
    return replaced(population, dict.fromkeys(clients.tolist(), sentences))


def scrambled(population: Population, clients: LongArray, pool: Sequence[str], words: int, seed: int) -> Population:
    """The population in which these clients type random words, until `words` words."""
    length, texts = 5, {}
    for client in clients.tolist():
        drawn = stream(seed, "scrambled", client).integers(0, len(pool), (max(words // (length + 1), 1), length))
        texts[client] = [tuple(pool[x] for x in row) for row in drawn.tolist()]
    return replaced(population, texts)


@dataclass(frozen=True, slots=True, eq=False)
class LyingTraining(FederatedAveraging):
    """Federated averaging in which the devices of some clients send as much of what they want as they may."""

    liars: frozenset[str] = field(default=frozenset(), kw_only=True)
    attack: Attack = field(default="backdoor", kw_only=True)
    cohort: int = field(default=1, kw_only=True)

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:
        """An honest update, or the longest that is accepted in the direction of the attack."""
        honest = FederatedAveraging.client_update(self, broadcast, data, rng)
        if data.client_id not in self.liars or not honest.weight:
            return honest
        weight, names = self.weight(self.plan.max_sentences), tuple(self.shape.sizes())
        norm = float(np.sqrt(sum(float(honest.values[name] @ honest.values[name]) for name in names)))
        limit = self.plan.update_norm * weight
        factor = (self.cohort * weight / honest.weight) if isinf(limit) else limit / max(norm, 1e-12)
        factor *= 1.0 - 1e-9 if self.attack == "backdoor" else -(1.0 - 1e-9)
        arrays = {name: array * factor if name in names else array for name, array in honest.values.items()}
        return replace(honest, values=arrays, weight=weight)


class LyingDevices(SimulatedDevices):
    """Users of a population as the devices of a training, some of whom lie."""

    def __init__(self, users: Users, clients: LongArray, attack: Attack) -> None:
        SimulatedDevices.__init__(self, users)
        self._attack = attack
        self._liars = frozenset(users.population.client_ids[client] for client in clients.tolist())

    @contextmanager
    def working_on(self, job: Job[Any], cohort: CohortOptions, rounds: int | None) -> Iterator[Fleet]:  # noqa: ARG002
        """A simulated fleet whose devices train one by one."""
        t: Any = job.task  # federated averaging, which has a shape and a plan
        task: Any = LyingTraining(
            t.shape, t.start, t.plan, t.coding, t.torch_device, liars=self._liars, attack=self._attack,
            cohort=cohort.devices_per_round,
        )  # fmt: skip
        yield SimulatedFleet(replace(job, task=task), self._users, dropout=cohort.dropout, batched=False)
