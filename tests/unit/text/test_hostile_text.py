"""Text that is made to take long or to break a reader: it takes time in proportion to its length, or is refused."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.unit.text.importing import read

from fedgram.core.errors import InputError
from fedgram.text.corpus import corpus_of, read_corpus
from fedgram.text.normalize import nfc, normalize, uncase
from fedgram.text.vocabulary import read_vocabulary

SIZE = 60_000
MOST_SECONDS = 3.0  # of this process; in proportion it takes some 0.1 s; in quadratic time, half a minute
BLANKS = "\t \x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2007\u200a\u2028\u2029\u202f\u205f\u3000"


def seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


@pytest.mark.parametrize(
    "text",
    [
        "a." * (SIZE // 2), "-" * SIZE, "+1-" * (SIZE // 3), "." * SIZE + "a", "!?" * (SIZE // 2) + "a",
        "." * 64 + "@" + "b" * SIZE, "a@" * (SIZE // 2), "a@b." * (SIZE // 4), "1." * (SIZE // 2), "@a" * (SIZE // 2),
        "http://" * (SIZE // 7), "a'" * (SIZE // 2), "a" + "\u0301\u0323" * (SIZE // 2), "\u0f73" * (SIZE // 2),
    ],
    ids=range(14),
)  # fmt: skip
def test_normalising_is_not_quadratic(text: str) -> None:
    assert seconds(lambda: normalize(text)) < MOST_SECONDS
    assert seconds(lambda: uncase(text)) < MOST_SECONDS


def test_the_bounds_leave_ordinary_text_alone() -> None:
    marks = "a" + "\u0301" * 30
    assert nfc(marks + "b") == "á" + "\u0301" * 29 + "b"
    assert nfc(marks + "\u0301b") == nfc(marks + "b")
    address = "x" * 64 + "@example.org"
    assert normalize(f"to {address}.") == [["to", "<email>"]]
    assert normalize("!" * 50) == []
    assert normalize("no" + "!" * 50 + " yes") == [["no"], ["yes"]]


HEAD = b"From a@b Mon Jan  1 00:00:00 2020\nFrom: %s\n%s\n\n%s\n"
FIRST, LAST = (HEAD % (b"ann@x.org", b"Content-Type: text/plain", text) for text in (b"hello there", b"see you"))
NESTED = b"".join(b'Content-Type: multipart/mixed; boundary="b%d"\n\n--b%d\n' % (i, i) for i in range(1000))
MAILS = {
    "two endings of an introduction": (b"a@b.c", b"", b"Am " + b"schrieb " * 8_000 + b"\n> x\nhello"),
    "an introduction before many quotations": (b"a@b.c", b"", b"On " + b"wrote " * 20_000 + b"\n> x" * 20_000),
    "multiparts in multiparts": (b"a@b.c", NESTED.strip(), b"hello"),
    "many multiparts, many lines": (b"a@b.c", NESTED[:9_000].strip(), b"\n" * 100_000),
    "comments in comments": (b"(" * 5_000, b"", b"hello"),
    "many senders": (b"a@b," * 20_000, b"", b"hello"),
    "many parameters": (b"a@b.c", b"Content-Type: text/plain; " + b"a*0*=x; " * 5_000, b"hello"),
    "an odd charset": (b"a@b.c", b"Content-Type: text/plain; charset*=" + b"''" * 3_000, b"hello"),
    "an odd boundary": (b"a@b.c", b'Content-Type: multipart/mixed; boundary*="%ff', b"hello"),
    "a host name's encoding": (b"a@b.c", b"Content-Type: text/plain; charset=punycode", b"a-" + b"9" * 250_000),
    "quotations after one long line": (b"a@b.c", b"", b"On " + b"wrote" * 190 + b"\n> x" * 300_000),
    "an odd encoding": (b"a@b.c", b"Content-Transfer-Encoding: uuencode", b"begin 666\n\xff\xfe\nend"),
}


@pytest.mark.parametrize("name", MAILS)
def test_odd_mails_are_skipped_or_read_in_time(tmp_path: Path, name: str) -> None:
    source = tmp_path / "a.mbox"
    source.write_bytes(FIRST + b"\n" + HEAD % MAILS[name] + b"\n" + LAST)
    begun = time.process_time()
    found, report = read(source)
    assert time.process_time() - begun < MOST_SECONDS
    assert [text for _, text in found][:: len(found) - 1] == ["hello there", "see you"]
    assert report.messages + sum(report.skipped.values()) == 3


def test_all_blanks_of_unicode_separate_words(tmp_path: Path) -> None:
    for blank in BLANKS:
        assert blank.isspace()
        path = tmp_path / "a.txt"
        path.write_bytes(f"one{blank}two{blank}{blank}\n{blank}three é{blank}\n{blank}\n".encode())
        corpus = read_corpus([path])
        assert sorted(corpus.vocabulary.words[3:]) == ["one", "three", "two", "é"]
        in_memory = corpus_of(path.read_text("utf-8").split("\n"), corpus.vocabulary, skip_blank=True)
        np.testing.assert_array_equal(corpus.sentences.values, in_memory.sentences.values)
        np.testing.assert_array_equal(corpus.sentences.offsets, in_memory.sentences.offsets)
    every = "".join(map(chr, [*range(1, 0xD800), *range(0xE000, 0x11000)])).replace("\n", "")
    path.write_text(every, "utf-8", newline="\n")
    assert set(read_corpus([path]).vocabulary.words[3:]) == set(every.split())


def test_a_list_of_words_names_the_line_with_a_blank_inside(tmp_path: Path) -> None:
    for blank in BLANKS:
        path = tmp_path / "w.txt"
        path.write_bytes(f"one{blank}\ntwo{blank}three\n".encode())
        with pytest.raises(InputError, match=r"w\.txt:2: more than one word on a line"):
            read_vocabulary(path)
