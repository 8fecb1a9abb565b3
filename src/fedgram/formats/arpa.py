"""ARPA files, plain or packed. Files of KenLM, SRILM, IRSTLM and OpenGrm can be read; all of them read our files.

Written files are prefix-sorted: n-grams are in the order of their histories in the section before. `<s>` is a unigram
with log10 probability −99, and the header counts it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgram.automata.assemble import DuplicateNGramError, WeightedNGrams, assemble
from fedgram.automata.build import misplaced_marks
from fedgram.automata.model import NGramModel
from fedgram.automata.topology import arc_sources, entering_arcs, state_histories
from fedgram.automata.trie import MAX_ORDER
from fedgram.core.arrays import ByteArray, FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InputError, InvariantError
from fedgram.core.jit import kernel
from fedgram.core.storage import atomic_write
from fedgram.core.unpacking import packing
from fedgram.formats.decimal import MAX_NUMBER_BYTES, parse_number, write_number
from fedgram.text.corpus import checked_text, open_text
from fedgram.text.vocabulary import BOS, EOS, SPECIAL, Vocabulary
from fedgram.text.word_table import HashArray, WordTable, find_word, insert_word

_LN10 = float(np.log(10.0))
_START_LOG10 = -99.0
_WRITE_CHUNK = 1 << 17

MAX_WORD_BYTES = 1 << 16
_OK, _GROW = 0, 1
_PROBLEMS = {
    2: "more n-grams than the header declares",
    3: "the probability is not a number",
    4: "a word is missing",
    5: "the word is not among the unigrams",
    6: "the unigram occurs twice",
    7: "the backoff weight is not a valid number",
    8: "too many columns for this order",
    9: "the log-probability is greater than 0",
    10: "the word has more than 65,536 bytes",
}


@dataclass(slots=True)
class _Section:
    """The n-grams of one order, one per row, with their line numbers."""

    words: IntArray
    log10_weight: FloatArray
    log10_backoff: FloatArray
    line: LongArray


def read_arpa(path: str | Path) -> NGramModel:
    """Read a model. Incomplete and ambiguous files are refused; the error names the line.

    The automaton needs every prefix and suffix of an n-gram. Missing ones are added; this changes no probability.
    """
    with open_text(path) as file:
        data = file.read().removeprefix(b"\xef\xbb\xbf")
    if b"<UNK>" in data and b"<unk>" not in data:
        data = data.replace(b"<UNK>", b"<unk>")
    text = checked_text(data, path, 1)
    counts, position, line = _read_header(data, path)
    table, sections = WordTable.of(SPECIAL), []
    for order, count in enumerate(counts, 1):
        position, line = _expect_title(data, position, line, f"\\{order}-grams:", path)
        section, position, line = _read_section(text, position, line, order, count, table, path)
        sections.append(section)
    _expect_title(data, position, line, "\\end\\", path)
    return _assemble(sections, _vocabulary(table.words(), sections[0], path), path)


def _vocabulary(words: list[str], unigrams: _Section, path: str | Path) -> Vocabulary:
    """The words; one with a blank that is not ASCII, such as a non-breaking space, is refused by its line."""
    for number, word in enumerate(words):
        if word.split() != [word]:
            line = int(unigrams.line[np.flatnonzero(unigrams.words[:, 0] == number)[0]])
            raise InputError(path, "the word contains a blank of Unicode, such as a non-breaking space", line=line)
    return Vocabulary(tuple(words))


def _read_header(data: bytes, path: str | Path) -> tuple[list[int], int, int]:
    found = re.search(rb"^\\data\\[ \t\r]*\n", data, re.MULTILINE)
    if not found:
        raise InputError(path, r"is not an ARPA file: it has no \data\ line")
    position = found.end()
    counts: list[int] = []
    line = data.count(b"\n", 0, position) + 1
    while (end := data.find(b"\n", position)) >= 0:
        entry = data[position : min(end, position + 100)].strip()
        if entry and not entry.startswith(b"ngram"):
            break
        if entry:
            counts.append(_declared_count(entry, len(counts) + 1, len(data), line, path))
        position, line = end + 1, line + 1
    if not counts or not counts[0]:
        raise InputError(path, "the header declares no unigrams", line=line)
    if len(counts) > MAX_ORDER:
        raise InputError(path, f"has the order {len(counts)}; the maximum is {MAX_ORDER}", line=line)
    return counts, position, line


def _declared_count(entry: bytes, order: int, limit: int, line: int, path: str | Path) -> int:
    match = re.fullmatch(rb"ngram[ \t]+(\d{1,2})[ \t]*=[ \t]*(\d{1,15})", entry)
    if not match:
        raise InputError(path, "should be a count of n-grams, such as `ngram 1=100`", line=line)
    if int(match[1]) != order:
        raise InputError(path, f"the header has {int(match[1])}-grams where {order}-grams should be", line=line)
    if int(match[2]) > limit:
        raise InputError(path, "the header declares more n-grams than the file can contain", line=line)
    return int(match[2])


def _expect_title(data: bytes, position: int, line: int, title: str, path: str | Path) -> tuple[int, int]:
    blank = re.compile(rb"(?:[ \t\r]*\n)*").match(data, position)
    position, line = (blank.end(), line + data.count(b"\n", position, blank.end())) if blank else (position, line)
    end = data.find(b"\n", position)
    found = data[position : end if end >= 0 else len(data)].strip().decode()
    if found != title:
        problem = f"the file ends before {title}" if position >= len(data) else f"{title} should be here"
        raise InputError(path, problem, line=line, remedy="check whether the file is complete and its counts are right")
    return (end + 1 if end >= 0 else len(data)), line + 1


def _read_section(
    text: ByteArray, position: int, line: int, order: int, count: int, table: WordTable, path: str | Path
) -> tuple[_Section, int, int]:
    section = _Section(np.empty((count, order), np.int32), np.empty(count), np.zeros(count), np.empty(count, np.int64))
    rows = 0
    while True:
        status, position, line, rows, table.count = _parse_section(
            text, position, line, rows, order, section.words, section.log10_weight, section.log10_backoff,
            section.line, table.blob, table.starts, table.hashes, table.slots, table.count,
        )  # fmt: skip
        if status == _GROW:
            table.make_room(1 << 20)
            continue
        if status != _OK:
            raise InputError(path, _PROBLEMS[status], line=line)
        if rows != count:
            raise InputError(path, f"the header declares {count} {order}-grams, but there are only {rows}", line=line)
        return section, position, line


@kernel
def _parse_section(
    text: ByteArray, position: int, line: int, rows: int, order: int, words: IntArray, log10_weight: FloatArray,
    log10_backoff: FloatArray, lines: LongArray,
    blob: ByteArray, starts: LongArray, hashes: HashArray, slots: IntArray, count: int,
) -> tuple[int, int, int, int, int]:  # fmt: skip
    """Parse n-gram lines up to the next title; returns a status, which is a key of `_PROBLEMS` if there is one."""
    end = len(text)
    while position < end:
        line_begin = position
        column, n_columns = 0, 0
        while position < end and text[position] != 10:
            while position < end and (text[position] == 32 or text[position] == 9 or text[position] == 13):
                position += 1
            if position >= end or text[position] == 10:
                break
            stop = position
            while stop < end and not (text[stop] == 32 or 9 <= text[stop] <= 13):
                stop += 1
            if stop - position > MAX_WORD_BYTES:
                return 10, position, line, rows, count
            if column == 0:
                if text[position] == 92:  # a title
                    return _OK, line_begin, line, rows, count
                if rows >= len(lines):
                    return 2, position, line, rows, count
                value = parse_number(text, position, stop)
                if np.isnan(value):
                    return 3, position, line, rows, count
                if value > 1e-4:
                    return 9, position, line, rows, count
                log10_weight[rows] = min(value, 0.0)
                lines[rows] = line
            elif column <= order:
                word, slot, h = find_word(text, position, stop, blob, starts, hashes, slots)
                if order == 1:
                    if word < 0:
                        if not insert_word(text, position, stop, slot, h, blob, starts, hashes, slots, count):
                            return _GROW, line_begin, line, rows, count
                        word = count
                        count += 1
                    elif word > 2:
                        return 6, position, line, rows, count
                elif word < 0:
                    return 5, position, line, rows, count
                words[rows, column - 1] = word
            elif column == order + 1:
                value = parse_number(text, position, stop)
                if not abs(value) < 1e4:
                    return 7, position, line, rows, count
                log10_backoff[rows] = value
            else:
                return 8, position, line, rows, count
            column += 1
            n_columns = column
            position = stop
        if n_columns > 0:
            if n_columns <= order:
                return 4, position, line, rows, count
            rows += 1
        position += 1
        line += 1
    return _OK, end, line, rows, count


def _assemble(sections: list[_Section], vocabulary: Vocabulary, path: str | Path) -> NGramModel:
    ngrams = Ragged(
        np.concatenate([s.words.ravel() for s in sections]),
        np.concatenate([[0], np.cumsum(np.concatenate([np.full(len(s.line), s.words.shape[1]) for s in sections]))]),
    )
    lines = np.concatenate([s.line for s in sections])
    if np.sum(sections[0].words == BOS) > 1:
        raise InputError(path, _PROBLEMS[6], line=int(sections[0].line[np.flatnonzero(sections[0].words == BOS)[1]]))
    if not np.any(sections[0].words == EOS):
        raise InputError(path, "has no unigram </s>, so sentences would never end", line=int(lines[0]))
    log10 = np.stack(
        [np.concatenate([getattr(s, name) for s in sections]) for name in ("log10_weight", "log10_backoff")]
    )
    inside = ~misplaced_marks(ngrams.values, ngrams.offsets)
    if not inside.all():  # IRSTLM counts across sentences; no sentence uses such an n-gram
        ngrams, lines, log10 = ngrams.select(inside), lines[inside], log10[:, inside]
    weighted = WeightedNGrams(vocabulary, ngrams, _LN10 * log10[0], _LN10 * log10[1])
    try:
        return assemble(weighted)
    except DuplicateNGramError as error:
        raise InputError(path, "the n-gram occurs twice", line=int(lines[error.row])) from None
    except InvariantError as error:
        raise InputError(path, str(error)) from None


def write_arpa(model: NGramModel, path: str | Path, *, packed: str | None = None) -> None:
    """Write the model, packed if its name or `packed` ends in `.gz`, `.bz2` or `.zst`.

    Values are log10 with 7 decimals.
    """
    with atomic_write(path) as raw, packing(raw, packed or path) as file:
        for piece in _pieces(model):
            file.write(piece)


def _pieces(model: NGramModel) -> Iterator[bytes]:
    t = model.topology
    by_order = t.arcs_by_order()
    by_order[0] += 1
    yield b"\\data\\\n" + b"".join(b"ngram %d=%d\n" % item for item in enumerate(by_order, 1))
    table = WordTable.of(model.vocabulary.words)
    entering = entering_arcs(t)
    log10_backoff = np.full(t.arcs, np.nan)
    own = np.flatnonzero(entering >= 0)
    log10_backoff[entering[own]] = model.log_backoff[own] / _LN10
    histories, _ = state_histories(t)
    sources = arc_sources(t)

    def rows(begin: int, end: int, order: int) -> Iterator[bytes]:
        for first in range(begin, end, _WRITE_CHUNK):
            arcs = slice(first, min(first + _WRITE_CHUNK, end))
            size, buffer = _format_arcs(
                histories[sources[arcs]], order, t.label[arcs], model.log_weight[arcs] / _LN10, log10_backoff[arcs],
                table.blob, table.starts,
            )  # fmt: skip
            yield buffer[:size].tobytes()

    yield b"\n\\1-grams:\n"
    unknown = int(model.has_unknown)  # <s> comes after <unk>, in the order of ids, as its bigrams do
    yield from rows(0, unknown, 1)
    yield b"%s\t<s>\t%s\n" % (_number(_START_LOG10), _number(model.log_backoff[t.start] / _LN10))
    yield from rows(unknown, by_order[0] - 1, 1)
    begin = by_order[0] - 1
    for order, count in enumerate(by_order[1:], 2):
        yield b"\n\\%d-grams:\n" % order
        yield from rows(begin, begin + count, order)
        begin += count
    yield b"\n\\end\\\n"


def _number(value: float) -> bytes:
    buffer = np.zeros(MAX_NUMBER_BYTES, np.uint8)
    return buffer[: write_number(float(value), buffer, 0)].tobytes()


@kernel
def _format_arcs(
    histories: IntArray, order: int, label: IntArray, log10_weight: FloatArray, log10_backoff: FloatArray,
    blob: ByteArray, starts: LongArray,
) -> tuple[int, ByteArray]:  # fmt: skip
    room = 0
    for i in range(len(label)):
        room += 2 * MAX_NUMBER_BYTES + 3
        for k in range(order):
            word = histories[i, k] if k < order - 1 else label[i]
            room += starts[word + 1] - starts[word] + 1
    out = np.empty(room, np.uint8)
    p = 0
    for i in range(len(label)):
        p = write_number(log10_weight[i], out, p)
        out[p] = 9
        p += 1
        for k in range(order):
            word = histories[i, k] if k < order - 1 else label[i]
            for b in range(starts[word], starts[word + 1]):
                out[p] = blob[b]
                p += 1
            out[p] = 32 if k < order - 1 else 9
            p += 1
        if np.isnan(log10_backoff[i]):
            out[p - 1] = 10
        else:
            p = write_number(log10_backoff[i], out, p)
            out[p] = 10
            p += 1
    return p, out
