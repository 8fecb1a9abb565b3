"""Reading a corpus: UTF-8 text, one sentence a line, words separated by blanks.

Blank lines are passed over. Files ending in `.gz` are unpacked; `-` is standard input. The sentence marks `<s>` and
`</s>` are added by whoever counts, so a corpus that already has them is refused; `<unk>` in a text means `<unk>`.
"""

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedgram.core.arrays import ByteArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InputError
from fedgram.core.jit import kernel
from fedgram.text.vocabulary import BOS, EOS, SPECIAL, UNK, Vocabulary
from fedgram.text.word_table import HashArray, WordTable, find_word, insert_word

CHUNK_BYTES = 1 << 23
MAX_LINE_BYTES = 1 << 26
_DONE, _GROW, _MARKED = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Sentences as ids of the vocabulary, without sentence marks."""

    sentences: Ragged
    vocabulary: Vocabulary

    @property
    def words(self) -> int:
        """Number of tokens, sentence ends not counted."""
        return len(self.sentences.values)


def read_corpus(
    paths: Sequence[str | Path],
    vocabulary: Vocabulary | None = None,
    *,
    on_bytes: Callable[[int], None] | None = None,
) -> Corpus:
    """Read all files as one corpus.

    With a vocabulary, every other word becomes `<unk>`. Without one, the vocabulary is every word of the corpus, most
    frequent first and alphabetical among equals. `on_bytes` is told the bytes read since the last call.
    """
    table = WordTable.of(vocabulary.words if vocabulary else SPECIAL)
    parts = [part for path in paths for part in _read_file(path, table, vocabulary is None, on_bytes)]
    sentences = Ragged.concatenate(parts)
    if len(sentences) == 0:
        raise InputError(" ".join(map(str, paths)), "holds no sentences", remedy="write one sentence a line")
    if vocabulary is not None:
        return Corpus(sentences, vocabulary)
    return _by_frequency(sentences, table.words())


def _by_frequency(sentences: Ragged, words: list[str]) -> Corpus:
    counts = np.bincount(sentences.values, minlength=len(words)).tolist()
    ranked = sorted(range(len(SPECIAL), len(words)), key=lambda i: (-counts[i], words[i]))
    order = [UNK, BOS, EOS, *ranked]
    new_id = np.empty(len(words), np.int32)
    new_id[order] = np.arange(len(words), dtype=np.int32)
    return Corpus(Ragged(new_id[sentences.values], sentences.offsets), Vocabulary(tuple(words[i] for i in order)))


def _read_file(
    path: str | Path, table: WordTable, grow: bool, on_bytes: Callable[[int], None] | None
) -> Iterator[Ragged]:
    line = 1
    with open_text(path) as file:
        for chunk in whole_lines(file, path):
            yield _tokenize_chunk(chunk, table, grow, path, line)
            line += int(np.count_nonzero(chunk == ord("\n")))
            if on_bytes:
                on_bytes(len(chunk))


@contextmanager
def open_text(path: str | Path) -> Iterator[BinaryIO]:
    """The bytes of a text file, unpacked if its name ends in `.gz`; `-` is standard input."""
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    with Path(path).open("rb") as raw:
        if not str(path).endswith(".gz"):
            yield raw
            return
        try:
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield io.BufferedReader(unpacked)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(path, f"is not a whole gzip file ({error})") from None


def whole_lines(file: BinaryIO, path: str | Path) -> Iterator[ByteArray]:
    """The file in chunks that end with a line, checked to be UTF-8 text without NUL bytes."""
    rest, first, line = b"", True, 1
    while data := file.read(CHUNK_BYTES):
        data, first = (data.removeprefix(b"\xef\xbb\xbf") if first else data), False
        cut = data.rfind(b"\n") + 1
        if not cut:
            rest += data
            if len(rest) > MAX_LINE_BYTES:
                raise InputError(path, "a line of more than 64 MiB", line=line, remedy="write one sentence a line")
            continue
        chunk, rest = rest + data[:cut], data[cut:]
        yield checked_text(chunk, path, line)
        line += chunk.count(b"\n")
    if rest:
        yield checked_text(rest + b"\n", path, line)


def checked_text(chunk: bytes, path: str | Path, first_line: int) -> ByteArray:
    """The bytes as an array, if they are UTF-8 text without NUL bytes."""
    try:
        chunk.decode()
    except UnicodeDecodeError as error:
        line = first_line + chunk.count(b"\n", 0, error.start)
        raise InputError(path, "is not UTF-8 text", line=line, remedy="convert it to UTF-8") from None
    if (nul := chunk.find(b"\0")) >= 0:
        raise InputError(path, "is not text: it holds a NUL byte", line=first_line + chunk.count(b"\n", 0, nul))
    return np.frombuffer(chunk, np.uint8)


def _tokenize_chunk(chunk: ByteArray, table: WordTable, grow: bool, path: str | Path, first_line: int) -> Ragged:
    ids = np.empty(len(chunk) // 2 + 1, np.int32)
    offsets = np.zeros(int(np.count_nonzero(chunk == ord("\n"))) + 1, np.int64)
    position = tokens = sentences = 0
    while True:
        status, position, tokens, sentences, table.count = _tokenize(
            chunk, position, tokens, sentences, ids, offsets, grow,
            table.blob, table.starts, table.hashes, table.slots, table.count,
        )  # fmt: skip
        if status == _DONE:
            return Ragged(ids[:tokens].copy(), offsets[: sentences + 1].copy())
        if status == _MARKED:
            line = first_line + int(np.count_nonzero(chunk[:position] == ord("\n")))
            problem = "the sentence marks <s> and </s> are added when counting and may not stand in the text"
            raise InputError(path, problem, line=line, remedy="remove them")
        table.make_room(len(chunk))


@kernel
def _tokenize(
    text: ByteArray, position: int, tokens: int, sentences: int, ids: IntArray, offsets: LongArray, grow: bool,
    blob: ByteArray, starts: LongArray, hashes: HashArray, slots: IntArray, count: int,
) -> tuple[int, int, int, int, int]:  # fmt: skip
    """Look up every word from `position` on; stop early where the table must grow or a sentence mark stands."""
    end = len(text)
    while position < end:
        c = text[position]
        if c == 10:
            if tokens > offsets[sentences]:
                sentences += 1
                offsets[sentences] = tokens
            position += 1
            continue
        if c == 32 or (9 <= c <= 13):
            position += 1
            continue
        stop = position
        while not (text[stop] == 32 or (9 <= text[stop] <= 13)):
            stop += 1
        word, slot, h = find_word(text, position, stop, blob, starts, hashes, slots)
        if word in (BOS, EOS):
            return _MARKED, position, tokens, sentences, count
        if word < 0:
            word = UNK
            if grow:
                if not insert_word(text, position, stop, slot, h, blob, starts, hashes, slots, count):
                    return _GROW, position, tokens, sentences, count
                word = count
                count += 1
        ids[tokens] = word
        tokens += 1
        position = stop
    return _DONE, position, tokens, sentences, count
