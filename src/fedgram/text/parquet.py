"""Columns of text in Parquet files, read with bounded memory.

A Parquet file of a kilobyte can hold gigabytes: a page may unpack to 2 GiB, and one long value may be repeated in a
million rows. So the headers of all pages are read before anything is unpacked, repeated values stay one string, and the
text that comes out is counted (`core/unpacking.py`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedgram.core.errors import InputError, MissingDependencyError
from fedgram.core.unpacking import Meter

_BATCH_ROWS = 50_000
_MAX_DEPTH = 16  # of structures in the header of a page
_TRUE, _FALSE, _BYTE, _I16, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12
_UNPACKED_SIZE, _PACKED_SIZE = 2, 3  # the numbers of these fields in the header of a page


def pyarrow_modules() -> Any:
    """pyarrow, with its reader and writer of Parquet."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("reading and writing .parquet files", "data") from None
    return pyarrow


def parquet_schema(path: str | Path) -> Any:
    """The names and types of the columns."""
    pa = pyarrow_modules()
    Path(path).open("rb").close()  # raises the usual OSError for a missing or unreadable file
    try:
        return pa.parquet.read_schema(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise InputError(path, "is not a Parquet file") from None


def parquet_batches(path: str | Path, columns: Sequence[str]) -> Iterator[list[list[Any]]]:
    """The values of some columns of text or whole numbers, as one list per column, batch by batch."""
    pa = pyarrow_modules()
    rows, meter = 0, Meter(path)
    try:
        with pa.parquet.ParquetFile(path, memory_map=True, read_dictionary=list(columns)) as file:
            _check_pages(path, file.metadata, columns)
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(columns), use_threads=False):
                values = [_values(batch.column(name), meter) for name in columns]
                rows += batch.num_rows
                yield values
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        problem = f"is not a complete Parquet file of UTF-8 text: it ends after row {rows:,}"
        raise InputError(path, problem, remedy="write it again") from None


def _values(column: Any, meter: Meter) -> list[Any]:
    """The values of a column; those that are repeated are one object."""
    if not hasattr(column, "dictionary"):
        return list(column.to_pylist())
    column.validate(full=True)
    distinct = column.dictionary.to_pylist()
    size = [len(value) if value else 0 for value in distinct]
    indices = column.indices.to_pylist()
    meter.add(sum(size[i] for i in indices if i is not None))
    return [None if i is None else distinct[i] for i in indices]


def _check_pages(path: str | Path, metadata: Any, columns: Sequence[str]) -> None:
    """Refuse a file whose pages, as their headers say, unpack to more than the limit."""
    meter = Meter(path)
    with Path(path).open("rb") as file:
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(number)
                if chunk.path_in_schema in columns and metadata.row_group(group).num_rows:  # else it has no pages
                    first = chunk.dictionary_page_offset if chunk.has_dictionary_page else 0
                    file.seek(min(first or chunk.data_page_offset, chunk.data_page_offset))
                    _count_pages(file.read(chunk.total_compressed_size), meter)


def _count_pages(chunk: bytes, meter: Meter) -> None:
    position = 0
    while position < len(chunk):
        header = _Thrift(chunk, position)
        sizes = header.whole_numbers()
        meter.add(max(sizes.get(_UNPACKED_SIZE, 0), 0))
        position = header.position + max(sizes.get(_PACKED_SIZE, 0), 0)


class _Thrift:
    """A position in bytes that hold a structure in Thrift's compact protocol, as the header of a page is written."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data, self.position = data, position

    def _byte(self) -> int:
        if self.position >= len(self.data):
            raise OSError("the header of a page is cut off")
        self.position += 1
        return self.data[self.position - 1]

    def _number(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise OSError("a number in the header of a page is too long")

    def _signed(self) -> int:
        value = self._number()
        return (value >> 1) ^ -(value & 1)

    def whole_numbers(self, depth: int = 0) -> dict[int, int]:
        """The whole numbers among the fields of the structure, by field; the position moves to its end."""
        field, found = 0, {}
        while byte := self._byte():
            kind = byte & 15
            field = field + (byte >> 4) if byte >> 4 else self._signed()
            if _I16 <= kind <= _I64:
                found[field] = self._signed()
            elif kind not in (_TRUE, _FALSE):
                self._skip(kind, depth + 1)
        return found

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise OSError("the header of a page is nested too deeply")
        if kind in (_TRUE, _FALSE, _BYTE):
            self._byte()
        elif _I16 <= kind <= _I64:
            self._number()
        elif kind == _DOUBLE:
            self.position += 8
        elif kind == _BINARY:
            size = self._number()
            self.position += size
        elif kind in (_LIST, _SET):
            byte = self._byte()
            for _ in range(byte >> 4 if byte >> 4 < 15 else self._number()):
                self._skip(byte & 15, depth + 1)
        elif kind == _MAP:
            size = self._number()
            kinds = self._byte() if size else 0
            for _ in range(size):
                self._skip(kinds >> 4, depth + 1)
                self._skip(kinds & 15, depth + 1)
        elif kind == _STRUCT:
            self.whole_numbers(depth)
        else:
            raise OSError("the header of a page has an unknown type")
