"""Discovering words outside the whitelist: the operation behind the command and the library.

Words are found character by character, in a tree of prefixes. At each level the server names the prefixes that
survived, devices say how their words continue, and the server keeps the continuations that enough devices have
(`growth.py`). A level is one pass over the devices, in which each takes part once. Beyond the paper.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgram.core.checkpoint import Checkpoints
from fedgram.core.errors import FedgramError
from fedgram.core.progress import Advance, Begin, silent
from fedgram.core.random import stream_key
from fedgram.core.settings import chosen
from fedgram.core.storage import Record
from fedgram.federated.devices import Devices, as_devices
from fedgram.federated.discovery.alphabet import Alphabet
from fedgram.federated.discovery.growth import Guarantee, NoisyTree, Rule, VotingTree, grow
from fedgram.federated.discovery.options import DiscoveryOptions
from fedgram.federated.discovery.passes import AtOnce, InRounds, Passes
from fedgram.federated.discovery.prefix_level import Collection, PrefixLevel
from fedgram.federated.discovery.triehh import plan_voting
from fedgram.federated.one_event import OneEvent
from fedgram.federated.whitelist import as_whitelist
from fedgram.privacy.ledger import Ledger
from fedgram.privacy.noise import Randomness, SystemRandomness
from fedgram.text.population import Users
from fedgram.text.vocabulary import Vocabulary

_OPERATION = "discovery"  # its name in a ledger


class LevelReport(NamedTuple):
    """What happened at a level: devices in the sum, entries of the vector, prefixes that survived, words found."""

    reports: int
    candidates: int
    prefixes: int
    words: int


@dataclass(frozen=True, slots=True, eq=False)
class DiscoveredWords:
    """Words that many devices have, the most frequent first, with an estimate of the number of their holders.

    `holders_needed` is how many holders a word needs to be found, and `requirement` says so in words. `longest` is the
    maximum length of a word. If no word was found, `reason` says why.
    """

    words: tuple[str, ...]
    holders: tuple[float, ...]
    holders_needed: int
    requirement: str
    guarantee: Guarantee
    longest: int
    devices: int | None
    levels: tuple[LevelReport, ...]
    reason: str | None

    def __repr__(self) -> str:
        return f"DiscoveredWords({len(self.words):,} words; ε = {self.guarantee.epsilon:g})"


@dataclass(slots=True)
class _Tree:
    """A tree between two levels. `secret` is a random number, with which batches of devices are drawn."""

    secret: int
    words: dict[str, float] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ("",)
    levels: list[LevelReport] = field(default_factory=list)

    def save(self) -> Record:
        fields = {"secret": self.secret, "words": self.words, "prefixes": self.prefixes, "levels": self.levels}
        return Record(fields)

    @classmethod
    def load(cls, saved: Record) -> "_Tree":
        f = saved.fields
        return cls(f["secret"], dict(f["words"]), tuple(f["prefixes"]), [LevelReport(*level) for level in f["levels"]])


def discover(
    users: Users | Devices,
    whitelist: Vocabulary | Iterable[str] | str | Path,
    options: DiscoveryOptions | None = None,
    *,
    seed: int = 0,
    randomness: Randomness | None = None,
    folder: Path | None = None,
    ledger: Ledger | None = None,
    begin: Begin = silent,
    **settings: Any,
) -> DiscoveredWords:
    """Find words outside a whitelist that many devices have, with user-level differential privacy.

    Formal guarantee: (ε, δ)-differential privacy if the data of one user is added or removed, provided that the server
    adds the noise. Masking hides single devices from the server.

    Args:
        users: The users whose devices take part, such as `population.train`.
        whitelist: The words that are known: a vocabulary, some words, or a file with one word per line.
        options: How to discover; its fields may be given as keywords instead.
        seed: Of the choice of words on devices.
        randomness: The source of the noise and of TrieHH's batches; by default, the operating system.
        folder: For checkpoints; an interrupted collection resumes from there, and no sum gets noise twice.
        ledger: Where privacy spent on these users is recorded, and their budget.
        begin: Progress callback.
    """
    options = chosen(DiscoveryOptions, options, settings)
    source, devices = randomness or SystemRandomness(), as_devices(users)
    collection = _collection(as_whitelist(whitelist), options, seed)
    rule, tree = _rule(options, devices.count, source), _Tree(0)
    if devices.count is None or rule.can_find(devices.count):
        about = {**asdict(options), "known": collection.known.digest, "choice": collection.choice}
        OneEvent(folder, about).enter(ledger or Ledger(), _OPERATION, rule.event, source)
        passes = _passes(users, collection, options, folder, begin)
        stored = Checkpoints(folder / "levels", about, kept=1) if folder else None  # no level is released twice
        most = options.max_candidates // len(collection.alphabet)
        tree = _Levels(collection, rule, passes, stored, most).run(source)
    return _result(rule, collection, devices.count, tree)


def _collection(known: Vocabulary, options: DiscoveryOptions, seed: int) -> Collection:
    """The tree's first level adds as many characters as fit in a vector; TrieHH adds one, as published."""
    alphabet = Alphabet.of(known.words)
    first = 1 if options.method == "triehh" else int(log(options.max_candidates + 0.5) / log(len(alphabet)))
    choice = int(stream_key(seed, "discovery") >> np.uint64(1))
    return Collection(known, alphabet, options.levels, first, options.words_per_device, choice)


def _rule(options: DiscoveryOptions, devices: int | None, source: Randomness) -> Rule:
    if options.method == "tree":
        return NoisyTree(options, source)
    if devices is None:
        raise FedgramError("TrieHH needs to know the number of devices; use the method tree")
    voting = plan_voting(devices, options.levels, epsilon=options.epsilon, delta=options.delta)
    return VotingTree(voting, source)


def _passes(
    users: Users | Devices, collection: Collection, options: DiscoveryOptions, folder: Path | None, begin: Begin
) -> Passes:
    def step(level: int) -> Advance:
        return begin(f"Discovering words, level {level + 1} of {options.levels}", as_devices(users).count)

    if isinstance(users, Users) and not options.secure_aggregation:
        return AtOnce(users, collection, step)
    return InRounds(as_devices(users), options, folder, step)


@dataclass(frozen=True, slots=True)
class _Levels:
    """The levels of a collection. Checkpoints hold only what was released, so resuming reveals nothing more."""

    collection: Collection
    rule: Rule
    passes: Passes
    stored: Checkpoints | None
    max_prefixes: int

    def run(self, source: Randomness) -> _Tree:
        """The tree after all levels."""
        found = self.stored.newest() if self.stored else None
        tree = _Tree.load(found[1]) if found else _Tree(int(source.words(1, "discovery", "batches")[0] >> np.uint64(1)))
        if not found:
            self._write(tree)
        while tree.prefixes and len(tree.levels) < self.collection.levels:
            self._grow(tree)
            self._write(tree)
            self.passes.forget(len(tree.levels) - 1)
        return tree

    def _grow(self, tree: _Tree) -> None:
        level = len(tree.levels)
        task = PrefixLevel(self.collection, level, tree.prefixes)
        seed = int(stream_key(tree.secret, "level", level) >> np.uint64(1))
        total, reports = self.passes.run(task, seed=seed, batch=self.rule.batch)
        grown = grow(task, self.rule.scores(task, total), self.max_prefixes)
        tree.words |= grown.words
        tree.prefixes = grown.prefixes
        tree.levels.append(LevelReport(reports, len(total), len(grown.prefixes), len(grown.words)))

    def _write(self, tree: _Tree) -> None:
        if self.stored:
            self.stored.write(len(tree.levels), tree.save())


def _result(rule: Rule, collection: Collection, devices: int | None, tree: _Tree) -> DiscoveredWords:
    ordered = sorted(tree.words.items(), key=lambda item: (-item[1], item[0]))
    among = f" among {devices:,} devices" if devices is not None else ""
    reason = None
    if not tree.levels:
        reason = f"a word needs about {rule.holders:,} holders, and there are {devices:,} devices; no device was asked"
    elif not ordered:
        reason = f"no word outside the whitelist has enough holders{among}; about {rule.holders:,} are needed"
    words, holders = tuple(word for word, _ in ordered), tuple(score for _, score in ordered)
    return DiscoveredWords(
        words, holders, rule.holders, rule.in_words(), rule.guarantee(), collection.longest, devices,
        tuple(tree.levels), reason,
    )  # fmt: skip
