"""Compressed input, with a limit on how large it may become.

A file of a few kilobytes can unpack to gigabytes. So compressed input may become 256 MiB, or 64 times its own size if
that is more. `fedgram --max-unpacked SIZE` sets another limit, and so does the environment variable
`FEDGRAM_MAX_UNPACKED`, which the processes that a command starts inherit.
"""

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedgram.core.errors import FedgramError, InputError

VARIABLE = "FEDGRAM_MAX_UNPACKED"
_ALWAYS_ALLOWED = 1 << 28
_MAX_RATIO = 64
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size_in_bytes(text: str) -> int:
    """The number of bytes that a size such as 500M or 8G means.

    >>> size_in_bytes("8G") == 8 << 30
    True
    """
    match = re.fullmatch(r"\s*(\d{1,12})\s*([KMGT]?)(?:I?B)?\s*", text.upper())
    if not match or int(match[1]) == 0:
        raise FedgramError(f"{text[:20]!r} is not a size; write a size such as 500M or 8G")
    return int(match[1]) * _UNITS[match[2]]


def unpacked_limit(packed: int) -> int:
    """The number of bytes that compressed input of `packed` bytes may become."""
    given = os.environ.get(VARIABLE)
    return size_in_bytes(given) if given else max(_ALWAYS_ALLOWED, _MAX_RATIO * packed)


class Meter:
    """Counts the bytes that a compressed file has become, and refuses it when they are too many."""

    def __init__(self, path: str | Path, packed: int | None = None) -> None:
        """`packed` is the size of the compressed input; by default that of the file."""
        self.path = path
        self.limit = unpacked_limit(Path(path).stat().st_size if packed is None else packed)
        self.count = 0

    def add(self, count: int) -> None:
        """Count more bytes, before they are kept."""
        self.count += count
        if self.count > self.limit:
            problem = f"unpacks to more than {self.limit >> 20:,} MiB, which its size does not explain"
            remedy = f"if you trust it, allow more with `fedgram --max-unpacked 8G`, or {VARIABLE}=8G"
            raise InputError(self.path, problem, remedy=remedy)


class _Metered(io.RawIOBase):
    """What a decompressor yields, counted."""

    def __init__(self, source: BinaryIO | gzip.GzipFile, meter: Meter) -> None:
        self._source, self._meter = source, meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        data = self._source.read(len(buffer))
        self._meter.add(len(data))
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def open_unpacked(path: str | Path) -> Iterator[BinaryIO]:
    """Open the bytes of a file, decompressed if its name ends in `.gz`."""
    with Path(path).open("rb") as raw:
        if not str(path).endswith(".gz"):
            yield raw
            return
        try:
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield io.BufferedReader(_Metered(unpacked, Meter(path)), 1 << 20)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(path, f"is not a complete gzip file ({error})") from None
