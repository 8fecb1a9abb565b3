"""Columns of text in Parquet files, read with bounded memory.

A Parquet file of a kilobyte can hold gigabytes: a page may unpack to 2 GiB, one long value may be repeated in a million
rows, and a value that is missing or repeated takes no room at all. So the headers of all pages are read before anything
is unpacked (`parquet_pages.py`), repeated values stay one string, and what comes out is counted: the text, and some
bytes for each value (`core/unpacking.py`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedgram.core.errors import InputError, MissingDependencyError
from fedgram.core.unpacking import Meter
from fedgram.text.parquet_pages import check_pages

_BATCH_ROWS = 50_000
_VALUE_BYTES = 16  # for which a value counts, beside its text


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
            check_pages(path, _columns_read(file.schema, columns))
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(columns), use_threads=False):
                meter.add(_VALUE_BYTES * batch.num_rows * len(columns))
                values = [_values(batch.column(name), meter) for name in columns]
                rows += batch.num_rows
                yield values
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        problem = f"is not a complete Parquet file of UTF-8 text: it ends after row {rows:,}"
        raise InputError(path, problem, remedy="write it again") from None


def _columns_read(schema: Any, names: Sequence[str]) -> set[int]:
    """The numbers of the columns that pyarrow reads for some names: those, and what is nested in them."""
    prefixes = tuple(f"{name}." for name in names)
    return {n for n in range(len(schema)) if f"{schema.column(n).path}.".startswith(prefixes)}


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
