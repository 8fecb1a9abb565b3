"""Compressed input, with a limit on how large it may become.

A file of a few kilobytes can unpack to gigabytes. So compressed input may become 256 MiB, or 64 times its own size if
that is more. `fedgram --max-unpacked SIZE` sets another limit, and so does the environment variable
`FEDGRAM_MAX_UNPACKED`, which the processes that a command starts inherit.

Packed input is recognised by its first bytes, whatever its name: gzip, bzip2, xz and Zstandard. Output is packed by the
suffix of its name.
"""

import bz2
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fedgram.core.errors import FedgramError, InputError, MissingDependencyError

VARIABLE = "FEDGRAM_MAX_UNPACKED"
_ALWAYS_ALLOWED = 1 << 28
_MAX_RATIO = 64
PACKED = (".gz", ".bz2", ".zst")
_KINDS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "Zstandard"}
_ZSTD_BLOCK = 1 << 10  # so few bytes cannot unpack to more than some MiB at once
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

    def add(self, count: int, line: int | None = None) -> None:
        """Count more bytes, before they are kept; `line` is where they begin."""
        self.count += count
        if self.count > self.limit:
            problem = f"unpacks to more than {self.limit >> 20:,} MiB, which its size does not explain"
            remedy = f"if you trust it, allow more with `fedgram --max-unpacked 8G`, or {VARIABLE}=8G"
            raise InputError(self.path, problem, line=line, remedy=remedy)


class _Metered(io.RawIOBase):
    """What a decompressor yields, counted."""

    def __init__(self, source: Any, meter: Meter) -> None:
        self._source, self._meter, self._line = source, meter, 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        data = self._source.read(len(buffer))
        self._meter.add(len(data), self._line)
        self._line += data.count(b"\n")
        buffer[: len(data)] = data
        return len(data)


class _Zstandard:
    """Reads Zstandard frames; unlike the library's own reader, it refuses a file that ends within a frame."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._data, self._at = raw, b"", 0
        self._library = _zstandard()
        self._frame: Any = None

    def read(self, size: int) -> bytes:
        while self._at >= len(self._data):
            ended = self._frame is None or self._frame.eof
            packed = (self._frame.unused_data if self._frame and ended else b"") or self._raw.read(_ZSTD_BLOCK)
            if not packed:
                if not ended:
                    raise EOFError("it ends within a frame")
                return b""
            frame = self._library.ZstdDecompressor().decompressobj() if ended else self._frame
            try:
                self._frame, self._data, self._at = frame, frame.decompress(packed), 0
            except self._library.ZstdError as error:
                raise EOFError(str(error)) from None
        self._at += size
        return self._data[self._at - size : self._at]


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingDependencyError("reading and writing .zst files", "zst") from None
    return zstandard


@contextmanager
def open_unpacked(path: str | Path) -> Iterator[BinaryIO]:
    """Open the bytes of a file, unpacked if it is packed."""
    with Path(path).open("rb") as raw, unpacked(raw, path, raw.seekable()) as file:
        yield file


@contextmanager
def unpacked(raw: io.BufferedReader, path: str | Path, is_file: bool = False) -> Iterator[BinaryIO]:
    """The bytes of an open file or pipe, unpacked if they are packed; errors name the path."""
    head = raw.peek(8)
    kind = next((kind for magic, kind in _KINDS.items() if head.startswith(magic)), None)
    if kind is None:
        yield raw
        return
    meter = Meter(path, None if is_file else 0)
    readers: dict[str, Any] = {"gzip": gzip.GzipFile, "bzip2": bz2.BZ2File, "xz": lzma.LZMAFile}
    source = _Zstandard(raw) if kind == "Zstandard" else readers[kind](**{_FILE_ARGUMENT[kind]: raw})
    try:
        yield io.BufferedReader(_Metered(source, meter), 1 << 20)
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(path, f"is not a complete {kind} file ({error})") from None
    except OSError as error:
        if error.errno is None:  # bzip2's way to say that the data are invalid
            raise InputError(path, f"is not a complete {kind} file ({error})") from None
        raise


_FILE_ARGUMENT = {"gzip": "fileobj", "bzip2": "filename", "xz": "filename"}


@contextmanager
def packing(raw: BinaryIO, path: str | Path) -> Iterator[BinaryIO]:
    """Write to an open file, packed as the suffix of its name says. Equal content gives equal bytes."""
    suffix = "." + str(path).rpartition(".")[2]
    writer: Any = raw
    if suffix == ".gz":
        writer = gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0, compresslevel=6)
    elif suffix == ".bz2":
        writer = bz2.BZ2File(raw, "wb")
    elif suffix == ".zst":
        writer = _zstandard().ZstdCompressor().stream_writer(raw, closefd=False)
    yield writer
    if writer is not raw:
        writer.close()
