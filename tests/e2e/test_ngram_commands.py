"""The `fedgram ngram` commands from end to end, and what they say to a user's mistakes."""

import gzip
import io
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgram.cli.main import run

Command = Callable[..., Any]
TEXT = "the cat sat\nthe dog sat\na cat ran\nthe cat ran home\n"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def model(corpus: Path, fedgram: Command) -> Path:
    path = corpus.parent / "model.arpa"
    fedgram("ngram", "train", corpus, "-o", path, "--order", 3, "--smoothing", "witten-bell")
    return path


@pytest.mark.parametrize("smoothing", ["katz", "witten-bell", "absolute", "kneser-ney", "modified-kneser-ney"])
@pytest.mark.parametrize("order", [1, 2, 7])
def test_train_and_score(corpus: Path, fedgram: Command, smoothing: str, order: int) -> None:
    out = corpus.parent / "m.ngram"
    trained = fedgram("ngram", "train", corpus, "-o", out, "--order", order, "--smoothing", smoothing, "--json")
    assert trained["sentences"] == 4
    assert trained["words"] == 13
    assert trained["ngrams_by_order"][0] == 8
    info = fedgram("ngram", "info", out, "--json")
    assert info["normalized"] is True
    assert info["normalization_error"] < 1e-9
    assert info["open_vocabulary"] is False
    score = fedgram("ngram", "perplexity", out, corpus, "--json")
    assert {"sentences", "words", "oov", "nats", "perplexity"} <= score.keys()
    assert 1.0 < score["perplexity"] < 10.0


def test_a_vocabulary_makes_everything_else_unknown(corpus: Path, fedgram: Command) -> None:
    vocab, out = corpus.parent / "vocab.txt", corpus.parent / "m.arpa"
    vocab.write_text("the\ncat\nbird\n")
    fedgram("ngram", "train", corpus, "-o", out, "--order", 2, "--vocab", vocab)
    info = fedgram("ngram", "info", out, "--json")
    assert info["ngrams_by_order"][0] == 5  # the, cat, bird, <unk>, </s>
    assert info["open_vocabulary"] is True
    assert fedgram("ngram", "perplexity", out, corpus, "--json")["oov"] == 7


def test_only_frequent_words_take_part_in_longer_ngrams(corpus: Path, fedgram: Command) -> None:
    out = corpus.parent / "m.arpa"
    fedgram("ngram", "train", corpus, "-o", out, "--order", 2, "--higher-order-words", 2)  # the, cat
    bigrams = {line.split("\t")[1] for line in out.read_text().split("\\2-grams:")[1].splitlines() if "\t" in line}
    assert bigrams == {"<s> the", "the cat"}
    assert fedgram("ngram", "info", out, "--json")["normalization_error"] < 1e-6


def test_min_count_and_budget(corpus: Path, fedgram: Command) -> None:
    out = corpus.parent / "m.arpa"
    fedgram("ngram", "train", corpus, "-o", out, "--order", 2, "--min-count", "1,2")
    assert fedgram("ngram", "info", out, "--json")["ngrams_by_order"] == [8, 4]
    result = fedgram("ngram", "train", corpus, "-o", out, "--order", 3, "--max-ngrams", 12, "--json")
    assert 8 <= result["ngrams"] <= 12


def test_prune_merge_replace_approximate_convert(model: Path, fedgram: Command) -> None:
    folder = model.parent
    pruned = fedgram("ngram", "prune", model, "-o", folder / "p.arpa", "--max-ngrams", 15, "--split-ties", "--json")
    assert pruned["ngrams"] == 15
    fedgram("ngram", "prune", model, "-o", folder / "t.arpa", "--theta", "1e9")
    assert fedgram("ngram", "info", folder / "t.arpa", "--json")["ngrams_by_order"] == [8]
    for method in ("linear", "bayes"):
        merged = fedgram(
            "ngram", "merge", model, folder / "p.arpa", "-o", folder / "m.arpa", "--method", method, "--json"
        )
        assert merged["ngrams"] == fedgram("ngram", "info", model, "--json")["ngrams"]
    (folder / "u.tsv").write_text("cat\t30\ndog\t10\nbird\t5\n")
    replaced = fedgram("ngram", "replace-unigrams", model, folder / "u.tsv", "-o", folder / "r.arpa", "--json")
    assert (replaced["unigrams_given"], replaced["words_added"]) == (3, 1)
    assert replaced["ngrams_by_order"][0] == 9
    exact = fedgram("ngram", "approximate", model, folder / "p.arpa", "-o", folder / "a.ngram", "--json")
    assert exact["words_left_out"] == 0
    (folder / "more.txt").write_text("zebra quagga\n")
    fedgram("ngram", "train", folder / "more.txt", "--order", 2, "-o", folder / "other.arpa")
    other = fedgram("ngram", "approximate", model, folder / "other.arpa", "-o", folder / "o.ngram", "--json")
    assert (other["words_left_out"], other["order"]) == (2, 1)
    sampled = fedgram(
        "ngram", "approximate", model, folder / "p.arpa", "-o", folder / "s.ngram", "--samples", 20000, "--json"
    )
    summed = fedgram(
        "ngram", "approximate", model, folder / "p.arpa", "-o", folder / "z.ngram", "--method", "summed", "--json"
    )
    assert 0 < exact["kl"] < summed["kl"]
    assert sampled["kl"] == pytest.approx(exact["kl"], rel=0.05)
    expected = fedgram("ngram", "perplexity", folder / "a.ngram", model, "--json")
    assert expected["kl"] == pytest.approx(exact["kl"], rel=1e-6)
    for suffix in (".arpa.gz", ".ngram", ".fst.txt"):
        fedgram("ngram", "convert", model, folder / f"c{suffix}")
    assert gzip.decompress((folder / "c.arpa.gz").read_bytes()) == model.read_bytes()


def test_samples_repeat_with_their_seed(model: Path, fedgram: Command) -> None:
    first = fedgram("ngram", "sample", model, "-n", 20, "--seed", 5)
    assert first == fedgram("ngram", "sample", model, "-n", 20, "--seed", 5)
    assert first != fedgram("ngram", "sample", model, "-n", 20, "--seed", 6)
    assert len(first.splitlines()) == 20
    assert set(first.split()) <= set(TEXT.split())
    listed = fedgram("ngram", "sample", model, "-n", 20, "--seed", 5, "--json")["sentences"]
    assert listed == first.splitlines()


def test_text_from_standard_input_and_gzip(
    model: Path, fedgram: Command, monkeypatch: pytest.MonkeyPatch, corpus: Path
) -> None:
    plain = fedgram("ngram", "perplexity", model, corpus, "--json")
    packed = corpus.parent / "text.txt.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    assert fedgram("ngram", "perplexity", model, packed, "--json") == plain
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert fedgram("ngram", "perplexity", model, "-", "--json") == plain


BAD_TEXT = {
    "empty": (b"", "contains no sentences; write one sentence per line"),
    "blank": (b"\n  \n\t\n", "contains no sentences"),
    "binary": (b"ab\0cd\n", ":1: is not text: it contains a NUL byte"),
    "latin-1": (b"fine\ncaf\xe9\n", ":2: is not UTF-8 text; convert it to UTF-8"),
    "marked": (b"fine\n<s> a b </s>\n", ":2: contains <s> or </s>, which counting adds"),
}


@pytest.mark.parametrize("name", BAD_TEXT)
def test_bad_text_is_refused(name: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    content, message = BAD_TEXT[name]
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    assert message in refused("ngram", "train", path, "-o", tmp_path / "m.arpa")
    assert [p.name for p in tmp_path.iterdir()] == ["text.txt"]


def test_bad_vocabularies_are_refused(corpus: Path, refused: Callable[..., str]) -> None:
    vocab, out = corpus.parent / "vocab.txt", corpus.parent / "m.arpa"
    for content, message in [
        ("", "vocab.txt: contains no words"),
        ("a\nb c\n", "vocab.txt:2: more than one word on a line"),
        ("a\nb\na\n", "vocab.txt:3: the word of line 1 occurs again; remove it"),
        ("bird\nfish\n", "the vocabulary covers no word of the corpus"),
    ]:
        vocab.write_text(content)
        assert message in refused("ngram", "train", corpus, "-o", out, "--vocab", vocab)
        assert not out.exists()


def test_mistakes_on_the_command_line(model: Path, corpus: Path, refused: Callable[..., str]) -> None:
    folder, out = model.parent, model.parent / "out.arpa"
    assert "no such file" in refused("ngram", "info", folder / "none.arpa")
    assert "no such file" in refused("ngram", "train", folder / "none.txt", "-o", out)
    assert "use one of .arpa" in refused("ngram", "train", corpus, "-o", folder / "m.txt")
    assert "its folder does not exist" in refused("ngram", "train", corpus, "-o", folder / "none" / "m.arpa")
    assert "is not a folder" in refused("ngram", "train", corpus, "-o", corpus / "m.arpa")
    assert "is a folder" in refused("ngram", "train", corpus, "-o", folder)
    assert "--max-ngrams or --theta" in refused("ngram", "prune", model, "-o", out)
    assert "vocabulary has 8 unigrams" in refused("ngram", "prune", model, "-o", out, "--max-ngrams", 3)
    assert "a list separated by commas, each a whole number at least 1" in refused(
        "ngram", "train", corpus, "-o", out, "--min-count", "1,x"
    )
    assert "--order" in refused("ngram", "train", corpus, "-o", out, "--order", 8)
    assert "No such option" in refused("ngram", "train", corpus, "-o", out, "--ordr", 3)
    assert "No such command" in refused("ngram", "trane")
    assert "must not fall with the order" in refused("ngram", "train", corpus, "-o", out, "--min-count", "2,1")
    assert "names 3 orders" in refused("ngram", "train", corpus, "-o", out, "--order", 2, "--min-count", "1,1,1")
    assert "goes with" in refused("ngram", "prune", model, "-o", out, "--theta", 0.1, "--split-ties")
    (folder / "u.tsv").write_text("cat thirty\n")
    assert "u.tsv:1: not a word and a count" in refused("ngram", "replace-unigrams", model, folder / "u.tsv", "-o", out)
    (folder / "fake.fst").write_bytes(b"not an automaton")
    assert "fake.fst: is not an OpenFst automaton" in refused("ngram", "info", folder / "fake.fst")
    (folder / "fake.ngram").write_bytes(b"\x10\0\0\0\0\0\0\0not an artefact!")
    assert "fake.ngram: is damaged or not a fedgram artefact" in refused("ngram", "info", folder / "fake.ngram")
    assert not out.exists()


def test_a_terminated_command_leaves_no_file_behind(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(f"w{(i * j * 7919) % 5000}" for j in range(20)) for i in range(40_000)))
    command = [
        sys.executable,
        "-m",
        "fedgram",
        "ngram",
        "train",
        str(text),
        "-o",
        str(tmp_path / "m.arpa"),
        "--order",
        "6",
    ]
    for seconds in (1.0, 2.0, 3.0):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(seconds)
        process.terminate()
        process.wait()
        assert {p.name for p in tmp_path.iterdir()} <= {"text.txt", "m.arpa"}


def test_a_closed_pipe_ends_quietly(model: Path) -> None:
    command = f"{sys.executable} -m fedgram ngram sample {model} -n 100000 | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_a_full_disk_is_one_line_and_leaves_nothing(
    corpus: Path, refused: Callable[..., str], monkeypatch: Any
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedgram.core.storage.os.fsync", full)
    line = refused("ngram", "train", corpus, "-o", corpus.parent / "m.arpa")
    assert "no space left on device; free some space" in line
    assert [p.name for p in corpus.parent.iterdir()] == ["text.txt"]


def test_scores_by_sentence_and_by_word(model: Path, corpus: Path, fedgram: Command) -> None:
    test = corpus.parent / "test.txt"
    test.write_text("the cat\n\nthe bird sat home\n")
    total = fedgram("ngram", "perplexity", model, test, "--json")
    rows = fedgram("ngram", "perplexity", model, test, "--per-sentence", "--json")["by_sentence"]
    assert [(row["sentence"], row["words"], row["oov"]) for row in rows] == [(1, 2, 0), (2, 4, 1)]
    assert sum(row["log10"] for row in rows) == pytest.approx(total["log10"])
    words = fedgram("ngram", "perplexity", model, test, "--per-word", "--json")["by_word"]
    assert [row["word"] for row in words] == ["the", "cat", "</s>", "the", "bird", "sat", "home", "</s>"]
    assert [row["ngram"] for row in words[:6]] == [2, 3, 1, 2, 0, 1]
    assert words[4]["log10"] is None  # the vocabulary is closed
    assert sum(row["log10"] or 0 for row in words) == pytest.approx(total["log10"])
    assert total["perplexity"] == total["perplexity_without_oov"]
    lines = fedgram("ngram", "perplexity", model, test, "--per-sentence").splitlines()
    assert lines[1].split("\t")[0] == "2"
    vocab, open_model = corpus.parent / "vocab.txt", corpus.parent / "open.arpa"
    vocab.write_text("the\ncat\nsat\n")
    fedgram("ngram", "train", corpus, "--vocab", vocab, "-o", open_model)
    scored = fedgram("ngram", "perplexity", open_model, test, "--json")
    by_word = fedgram("ngram", "perplexity", open_model, test, "--per-word", "--json")["by_word"]
    known = [row["log10"] for row in by_word if row["word"] not in ("bird", "home")]
    assert scored["perplexity_without_oov"] == pytest.approx(10 ** (-sum(known) / len(known)))
    assert scored["perplexity"] != pytest.approx(scored["perplexity_without_oov"])


def test_three_models_and_weights_from_text(corpus: Path, fedgram: Command, refused: Callable[..., str]) -> None:
    folder, names = corpus.parent, []
    for number, text in enumerate(("the cat sat\n", "a dog ran\n", "the dog ran home\n")):
        (folder / "part.txt").write_text(text * 3 + TEXT)
        names.append(folder / f"{number}.arpa")
        fedgram("ngram", "train", folder / "part.txt", "-o", names[-1])
    merge = ("ngram", "merge", *names, "-o", folder / "all.arpa")
    merged = fedgram(*merge, "--dev", corpus, "--json")
    assert sum(merged["weights"]) == pytest.approx(1)
    assert merged["dev_perplexity"] <= merged["dev_perplexity_equal_weights"]
    found = fedgram("ngram", "perplexity", folder / "all.arpa", corpus, "--json")["perplexity"]
    assert found == pytest.approx(merged["dev_perplexity"], rel=0.02)
    assert fedgram(*merge, "--weights", "2,1,1", "--json")["weights"] == [2, 1, 1]
    assert "give one of" in refused(*merge, "--weights", "2,1,1", "--dev", corpus)
    assert "numbers separated by commas" in refused(*merge, "--weights", "2,x")


def test_counts_and_packed_files_and_pipes(corpus: Path, fedgram: Command, capsys: pytest.CaptureFixture[str]) -> None:
    folder = corpus.parent
    fedgram("ngram", "train", corpus, "-o", folder / "direct.ngram")
    assert fedgram("ngram", "count", corpus, "-o", folder / "text.counts.zst", "--json")["sentences"] == 4
    fedgram("ngram", "train", "--counts", folder / "text.counts.zst", "-o", folder / "counted.lm")
    a, b = (fedgram("ngram", "perplexity", folder / name, corpus, "--json") for name in ("direct.ngram", "counted.lm"))
    assert a["nats"] == pytest.approx(b["nats"], rel=1e-5)
    packed = folder / "model.arpa.bz2"
    fedgram("ngram", "convert", folder / "direct.ngram", packed)
    packed.rename(folder / "misnamed.arpa")  # the content decides
    assert fedgram("ngram", "info", folder / "misnamed.arpa", "--json")["normalized"]
    assert run(["ngram", "train", str(corpus), "-o", "-", "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("\\data\\")
    assert json.loads(err)["model"] == "-"
    fedgram("ngram", "train", corpus, "-o", folder / "model", "--format", "ngram")
    assert (folder / "model").read_bytes() == (folder / "direct.ngram").read_bytes()


@pytest.mark.parametrize("format", ["arpa", "arpa.gz", "arpa.zst", "fst", "ngram"])
def test_models_through_pipes(model: Path, format: str) -> None:
    here = f"{shlex.quote(sys.executable)} -m fedgram ngram"
    line = f"{here} convert {model} - --format {format} | {here} info - --json"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["normalized"]


def test_words_to_keep_and_words_cut(corpus: Path, fedgram: Command, capsys: pytest.CaptureFixture[str]) -> None:
    keep, out = corpus.parent / "keep.txt", corpus.parent / "m.arpa"
    keep.write_text("the cat\nsat\n".replace(" ", "\n"))
    trained = fedgram("ngram", "train", corpus, "--limit-vocab", keep, "-o", out, "--json")
    assert trained["ngrams_by_order"][0] == 4
    assert fedgram("ngram", "info", out, "--json")["normalized"]
    fedgram("ngram", "train", corpus, "-o", out)
    converted = fedgram("ngram", "convert", out, corpus.parent / "k.arpa", "--limit-vocab", keep, "--json")
    assert converted["ngrams_by_order"] == trained["ngrams_by_order"]
    assert run(["ngram", "train", str(corpus), "-o", str(out), "--higher-order-words", "2"]) == 0
    assert "of 7 words, only the 2 most frequent are in n-grams of two and more" in capsys.readouterr().err
