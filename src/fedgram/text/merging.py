"""Merging populations: the messages of several files, where one id is one user."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedgram.core.errors import InputError
from fedgram.text.messages import SPLITS, parquet_messages, split_of
from fedgram.text.population import open_population

Row = tuple[str, str, str | None]


@dataclass(slots=True)
class MergeReport:
    """The users of each file; it grows while the messages are read."""

    users_by_file: list[int] = field(default_factory=list)
    splits: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def users(self) -> int:
        """Number of users of all files."""
        return len(self.splits)

    @property
    def shared(self) -> int:
        """In how many further files users occur again, summed over users."""
        return sum(self.users_by_file) - self.users


def merged_messages(paths: Sequence[str | Path], *, typed: bool) -> tuple[Iterator[Row], MergeReport]:
    """The messages of all files in their order, and the report that is filled while they are read.

    A user who is in two files has the messages of both. A user in different splits is refused, because then test users
    would be trained on. With `typed`, only files with messages as they were typed (`.parquet`) will do.
    """
    for path in paths:
        if typed and not str(path).endswith(".parquet"):
            problem = "holds no messages as they were typed"
            raise InputError(path, problem, remedy="merge .parquet files, or write a .population file")
    report = MergeReport()
    return _merged(paths, report), report


def _merged(paths: Sequence[str | Path], report: MergeReport) -> Iterator[Row]:
    for path in paths:
        known: set[str] = set()
        for user, text, split in _messages(path):
            split = split or split_of(user)
            if user not in known:
                known.add(user)
                if report.splits.setdefault(user, split) != split:
                    problem = f"a user is in the split {split}, but in {report.splits[user]} in an earlier file"
                    raise InputError(path, problem, remedy="import the sources again, in one command")
            yield user, text, split
        report.users_by_file.append(len(known))


def _messages(path: str | Path) -> Iterator[Row]:
    if str(path).endswith(".parquet"):
        yield from parquet_messages(path)
        return
    people = open_population(path)
    for client, (user, split) in enumerate(zip(people.client_ids, people.split.tolist(), strict=True)):
        for sentence in people.sentences(client):
            yield user, " ".join(people.words[i] for i in sentence), SPLITS[split]
