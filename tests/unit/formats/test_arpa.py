"""ARPA files: conventions of other programs, gaps, and mistakes, which are refused with their lines."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.dict_model import DictModel
from tests.reference.random_models import random_model, random_sentences

from fedgram.automata.properties import model_faults
from fedgram.automata.scoring import sentence_log_probs
from fedgram.core.arrays import Ragged
from fedgram.core.errors import InputError
from fedgram.formats.arpa import read_arpa, write_arpa
from fedgram.formats.decimal import parse_number, write_number
from fedgram.formats.models import read_model, write_model

GOOD = """\
\\data\\
ngram 1=5
ngram 2=4
ngram 3=1

\\1-grams:
-0.6	<unk>
-99	<s>	-0.3
-0.7	</s>
-0.4	a	-0.2
-0.9	b	-0.1

\\2-grams:
-0.2	<s> a	-0.05
-0.3	a b
-0.5	a </s>
-0.4	b a

\\3-grams:
-0.1	<s> a b

\\end\\
"""


def prob(path: Path, history: list[str], word: str) -> float:
    model = read_arpa(path)
    words = model.vocabulary
    return float(np.log10(DictModel(model).prob(tuple(words.encode(history)), words[word])))


@pytest.fixture
def arpa(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "model.arpa"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        return path

    return write


def test_a_file_one_can_check_by_hand(arpa: Callable[[str], Path]) -> None:
    path = arpa(GOOD)
    assert prob(path, ["<s>"], "a") == pytest.approx(-0.2)
    assert prob(path, ["<s>", "a"], "b") == pytest.approx(-0.1)
    assert prob(path, ["b", "a"], "b") == pytest.approx(-0.3)
    assert prob(path, ["a", "b"], "b") == pytest.approx(-0.1 - 0.9)
    assert prob(path, ["<s>"], "b") == pytest.approx(-0.3 - 0.9)
    assert prob(path, ["<s>", "a"], "a") == pytest.approx(-0.05 - 0.2 - 0.4)
    assert prob(path, ["zzz"], "zzz") == pytest.approx(-0.6)


@pytest.mark.parametrize(
    "habit",
    [
        lambda t: "# made by a program\n\n" + t,
        lambda t: t.replace("\t", " "),
        lambda t: t.replace("\n", "\r\n"),
        lambda t: t.replace("-99\t<s>", "0\t<s>"),  # KenLM
        lambda t: t.replace("-99\t<s>", "-inf\t<s>"),
        lambda t: t.replace("-0.3\ta b", "-3.0e-1\ta b\t0"),  # KenLM writes backoff weights of 0
        lambda t: t.replace("ngram 1=5", "ngram  1 = 5"),
        lambda t: t.removesuffix("\n") + "\ntrailing words\n",
        lambda t: t.replace("\n\\2-grams", "\\2-grams"),
        lambda t: t.replace("<unk>", "<UNK>"),
    ],
)
def test_other_programs_habits_are_read(habit: Callable[[str], str], arpa: Callable[[str], Path]) -> None:
    path = arpa(habit(GOOD))
    assert prob(path, ["<s>", "a"], "b") == pytest.approx(-0.1)
    assert prob(path, ["a"], "b") == pytest.approx(-0.3)
    assert prob(path, ["b"], "b") == pytest.approx(-1.0)


def test_order_in_the_file_does_not_matter(arpa: Callable[[str], Path], tmp_path: Path) -> None:
    lines = GOOD.split("\n")
    for title, count in (("\\1-grams:", 5), ("\\2-grams:", 4)):
        at = lines.index(title) + 1
        lines[at : at + count] = lines[at : at + count][::-1]
    write_arpa(read_arpa(arpa("\n".join(lines))), tmp_path / "again.arpa")
    assert prob(tmp_path / "again.arpa", ["<s>", "a"], "b") == pytest.approx(-0.1)


def test_gaps_are_filled_without_changing_a_probability(arpa: Callable[[str], Path]) -> None:
    unclosed = GOOD.replace("ngram 2=4", "ngram 2=2").replace("-0.2\t<s> a\t-0.05\n", "").replace("-0.3\ta b\n", "")
    path = arpa(unclosed)
    assert prob(path, ["<s>", "a"], "b") == pytest.approx(-0.1)
    assert prob(path, ["<s>"], "a") == pytest.approx(-0.3 - 0.4)
    assert prob(path, ["a"], "b") == pytest.approx(-0.2 - 0.9)
    assert {"T1", "T2", "T3", "T4", "T5", "T6"}.isdisjoint(model_faults(read_arpa(path)))


def test_ngrams_across_sentences_are_left_out(arpa: Callable[[str], Path]) -> None:
    """IRSTLM writes them; no sentence uses them."""
    for crossing in ("b <s>", "</s> a", "</s> <s>"):
        path = arpa(GOOD.replace("b a", crossing))
        assert read_arpa(path).topology.arcs_by_order() == [4, 3, 1]
        assert prob(path, ["<s>", "a"], "b") == pytest.approx(-0.1)


def test_a_context_that_nothing_continues_keeps_its_backoff(arpa: Callable[[str], Path]) -> None:
    path = arpa(GOOD.replace("-0.4\tb a", "-0.4\tb a\t-0.25"))
    assert prob(path, ["b", "a"], "b") == pytest.approx(-0.25 - 0.3)


MISTAKES: list[tuple[str, Callable[[str], str], str]] = [
    ("empty", lambda _: "", r"no \\data\\ line"),
    ("binary", lambda t: t[:40] + "\0\x01" + t[40:], "NUL byte"),
    ("not utf-8", lambda t: t.replace("b a", "b \udcff"), ":17: is not UTF-8"),
    ("truncated in a section", lambda t: t[: t.index("\\3-grams")], "ends before"),
    ("truncated before the end", lambda t: t[: t.index("\\end")], r"ends before \\end\\"),
    ("too many", lambda t: t.replace("ngram 2=4", "ngram 2=3"), ":17: more n-grams than the header declares"),
    ("too few", lambda t: t.replace("ngram 2=4", "ngram 2=9"), "declares 9 2-grams, but there are only 4"),
    ("absurd header", lambda t: t.replace("ngram 3=1", "ngram 3=999999999999"), "than the file can contain"),
    ("header gap", lambda t: t.replace("ngram 2=4\n", ""), ":3: the header has 3-grams where 2-grams should be"),
    ("no unigrams", lambda t: t.replace("ngram 1=5", "ngram 1=0"), "no unigrams"),
    ("duplicate unigram", lambda t: t.replace("-0.9\tb", "-0.9\ta"), ":11: the unigram occurs twice"),
    ("duplicate <s>", lambda t: t.replace("-0.6\t<unk>", "-0.6\t<s>"), ":8: the unigram occurs twice"),
    ("duplicate bigram", lambda t: t.replace("b a", "a b"), ":17: the n-gram occurs twice"),
    ("NaN", lambda t: t.replace("-0.3\ta b", "nan\ta b"), ":15: the probability is not a number"),
    ("word for a number", lambda t: t.replace("-0.3\ta b", "a b\t-0.3"), ":15: the probability is not a number"),
    ("bad backoff", lambda t: t.replace("<s> a\t-0.05", "<s> a\t-0.0.5"), ":14: the backoff weight is not"),
    ("huge backoff", lambda t: t.replace("<s> a\t-0.05", "<s> a\t10000"), ":14: the backoff weight is not"),
    ("tiny backoff", lambda t: t.replace("<s> a\t-0.05", "<s> a\t-10000"), ":14: the backoff weight is not"),
    ("positive", lambda t: t.replace("-0.3\ta b", "0.3\ta b"), ":15: the log-probability is greater than 0"),
    ("unknown word", lambda t: t.replace("b a", "b c"), ":17: the word is not among the unigrams"),
    ("missing word", lambda t: t.replace("-0.4\tb a", "-0.4\tb"), ":17: a word is missing"),
    ("extra column", lambda t: t.replace("-0.4\tb a", "-0.4\tb a -1 -1"), ":17: too many columns"),
    ("no end", lambda t: t.replace("-0.7\t</s>", "-0.7\tc").replace("a </s>", "a c"), "sentences would never end"),
    ("order 8", lambda t: t.replace("ngram 3=1", "\n".join(f"ngram {n}=1" for n in range(3, 9))), "maximum is 7"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mistake", "message"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_mistakes_are_named_with_their_line(
    name: str, mistake: Callable[[str], str], message: str, arpa: Callable[[str], Path], refused: Callable[..., str]
) -> None:
    path = arpa(mistake(GOOD))
    with pytest.raises(InputError, match=message):
        read_arpa(path)
    line = refused("ngram", "convert", path, path.parent / "out.ngram")
    assert line.startswith(str(path)), name
    assert [p.name for p in path.parent.iterdir()] == ["model.arpa"]


def test_every_prefix_of_a_file_is_refused(arpa: Callable[[str], Path]) -> None:
    for cut in range(0, len(GOOD) - len("\\end\\\n"), 3):
        with pytest.raises(InputError):
            read_arpa(arpa(GOOD[:cut]))


def test_a_cut_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa.gz"
    path.write_bytes(gzip.compress(GOOD.encode())[:-20])
    with pytest.raises(InputError, match="gzip"):
        read_arpa(path)
    path.write_text(GOOD)  # the content decides, not the name
    read_arpa(path)


@pytest.mark.parametrize("suffix", [".arpa", ".arpa.gz", ".ngram"])
def test_models_come_back(suffix: str, tmp_path: Path) -> None:
    for seed in range(12):
        model = random_model(np.random.default_rng(seed), order=1 + seed % 7)
        path = tmp_path / f"model{suffix}"
        write_model(model, path)
        back = read_model(path)
        sentences = random_sentences(np.random.default_rng(seed), words=6, sentences=30)
        ids = np.array(back.vocabulary.encode(model.vocabulary.decode(sentences.values)), np.int32)
        ours, theirs = sentence_log_probs(model, sentences), sentence_log_probs(back, Ragged(ids, sentences.offsets))
        if suffix == ".ngram":
            assert np.array_equal(ours, theirs)
        assert theirs == pytest.approx(ours, abs=1e-5)
        again = path.read_bytes()
        write_model(model, path)
        assert path.read_bytes() == again


@pytest.mark.parametrize("value", [0.0, -1.0, -99.0, -0.5, -1.2345678, 3.25, -0.0000001, 123456.789])
def test_numbers_are_written_and_read(value: float) -> None:
    out = np.zeros(32, np.uint8)
    size = write_number(value, out, 0)
    assert float(out[:size].tobytes()) == pytest.approx(value, abs=1e-9)
    assert parse_number(out, 0, size) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e3", 1000.0), ("-2.5E-2", -0.025), ("+.5", 0.5), ("7.", 7.0), ("-inf", -99.0), ("1e-400", 0.0)]
    + [(bad, None) for bad in ("", "-", ".", "e5", "1e", "1.2.3", "0x1", "nan", "inf", "1,5", "--1")],
)
def test_numbers_of_all_kinds(text: str, value: Any) -> None:
    raw = np.frombuffer(text.encode() or b" ", np.uint8)
    parsed = parse_number(raw, 0, len(text))
    assert np.isnan(parsed) if value is None else parsed == pytest.approx(value)
