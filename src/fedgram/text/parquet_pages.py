"""How large the pages of a Parquet file become, by their headers, before anything is unpacked.

The end of the file says where the pages of each column are, and each page begins with a header that has its size packed
and unpacked. Both are written in Thrift's compact protocol. They are read here rather than by pyarrow, which gives no
headers, and whose functions about the parts of a damaged file end the whole process. What is counted here is at least
what pyarrow will unpack. Therefore, as in pyarrow:

- Numbers are cut to their width after their sign is decoded, and fields of another type than they should have are left
  out.
- A second description of a column adds to the first one.
- A group of rows counts even if it says that it has no rows: pyarrow reads on into it when an earlier group has fewer
  rows than it says. Only a column that says that it has no values is never read.
- The columns of an old writer, which counted too few bytes, go on for some bytes.
"""

import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fedgram.core.unpacking import Meter

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_BITS = {_I16: 16, _I32: 32, _I64: 64}
_MAX_DEPTH = 16
_MAGIC = b"PAR1"
_UNCOUNTED = 100  # bytes that pyarrow adds to each column of a file by parquet-mr before 1.2.9

# The fields that matter, with their types: of the file, of a group of rows, of a column in it, and of a page.
_GROUPS, _WRITER = (4, _LIST), (6, _BINARY)
_COLUMNS = (1, _LIST)
_ABOUT_COLUMN = (3, _STRUCT)
_VALUES, _PACKED, _FIRST_PAGE, _DICTIONARY = (5, _I64), (7, _I64), (9, _I64), (11, _I64)
_PAGE_UNPACKED, _PAGE_PACKED = (2, _I32), (3, _I32)


class Pages(NamedTuple):
    """Where the pages of a column in a group of rows are, and how many values they should have."""

    column: int
    values: int
    start: int
    size: int


def check_pages(path: str | Path, columns: Container[int]) -> None:
    """Refuse a file where the pages of some columns, by number, unpack to more than the limit.

    Raises `OSError` for what is no Parquet file.
    """
    meter = Meter(path)
    with Path(path).open("rb") as file:
        length = file.seek(0, 2)
        found, uncounted = _all_pages(_Thrift(_footer(file)))
        for column, values, start, size in found:
            if column in columns and values != 0:
                if min(start, size) < 0 or start + size > length:
                    raise OSError("the place of a column is outside the file")
                file.seek(start)
                _count_pages(file.read(size + uncounted), size, meter)


def _footer(file: BinaryIO) -> bytes:
    """The last part of a file, which says where everything is."""
    end = file.seek(0, 2) - 8
    file.seek(max(end, 0))
    size, magic = int.from_bytes(file.read(4), "little"), file.read(4)
    if magic != _MAGIC or size > end:
        raise OSError("the end of the file is missing")
    file.seek(end - size)
    return file.read(size)


def _count_pages(chunk: bytes, size: int, meter: Meter) -> None:
    """Count the pages that begin within the size of a column, and those after it as far as there are any."""
    thrift = _Thrift(chunk)
    while (begin := thrift.position) < len(chunk):
        try:
            sizes = thrift.numbers()
        except OSError:
            if begin < size:
                raise
            return
        meter.add(max(sizes.get(_PAGE_UNPACKED, 0), 0))
        thrift.position += max(sizes.get(_PAGE_PACKED, 0), 0)


def _all_pages(thrift: "_Thrift") -> tuple[list[Pages], int]:
    """The pages of all columns, and how many bytes of each column the writer may not have counted."""
    found, uncounted = list[Pages](), 0
    for field in thrift.fields():
        if field == _GROUPS:
            for _ in thrift.items(_STRUCT):
                found += _pages_of_rows(thrift)
        elif field == _WRITER:
            uncounted = max(uncounted, _uncounted_by(thrift.binary()))
        else:
            thrift.skip(field[1])
    return found, uncounted


def _uncounted_by(writer: bytes) -> int:
    version = re.match(rb"parquet-mr version (\d{1,4})\.(\d{1,4})\.(\d{1,4})", writer)
    is_newer = version is not None and tuple(map(int, version.groups())) >= (1, 2, 9)
    return 0 if is_newer or b"parquet-mr" not in writer.lower() else _UNCOUNTED


def _pages_of_rows(thrift: "_Thrift") -> list[Pages]:
    """The pages of a group of rows."""
    found = list[Pages]()
    for field in thrift.fields():
        if field == _COLUMNS:
            found = [_pages_of_column(thrift, column) for column, _ in enumerate(thrift.items(_STRUCT))]
        else:
            thrift.skip(field[1])
    return found


def _pages_of_column(thrift: "_Thrift", column: int) -> Pages:
    about = dict[tuple[int, int], int]()
    for field in thrift.fields():
        if field == _ABOUT_COLUMN:
            about |= thrift.numbers()
        else:
            thrift.skip(field[1])
    first = about.get(_FIRST_PAGE, 0)
    start = min(about.get(_DICTIONARY, 0) or first, first)
    return Pages(column, about.get(_VALUES, 1), start, about.get(_PACKED, 0))


class _Thrift:
    """A position in bytes that hold structures in Thrift's compact protocol."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position, self._depth = data, 0, 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """The number and type of each field of a structure; the caller reads or skips its value before the next."""
        number = 0
        while (byte := self._byte()) & 15:
            number = _cut(number + (byte >> 4), _I16) if byte >> 4 else self.number(_I16)
            yield number, byte & 15

    def numbers(self) -> dict[tuple[int, int], int]:
        """The whole numbers among the fields of a structure, by number and type."""
        found = dict[tuple[int, int], int]()
        for field in self.fields():
            if field[1] in _BITS:
                found[field] = self.number(field[1])
            else:
                self.skip(field[1])
        return found

    def items(self, wanted: int | None = None) -> Iterator[int]:
        """The type of each item of a list; the caller reads or skips it before the next."""
        byte = self._byte()
        if wanted not in (None, byte & 15):
            raise OSError("a list has items of another type")
        for _ in range(byte >> 4 if byte >> 4 < 15 else self._size()):
            yield byte & 15

    def number(self, kind: int) -> int:
        """A whole number, cut to the width of its type; one of 16 bits is decoded as one of 32."""
        value = self._varint() & ((1 << max(_BITS[kind], 32)) - 1)
        return _cut((value >> 1) ^ -(value & 1), kind)

    def binary(self) -> bytes:
        """The bytes of a text."""
        self._move(size := self._size())
        return self.data[self.position - size : self.position]

    def skip(self, kind: int, depth: int = 0) -> None:
        """Skip a value; a field that is true or false has none."""
        if depth > _MAX_DEPTH:
            raise OSError("values are nested too deeply")
        if kind in _BITS:
            self._varint()
        elif kind == _DOUBLE:
            self._move(8)
        elif kind == _BINARY:
            self._move(self._size())
        elif kind in (_LIST, _SET):
            for each in self.items():
                self._skip_item(each, depth)
        elif kind == _MAP:
            self._skip_map(depth)
        elif kind == _STRUCT:
            for _, each in self.fields():
                self.skip(each, depth + 1)
        elif kind == _BYTE:
            self._move(1)
        elif kind not in (_TRUE, _FALSE):
            raise OSError("there is an unknown type")

    def _skip_map(self, depth: int) -> None:
        size = self._size()
        kinds = self._byte() if size else 0
        for _ in range(size):
            self._skip_item(kinds >> 4, depth)
            self._skip_item(kinds & 15, depth)

    def _skip_item(self, kind: int, depth: int) -> None:
        """Skip an item of a list or a map, of which one that is true or false takes a byte."""
        if kind in (_TRUE, _FALSE):
            self._move(1)
        else:
            self.skip(kind, depth + 1)

    def _move(self, count: int) -> None:
        self.position += count
        if self.position > len(self.data):
            raise OSError("a value is cut off")

    def _byte(self) -> int:
        if self.position >= len(self.data):
            raise OSError("a structure is cut off")
        self.position += 1
        return self.data[self.position - 1]

    def _size(self) -> int:
        """The number of bytes or items that follow, of 32 bits."""
        size = self._varint() & 0xFFFFFFFF
        if size >> 31:
            raise OSError("a size is negative")
        return size

    def _varint(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise OSError("a number is too long")


def _cut(value: int, kind: int) -> int:
    """A number as a variable of its type holds it."""
    half = 1 << (_BITS[kind] - 1)
    return (value + half) % (2 * half) - half
