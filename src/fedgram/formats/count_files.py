"""Files of n-gram counts, as SRILM's `ngram-count -write` and `-read` have them: words, a tab, a count.

All orders are in one file. `<s>` and `</s>` are the marks of sentences, and `<unk>` is the unknown word. Counts of an
n-gram that occurs twice are added, so files can be concatenated. Shorter n-grams that are missing get the count that
the longer ones need.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedgram.automata.build import misplaced_marks, ngrams_of, topology_from_ngrams
from fedgram.automata.model import NGramCounts
from fedgram.automata.topology import Topology, arc_sources, backoff_arcs, entering_arcs, state_lengths
from fedgram.automata.trie import MAX_ORDER
from fedgram.core.arrays import FloatArray, Ragged, sum_by
from fedgram.core.errors import InputError
from fedgram.core.storage import atomic_write
from fedgram.core.unpacking import packing
from fedgram.text.corpus import open_text, whole_lines
from fedgram.text.vocabulary import BOS, SPECIAL, UNK, Vocabulary


def write_counts(counts: NGramCounts, path: str | Path, *, sentences: int) -> int:
    """Write the counts above 0, packed if the name says so; returns their number."""
    words, written = counts.vocabulary.words, 1
    with atomic_write(path) as raw, packing(raw, path) as file:
        file.write(f"<s>\t{sentences}\n".encode())
        for ngram, count in zip(ngrams_of(counts.topology), counts.count.tolist(), strict=True):
            if count > 0:
                file.write(f"{' '.join(words[i] for i in ngram)}\t{count:.15g}\n".encode())
                written += 1
    return written


def read_counts(
    paths: Sequence[str | Path], vocabulary: Vocabulary | None = None, *, order: int = MAX_ORDER
) -> NGramCounts:
    """Read files of counts and add them up; n-grams of more than `order` words are left out.

    Words outside a vocabulary that is given become `<unk>`. Without one, the words are those of the files, in their
    order.
    """
    ids = dict(vocabulary.index) if vocabulary else {word: number for number, word in enumerate(SPECIAL)}
    tokens: list[int] = []
    offsets, counts = [0], []
    for path in paths:
        for words, times in _rows(path):
            if len(words) > order:
                continue
            tokens += [ids.get(word, UNK) if vocabulary else ids.setdefault(word, len(ids)) for word in words]
            offsets.append(len(tokens))
            counts.append(times)
    if not counts:
        raise InputError(
            " ".join(map(str, paths)), "contains no counts", remedy="write words, a tab and a count per line"
        )
    rows = Ragged(np.array(tokens, np.int32), np.array(offsets, np.int64))
    lengths = np.diff(rows.offsets)
    starts = (lengths == 1) & (rows.values[rows.offsets[:-1]] == BOS)  # <s> alone is not predicted
    kept = np.flatnonzero(~starts & ~misplaced_marks(rows.values, rows.offsets))
    rows = rows.take(kept)
    built = topology_from_ngrams(rows, len(ids), open_vocabulary=bool(np.any(rows.values == UNK)))
    count = sum_by(built.arc, np.array(counts, np.float64)[kept], built.topology.arcs)
    words_of = vocabulary or Vocabulary(tuple(ids))
    return NGramCounts(built.topology, words_of, _completed(built.topology, count))


def _rows(path: str | Path) -> Iterator[tuple[list[str], float]]:
    line = 0
    with open_text(path) as file:
        for chunk in whole_lines(file, path):
            for text in chunk.tobytes().decode().split("\n")[:-1]:
                line += 1
                if text.strip():
                    yield _row(text, path, line)


def _row(text: str, path: str | Path, line: int) -> tuple[list[str], float]:
    words, _, number = text.strip().rpartition("\t" if "\t" in text.strip() else " ")
    try:
        count = float(number)
    except ValueError:
        count = -1.0
    ngram = words.split()
    if not ngram or not 0 <= count < np.inf:
        remedy = "write words, a tab and a count of at least 0"
        raise InputError(path, "is not a count of an n-gram", line=line, remedy=remedy)
    if len(ngram) > MAX_ORDER:
        raise InputError(path, f"has an n-gram of {len(ngram)} words; the maximum is {MAX_ORDER}", line=line)
    return ngram, count


def _completed(topology: Topology, count: FloatArray) -> FloatArray:
    """The counts, where a shorter n-gram occurs at least as often as the longer ones that begin or end with it."""
    lower, source, count = backoff_arcs(topology), arc_sources(topology), count.copy()
    entering, order = entering_arcs(topology)[source], state_lengths(topology)[source] + 1
    for n in range(int(order.max()), 1, -1):
        arcs = np.flatnonzero(order == n)
        for shorter in (lower[arcs], entering[arcs]):
            inside = shorter >= 0
            np.maximum(count, sum_by(shorter[inside], count[arcs[inside]], len(count)), out=count)
    return count
