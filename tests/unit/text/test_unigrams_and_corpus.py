"""Unigram files, vocabularies and the corpus reader."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.errors import InputError, InvariantError
from fedgram.text import corpus
from fedgram.text.corpus import read_corpus
from fedgram.text.unigrams import UnigramCounts, read_unigram_counts, read_unigrams, write_unigrams
from fedgram.text.vocabulary import Vocabulary, read_vocabulary

WORDS = Vocabulary.of(["a", "b", "c"])


def counts(*weight: float, clip: float = 2.0) -> UnigramCounts:
    return UnigramCounts(WORDS, np.array([0.0, 0.0, 0.0, *weight]), 10, 2, clip)


def test_counts_are_a_monoid() -> None:
    zero = UnigramCounts(WORDS, np.zeros(6), 0, 0, 2.0)
    a, b = counts(1, 2, 0), counts(0, 0.5, 4)
    assert ((a + b).weight == (b + a).weight).all()
    assert ((a + zero).weight == a.weight).all()
    assert ((a + b).clients, (a + b).rounds) == (20, 4)
    with pytest.raises(InvariantError, match="different"):
        a + counts(1, 1, 1, clip=3.0)
    with pytest.raises(InvariantError, match="negative"):
        counts(-1, 0, 0)


@pytest.mark.parametrize("clip", [2.0, float("inf")])
def test_counts_come_back(clip: float, tmp_path: Path) -> None:
    path = tmp_path / "U.unigrams"
    write_unigrams(path, counts(1, 2.25, 0, clip=clip))
    back = read_unigram_counts(path)
    assert back.vocabulary == WORDS
    assert back.clip == clip
    assert back.frequency() == {"b": 2.25, "a": 1.0}
    assert read_unigrams(path) == {"b": 2.25, "a": 1.0}


def test_frequencies_from_text(tmp_path: Path) -> None:
    path = tmp_path / "u.tsv"
    path.write_text("the\t10\n\nNew York\t3\n")
    with pytest.raises(InputError, match=r":3: not a word and a count"):
        read_unigrams(path)
    path.write_text("the\t10\nof 2.5\n")
    assert read_unigrams(path) == {"the": 10.0, "of": 2.5}
    mistakes = {
        "a\t-1\n": ":1: the count is negative", "a\tinf\n": ":1: the count is .* not finite",
        "a\tnan\n": ":1: the count is .* not finite", "a\t1\na\t2\n": ":2: the word occurs twice", "\n": "no words",
    }  # fmt: skip
    for bad, message in mistakes.items():
        path.write_text(bad)
        with pytest.raises(InputError, match=message):
            read_unigrams(path)


def test_only_words_have_a_frequency() -> None:
    assert UnigramCounts(WORDS, np.array([9.0, 8.0, 7.0, 1.0, 0.0, 2.0]), 10, 2, 2.0).frequency() == {
        "c": 2.0,
        "a": 1.0,
    }


@pytest.mark.parametrize("mark", ["<s>", "</s>"])
def test_a_mark_inside_a_sentence_is_refused(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "text.txt"
    path.write_text(f"see you\nsee {mark} you\n")
    with pytest.raises(InputError, match=r":2: contains <s> or </s>"):
        read_corpus([path])


@given(st.lists(st.lists(st.text("abé'é", min_size=1, max_size=6), min_size=1, max_size=5), min_size=1, max_size=20))
def test_the_corpus_reader_is_pythons_split(sentences: list[list[str]]) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join("  ".join(s) for s in sentences))
        file.flush()
        read = read_corpus([file.name])
    assert [read.vocabulary.decode(row.tolist()) for row in read.sentences] == sentences
    frequency = [sum(s.count(w) for s in sentences) for w in read.vocabulary.words[3:]]
    assert frequency == sorted(frequency, reverse=True)


def test_chunks_and_growth_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text.txt"
    lines = [" ".join(f"word{(i * j) % 9000}" for j in range(1, 9)) for i in range(4000)]
    path.write_text("\ufeff" + "\n".join(lines))
    whole = read_corpus([path])
    monkeypatch.setattr(corpus, "CHUNK_BYTES", 1000)
    pieces = read_corpus([path])
    assert np.array_equal(whole.sentences.values, pieces.sentences.values)
    assert whole.vocabulary == pieces.vocabulary
    assert [whole.vocabulary.decode(row.tolist()) for row in whole.sentences] == [line.split() for line in lines]
    monkeypatch.setattr(corpus, "MAX_LINE_BYTES", 5000)
    path.write_text("a " * 5000)
    with pytest.raises(InputError, match="one sentence per line"):
        read_corpus([path])


def test_vocabulary_files(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\ufeffb\r\n\n<unk>\na\n")
    words = read_vocabulary(path)
    assert words.words == ("<unk>", "<s>", "</s>", "b", "a")
    assert words.encode(["a", "zzz"]) == [4, 0]
    assert words.digest != Vocabulary.of(["a", "b"]).digest
    path.write_bytes(b"caf\xe9\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_vocabulary(path)
    path.write_text("a\nb\na\n")
    with pytest.raises(InputError, match=r":3: the word of line 1 occurs again"):
        read_vocabulary(path)
    with pytest.raises(InvariantError, match="twice"):
        Vocabulary(("<unk>", "<s>", "</s>", "a", "a"))
    with pytest.raises(InvariantError, match="must be <unk>"):
        Vocabulary(("a", "<s>", "</s>"))
