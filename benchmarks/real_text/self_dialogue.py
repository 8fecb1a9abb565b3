"""The Self-dialogue Corpus: crowd workers typed both sides of chats about films, music and sport.

Each CSV file is a batch of assignments: `WorkerId`, `AssignmentId`, `AssignmentStatus`, `SubmitTime`, and the turns
`Answer.sentence1`, `Answer.sentence2` and so on. The user is the worker, and a turn is a message.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from benchmarks.real_text.checkouts import Checkout
from benchmarks.real_text.cleaning import Message

REPOSITORY = "jfainberg/self_dialogue_corpus"
_TURN = re.compile(r"Answer\.sentence(\d+)")


class Assignment(NamedTuple):
    """One dialogue of a worker."""

    submitted: datetime
    assignment: str
    worker: str
    turns: tuple[str, ...]


def messages(checkout: Checkout) -> Iterator[Message]:
    """All turns in the order of submission, without rejected assignments and blocked workers."""
    blocked = frozenset(checkout.read_one("blocked_workers.txt").decode().split())
    contents = (content.decode("utf-8-sig") for _, content in checkout.read(checkout.paths("corpus", ".csv")))
    found = {a.assignment: a for content in contents for a in assignments(content.splitlines(keepends=True))}
    for assignment in sorted(found.values()):
        if assignment.worker not in blocked:
            yield from (Message(assignment.worker, turn) for turn in assignment.turns)


def assignments(lines: Iterable[str]) -> Iterator[Assignment]:
    """The assignments of a CSV file that were not rejected."""
    for row in csv.DictReader(io.StringIO("".join(lines))):
        if row["AssignmentStatus"] == "Rejected":
            continue
        turns = {int(m[1]): text for name, text in row.items() if name and text and (m := _TURN.fullmatch(name))}
        ordered = tuple(turns[number] for number in sorted(turns))
        yield Assignment(_time(row["SubmitTime"]), row["AssignmentId"], row["WorkerId"], ordered)


def _time(text: str) -> datetime:
    """Of `Tue Jun 20 00:58:40 PDT 2017`; the zone is the same in all files."""
    parts = text.split()
    return datetime.strptime(" ".join([*parts[1:4], parts[-1]]), "%b %d %H:%M:%S %Y")
