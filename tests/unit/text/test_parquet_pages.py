"""The unpacked size of Parquet files whose last part is made to be read in two ways: pyarrow's way counts."""

from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from fedgram.core.errors import InputError
from fedgram.core.unpacking import VARIABLE
from fedgram.text.parquet import parquet_batches
from fedgram.text.parquet_pages import check_pages

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
I32, I64, BINARY, LIST, MAP, STRUCT = 5, 6, 8, 9, 11, 12
LONG = (1 << 20) + 1  # characters, just above the limit of 1 MiB that the tests set
FIRST_PAGE, DICTIONARY = 9, 11
Field = tuple[int, int, bytes]


class Page(NamedTuple):
    """Where a page of one text is."""

    start: int
    size: int


# Thrift's compact protocol, with the number of each field in full.


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def number(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def text(value: str) -> bytes:
    return varint(len(value)) + value.encode()


def items(kind: int, *values: bytes) -> bytes:
    return bytes([0xF0 | kind]) + varint(len(values)) + b"".join(values)


def structure(*fields: Field, more: bytes = b"") -> bytes:
    return b"".join(bytes([kind]) + number(field) + value for field, kind, value in fields) + more + b"\0"


# The parts of the end of a file.


def about(page: Page, *fields: Field, name: str = "text", values: int = 1, more: bytes = b"") -> bytes:
    """The description of a column: byte arrays, plain, packed with zstd."""
    usual = (
        (1, I32, number(6)), (2, LIST, items(I32, number(0))), (3, LIST, items(BINARY, text(name))),
        (4, I32, number(6)), (5, I64, number(values)), (6, I64, number(100)), (7, I64, number(page.size)),
        (FIRST_PAGE, I64, number(page.start)),
    )  # fmt: skip
    return structure(*usual, *fields, more=more)


def group(*descriptions: tuple[bytes, ...], rows: int = 1) -> bytes:
    """A group of rows; a column may have several descriptions."""
    columns = (structure((2, I64, number(4)), *((3, STRUCT, each) for each in column)) for column in descriptions)
    return structure((1, LIST, items(STRUCT, *columns)), (2, I64, number(100)), (3, I64, number(rows)))


def end_of_file(*groups: bytes, rows: int = 1, writer: str = "fedgram") -> bytes:
    leaf = (1, I32, number(6)), (3, I32, number(0)), (6, I32, number(0))
    columns = (structure(*leaf, (4, BINARY, text(name))) for name in ("user_id", "text"))
    schema = items(STRUCT, structure((4, BINARY, text("schema")), (5, I32, number(2))), *columns)
    usual = (1, I32, number(2)), (2, LIST, schema), (3, I64, number(rows)), (6, BINARY, text(writer))
    return structure(*usual, (4, LIST, items(STRUCT, *groups)))


class Pages:
    """A file that begins with a page of a user, one of a long text, and one of a short text."""

    def __init__(self, folder: Path) -> None:
        self.path, self.data = folder / "crafted.parquet", b"PAR1"
        short = "".join(Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=600))
        self.user, self.long, self.short = map(self.page, ("u", "a" * LONG, short))

    def page(self, value: str) -> Page:
        schema = pa.schema([pa.field("a", pa.string(), nullable=False)])
        options = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
        parquet.write_table(pa.table([[value]], schema=schema), self.path, **options)
        column = parquet.ParquetFile(self.path).metadata.row_group(0).column(0)
        start, size = column.data_page_offset, column.total_compressed_size
        found = Page(len(self.data), size)
        self.data += self.path.read_bytes()[start : start + size]
        return found

    def write(self, end: bytes) -> Path:
        self.path.write_bytes(self.data + end + len(end).to_bytes(4, "little") + b"PAR1")
        return self.path

    def users(self, values: int = 1) -> tuple[bytes, ...]:
        return (about(self.user, name="user_id", values=values),)


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pages:
    monkeypatch.setenv(VARIABLE, "1M")
    return Pages(tmp_path)


def lengths(path: Path) -> list[int]:
    """The lengths of the texts that pyarrow itself reads."""
    batches = parquet.ParquetFile(path).iter_batches(columns=["user_id", "text"], use_threads=False)
    return [len(value) for batch in batches for value in batch.column("text").to_pylist()]


def assert_refused(path: Path) -> None:
    with pytest.raises(InputError, match="unpacks to more than 1 MiB"):
        check_pages(path, {0, 1})


def test_a_plain_file_of_a_long_text_is_refused_and_one_of_a_short_text_is_not(pages: Pages) -> None:
    path = pages.write(end_of_file(group(pages.users(), (about(pages.short),))))
    check_pages(path, {0, 1})
    assert lengths(path) == [600]
    path = pages.write(end_of_file(group(pages.users(), (about(pages.long),))))
    check_pages(path, {0})
    assert_refused(path)
    assert lengths(path) == [LONG]


def test_the_number_of_a_field_is_cut_only_after_its_sign_is_decoded(pages: Pages) -> None:
    """A size of 0 in a field that is 7 when it is cut first, and unknown to pyarrow."""
    hidden = bytes([I64]) + varint(7 << 1 | 1 << 16) + number(0)
    path = pages.write(end_of_file(group(pages.users(), (about(pages.long, more=hidden),))))
    assert lengths(path) == [LONG]
    assert_refused(path)


@pytest.mark.parametrize(
    "end",
    [
        bytes([BINARY]) + number(99) + varint(1 << 32) + b"\0",
        bytes([LIST]) + number(99) + b"\xf6" + varint(1 << 32) + b"\0",
        bytes([MAP]) + number(99) + varint(1 << 32) + b"\0",
        b"\x10",
    ],
    ids=["binary", "list", "map", "stop"],
)
def test_sizes_and_the_end_of_a_structure_are_cut_to_their_width(pages: Pages, end: bytes) -> None:
    for page, length in ((pages.short, 600), (pages.long, LONG)):
        path = pages.write(end_of_file(group(pages.users(), (about(page)[:-1] + end,))))
        assert lengths(path) == [length]
        if page == pages.long:
            assert_refused(path)
        else:
            check_pages(path, {0, 1})


def test_a_negative_size_in_the_last_part_is_refused(pages: Pages) -> None:
    negative = bytes([BINARY]) + number(99) + varint(1 << 31)
    path = pages.write(end_of_file(group(pages.users(), (about(pages.short, more=negative),))))
    with pytest.raises(OSError, match="a size is negative"):
        check_pages(path, {0, 1})


def test_a_second_description_of_a_column_adds_to_the_first(pages: Pages) -> None:
    """The first has the place of a dictionary, from where pyarrow reads; the second has none."""
    first = about(pages.short, (DICTIONARY, I64, number(pages.long.start)))
    path = pages.write(end_of_file(group(pages.users(), (first, about(pages.short)))))
    assert lengths(path) == [LONG]
    assert_refused(path)


def test_a_group_that_says_it_has_no_rows_is_counted(pages: Pages) -> None:
    """The group before it says that it has one row more than it has."""
    groups = group(pages.users(), (about(pages.short),), rows=2), group(pages.users(), (about(pages.long),), rows=0)
    path = pages.write(end_of_file(*groups, rows=2))
    assert lengths(path) == [600, LONG]
    assert_refused(path)


def test_only_a_column_without_values_is_not_counted(pages: Pages) -> None:
    path = pages.write(end_of_file(group(pages.users(0), (about(pages.long, values=0),), rows=0), rows=0))
    check_pages(path, {0, 1})
    assert lengths(path) == []
    assert_refused(pages.write(end_of_file(group(pages.users(), (about(pages.long, values=-1),)))))


@pytest.mark.parametrize(
    ("writer", "counted"),
    [
        ("parquet-mr version 1.2.8 (build a)", True), ("parquet-mr", True), ("parquet-mr version 1.2.9", False),
        ("parquet-mr version 1.12.0", False), ("fedgram", False),
    ],
)  # fmt: skip
def test_pages_after_the_size_of_a_column_of_an_old_writer_are_counted(
    pages: Pages, writer: str, counted: bool
) -> None:
    assert pages.long.size <= 100
    path = pages.write(end_of_file(group(pages.users(), (about(Page(pages.long.start, 0)),)), writer=writer))
    if counted:
        assert lengths(path) == [LONG]
        assert_refused(path)
    else:
        check_pages(path, {0, 1})
        assert lengths(path) == []


def test_what_follows_a_column_of_an_old_writer_may_be_no_page(pages: Pages) -> None:
    columns = (about(pages.short, name="user_id"),), (about(pages.short),)
    path = pages.write(end_of_file(group(*columns), writer="parquet-mr version 1.2.8"))
    check_pages(path, {0, 1})
    assert lengths(path) == [600]


@pytest.mark.parametrize("place", [Page(4, 1 << 40), Page(1 << 40, 4), Page(-4, 4), Page(4, -4)])
def test_a_column_outside_the_file_is_refused(pages: Pages, place: Page) -> None:
    path = pages.write(end_of_file(group(pages.users(), (about(place),))))
    with pytest.raises(OSError, match="outside the file"):
        check_pages(path, {0, 1})
    with pytest.raises(InputError, match="is not a complete Parquet file"):
        list(parquet_batches(path, ["user_id", "text"]))


def test_columns_that_pyarrow_reads_because_their_name_begins_like_one_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1M")
    nested = pa.array([{"b": {"c": "a" * LONG}}])
    table = pa.table({"user_id": ["u"], "a.b": ["hi"], "a": nested})
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    assert list(parquet_batches(path, ["user_id"])) == [[["u"]]]
    with pytest.raises(InputError, match="unpacks to more than 1 MiB"):
        list(parquet_batches(path, ["user_id", "a.b"]))
