"""A device's text, in an SQLite file of its own, with its number in the federation.

    about(key, value)            format, and the device's number
    message(seq, text, time)     what was typed, in order, and when, in seconds since 1970; the time may be left out

A store that is written here can be read by its owner only. Otherwise the file is only read, and only updates computed
from it leave the device. The device's number takes the place of the client's index in a simulation: cohorts and the
device's random numbers are drawn with it.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram.core.arrays import IntArray, Ragged
from fedgram.core.errors import InputError
from fedgram.core.storage import atomic_write
from fedgram.text.messages import messages_by_user
from fedgram.text.population import ClientDataset, Population, population_from_messages

_FORMAT = "fedgram device 1"
_ABOUT = "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT)"
_MESSAGES, _TIMED = (f"CREATE TABLE message (seq INTEGER PRIMARY KEY, text TEXT{more})" for more in ("", ", time REAL"))
MAX_DEVICES = 2**40


@dataclass(frozen=True, slots=True)
class DeviceStore:
    """A device's own text; its `repr` shows nothing of it."""

    path: Path
    number: int

    def population(self) -> Population:
        """The text, normalised, as a population of one user; values that are not text are left out."""
        return self._population("SELECT text FROM message ORDER BY seq")

    def typed(self, after: int, upto: int, since: float) -> Population:
        """The messages whose number is above `after` and at most `upto`, and which were typed at `since` or later.

        In a store without times, all messages with such numbers.
        """
        timed = " AND time >= ?" if self.has_times() else ""
        query = f"SELECT text FROM message WHERE seq > ? AND seq <= ?{timed} ORDER BY seq"
        return self._population(query, (after, upto, since) if timed else (after, upto))

    def _population(self, query: str, values: Sequence[float] = ()) -> Population:
        texts = [text for (text,) in self._ask(query, values) if isinstance(text, str)]
        return population_from_messages([(str(self.number), text, "train") for text in texts])

    def messages(self) -> int:
        """The number of messages."""
        return int(self._ask("SELECT count(*) FROM message")[0][0])

    def last(self) -> int:
        """The number of the last message; 0 if there is none."""
        return int(self._ask("SELECT coalesce(max(seq), 0) FROM message")[0][0])

    def has_times(self) -> bool:
        """Whether all messages have the times at which they were typed."""
        columns = {name for _, name, *_ in self._ask("PRAGMA table_info(message)")}
        return "time" in columns and not self._ask("SELECT 1 FROM message WHERE time IS NULL LIMIT 1")

    def _ask(self, query: str, values: Sequence[float] = ()) -> list[tuple[Any, ...]]:
        try:
            with closing(_connect(self.path)) as store:
                return store.execute(query, values).fetchall()
        except sqlite3.Error:  # its message may quote text
            raise InputError(self.path, "is damaged", remedy="restore it, or create it again") from None


def device_data(own: Population, number: int, codes: IntArray | Ragged) -> ClientDataset:
    """The data for a task's `client_update`: the only user of the population; empty if there is no text."""
    if len(own):
        return own.load(0, codes)
    import numpy as np

    return ClientDataset(str(number), Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64)))


def write_store(path: str | Path, number: int, texts: Iterable[str], times: Iterable[float] | None = None) -> int:
    """Write a device's store, with the time of each message if it is known; returns the number of messages."""
    with closing(sqlite3.connect(":memory:")) as store:
        store.executescript(f"{_ABOUT}; {_MESSAGES if times is None else _TIMED}")
        store.executemany("INSERT INTO about VALUES (?, ?)", [("format", _FORMAT), ("device", str(number))])
        if times is None:
            count = store.executemany("INSERT INTO message (text) VALUES (?)", ((text,) for text in texts)).rowcount
        else:
            rows = zip(texts, times, strict=True)
            count = store.executemany("INSERT INTO message (text, time) VALUES (?, ?)", rows).rowcount
        store.commit()
        with atomic_write(path, private=True) as file:
            file.write(store.serialize())
    return max(count, 0)


def write_population_stores(
    users: str | Path, folder: Path, *, split: str = "train", most: int | None = None
) -> tuple[int, int]:
    """Write a store for every user of a split, numbered as in the population; returns how many users and messages."""
    texts = messages_by_user(users)
    chosen = [(n, name) for n, name in enumerate(sorted(texts)) if texts[name][0] == split][:most]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return len(chosen), sum(write_store(folder / f"{n}.sqlite", n, texts[name][1]) for n, name in chosen)


def open_store(path: str | Path) -> DeviceStore:
    """Open a device's store; anything else is refused."""
    Path(path).open("rb").close()  # raises the usual OSError for a missing or unreadable file
    remedy = "create stores with `fedgram federation devices`"
    try:
        with closing(_connect(Path(path))) as store:
            about = dict(store.execute("SELECT key, value FROM about"))
            store.execute("SELECT seq, text FROM message LIMIT 1").fetchone()
        number = int(about["device"])
    except (sqlite3.Error, KeyError, ValueError, TypeError):
        raise InputError(path, "is not a device's store", remedy=remedy) from None
    if about.get("format") != _FORMAT or not 0 <= number < MAX_DEVICES:
        raise InputError(path, "is not a device's store of a known format", remedy=remedy)
    return DeviceStore(Path(path), number)


def _connect(path: Path) -> sqlite3.Connection:
    store = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)
    store.text_factory = lambda content: content.decode("utf-8", "replace")
    return store
