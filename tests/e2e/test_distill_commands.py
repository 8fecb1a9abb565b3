"""`fedgram distill` and `fedgram workflow` from end to end, with n-gram models as their sources."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.distill.casing.test_capitalization import SENTENCES

from fedgram.cli.main import run
from fedgram.distill.nn2wfa import WordNN2WFA
from fedgram.formats.models import read_model

Command = Callable[..., Any]
FEW = ["--samples", 3000, "--infer-samples", 2000, "--order", 3, "--seed", 3]


@pytest.fixture
def folder(tmp_path: Path, fedgram: Command) -> Path:
    """A cased model, an uncased one, and one of word pieces, of eight sentences."""
    pytest.importorskip("sentencepiece")
    cased, lower = tmp_path / "cased.txt", tmp_path / "lower.txt"
    cased.write_text("\n".join(SENTENCES) + "\n")
    lower.write_text("\n".join(SENTENCES).lower() + "\n")
    words = Counter(lower.read_text().split())
    (tmp_path / "U.tsv").write_text("".join(f"{w}\t{n}\n" for w, n in words.items()) + "zebra\t3\n")
    fedgram("ngram", "train", cased, "-o", tmp_path / "A_W.arpa")
    fedgram("ngram", "train", lower, "-o", tmp_path / "R_W.arpa", "--smoothing", "witten-bell")
    fedgram(
        "network", "pieces", "train", "--unigrams", tmp_path / "U.tsv", "--size", 32, "-o", tmp_path / "pieces.model"
    )
    encoded = fedgram("network", "pieces", "encode", tmp_path / "pieces.model", lower)
    (tmp_path / "pieces.txt").write_text(encoded)
    fedgram(
        "ngram",
        "train",
        tmp_path / "pieces.txt",
        "-o",
        tmp_path / "R_P.arpa",
        "--order",
        5,
        "--smoothing",
        "witten-bell",
    )
    return tmp_path


def test_distill_words(folder: Path, fedgram: Command) -> None:
    out = folder / "out.arpa"
    base = ["distill", "model", folder / "R_W.arpa", *FEW, "-o", out, "--json"]
    result = fedgram(*base, "--topology", folder / "R_W.arpa", "--workers", 2)
    assert {"samples", "positions", "kl_before", "kl_after", "ngrams_by_order", "unvisited_states"} <= result.keys()
    assert {"reading", "topology", "counting", "minimizing", "writing"} == result["seconds"].keys()
    assert 0 <= result["kl_after"] < 0.05
    assert result["kl_after"] < result["kl_before"]
    once = out.read_bytes()
    fedgram(*base, "--topology", folder / "R_W.arpa", "--workers", 1)
    assert out.read_bytes() == once
    inferred = fedgram(*base, "--topology", "infer", "--max-ngrams", 60)
    assert inferred["ngrams"] <= 60
    small = fedgram(*base, "--topology", folder / "R_W.arpa", "--max-ngrams", 50)
    assert small["ngrams"] <= 50


def test_what_the_source_needs_least_is_dropped_after_counting(folder: Path, fedgram: Command) -> None:
    """Two topologies counted in one are better than either, pruned before."""
    base = ["distill", "model", folder / "R_W.arpa", *FEW, "-o", folder / "out.arpa", "--json"]
    fedgram("ngram", "train", folder / "lower.txt", "-o", folder / "B.arpa", "--order", 2)
    both = ["--topology", folder / "B.arpa", "--topology", "infer"]
    wide = fedgram(*base, *both)
    few = ["--max-ngrams", 50]
    after = fedgram(*base, *both, *few, "--room", 50)
    before = [fedgram(*base, *both[k : k + 2], *few) for k in (0, 2)]
    assert after["ngrams"] <= few[1]
    assert wide["kl_after"] < after["kl_after"] < min(result["kl_after"] for result in before)


def test_distill_with_capitals(folder: Path, fedgram: Command) -> None:
    out = folder / "out.arpa"
    first, second = ["--topology", folder / "A_W.arpa"], ["--topology", "infer"]
    for topology in (first, second, first + second):
        casing = ["--casing", folder / "A_W.arpa"]
        result = fedgram("distill", "model", folder / "R_W.arpa", *topology, *casing, *FEW, "-o", out, "--json")
        assert result["cross_entropy_after"] <= result["cross_entropy_before"]
        assert {"York", "new", "New"} <= set(read_model(out).vocabulary.words)


def test_distill_word_pieces(folder: Path, fedgram: Command) -> None:
    out, pieces = folder / "out.arpa", ["--pieces", folder / "pieces.model"]
    base = ["distill", "model", folder / "R_P.arpa", *pieces, *FEW, "-o", out, "--json"]
    fedgram(*base, "--topology", folder / "R_W.arpa")
    uncased = fedgram("ngram", "perplexity", out, folder / "lower.txt", "--json")
    assert uncased["perplexity"] < 15
    fedgram(*base, "--topology", folder / "A_W.arpa", "--casing", folder / "A_W.arpa")
    cased = fedgram("ngram", "perplexity", out, folder / "cased.txt", "--json")
    assert cased["perplexity"] < 15


def test_word_pieces_infer_a_topology_of_words(folder: Path, fedgram: Command) -> None:
    out, pieces = folder / "out.arpa", ["--pieces", folder / "pieces.model"]
    base = ["distill", "model", folder / "R_P.arpa", *pieces, *FEW, "-o", out, "--json"]
    inferred = fedgram(*base, "--topology", "infer", "--max-ngrams", 80)
    assert 60 <= inferred["ngrams"] <= 80
    assert fedgram("ngram", "perplexity", out, folder / "lower.txt", "--json")["perplexity"] < 15
    fedgram(*base, "--topology", "infer", "--casing", folder / "A_W.arpa")
    assert {"York", "new", "New"} <= set(read_model(out).vocabulary.words)
    assert fedgram("ngram", "perplexity", out, folder / "cased.txt", "--json")["perplexity"] < 15
    both = fedgram(*base, "--topology", "infer", "--topology", folder / "R_W.arpa")
    assert both["ngrams"] >= fedgram(*base, "--topology", folder / "R_W.arpa")["ngrams"]


def test_people_are_warned_of_what_was_not_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of n-grams that no sample visited, and of words that the source cannot spell."""
    (folder / "other.txt").write_text("she saw the жук in old london\nhouse house film is new\n" * 3)
    assert run(["ngram", "train", str(folder / "other.txt"), "-o", str(folder / "B.arpa")]) == 0
    command = ["distill", "model", folder / "R_P.arpa", "--pieces", folder / "pieces.model", "-o", folder / "out.arpa"]
    command += ["--topology", folder / "B.arpa", "--samples"]
    for samples, warned in ((1, True), (20_000, False)):
        capsys.readouterr()
        assert run([str(word) for word in [*command, samples]]) == 0
        lines = capsys.readouterr().err.splitlines()
        assert sum("1 of the topology's words cannot be spelled" in line for line in lines) == 1
        assert all(line.startswith("fedgram: warning: ") for line in lines)
        assert any("n-grams were never visited by a sample" in line for line in lines) == warned
    model = read_model(folder / "out.arpa")
    assert "жук" not in model.vocabulary.words
    assert model.log_weight.min() > -20


def test_an_interrupted_distillation_goes_on(folder: Path, fedgram: Command, refused: Command) -> None:
    out, counts = folder / "out.arpa", folder / "counts"
    base = ["distill", "model", folder / "R_W.arpa", "--topology", folder / "R_W.arpa", "-o", out, "--json"]
    fedgram(*base, "--samples", 1000, "--counts", counts)
    first = counts.read_bytes()
    fedgram(*base, "--samples", 3000, "--counts", counts)
    resumed = out.read_bytes()
    assert counts.read_bytes() != first
    fedgram(*base, "--samples", 3000)
    assert out.read_bytes() == resumed
    assert "source, topology or seed" in refused(*base, "--samples", 3000, "--counts", counts, "--seed", 9)
    counts.write_bytes(counts.read_bytes()[:-9])
    assert "damaged" in refused(*base, "--samples", 3000, "--counts", counts)


def test_what_cannot_be_distilled_is_refused(folder: Path, refused: Command) -> None:
    base = ["-o", folder / "out.arpa", *FEW]
    topology = ["--topology", folder / "A_W.arpa"]
    assert "no such file" in refused("distill", "model", "R.safetensors", *topology, *base)
    assert "config.json is missing" in refused("distill", "model", "hf:model", *topology, *base)
    assert "not the name of a source" in refused("distill", "model", "R.txt", *topology, *base)
    assert "is not a model format" in refused("distill", "model", folder / "R_W.arpa", "--topology", "A.txt", *base)
    assert ", .ngram, or infer" in refused("distill", "model", folder / "R_W.arpa", "--topology", "infr", *base)
    pieces = ["--pieces", folder / "pieces.model"]
    assert "not word pieces" in refused("distill", "model", folder / "R_W.arpa", *topology, *pieces, *base)
    casing = ["--casing", folder / "A_W.arpa"]
    assert "capitals" in refused("distill", "model", folder / "A_W.arpa", *topology, *casing, *base)
    assert "go together" in refused(
        "distill",
        "workflow",
        "--words",
        folder / "R_W.arpa",
        "--external",
        folder / "A_W.arpa",
        *pieces,
        "-o",
        folder / "run",
    )
    assert "not a folder" in refused(
        "distill",
        "workflow",
        "--words",
        folder / "R_W.arpa",
        "--external",
        folder / "A_W.arpa",
        "-o",
        folder / "A_W.arpa",
    )


def test_workflow(folder: Path, fedgram: Command) -> None:
    out = folder / "run"
    report = fedgram(
        "distill", "workflow", "--words", folder / "R_W.arpa", "--pieces-model", folder / "R_P.arpa", "--pieces",
        folder / "pieces.model", "--external", folder / "A_W.arpa", "--unigrams", folder / "U.tsv", *FEW,
        "--max-ngrams", 150, "-o", out, "--json",
    )  # fmt: skip
    assert all("n-grams were never visited" in warning for warning in report["warnings"])
    names = [f"A_{by}_{letter}" for by in "WP" for letter in "eimr"]
    finals = ["final_replaced", "final_interpolated", "final_tail"]
    assert list(report["models"]) == names + finals
    assert json.loads((out / "workflow.json").read_text())["models"] == report["models"]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [*(f"{name}.arpa" for name in names + finals), "workflow.json"]
    )
    for name in names + finals:
        about = fedgram("ngram", "info", out / f"{name}.arpa", "--json")
        assert about["ngrams"] <= 150
        assert about["normalized"]
        cased = fedgram("ngram", "perplexity", out / f"{name}.arpa", folder / "cased.txt", "--json")
        assert cased["perplexity"] < 25, name
    assert "zebra" in read_model(out / "final_tail.arpa").vocabulary.words


def test_workflow_without_capitals_first_and_with_a_given_topology(folder: Path, fedgram: Command) -> None:
    report = fedgram(
        "distill", "workflow", "--words", folder / "R_W.arpa", "--external", folder / "A_W.arpa", "--inferred",
        folder / "A_W.arpa", "--uncased-first", *FEW, "-o", folder / "uncased", "--json",
    )  # fmt: skip
    sizes = {name: about["ngrams"] for name, about in report["models"].items()}
    assert list(sizes) == ["A_W_e", "A_W_i", "A_W_m", "A_W_r"]
    assert sizes["A_W_e"] == sizes["A_W_i"]  # both have the topology of A_W


def test_an_interrupted_workflow_keeps_its_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "run"
    sources = ("--words", folder / "R_W.arpa", "--external", folder / "A_W.arpa")
    command = ["distill", "workflow", *sources, *FEW, "-o", out]
    words = [str(word) for word in command]

    def count_and_stop(nn2wfa: WordNN2WFA, *_: object) -> None:
        assert nn2wfa.counts
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedgram.distill.distillation.generate", count_and_stop)
        assert run(words) == 130
    assert [path.name for path in out.iterdir()] == ["counts_W"]
    assert run(words) == 0
    assert not (out / "counts_W").exists()
    capsys.readouterr()
