"""Folders of git checkouts with generated files, in the formats of the public sources."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.real_text.checkouts import Checkout, open_checkout

_AUTHOR = {f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def checkout(mirror: Path, name: str, *commits: Mapping[str, str | bytes]) -> Checkout:
    """A checkout with a commit for each set of files; the last one is checked out."""
    folder = mirror / name.replace("/", "+")
    folder.mkdir(parents=True)
    _git(folder, "init", "--quiet")
    for files in commits:
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)
        _git(folder, "add", "--all")
        _git(folder, "commit", "--quiet", "--message", "text")
    return open_checkout(mirror, name)


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, env={**os.environ, **_AUTHOR})


def csv_text(*rows: Mapping[str, str]) -> str:
    """Rows of a CSV file with a header."""
    quoted = [[*rows[0]], *(row.values() for row in rows)]
    return "".join(",".join('"' + value.replace('"', '""') + '"' for value in row) + "\n" for row in quoted)


def packed_words(*levels: list[str]) -> bytes:
    """A word list in wordfreq's format: the words of each centibel."""
    header = b"\x82\xa6format\xa2cB\xa7version\x01"
    return _array([header, *(_array([_string(word) for word in level]) for level in levels)])


def _array(items: list[bytes]) -> bytes:
    start = bytes([0x90 | len(items)]) if len(items) < 16 else b"\xdc" + len(items).to_bytes(2)
    return start + b"".join(items)


def _string(word: str) -> bytes:
    text = word.encode()
    return (bytes([0xA0 | len(text)]) if len(text) < 32 else b"\xd9" + bytes([len(text)])) + text


def assignment(worker: str, number: int, status: str = "Approved", second: int = 0) -> dict[str, str]:
    """A dialogue in the columns of the Self-dialogue Corpus."""
    submitted = f"Tue Jun 20 00:58:{second:02} PDT 2017"
    about = {"AssignmentId": f"A{number}", "WorkerId": worker, "AssignmentStatus": status, "SubmitTime": submitted}
    return about | {"Answer.sentence10": "ten", "Answer.sentence2": "two", "Answer.sentence1": f"one, {number}"}


def post(user: str, time: str, text: str, number: int) -> str:
    """A message in the columns of Gitter's rooms."""
    return f'r1\tRoom/Casual\t{time}\tid-{user}\t{user}\tm{number}\t"{text}"\n'
