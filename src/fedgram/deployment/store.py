"""What a device keeps: its text in an SQLite file of its own, with its number in the federation.

    about(key, value)      format, and the device's number
    message(seq, text)     what was typed, in order

The file is only read here, and nothing of it leaves the device but updates. A device's number stands for the client's
in the in-process driver: cohorts and the device's random numbers are drawn by it.
"""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram.core.arrays import IntArray, Ragged
from fedgram.core.errors import InputError
from fedgram.core.storage import atomic_write
from fedgram.text.population import ClientDataset, Population, messages_by_user, population_from_messages

_FORMAT = "fedgram device 1"
_TABLES = (
    "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT); CREATE TABLE message (seq INTEGER PRIMARY KEY, text TEXT)"
)
MOST_DEVICES = 2**40


@dataclass(frozen=True, slots=True)
class DeviceStore:
    """A device's own text; its `repr` shows nothing of it."""

    path: Path
    number: int

    def population(self) -> Population:
        """The text, normalised, as a population of one; what is not text is left out."""
        texts = [text for (text,) in self._ask("SELECT text FROM message ORDER BY seq") if isinstance(text, str)]
        return population_from_messages([(str(self.number), text, "train") for text in texts])

    def messages(self) -> int:
        """How many messages there are."""
        return int(self._ask("SELECT count(*) FROM message")[0][0])

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        try:
            with closing(_connect(self.path)) as store:
                return store.execute(query).fetchall()
        except sqlite3.Error:  # whose message may quote what it could not read
            raise InputError(self.path, "is damaged", remedy="restore it, or make it again") from None


def device_data(own: Population, number: int, codes: IntArray | Ragged) -> ClientDataset:
    """What a client function is given: the only client of the population, if there is any text at all."""
    if len(own):
        return own.load(0, codes)
    import numpy as np

    return ClientDataset(str(number), Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64)))


def write_store(path: str | Path, number: int, texts: Iterable[str]) -> int:
    """Write a device's store; returns the number of messages."""
    with closing(sqlite3.connect(":memory:")) as store:
        store.executescript(_TABLES)
        store.executemany("INSERT INTO about VALUES (?, ?)", [("format", _FORMAT), ("device", str(number))])
        count = store.executemany("INSERT INTO message (text) VALUES (?)", ((text,) for text in texts)).rowcount
        store.commit()
        with atomic_write(path) as file:
            file.write(store.serialize())
    return max(count, 0)


def write_population_stores(
    users: str | Path, folder: Path, *, split: str = "train", most: int | None = None
) -> tuple[int, int]:
    """Make a store of every user of a split; returns how many users and messages. Numbers are the population's."""
    texts = messages_by_user(users)
    chosen = [(n, name) for n, name in enumerate(sorted(texts)) if texts[name][0] == split][:most]
    folder.mkdir(parents=True, exist_ok=True)
    return len(chosen), sum(write_store(folder / f"{n}.sqlite", n, texts[name][1]) for n, name in chosen)


def open_store(path: str | Path) -> DeviceStore:
    """Open a device's store, refusing anything else."""
    Path(path).open("rb").close()  # the usual OSError for a missing or unreadable file
    remedy = "make device stores with `fedgram federation devices`"
    try:
        with closing(_connect(Path(path))) as store:
            about = dict(store.execute("SELECT key, value FROM about"))
            store.execute("SELECT seq, text FROM message LIMIT 1").fetchone()
        number = int(about["device"])
    except (sqlite3.Error, KeyError, ValueError, TypeError):
        raise InputError(path, "is not a device's store", remedy=remedy) from None
    if about.get("format") != _FORMAT or not 0 <= number < MOST_DEVICES:
        raise InputError(path, "is not a device's store of a known format", remedy=remedy)
    return DeviceStore(Path(path), number)


def _connect(path: Path) -> sqlite3.Connection:
    store = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)
    store.text_factory = lambda content: content.decode("utf-8", "replace")
    return store
