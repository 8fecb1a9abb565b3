"""Users and their text, by user.

A `Population` holds every client's sentences as ids of one list of cased words: sentence s is the slice
`token[first_token[s]:first_token[s+1]]`, and client c has the sentences `first_sentence[c]:first_sentence[c+1]`. Any
client is reached in O(1). Clients come in the order of their ids, and each belongs to one split: train, dev or test.

Two files hold a population. `.parquet` has messages as they were typed; its text is normalised when it is opened.
`.population` is an artefact with the arrays of `Population`, and is mapped into memory, so that large populations fit.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import IntArray, LongArray, Ragged, frozen
from fedgram.core.errors import FedgramError, InputError, InvariantError
from fedgram.core.storage import Artefact, content_digest, map_artefact, write_artefact
from fedgram.text.messages import SPLITS, parquet_messages, split_of
from fedgram.text.normalize import normalize, uncase
from fedgram.text.vocabulary import UNK, Vocabulary, lines_from_bytes, lines_to_bytes

KIND, VERSION = "population", 1
SplitArray = NDArray[np.uint8]
_ARRAYS = {
    "split": np.uint8, "first_sentence": np.int64, "first_token": np.int64, "token": np.int32,
    "words": np.uint8, "client_ids": np.uint8,
}  # fmt: skip


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
    path: Path | None = None  # of the .population file that the arrays are mapped from

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
        """Open a `.parquet` or `.population` file."""
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
    def digest(self) -> str:
        """SHA-256 of the content: the digest of the `.population` file."""
        artefact = _to_artefact(self)
        return content_digest(artefact.fields, artefact.arrays)

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


def open_population(path: str | Path, *, on_rows: Callable[[int], object] | None = None) -> Population:
    """Open a `.parquet` or `.population` file; `on_rows` is told of progress through a `.parquet`."""
    if str(path).endswith(".population"):
        return _open_artefact(path)
    if str(path).endswith(".arrow"):
        remedy = "use the .parquet file that it was made from, or write it again with `fedgram data import`"
        raise InputError(path, "is a population of an earlier version of fedgram", remedy=remedy)
    if not str(path).endswith(".parquet"):
        remedy = "use a .parquet or .population file of `fedgram data import`"
        raise InputError(path, "is not a population", remedy=remedy)
    people = population_from_messages(parquet_messages(path, on_rows))
    if not len(people):
        raise InputError(path, "holds no users")
    return people


def write_population(path: str | Path, population: Population) -> str:
    """Write a population as a `.population` artefact; returns its digest."""
    return write_artefact(path, _to_artefact(population))


def _to_artefact(population: Population) -> Artefact:
    p = population
    for name in (*p.client_ids, *p.words):
        if not name or "\n" in name:
            raise FedgramError("a user id or a word is empty or contains a line break; rename the user")
    arrays = {name: getattr(p, name) for name in ("split", "first_sentence", "first_token", "token")}
    arrays |= {"words": lines_to_bytes(p.words), "client_ids": lines_to_bytes(p.client_ids)}
    return Artefact(KIND, VERSION, {}, arrays)


def _open_artefact(path: str | Path) -> Population:
    arrays = map_artefact(path, kind=KIND, version=VERSION).arrays
    try:
        if {name: a.dtype for name, a in arrays.items()} != _ARRAYS or any(a.ndim != 1 for a in arrays.values()):
            raise InvariantError("an array is missing, or has another type or shape")
        return Population(
            lines_from_bytes(arrays["client_ids"]),
            arrays["split"], arrays["first_sentence"], arrays["first_token"], arrays["token"],
            lines_from_bytes(arrays["words"]),
            Path(path).absolute(),
        )  # fmt: skip
    except (LookupError, ValueError, InvariantError) as error:
        raise InputError(path, f"does not hold a population: {error}", remedy="write it again") from None
