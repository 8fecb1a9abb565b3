"""Reading a corpus: UTF-8 text, one sentence per line, words separated by white space.

All blanks of Unicode separate words, non-breaking spaces too; only a line feed ends a line. Blank lines are skipped.
Packed files are unpacked (`core/unpacking.py`); `-` is standard input. Counting adds the sentence marks `<s>` and
`</s>`, so a corpus that already has them is refused. The word `<unk>` in a text is the unknown word.
"""

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedgram.core.arrays import ByteArray, IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.jit import kernel
from fedgram.core.unpacking import open_unpacked, unpacked
from fedgram.text.normalize import normalize
from fedgram.text.vocabulary import BOS, EOS, SPECIAL, UNK, Vocabulary
from fedgram.text.word_table import HashArray, WordTable, find_word, insert_word

CHUNK_BYTES = 1 << 23
MAX_LINE_BYTES = 1 << 26
_DONE, _GROW, _MARKED = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Sentences as word ids of the vocabulary, without sentence marks."""

    sentences: Ragged
    vocabulary: Vocabulary

    @property
    def words(self) -> int:
        """Number of tokens, without sentence ends."""
        return len(self.sentences.values)


def read_corpus(
    paths: Sequence[str | Path],
    vocabulary: Vocabulary | None = None,
    *,
    on_bytes: Callable[[int], object] | None = None,
) -> Corpus:
    """Read all files as one corpus.

    With a vocabulary, every word outside it becomes `<unk>`. Without one, the vocabulary is all words of the corpus,
    most frequent first; equally frequent words are in alphabetical order. `on_bytes` is a progress callback: it gets
    the number of bytes read since its last call.
    """
    table = WordTable.of(vocabulary.words if vocabulary else SPECIAL)
    parts = [part for path in paths for part in _read_file(path, table, vocabulary is None, on_bytes)]
    sentences = Ragged.concatenate(parts)
    if len(sentences) == 0:
        raise InputError(" ".join(map(str, paths)), "contains no sentences", remedy="write one sentence per line")
    if vocabulary is not None:
        return Corpus(sentences, vocabulary)
    return _by_frequency(sentences, table.words())


def corpus_of(sentences: Iterable[str], vocabulary: Vocabulary | None = None, *, skip_blank: bool = False) -> Corpus:
    """A corpus of sentences in memory; see `read_corpus` for its vocabulary. Blank sentences count unless skipped."""
    if not isinstance(sentences, Iterable):
        raise FedgramError(f"a text must be the name of a file, or sentences, not of type {type(sentences).__name__}")
    ids = dict(vocabulary.index) if vocabulary else {word: number for number, word in enumerate(SPECIAL)}
    tokens: list[int] = []
    offsets = [0]
    for sentence in sentences:
        if not isinstance(sentence, str):
            kind = type(sentence).__name__
            raise FedgramError(f"a sentence must be a string with words separated by blanks, not of type {kind}")
        words = sentence.split()
        if skip_blank and not words:
            continue
        for word in words:
            if ids.get(word) in (BOS, EOS):
                problem = "contains <s> or </s>, which counting adds to each sentence"
                raise InputError("text", problem, line=len(offsets), remedy="remove them")
            tokens.append(ids.get(word, UNK) if vocabulary else ids.setdefault(word, len(ids)))
        offsets.append(len(tokens))
    rows = Ragged(np.array(tokens, np.int32), np.array(offsets, np.int64))
    return Corpus(rows, vocabulary) if vocabulary is not None else _by_frequency(rows, list(ids))


def normalized_sentences(path: str | Path, on_bytes: Callable[[int], object] = lambda _: None) -> Iterator[list[str]]:
    """The sentences of running text, split and cleaned as users' messages are; clean text is unchanged."""
    with open_text(path) as file:
        for chunk in whole_lines(file, path):
            yield from normalize(chunk.tobytes().decode())
            on_bytes(len(chunk))


def _by_frequency(sentences: Ragged, words: list[str]) -> Corpus:
    counts = np.bincount(sentences.values, minlength=len(words)).tolist()
    ranked = sorted(range(len(SPECIAL), len(words)), key=lambda i: (-counts[i], words[i]))
    order = [UNK, BOS, EOS, *ranked]
    new_id = np.empty(len(words), np.int32)
    new_id[order] = np.arange(len(words), dtype=np.int32)
    return Corpus(Ragged(new_id[sentences.values], sentences.offsets), Vocabulary(tuple(words[i] for i in order)))


def _read_file(
    path: str | Path, table: WordTable, grow: bool, on_bytes: Callable[[int], object] | None
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
    """Open the bytes of a text file, unpacked if it is packed; `-` is standard input."""
    if str(path) == "-":
        with unpacked(_standard_input(), path) as file:
            yield file
        return
    with open_unpacked(path) as file:
        yield file


def _standard_input() -> io.BufferedReader:
    stream = sys.stdin.buffer
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)  # type: ignore[arg-type]


def whole_lines(file: BinaryIO, path: str | Path) -> Iterator[ByteArray]:
    """The file in chunks of whole lines, checked to be UTF-8 text without NUL bytes."""
    rest, first, line = b"", True, 1
    while data := file.read(CHUNK_BYTES):
        data, first = (data.removeprefix(b"\xef\xbb\xbf") if first else data), False
        cut = data.rfind(b"\n") + 1
        if not cut:
            rest += data
            if len(rest) > MAX_LINE_BYTES:
                raise InputError(path, "has a line over 64 MiB", line=line, remedy="write one sentence per line")
            continue
        chunk, rest = rest + data[:cut], data[cut:]
        yield checked_text(chunk, path, line)
        line += chunk.count(b"\n")
    if rest:
        yield checked_text(rest + b"\n", path, line)


def checked_text(chunk: bytes, path: str | Path, first_line: int) -> ByteArray:
    """The bytes as an array. Bytes that are not UTF-8 text, and NUL bytes, are refused."""
    try:
        chunk.decode()
    except UnicodeDecodeError as error:
        line = first_line + chunk.count(b"\n", 0, error.start)
        raise InputError(path, "is not UTF-8 text", line=line, remedy="convert it to UTF-8") from None
    if (nul := chunk.find(b"\0")) >= 0:
        raise InputError(path, "is not text: it contains a NUL byte", line=first_line + chunk.count(b"\n", 0, nul))
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
            problem = "contains <s> or </s>, which counting adds to each sentence"
            raise InputError(path, problem, line=line, remedy="remove them")
        table.make_room(len(chunk))


@kernel
def blank_bytes(text: ByteArray, position: int) -> int:
    """The number of bytes of the blank at a position of UTF-8 text, as in `str.isspace`; 0 if there is none."""
    c = text[position]
    if c < 128:
        return 1 if c == 32 or 9 <= c <= 13 or 28 <= c <= 31 else 0
    if c == 0xC2:
        return 2 if text[position + 1] == 0x85 or text[position + 1] == 0xA0 else 0
    if c < 0xE1 or c > 0xE3:
        return 0
    d, e = text[position + 1], text[position + 2]
    if c == 0xE2 and d == 0x80:
        return 3 if 0x80 <= e <= 0x8A or e == 0xA8 or e == 0xA9 or e == 0xAF else 0
    is_other = (c == 0xE1 and d == 0x9A and e == 0x80) or (c == 0xE2 and d == 0x81 and e == 0x9F)
    return 3 if is_other or (c == 0xE3 and d == 0x80 and e == 0x80) else 0


@kernel
def _tokenize(
    text: ByteArray, position: int, tokens: int, sentences: int, ids: IntArray, offsets: LongArray, grow: bool,
    blob: ByteArray, starts: LongArray, hashes: HashArray, slots: IntArray, count: int,
) -> tuple[int, int, int, int, int]:  # fmt: skip
    """Look up every word from `position` on; stop early if the table must grow or at a sentence mark."""
    end = len(text)
    while position < end:
        c = text[position]
        if c == 10:
            if tokens > offsets[sentences]:
                sentences += 1
                offsets[sentences] = tokens
            position += 1
            continue
        blank = blank_bytes(text, position)
        if blank:
            position += blank
            continue
        stop = position
        while not blank_bytes(text, stop):
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
