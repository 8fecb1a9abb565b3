"""Users and their text, by user.

A `Population` holds every client's sentences as ids of one list of cased words: sentence s is the slice
`token[first_token[s]:first_token[s+1]]`, and client c has the sentences `first_sentence[c]:first_sentence[c+1]`. Any
client is reached in O(1). Clients come in the order of their ids, and each belongs to one split: train, dev or test.

Two files hold a population. `.parquet` has one message per row, as people can read it: `user_id`, `text`, and if known
`seq` and `split`; its text is normalised when it is opened. `.arrow` has one client per row, already normalised, and is
mapped into memory, so that large populations fit.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import IntArray, LongArray, Ragged, frozen
from fedgram.core.errors import FedgramError, InputError, InvariantError, MissingDependencyError
from fedgram.core.storage import atomic_write
from fedgram.text.normalize import normalize, uncase
from fedgram.text.vocabulary import UNK, Vocabulary

SPLITS = ("train", "dev", "test")
_BATCH_ROWS = 50_000
SplitArray = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class ClientDataset:
    """One client's sentences as ids of some vocabulary. Never written, logged or returned by a client function."""

    client_id: str
    sentences: Ragged

    def __repr__(self) -> str:
        return f"ClientDataset({len(self.sentences)} sentences, {len(self.sentences.values)} words)"


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """All clients; see the module for the representation."""

    client_ids: tuple[str, ...]
    split: SplitArray
    first_sentence: LongArray
    first_token: LongArray
    token: IntArray
    words: tuple[str, ...]
    path: Path | None = None  # of the .arrow file that the arrays are mapped from

    def __post_init__(self) -> None:
        fits = len(self.split) == len(self.client_ids) == len(self.first_sentence) - 1
        if not fits or self.first_sentence[-1] != len(self.first_token) - 1 or self.first_token[-1] != len(self.token):
            raise InvariantError("Population: the arrays' lengths do not fit together")
        for offsets in (self.first_sentence, self.first_token):
            if offsets[0] != 0 or bool((offsets[1:] < offsets[:-1]).any()):
                raise InvariantError("Population: offsets must start at 0 and never fall")
        known = len(self.token) == 0 or (self.token.min() >= 0 and self.token.max() < len(self.words))
        if not known or self.split.max(initial=0) >= len(SPLITS) or "" in self.words:
            raise InvariantError("Population: a token is not among the words, or a split is not known")
        if any(a >= b for a, b in pairwise(self.client_ids)):
            raise InvariantError("Population: clients are not in the order of their ids, or one occurs twice")
        for array in (self.split, self.first_sentence, self.first_token, self.token):
            frozen(array)

    @classmethod
    def open(cls, path: "str | Path") -> "Population":
        """Open a `.parquet` or `.arrow` population."""
        return open_population(path)

    @classmethod
    def from_messages(cls, messages: Iterable[tuple[str, str] | tuple[str, str, str | None]]) -> "Population":
        """A population from (user, text) or (user, text, split) in any order.

        Users without a split get one by a hash of their name: 80 % train, 10 % dev, 10 % test.
        """
        return population_from_messages((row[0], row[1], row[2] if len(row) > 2 else None) for row in messages)

    def __len__(self) -> int:
        return len(self.client_ids)

    def __repr__(self) -> str:
        users = ", ".join(f"{len(self.clients(split)):,} {split}" for split in SPLITS)
        return f"Population({users} users; {len(self.first_token) - 1:,} sentences, {len(self.token):,} words)"

    @property
    def train(self) -> "Users":
        """The users to train on."""
        return self.users("train")

    @property
    def dev(self) -> "Users":
        """The users to tune on."""
        return self.users("dev")

    @property
    def test(self) -> "Users":
        """The users for the final figures."""
        return self.users("test")

    def users(self, split: str | None = None) -> "Users":
        """The users of a split; all users if none is given."""
        return Users(self, self.clients(split))

    def clients(self, split: str | None = None) -> LongArray:
        """The numbers of the clients of a split, in the order of their ids; of all clients if none is given."""
        if split is None:
            return np.arange(len(self), dtype=np.int64)
        if split not in SPLITS:
            raise FedgramError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
        return np.flatnonzero(self.split == SPLITS.index(split)).astype(np.int64)

    def sentences(self, client: int) -> Ragged:
        """A client's sentences as ids of `words`."""
        first, last = self.first_sentence[client], self.first_sentence[client + 1]
        offsets = self.first_token[first : last + 1]
        return Ragged(self.token[offsets[0] : offsets[-1]], offsets - offsets[0])

    def load(self, client: int, codes: IntArray | Ragged) -> ClientDataset:
        """A client's data in the ids of a vocabulary: each of the population's words has one, or a row of them."""
        sentences = self.sentences(client)
        if isinstance(codes, Ragged):
            coded = codes.take(sentences.values)
            return ClientDataset(self.client_ids[client], Ragged(coded.values, coded.offsets[sentences.offsets]))
        return ClientDataset(self.client_ids[client], Ragged(codes[sentences.values], sentences.offsets))

    def word_ids(self, vocabulary: Vocabulary, *, cased: bool = False) -> IntArray:
        """For each of the population's words its id in the vocabulary, `<unk>` for none; uncased unless told."""
        known = vocabulary.index
        return np.array([known.get(w if cased else uncase(w), UNK) for w in self.words], np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Users:
    """Some users of a population, by their numbers."""

    population: Population
    clients: LongArray

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        return f"Users({len(self):,} of {len(self.population):,})"

    def first(self, count: int) -> "Users":
        """The first users, at most `count`."""
        return Users(self.population, self.clients[:count])


def split_of(client_id: str) -> str:
    """The split of a client whose source names none: by hash, 80 % train, 10 % dev, 10 % test."""
    bucket = hashlib.sha256(client_id.encode()).digest()[0] % 10
    return "train" if bucket < 8 else "dev" if bucket == 8 else "test"


def population_from_messages(messages: Iterable[tuple[str, str, str | None]]) -> Population:
    """A population from (client, text, split or None) in any order; a client's messages keep theirs."""
    builder = _Builder()
    for client, text, split in messages:
        builder.add(client, text, split)
    return builder.finish()


class _Builder:
    """Collects sentences in the order they come, then sorts them by client."""

    def __init__(self) -> None:
        self.word: dict[str, int] = {}
        self.client: dict[str, int] = {}
        self.splits: list[str] = []
        self.tokens: list[IntArray] = []
        self.lengths: list[IntArray] = []
        self.owners: list[IntArray] = []
        self._pending: tuple[list[int], list[int], list[int]] = ([], [], [])

    def add(self, client: str, text: str, split: str | None) -> None:
        number = self.client.get(client)
        if number is None:
            number = self.client[client] = len(self.client)
            self.splits.append(split or split_of(client))
        elif split is not None and self.splits[number] != split:
            raise FedgramError("a user is in two splits; put every user in exactly one")
        tokens, lengths, owners = self._pending
        for sentence in normalize(text):
            tokens.extend([self.word.setdefault(w, len(self.word)) for w in sentence])
            lengths.append(len(sentence))
            owners.append(number)
        if len(tokens) > 1_000_000:
            self._flush()

    def _flush(self) -> None:
        for collected, pending in zip((self.tokens, self.lengths, self.owners), self._pending, strict=True):
            collected.append(np.array(pending, np.int32))
        self._pending = ([], [], [])

    def finish(self) -> Population:
        self._flush()
        unknown = [s for s in set(self.splits) if s not in SPLITS]
        if unknown:
            raise FedgramError(f"unknown split {unknown[0]!r}; splits are {', '.join(SPLITS)}")
        ids = sorted(self.client)
        rank = np.empty(len(ids), np.int64)
        rank[[self.client[i] for i in ids]] = np.arange(len(ids))
        owners = rank[np.concatenate(self.owners)]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(self.lengths), dtype=np.int64)])
        rows = Ragged(np.concatenate(self.tokens), offsets)
        if bool(np.any(np.diff(owners) < 0)):
            order = np.argsort(owners, kind="stable")
            rows, owners = _reorder(rows, order), owners[order]
        first = np.searchsorted(owners, np.arange(len(ids) + 1)).astype(np.int64)
        split = np.array([SPLITS.index(self.splits[self.client[i]]) for i in ids], np.uint8)
        return Population(tuple(ids), split, first, rows.offsets, rows.values, tuple(self.word))


def _reorder(rows: Ragged, order: LongArray) -> Ragged:
    lengths = np.diff(rows.offsets)[order]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return Ragged(rows.values[np.repeat(rows.offsets[:-1][order], lengths) + inside], offsets)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("reading populations", "data") from None
    return pyarrow


def open_population(path: str | Path, *, on_rows: Callable[[int], object] | None = None) -> Population:
    """Open a `.parquet` or `.arrow` population; `on_rows` is told of progress through a `.parquet`."""
    if str(path).endswith(".arrow"):
        return _open_arrow(path)
    if not str(path).endswith(".parquet"):
        raise InputError(path, "is not a population", remedy="use a .parquet or .arrow file of `fedgram data import`")
    builder = _Builder()
    for client, text, split in _parquet_rows(path, on_rows):
        builder.add(client, text, split)
    if not builder.client:
        raise InputError(path, "holds no users")
    return builder.finish()


def messages_by_user(path: str | Path) -> dict[str, tuple[str, list[str]]]:
    """By user of a `.parquet` population: the split, and the messages as they were typed."""
    if not str(path).endswith(".parquet"):
        raise InputError(path, "holds no messages as they were typed", remedy="use the .parquet population")
    found: dict[str, tuple[str, list[str]]] = {}
    for client, text, split in _parquet_rows(path, None):
        found.setdefault(client, (split or split_of(client), []))[1].append(text)
    return found


def _parquet_rows(path: str | Path, on_rows: Callable[[int], object] | None) -> Iterator[tuple[str, str, str | None]]:
    pa = _pyarrow()
    Path(path).open("rb").close()
    try:
        file = pa.parquet.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise InputError(path, "is not a Parquet file") from None
    names = file.schema_arrow.names
    for column in ("user_id", "text"):
        if column not in names:
            raise InputError(path, f"has no column {column!r}", remedy="make it with `fedgram data import`")
    columns = [name for name in ("user_id", "text", "split") if name in names]
    for name in columns:
        kind = file.schema_arrow.field(name).type if names.count(name) == 1 else None
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InputError(path, f"its column {name!r} is not one column of text", remedy="use `fedgram data import`")
    try:
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
            values = [batch.column(name).to_pylist() for name in columns]
            splits = values[2] if len(columns) == 3 else [None] * batch.num_rows
            for client, text, split in zip(values[0], values[1], splits, strict=True):
                if client and text:
                    yield client, text, split
            if on_rows:
                on_rows(batch.num_rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise InputError(path, "is not a whole Parquet file", remedy="write it again") from None


def write_messages(
    path: str | Path,
    messages: Iterable[tuple[str, str, str | None]],
    *,
    on_messages: Callable[[int], object] | None = None,
) -> int:
    """Write (client, text, split or None) as a `.parquet` population; returns the number of messages."""
    pa = _pyarrow()
    schema = pa.schema([("user_id", pa.string()), ("seq", pa.int32()), ("text", pa.string()), ("split", pa.string())])
    count = 0
    seen: dict[str, int] = {}
    rows: list[tuple[str, int, str, str]] = []
    with atomic_write(path) as file, pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:

        def flush() -> None:
            columns = list(zip(*rows, strict=True)) or [()] * 4
            writer.write_table(pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema))
            if on_messages:
                on_messages(len(rows))
            rows.clear()

        for client, text, split in messages:
            seen[client] = seq = seen.get(client, -1) + 1
            rows.append((client, seq, text, split or split_of(client)))
            count += 1
            if len(rows) == _BATCH_ROWS:
                flush()
        flush()
    return count


def write_population(path: str | Path, population: Population) -> None:
    """Write a population as `.arrow`: one client per row, normalised, to be mapped into memory."""
    pa = _pyarrow()
    p = population
    tokens = pa.LargeListArray.from_arrays(pa.array(p.first_token), pa.array(p.token))
    sentences = pa.LargeListArray.from_arrays(pa.array(p.first_sentence), tokens)
    table = pa.table(
        {"client_id": pa.array(p.client_ids, pa.large_string()), "split": pa.array(p.split), "sentences": sentences}
    ).replace_schema_metadata({"fedgram": "population 1", "words": "\n".join(p.words)})
    with atomic_write(path) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=len(p) or 1)


def _open_arrow(path: str | Path) -> Population:
    pa = _pyarrow()
    Path(path).open("rb").close()  # the usual OSError for a missing or unreadable file
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        table.validate(full=True)
        metadata = table.schema.metadata or {}
        if metadata.get(b"fedgram") != b"population 1":
            raise InputError(path, "is not a fedgram population of version 1")
        sentences = table.column("sentences").chunk(0)
        tokens, split = sentences.values.values, table.column("split").chunk(0)
        if tokens.type != pa.int32() or split.type != pa.uint8():
            raise InputError(path, "is not a fedgram population: its columns have other types")
        return Population(
            tuple(table.column("client_id").to_pylist()),
            split.to_numpy(),
            sentences.offsets.to_numpy(),
            sentences.values.offsets.to_numpy(),
            tokens.to_numpy(),
            tuple(filter(None, metadata[b"words"].decode().split("\n"))),
            Path(path).absolute(),
        )
    except (pa.ArrowException, OSError, LookupError, AttributeError, TypeError, ValueError, InvariantError):
        raise InputError(path, "is not a whole population file", remedy="write it again") from None
