"""The ledger of a population: every operation that costs its users privacy, composed to (ε, δ) and zCDP.

A ledger is a JSON file that all operations on the same users share, or is kept in memory. An operation plans its event
before it begins, and records every round before devices are invited to it, so that what was spent is never understated.
A round that would exceed the budget is refused before it begins.

    ledger = Ledger.open("users.ledger.json", Budget(3.42, 1e-8))
    ledger.plan("training", event, rounds=240, run=digest, generator=randomness.name)
    ledger.spend("training", 1, run=digest)          # before each round, with its number

An operation is named by `name` and `run`. Planning the same event again under the same names continues its entry, so
that a resumed operation is counted once; another event, or another run, is another entry.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError, InputError, InvariantError
from fedgram.core.locks import locked
from fedgram.core.storage import atomic_write, flush
from fedgram.privacy.accounting import Approximate, Event, Spent, compose, event_from_json, event_to_json
from fedgram.privacy.gaussian import check_delta

KIND, VERSION = "fedgram privacy ledger", 1
DEFAULT_DELTA = 1e-10
LEDGER_FILE = "privacy.json"  # its usual name in the folder of a run or a federation
_MAX_BYTES = 10_000_000
_LOCK_SECONDS = 60.0


class BudgetError(FedgramError):
    """An operation that would exceed the privacy budget. Nothing was released for it."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that all operations on a population may cost together."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if not 0 < self.epsilon < inf:
            raise FedgramError(f"the budget's epsilon must be greater than 0 and finite, not {self.epsilon}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation: its event over all its rounds, and the rounds begun so far.

    `generator` says where its noise comes from. In a simulation each device stands for `stands_for` users: `event` is
    what the operation would cost a population of that size, `real_event` what it costs the users that there are.
    """

    name: str
    event: Event
    run: str = ""
    rounds: int = 1
    spent: int = 0
    generator: str = ""
    stands_for: float = 1.0

    def __post_init__(self) -> None:
        numbers = type(self.rounds) is int and type(self.spent) is int and 0 <= self.spent <= self.rounds
        texts = all(isinstance(text, str) for text in (self.name, self.run, self.generator))
        if not (numbers and texts and self.name and isinstance(self.stands_for, int | float)):
            raise InvariantError("an entry of a privacy ledger has a wrong value")
        if not 0 < self.stands_for < inf:
            raise InvariantError(f"a device cannot stand for {self.stands_for} users")

    @property
    def is_simulated(self) -> bool:
        """Whether the noise is that of another population."""
        return self.stands_for != 1.0

    @property
    def real_event(self) -> Event:
        """The event for the users that there are."""
        return self.event.scaled(1.0 / self.stands_for)

    def is_same(self, other: "Entry") -> bool:
        """Whether both are the same operation."""
        return replace(self, spent=0) == replace(other, spent=0)

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return {**asdict(self), "event": event_to_json(self.event)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Entry":
        """What `to_json` wrote."""
        return cls(**{**values, "event": event_from_json(values["event"])})


class Ledger:
    """The entries of a population, and its budget; in a file that several processes may share, or in memory."""

    def __init__(self, path: Path | None = None, budget: Budget | None = None) -> None:
        self.path, self.budget, self._entries = path, budget, tuple[Entry, ...]()
        self._asked: float | None = None

    @classmethod
    def open(cls, path: str | Path, budget: Budget | None = None) -> "Ledger":
        """The ledger of a file, which need not exist yet; a budget replaces the one that the file has."""
        ledger = cls(Path(path), budget)
        if ledger.path is not None and not ledger.path.parent.is_dir():
            raise InputError(ledger.path, "its folder does not exist", remedy=f"mkdir -p {ledger.path.parent}")
        ledger._read()
        return ledger

    @classmethod
    def of(cls, entries: Iterable[Entry], budget: Budget | None = None) -> "Ledger":
        """A ledger in memory with these entries."""
        ledger = cls(None, budget)
        ledger._entries = tuple(entries)
        return ledger

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All operations, in the order in which they were planned."""
        return self._entries

    @property
    def delta(self) -> float:
        """δ of the budget; or else the largest that an operation was asked for with, or a usual one."""
        if self.budget:
            return self.budget.delta
        known = [e.event.delta for e in self._entries if isinstance(e.event, Approximate)]
        return max([*known, self._asked] if self._asked else known, default=DEFAULT_DELTA)

    def asked_at(self, delta: float) -> "Ledger":
        """This ledger, which notes with its next entry that an operation's ε was asked for at δ."""
        check_delta(delta)
        self._asked = max(delta, self._asked or 0.0)
        return self

    def plan(
        self, name: str, event: Event, *, rounds: int = 1, run: str = "", generator: str = "", stands_for: float = 1.0
    ) -> Entry:
        """Enter an operation, before it begins or resumes. Raises `BudgetError` if all its rounds exceed the budget.

        An entry of the same names of which no round was begun is replaced.
        """
        entry = Entry(name, event, run, rounds, 0, generator, stands_for)
        with self._exclusive():
            known = [e for e in self._entries if e.is_same(entry)]
            entry = known[0] if known else entry
            others = [
                e for e in self._entries if not e.is_same(entry) and (e.spent or (e.name, e.run) != (name, run))
            ]  # fmt: skip
            self._check(others, replace(entry, spent=entry.rounds), f"{name} would exceed")
            self._entries = (*others, entry)
            self._write()
        return entry

    def spend(self, name: str, rounds: int = 1, *, run: str = "") -> None:
        """Record that the first `rounds` rounds of an operation are about to be done; recording again changes nothing.

        Raises `BudgetError` if the budget does not allow it. The rounds must not be begun then.
        """
        with self._exclusive():
            named = [e for e in self._entries if (e.name, e.run) == (name, run)]
            if not named:
                raise InvariantError(f"{name} was not planned in the privacy ledger")
            entry = named[-1]
            if rounds > entry.rounds:
                raise BudgetError(f"round {rounds} of {name} is beyond the {entry.rounds} rounds that were planned")
            if rounds <= entry.spent:
                return
            others, entry = [e for e in self._entries if e is not entry], replace(entry, spent=rounds)
            self._check(others, entry, f"round {rounds} of {name} would exceed")
            self._entries = tuple(entry if e.is_same(entry) else e for e in self._entries)
            self._write()

    def spent(self, delta: float | None = None) -> Spent:
        """The cost of all rounds that were begun; simulated operations count for the population they stand for."""
        return compose(_events(self._entries), self.delta if delta is None else delta)

    def real_spent(self, delta: float | None = None) -> Spent:
        """The same for the users that there are."""
        events = [e.real_event.after(e.spent) for e in self._entries if e.spent]
        return compose(events, self.delta if delta is None else delta)

    @property
    def is_simulated(self) -> bool:
        """Whether any operation was simulated for another population."""
        return any(entry.is_simulated for entry in self._entries)

    def _check(self, others: Sequence[Entry], entry: Entry, problem: str) -> None:
        """Refuse what is beyond the budget. Whole plans are composed first: their cost is known from the last time."""
        if self.budget is None:
            return
        limit, delta = self.budget.epsilon * (1 + 1e-9), self.budget.delta
        whole = [replace(e, spent=e.rounds) for e in (*others, entry)]
        if compose(_events(whole), delta).epsilon <= limit:
            return
        cost = compose(_events([*others, entry]), delta).epsilon
        if cost > limit:
            left = f"ε = {cost:.4g} of {self.budget.epsilon:g} at δ = {delta:g}"
            remedy = "use more noise or fewer rounds, or raise the budget"
            raise BudgetError(f"{problem} the privacy budget ({left}); it was not begun; {remedy}")

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the file, with the entries that it has now."""
        if self.path is None:
            with nullcontext():
                yield
            return
        name = f".{self.path.name}.lock"
        with locked(self.path.parent, seconds=_LOCK_SECONDS, taken="the privacy ledger is in use", name=name):
            self._read()
            yield

    def _read(self) -> None:
        assert self.path is not None
        if not self.path.exists():
            return
        try:
            if self.path.stat().st_size > _MAX_BYTES:
                raise ValueError
            content = json.loads(self.path.read_text("utf-8"))
            if (content["kind"], content["version"]) != (KIND, VERSION):
                raise ValueError
            self._entries = tuple(Entry.from_json(values) for values in content["entries"])
            if self.budget is None and content["budget"] is not None:
                self.budget = Budget(**content["budget"])
            if content.get("delta") is not None:
                self.asked_at(content["delta"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, FedgramError) as error:
            remedy = "restore it from a backup; without it nobody knows what was spent"
            raise InputError(self.path, "is not a privacy ledger, or is damaged", remedy=remedy) from error

    def _write(self) -> None:
        if self.path is None:
            return
        budget = asdict(self.budget) if self.budget else None
        entries = [entry.to_json() for entry in self._entries]
        content = {"kind": KIND, "version": VERSION, "budget": budget, "delta": self._asked, "entries": entries}
        with atomic_write(self.path) as file:
            file.write((json.dumps(content, indent=1) + "\n").encode())
        flush(self.path.parent)


def _events(entries: Sequence[Entry]) -> list[Event]:
    return [entry.event.after(entry.spent) for entry in entries if entry.spent]


def ledger_facts(ledger: Ledger, delta: float | None = None) -> dict[str, Any]:
    """What a ledger says, for a status or a report: totals, the budget, and one row per operation."""
    delta = ledger.delta if delta is None else delta
    total, budget = ledger.spent(delta), ledger.budget
    facts: dict[str, Any] = {
        "epsilon": _finite(total.epsilon), "delta": delta, "zcdp": total.zcdp, "simulated": ledger.is_simulated
    }  # fmt: skip
    if ledger.is_simulated:
        facts["real_epsilon"] = _finite(ledger.real_spent(delta).epsilon)
    if budget:
        facts["budget"] = asdict(budget)
    return {**facts, "operations": [_row(entry, delta) for entry in ledger.entries]}


def _row(entry: Entry, delta: float) -> dict[str, Any]:
    alone = compose(_events([entry]), delta)
    row: dict[str, Any] = {
        "name": entry.name, "mechanism": event_to_json(entry.event)["kind"], "rounds": entry.rounds,
        "spent": entry.spent, "epsilon": _finite(alone.epsilon), "zcdp": alone.zcdp, "generator": entry.generator,
    }  # fmt: skip
    if entry.is_simulated:
        real = compose([entry.real_event.after(entry.spent)] if entry.spent else [], delta)
        row |= {"users_per_device": entry.stands_for, "real_epsilon": _finite(real.epsilon)}
    return row


def _finite(epsilon: float) -> float | None:
    """ε, or None where there is no bound; JSON has no infinity."""
    return epsilon if epsilon < inf else None


def total_in_words(facts: Mapping[str, Any]) -> str:
    """One line on the total of `ledger_facts`.

    >>> total_in_words({"epsilon": 2.0, "delta": 1e-08, "zcdp": None, "simulated": True, "real_epsilon": None})
    'ε = 2 at δ = 1e-08 (simulated population; for the real users there is no bound)'
    """
    epsilon = "there is no bound on ε" if facts["epsilon"] is None else f"ε = {facts['epsilon']:.4g}"
    text = f"{epsilon} at δ = {facts['delta']:g}"
    text += f", zCDP {facts['zcdp']:.4g}" if facts["zcdp"] else ""
    if facts["simulated"]:
        real = facts["real_epsilon"]
        known = "there is no bound" if real is None else f"ε = {real:.4g}"
        text += f" (simulated population; for the real users {known})"
    return text + (f", budget ε = {facts['budget']['epsilon']:g}" if "budget" in facts else "")


def operations_in_words(facts: Mapping[str, Any]) -> dict[str, str]:
    """One line per operation of `ledger_facts`, by name; operations of the same name are numbered."""
    lines: dict[str, str] = {}
    for row in facts["operations"]:
        name, number = row["name"], 2
        while name in lines:
            name, number = f"{row['name']} ({number})", number + 1
        lines[name] = _row_in_words(row)
    return lines


def _row_in_words(row: Mapping[str, Any]) -> str:
    epsilon = "no bound on ε" if row["epsilon"] is None else f"ε = {row['epsilon']:.4g}"
    text = f"{epsilon} alone, {row['mechanism']} noise, {row['spent']:,} of {row['rounds']:,} rounds"
    if "real_epsilon" in row:
        real = "no bound" if row["real_epsilon"] is None else f"ε = {row['real_epsilon']:.4g}"
        text += f", simulated: each device stands for {row['users_per_device']:,.4g} users, {real} for the real ones"
    return text + (f"; noise from the {row['generator']}" if row["generator"] else "")
