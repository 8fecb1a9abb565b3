"""Exports for other keyboards, read back by independent readers."""

import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.aosp_dict import read_dict

from fedgram.automata.build import count_ngrams, ngrams_of
from fedgram.automata.model import NGramModel
from fedgram.automata.sampling import sample_sentences
from fedgram.automata.smoothing import smooth
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.formats.aosp import steps_above, write_combined, write_dict
from fedgram.formats.kenlm import write_kenlm
from fedgram.formats.models import write_model
from fedgram.formats.onboard import write_onboard
from fedgram.formats.presage import write_presage
from fedgram.formats.word_pairs import WordPairs, occurrences, word_pairs
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def model() -> NGramModel:
    sentences = [*SyntheticPopulation("pt_br", seed=2).clean_sentences(1500), ["d'água", "Łódź", "<url>", "a,b", "😀"]]
    names = Vocabulary.of(word for sentence in sentences for word in sentence)
    text = Ragged.from_rows([names.encode(sentence) for sentence in sentences])
    return smooth(count_ngrams(text, names, order=3), "modified-kneser-ney")


def test_occurrences_are_what_sampling_finds(model: NGramModel) -> None:
    expected = occurrences(model)
    drawn = sample_sentences(model, 20_000, seed=1)
    seen: Counter[tuple[int, ...]] = Counter()
    for sentence in drawn:
        marked = (1, *sentence.tolist(), 2)
        for n in (1, 2, 3):
            seen.update(marked[i : i + n] for i in range(len(marked) - n + 1))
    rows = ngrams_of(model.topology)
    often = np.argsort(-expected)[:300]
    found = np.array([seen[tuple(rows[i].tolist())] / 20_000 for i in often.tolist()])
    assert np.allclose(found, expected[often], rtol=0.25, atol=0.004)


def test_the_dictionary_reads_back(model: NGramModel, tmp_path: Path) -> None:
    pairs = word_pairs(model, bigrams=5)
    write_dict(pairs, tmp_path / "main.dict", locale="pt_BR", date=7)
    attributes, frequency, following = read_dict(tmp_path / "main.dict")
    assert attributes == {
        "dictionary": "main:pt_br", "locale": "pt_BR", "description": "fedgram", "date": "7", "version": "54",
    }  # fmt: skip
    assert frequency == {w: pairs.frequency(p) for w, p in zip(pairs.words, pairs.log_p.tolist(), strict=True)}
    assert {"d'água", "Łódź", "😀"} <= set(frequency)
    assert not {"<url>", "a,b", "</s>"} & set(frequency)
    for word, row in zip(pairs.words, pairs.following, strict=True):
        others = [(pairs.words[other], pairs.frequency(p)) for other, p in row]
        expected = [(other, steps_above(f, frequency[other])) for other, f in others]
        assert following.get(word, []) == expected
    assert max(map(len, following.values())) == 5
    assert frequency[pairs.words[0]] == max(frequency.values())


def test_large_dictionaries_have_far_addresses(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = sorted({"".join(rng.choice(list("abcdefgé"), rng.integers(1, 9))) for _ in range(20_000)})
    text = Ragged.from_rows(rng.integers(3, len(words) + 3, (9000, 8)).tolist())
    pairs = word_pairs(smooth(count_ngrams(text, Vocabulary.of(words), order=2), "witten-bell"), bigrams=10)
    write_dict(pairs, tmp_path / "main.dict", locale="en_US")
    _, frequency, following = read_dict(tmp_path / "main.dict")
    assert set(frequency) == set(words)
    assert sum(map(len, following.values())) == sum(map(len, pairs.following))
    assert (tmp_path / "main.dict").stat().st_size > 1 << 16
    with pytest.raises(FedgramError, match="no word"):
        write_dict(WordPairs((), np.zeros(0), ()), tmp_path / "x.dict", locale="en_US")


def test_the_combined_list_reads_back(model: NGramModel, tmp_path: Path) -> None:
    pairs = word_pairs(model, bigrams=3, words=100)
    write_combined(pairs, tmp_path / "list.combined", locale="pt_BR")
    head, *lines = (tmp_path / "list.combined").read_text().splitlines()
    assert head.startswith("dictionary=main:pt_br,locale=pt_BR,")
    words = [m.groups() for line in lines if (m := re.fullmatch(r" word=([^,=]+),f=(\d+)", line))]
    after = [line for line in lines if re.fullmatch(r"  bigram=[^,=]+,f=\d+", line)]
    assert len(words) == 100
    assert len(words) + len(after) == len(lines)
    frequencies = [int(f) for _, f in words]
    assert frequencies == sorted(frequencies, reverse=True)
    assert all(15 <= f <= 255 for f in frequencies)


def test_presage_and_onboard(model: NGramModel, tmp_path: Path) -> None:
    write_presage(model, tmp_path / "p.db")
    database = sqlite3.connect(tmp_path / "p.db")
    counts = dict(database.execute("SELECT word, count FROM _1_gram"))
    assert "d’água" in counts  # presage cannot read a plain apostrophe
    assert not any("'" in word for word in counts)
    assert not any(word.startswith("<") for word in counts)
    total = dict(database.execute("SELECT word_1, SUM(count) FROM _2_gram GROUP BY word_1"))
    assert all(total[word] <= 1.05 * counts[word] + 200 for word in total)
    assert database.execute("SELECT COUNT(*) FROM _2_gram WHERE word_1 = ?", ("d’água",)).fetchone()[0] == 1
    database.close()
    write_onboard(model, tmp_path / "o.lm")
    text = (tmp_path / "o.lm").read_text()
    declared = [int(n) for n in re.findall(r"^ngram \d=(\d+)$", text, re.MULTILINE)]
    for n, size in enumerate(declared, 1):
        section = text.split(f"\\{n}-grams:\n")[1].split("\n\n")[0].splitlines()
        assert len(section) == size
        assert all(len(line.split(" ")) == n + 1 and int(line.split(" ")[0]) >= 1 for line in section)
    unigrams = text.split("\\1-grams:\n")[1].split("\n\n")[0].splitlines()
    assert {"<unk>", "<s>", "</s>"} <= {line.split(" ")[1] for line in unigrams}


def test_kenlm_is_built_by_kenlm(model: NGramModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FedgramError, match="not on the PATH"):
        write_kenlm(model, tmp_path / "m.binary")
    with pytest.raises(FedgramError, match="none is not there; --build-binary takes"):
        write_kenlm(model, tmp_path / "m.binary", builder=str(tmp_path / "none"))
    with pytest.raises(FedgramError, match=r"libime_slm_build_binary is not on the PATH; .*apt install libime-bin"):
        write_kenlm(model, tmp_path / "m.binary", builder="libime_slm_build_binary")
    with pytest.raises(FedgramError, match=r"kenlm_build is not on the PATH; docs/exports\.md says how to get it"):
        write_kenlm(model, tmp_path / "m.binary", builder="kenlm_build")
    (tmp_path / "text").touch()
    with pytest.raises(FedgramError, match="text is not a program that can be run"):
        write_kenlm(model, tmp_path / "m.binary", builder=str(tmp_path / "text"))
    builder = tmp_path / "build_binary"
    builder.write_text('#!/bin/sh\nfor last; do :; done\necho "$1" > "$last"\n')
    builder.chmod(0o755)
    write_kenlm(model, tmp_path / "m.binary", structure="trie", builder=str(builder))
    assert (tmp_path / "m.binary").read_text() == "-a\n"
    builder.write_text("#!/bin/sh\necho no such thing >&2\nexit 1\n")
    with pytest.raises(FedgramError, match="no such thing"):
        write_kenlm(model, tmp_path / "x.binary", builder=str(builder))
    assert not (tmp_path / "x.binary").exists()


def test_the_command(
    model: NGramModel, fedgram: Callable[..., Any], refused: Callable[..., str], tmp_path: Path
) -> None:
    write_model(model, tmp_path / "m.ngram")
    for target, suffix in (("arpa", "arpa"), ("aosp-dict", "dict"), ("aosp-combined", "combined"), ("presage", "db")):
        out = tmp_path / f"out.{suffix}"
        made = fedgram("phone", "export", tmp_path / "m.ngram", "--to", target, "-o", out, "--json")
        assert made["bytes"] == out.stat().st_size
    dictionary = ("--to", "aosp-dict", "-o", tmp_path / "x", "--locale", "a,b")
    assert "the locale 'a,b' is not" in refused("phone", "export", tmp_path / "m.ngram", *dictionary)
