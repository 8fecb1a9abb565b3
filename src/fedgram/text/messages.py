"""Messages as they were typed, by user, in a `.parquet` file.

The file has one message per row: `user_id`, `text`, and if known `seq` and `split`. Each user belongs to one split:
train, dev or test.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fedgram.core.errors import InputError
from fedgram.core.storage import atomic_write
from fedgram.text.parquet import parquet_batches, parquet_schema, pyarrow_modules

SPLITS = ("train", "dev", "test")
_BATCH_ROWS = 50_000


def split_of(client_id: str) -> str:
    """The split of a client whose source names none: by hash, 80 % train, 10 % dev, 10 % test."""
    bucket = hashlib.sha256(client_id.encode()).digest()[0] % 10
    return "train" if bucket < 8 else "dev" if bucket == 8 else "test"


def parquet_messages(
    path: str | Path, on_rows: Callable[[int], object] | None = None
) -> Iterator[tuple[str, str, str | None]]:
    """(client, text, split or None) by row of a `.parquet` population; `on_rows` is told of progress."""
    schema = parquet_schema(path)
    for column in ("user_id", "text"):
        if column not in schema.names:
            raise InputError(path, f"has no column {column!r}", remedy="make it with `fedgram data import`")
    columns = [name for name in ("user_id", "text", "split") if name in schema.names]
    for name in columns:
        if schema.names.count(name) > 1 or str(schema.field(name).type) not in ("string", "large_string"):
            raise InputError(path, f"its column {name!r} is not one column of text", remedy="use `fedgram data import`")
    for values in parquet_batches(path, columns):
        splits = values[2] if len(columns) == 3 else [None] * len(values[0])
        for client, text, split in zip(values[0], values[1], splits, strict=True):
            if client and text:
                yield client, text, split
        if on_rows:
            on_rows(len(splits))


def messages_by_user(path: str | Path) -> dict[str, tuple[str, list[str]]]:
    """By user of a `.parquet` population: the split, and the messages as they were typed."""
    if not str(path).endswith(".parquet"):
        raise InputError(path, "holds no messages as they were typed", remedy="use the .parquet population")
    found: dict[str, tuple[str, list[str]]] = {}
    for client, text, split in parquet_messages(path):
        found.setdefault(client, (split or split_of(client), []))[1].append(text)
    return found


def write_messages(
    path: str | Path,
    messages: Iterable[tuple[str, str, str | None]],
    *,
    on_messages: Callable[[int], object] | None = None,
) -> int:
    """Write (client, text, split or None) as a `.parquet` population; returns the number of messages."""
    pa = pyarrow_modules()
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
