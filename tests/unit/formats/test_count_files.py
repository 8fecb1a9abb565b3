"""Files of n-gram counts."""

from pathlib import Path

import numpy as np
import pytest

from fedgram.automata.build import count_ngrams
from fedgram.automata.smoothing import METHODS, smooth
from fedgram.core.errors import InputError
from fedgram.formats.count_files import read_counts, write_counts
from fedgram.text.corpus import corpus_of
from fedgram.text.vocabulary import Vocabulary

TEXT = corpus_of(["a b c", "a b", "c", "b b a c"])
COUNTS = count_ngrams(TEXT.sentences, TEXT.vocabulary, order=3)


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".zst"])
def test_counts_come_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.counts{suffix}"
    write_counts(COUNTS, path, sentences=4)
    again = read_counts([path], TEXT.vocabulary)
    assert np.array_equal(again.count, COUNTS.count)
    assert np.array_equal(again.topology.label, COUNTS.topology.label)
    assert read_counts([path, path], TEXT.vocabulary).count.tolist() == (2 * COUNTS.count).tolist()
    assert read_counts([path], order=2).topology.order == 2


def test_lines_are_those_of_srilm(tmp_path: Path) -> None:
    write_counts(COUNTS, tmp_path / "a.counts", sentences=4)
    lines = (tmp_path / "a.counts").read_text().splitlines()
    assert lines[0] == "<s>\t4"
    assert {"a\t3", "</s>\t4", "<s> a\t2", "a b\t2", "<s> a b\t2", "b </s>\t1", "a c </s>\t1"} <= set(lines)
    assert len(lines) == len(set(lines))


def test_missing_shorter_ngrams_are_counted(tmp_path: Path) -> None:
    write_counts(COUNTS, tmp_path / "a.counts", sentences=4)
    longest = [line for line in (tmp_path / "a.counts").read_text().splitlines() if line.count(" ") == 2]
    (tmp_path / "b.counts").write_text("\n".join(longest) + "\n")
    found = read_counts([tmp_path / "b.counts"], TEXT.vocabulary)
    for method in METHODS:
        assert np.isfinite(smooth(found, method).log_weight).all()


def test_words_outside_a_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "a.counts").write_text("a\t2\nq\t3\n</s> 1\na q\t1\n")
    found = read_counts([tmp_path / "a.counts"], Vocabulary.of(["a"]))
    assert found.count[:3].tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a\t1\nb\tmany\n", ":2: is not a count"),
        ("a\t1\n7\n", ":2: is not a count"),
        ("a\t-1\n", ":1: is not a count"),
        ("a\tnan\n", ":1: is not a count"),
        ("a\tinf\n", ":1: is not a count"),
        ("\n", "contains no counts"),
        (" ".join("abcdefghijklmnopq") + "\t1\n", "the maximum is"),
    ],
)
def test_what_is_not_a_count_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "a.counts").write_text(content)
    with pytest.raises(InputError, match=problem):
        read_counts([tmp_path / "a.counts"])
